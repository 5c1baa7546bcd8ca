"""Matrix products with a bias between Q/DQ nodes, with a grid in between and without."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, integers, zero_points
from tests.rules.quantized.cases.matmul_integer import SHAPES, product
from tests.rules.quantized.cases.qgemm import reach
from tests.rules.quantized.cases.to_qlinear import KINDS, X_SCALE, add_bias, output_scale, weight_grid


def fully_connected(rng: np.random.Generator) -> Iterator[Case]:
    ratios = itertools.cycle((0.6, 1.0, 1.7))
    for (act, wt), per_channel in itertools.product(KINDS, (True, False)):
        middle = act((np.iinfo(act).min + np.iinfo(act).max + 1) // 2)
        scale, zero = weight_grid(rng, wt, 10, per_channel)
        b, a_zero, a = integers(rng, wt, (12, 10)), rng.choice(zero_points(act)), integers(rng, act, (7, 12))
        mid_scale = np.float32(reach(act, a_zero, b, zero, np.asarray(X_SCALE * scale)) / 127)
        net, grid = Net(), (mid_scale, middle)
        real = net.op("MatMul", net.dequantize("a", X_SCALE, a_zero), net.dequantize(b, scale, zero, axis=1))
        again = net.dequantize(net.quantize(real, *grid), *grid)
        added = net.dequantize(integers(rng, act, (10,)), np.float32(mid_scale * 0.3), middle)
        y = net.quantize(net.op("Add", again, added), np.float32(mid_scale / next(ratios)), middle)
        yield Case(f"{act.__name__} {wt.__name__} {per_channel}", net.model({"a": a}, y), [{"a": a}])
        net = Net()
        real = net.op("MatMul", net.dequantize("a", X_SCALE, a_zero), net.dequantize(b, scale, zero, axis=1))
        bias = (rng.normal(0, 20, 10) * mid_scale).astype(np.float32)
        y = net.quantize(net.op("Add", real, bias), np.float32(mid_scale / next(ratios)), middle)
        yield Case(f"{act.__name__} {wt.__name__} {per_channel} at once", net.model({"a": a}, y), [{"a": a}])


def stacked(rng: np.random.Generator) -> Iterator[Case]:
    for (act, wt), per_channel, shape in itertools.product(KINDS, (True, False), SHAPES[1:]):
        net, bias = Net(), "float" if per_channel else "int32"
        real, a, steps = product(net, rng, (act, wt), per_channel, shape)
        result = net.op("Add", real, add_bias(net, rng, bias, steps, 10))
        y = net.quantize(result, output_scale(rng, steps, 12), rng.choice(zero_points(act)))
        yield Case(f"{act.__name__} {wt.__name__} {bias} {shape}", net.model({"a": a}, y), [{"a": a}])


CASES: dict[str, Generator] = {
    "mat_mul_to_fully_connected": fully_connected,
    "stack_to_fully_connected": stacked,
}
