"""Matrix products with and without a bias: as QDQ, as QLinearMatMul, with factors and transposed inputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.rewrite.cases.to_qlinear import BIASES, KINDS, X_SCALE, add_bias, gemm_nodes, output_scale, weight_grid
from tests.rewrite.harness import Case, Generator, Net, integers, zero_points

MICROSOFT = "com.microsoft"
SHAPES = ((7, 12), (2, 3, 12), (2, 1, 3, 12))


def fold_factors(rng: np.random.Generator) -> Iterator[Case]:
    for kind, bias, (alpha, beta) in itertools.product(
        KINDS, BIASES, ((0.25, 1.0), (0.3, 0.7), (1.0, -2.0), (3.0, 0.0))
    ):
        if bias == "none" and alpha == 1.0:
            continue
        net = Net()
        result, a, steps = gemm_nodes(net, rng, kind, bias, (0, 1), True, alpha=alpha, beta=beta)
        step = float((steps * alpha).max())
        yield Case(f"{kind} {bias} {alpha} {beta}", net.model({"a": a}, result), [{"a": a}], step=step)


def fold_transpose(rng: np.random.Generator) -> Iterator[Case]:
    for kind, bias in itertools.product(KINDS, BIASES):
        net = Net()
        result, a, _ = gemm_nodes(net, rng, kind, bias, (1, 0), True)
        yield Case(f"{kind} {bias}", net.model({"a": a}, result), [{"a": a}])


def _reach(a: Any, a_zero: Any, b: np.ndarray, zero: np.ndarray, steps: np.ndarray) -> float:
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
        mid_scale = np.float32(_reach(act, a_zero, b, zero, steps) / 127)
        net, grid = Net(), (mid_scale, middle)
        product = net.op("QLinearMatMul", "a", X_SCALE, a_zero, b, scale, zero, *grid)
        y_scale = np.float32(mid_scale / next(ratios))
        added = integers(rng, act, (10,)), np.float32(mid_scale * 0.3), middle
        y = net.op("QLinearAdd", product, *grid, *added, y_scale, middle, _domain=MICROSOFT)
        a = integers(rng, act, shape)
        yield Case(f"{act.__name__} {wt.__name__} {per_channel} {shape}", net.model({"a": a}, y), [{"a": a}])


def matmul_add(rng: np.random.Generator) -> Iterator[Case]:
    for (act, wt), per_channel, shape in itertools.product(KINDS, (True, False), SHAPES):
        net, bias = Net(), "float" if per_channel else "int8"
        product, a, steps = _product(net, rng, (act, wt), per_channel, shape)
        result = net.op("Add", product, add_bias(net, rng, bias, steps, 10))
        y = net.quantize(result, output_scale(rng, steps, 12), rng.choice(zero_points(act)))
        yield Case(f"{act.__name__} {wt.__name__} {bias} {shape}", net.model({"a": a}, y), [{"a": a}])


def _product(
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
        result, a, steps = _product(net, rng, kind, per_channel, shape)
        yield Case(f"{kind} {per_channel} {shape}", net.model({"a": a}, result), [{"a": a}], step=float(steps.max()))


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


def fully_connected(rng: np.random.Generator) -> Iterator[Case]:
    ratios = itertools.cycle((0.6, 1.0, 1.7))
    for (act, wt), per_channel in itertools.product(KINDS, (True, False)):
        middle = act((np.iinfo(act).min + np.iinfo(act).max + 1) // 2)
        scale, zero = weight_grid(rng, wt, 10, per_channel)
        b, a_zero, a = integers(rng, wt, (12, 10)), rng.choice(zero_points(act)), integers(rng, act, (7, 12))
        mid_scale = np.float32(_reach(act, a_zero, b, zero, np.asarray(X_SCALE * scale)) / 127)
        net, grid = Net(), (mid_scale, middle)
        product = net.op("MatMul", net.dequantize("a", X_SCALE, a_zero), net.dequantize(b, scale, zero, axis=1))
        again = net.dequantize(net.quantize(product, *grid), *grid)
        added = net.dequantize(integers(rng, act, (10,)), np.float32(mid_scale * 0.3), middle)
        y = net.quantize(net.op("Add", again, added), np.float32(mid_scale / next(ratios)), middle)
        yield Case(f"{act.__name__} {wt.__name__} {per_channel}", net.model({"a": a}, y), [{"a": a}])
        net = Net()
        product = net.op("MatMul", net.dequantize("a", X_SCALE, a_zero), net.dequantize(b, scale, zero, axis=1))
        bias = (rng.normal(0, 20, 10) * mid_scale).astype(np.float32)
        y = net.quantize(net.op("Add", product, bias), np.float32(mid_scale / next(ratios)), middle)
        yield Case(f"{act.__name__} {wt.__name__} {per_channel} at once", net.model({"a": a}, y), [{"a": a}])


CASES: dict[str, Generator] = {
    "fold_gemm_factors": fold_factors,
    "fold_gemm_transpose": fold_transpose,
    "qlinear_matmul_to_qgemm": qlinear_matmul_add,
    "matmul_add_to_qgemm": matmul_add,
    "mat_mul_to_float": matmul_to_float,
    "add_to_mat_mul_to_float": add_to_float,
    "qlinear_matmul_to_integer": qlinear_matmul,
    "mat_mul_to_fully_connected": fully_connected,
}
