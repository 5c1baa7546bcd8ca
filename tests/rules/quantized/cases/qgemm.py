"""Matrix products of integers with constants behind them: as QLinear operators, and as QDQ."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, integers, zero_points
from tests.rules.quantized.cases.matmul_integer import MICROSOFT, SHAPES, product
from tests.rules.quantized.cases.to_qlinear import KINDS, X_SCALE, add_bias, output_scale, weight_grid

ARITHMETIC = ("Add", "Sub", "Mul", "Div")


def reach(a: Any, a_zero: Any, b: np.ndarray, zero: np.ndarray, steps: np.ndarray) -> float:
    """The greatest |product| that the integers of a type can give."""
    most = max(np.iinfo(a).max - int(a_zero), int(a_zero) - np.iinfo(a).min)
    centred = np.abs(b.astype(np.int64) - zero.astype(np.int64))
    return float((centred.sum(axis=0) * most * steps).max())


def qlinear_matmul_add(rng: np.random.Generator) -> Iterator[Case]:
    ratios = itertools.cycle((0.6, 1.0, 1.7))
    for (act, wt), per_channel, shape in itertools.product(KINDS, (True, False), SHAPES):
        middle = act((np.iinfo(act).min + np.iinfo(act).max + 1) // 2)
        scale, zero = weight_grid(rng, wt, 10, per_channel)
        b, a_zero = integers(rng, wt, (12, 10)), rng.choice(zero_points(act))
        steps = np.asarray(X_SCALE * scale)
        mid_scale = np.float32(reach(act, a_zero, b, zero, steps) / 127)
        net, grid = Net(), (mid_scale, middle)
        product = net.op("QLinearMatMul", "a", X_SCALE, a_zero, b, scale, zero, *grid)
        y_scale = np.float32(mid_scale / next(ratios))
        added = integers(rng, act, (10,)), np.float32(mid_scale * 0.3), middle
        y = net.op("QLinearAdd", product, *grid, *added, y_scale, middle, _domain=MICROSOFT)
        a = integers(rng, act, shape)
        yield Case(f"{act.__name__} {wt.__name__} {per_channel} {shape}", net.model({"a": a}, y), [{"a": a}])


def arithmetic(rng: np.random.Generator) -> Iterator[Case]:
    """QLinearMatMul, perhaps a Reshape, DQ on a grid of its own or on the same, an operator with a constant, Q."""
    ratios = itertools.cycle((0.6, 1.0, 1.7))
    for (act, wt), op, per_channel, shape in itertools.product(KINDS, ARITHMETIC, (True, False), SHAPES[:2]):
        middle = act((np.iinfo(act).min + np.iinfo(act).max + 1) // 2)
        scale, zero = weight_grid(rng, wt, 10, per_channel)
        a, b, a_zero = integers(rng, act, shape), integers(rng, wt, (12, 10)), rng.choice(zero_points(act))
        mid_scale = np.float32(reach(act, a_zero, b, zero, np.asarray(X_SCALE * scale)) / 127)
        net = Net()
        value = net.op("QLinearMatMul", "a", X_SCALE, a_zero, b, scale, zero, mid_scale, middle)
        if len(shape) == 3:
            value = net.op("Reshape", value, np.array([1, -1, 10], np.int64))
        read = (mid_scale, middle) if per_channel else (np.float32(mid_scale * 0.9), middle - act(3))
        constant = rng.normal(0, 20, 10) * mid_scale if op in ("Add", "Sub") else rng.uniform(0.5, 2, 10)
        real = net.op(op, net.dequantize(value, *read), constant.astype(np.float32))
        largest = {"Mul": constant, "Div": 1 / constant}.get(op, np.ones(1)).max()
        y = net.quantize(real, np.float32(read[0] * largest / next(ratios)), rng.choice(zero_points(act)))
        label = f"{op} {act.__name__} {wt.__name__} {per_channel} {shape}"
        yield Case(label, net.model({"a": a}, y), [{"a": a}])


def matmul_add(rng: np.random.Generator) -> Iterator[Case]:
    for (act, wt), per_channel, shape in itertools.product(KINDS, (True, False), SHAPES):
        net, bias = Net(), "float" if per_channel else "int8"
        real, a, steps = product(net, rng, (act, wt), per_channel, shape)
        result = net.op("Add", real, add_bias(net, rng, bias, steps, 10))
        y = net.quantize(result, output_scale(rng, steps, 12), rng.choice(zero_points(act)))
        yield Case(f"{act.__name__} {wt.__name__} {bias} {shape}", net.model({"a": a}, y), [{"a": a}])


CASES: dict[str, Generator] = {
    "qlinear_matmul_to_qgemm": qlinear_matmul_add,
    "fold_arithmetic_into_qgemm": arithmetic,
    "matmul_add_to_qgemm": matmul_add,
}
