"""Matrix products without a grid for the result: as QDQ, as MatMulIntegerToFloat, as QLinearMatMul."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, integers, zero_points
from tests.rules.quantized.cases.to_qlinear import KINDS, X_SCALE, output_scale, weight_grid

MICROSOFT = "com.microsoft"
SHAPES = ((7, 12), (2, 3, 12), (2, 1, 3, 12))


def product(
    net: Net, rng: np.random.Generator, kind: Any, per_channel: bool, shape: tuple[int, ...]
) -> tuple[str, np.ndarray, np.ndarray]:
    """A MatMul of DQ nodes: its output, the integers it wants, and the step of its accumulator."""
    act, wt = kind
    scale, zero = weight_grid(rng, wt, 10, per_channel)
    left = net.dequantize("a", X_SCALE, rng.choice(zero_points(act)))
    right = net.dequantize(integers(rng, wt, (12, 10)), scale, zero, axis=1)
    return net.op("MatMul", left, right), integers(rng, act, shape), np.asarray(X_SCALE * scale)


def matmul_to_float(rng: np.random.Generator) -> Iterator[Case]:
    for kind, per_channel, shape in itertools.product(KINDS, (True, False), SHAPES):
        net = Net()
        result, a, steps = product(net, rng, kind, per_channel, shape)
        yield Case(f"{kind} {per_channel} {shape}", net.model({"a": a}, result), [{"a": a}], step=float(steps.max()))


def integer_to_float(rng: np.random.Generator) -> Iterator[Case]:
    """Scales that are computed, as dynamic quantization has them, in either order, or one constant for both."""
    kinds = itertools.cycle(("computed", "turned", "constant", "absent"))
    for (act, wt), per_channel, shape, is_first in itertools.product(KINDS, (True, False), SHAPES, (True, False)):
        net, a, kind = Net(), integers(rng, act, shape), next(kinds)
        scale, zero = weight_grid(rng, wt, 10, per_channel)
        zeros = (None, None) if kind == "absent" else ("z", zero)
        sums = net.op("MatMulInteger", "a", integers(rng, wt, (12, 10)), *zeros)
        both = ("s", scale) if kind == "computed" else (scale, "s")
        factor = (X_SCALE * scale).reshape(1, -1) if kind == "constant" else net.op("Mul", *both)
        real = net.op("Cast", sums, to=1)
        result = net.op("Mul", *((real, factor) if is_first else (factor, real)))
        feeds = {
            "a": a,
            "s": rng.uniform(1e-4, 9, ()).astype(np.float32),
            "z": np.asarray(rng.choice(zero_points(act))),
        }
        yield Case(f"{act.__name__} {wt.__name__} {per_channel} {shape} {kind}", net.model(feeds, result), [feeds])


def add_to_float(rng: np.random.Generator) -> Iterator[Case]:
    for (act, wt), per_channel, shape in itertools.product(KINDS, (True, False), SHAPES):
        net, a = Net(), integers(rng, act, shape)
        scale, zero = weight_grid(rng, wt, 10, per_channel)
        grids = X_SCALE, scale, rng.choice(zero_points(act)), zero
        product = net.op("MatMulIntegerToFloat", "a", integers(rng, wt, (12, 10)), *grids, _domain=MICROSOFT)
        result = net.op("Add", product, rng.normal(0, 2, (1, 10) if per_channel else 10).astype(np.float32))
        step = float((X_SCALE * scale).max())
        yield Case(f"{act.__name__} {wt.__name__} {shape}", net.model({"a": a}, result), [{"a": a}], step=step)


def qlinear_matmul(rng: np.random.Generator) -> Iterator[Case]:
    for (act, wt), per_channel, shape in itertools.product((*KINDS, (np.int8, np.uint8)), (True, False), SHAPES):
        net, a = Net(), integers(rng, act, shape)
        scale, zero = weight_grid(rng, wt, 10, per_channel)
        grid = output_scale(rng, X_SCALE * scale, 12), rng.choice(zero_points(act))
        b = integers(rng, wt, (12, 10))
        y = net.op("QLinearMatMul", "a", X_SCALE, rng.choice(zero_points(act)), b, scale, zero, *grid)
        yield Case(f"{act.__name__} {wt.__name__} {per_channel} {shape}", net.model({"a": a}, y), [{"a": a}])


CASES: dict[str, Generator] = {
    "mat_mul_to_float": matmul_to_float,
    "mat_mul_integer_to_float": integer_to_float,
    "add_to_mat_mul_to_float": add_to_float,
    "qlinear_matmul_to_integer": qlinear_matmul,
}
