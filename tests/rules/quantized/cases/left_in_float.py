"""Layers with float biases, moves and Relus without a grid behind them: types, groups, extremes of zero points."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, integers, zero_points
from tests.rules.quantized.cases.bias import X_SCALE, convs
from tests.rules.quantized.cases.folding import TYPES
from tests.rules.quantized.cases.movement import BYTES, MOVES, SHAPE, move


def quantize_bias(rng: np.random.Generator) -> Iterator[Case]:
    yield from _convolutions(rng)
    yield from _matrices(rng)


def _convolutions(rng: np.random.Generator) -> Iterator[Case]:
    for label, c in convs(rng):
        net, bias = Net(), rng.normal(0, 2, c.channels).astype(np.float32)
        weight = net.dequantize(c.w, c.w_scale, c.w_zero, axis=0)
        y = net.op("Conv", net.dequantize("x", X_SCALE, c.x_zero), weight, bias, **c.attributes)
        yield Case(label, net.model({"x": c.x}, y), [{"x": c.x}], step=float((X_SCALE * c.w_scale).max()))


def _matrices(rng: np.random.Generator) -> Iterator[Case]:
    for act, transposed, channels in itertools.product((*BYTES, np.uint16), (0, 1), (1, 5)):
        net, x = Net(), integers(rng, act, (7, 6))
        scales = rng.uniform(0.002, 0.01, channels if channels > 1 else ()).astype(np.float32)
        weight = integers(rng, np.int8, (5, 6) if transposed else (6, 5))
        grid = {"axis": 1 - transposed} if channels > 1 else {}
        rows = net.dequantize(weight, scales, np.zeros(scales.shape, np.int8), **grid)
        bias = rng.normal(0, 2, (5,) if transposed else (1, 5)).astype(np.float32)
        y = net.op("Gemm", net.dequantize("x", 0.03, zero_points(act)[2]), rows, bias, transB=transposed)
        step = float(np.float32(0.03) * scales.max())
        yield Case(f"{act.__name__} {transposed} {channels}", net.model({"x": x}, y), [{"x": x}], step=step)


def round_after_move(rng: np.random.Generator) -> Iterator[Case]:
    for op, dtype in itertools.product(MOVES, TYPES):
        if op == "MaxPool" and dtype not in BYTES:
            continue
        net, x = Net(), integers(rng, dtype, SHAPE)
        result = net.op("Neg", move(net, op, net.dequantize("x", 0.03, zero_points(dtype)[len(op) % 4])))
        yield Case(f"{op} {dtype.__name__}", net.model({"x": x}, result), [{"x": x}])


def round_after_relu(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in TYPES:
        for zero in zero_points(dtype):
            net, x = Net(), integers(rng, dtype, SHAPE)
            result = net.op("Neg", net.op("Relu", net.dequantize("x", 0.03, zero)))
            yield Case(f"{dtype.__name__} {zero}", net.model({"x": x}, result), [{"x": x}])


CASES: dict[str, Generator] = {
    "quantize_bias": quantize_bias,
    "round_after_move": round_after_move,
    "round_after_relu": round_after_relu,
}
