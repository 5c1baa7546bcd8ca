"""Operators that move values, over integers of every type, with the extremes of grids."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, integers, zero_points
from tests.rules.quantized.cases.folding import TYPES, floats

SHAPE = (1, 4, 6, 6)
BYTES = (np.uint8, np.int8)
int64 = lambda *values: np.array(values, np.int64)
MOVES = {
    "Identity": ((), {}),
    "Reshape": ((int64(1, 8, -1),), {}),
    "Flatten": ((), {"axis": 2}),
    "Unsqueeze": ((int64(0),), {}),
    "Squeeze": ((int64(0),), {}),
    "Transpose": ((), {"perm": [0, 2, 3, 1]}),
    "Slice": ((int64(1), int64(5), int64(2), int64(2)), {}),
    "Gather": ((int64(3, 0, 3),), {"axis": 1}),
    "MaxPool": ((), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    "DepthToSpace": ((), {"blocksize": 2}),
    "SpaceToDepth": ((), {"blocksize": 2}),
    "Expand": ((int64(3, 4, 6, 6),), {}),
    "Tile": ((int64(1, 2, 1, 1),), {}),
    "Resize": ((None, np.float32([1, 1, 2, 2])), {"coordinate_transformation_mode": "asymmetric"}),
}
GROWING = ("Expand", "Tile", "Resize")
SHRINKING = ("Slice", "Gather")


def move(net: Net, op: str, x: str) -> str:
    inputs, attributes = MOVES[op]
    return net.op(op, x, *inputs, **attributes)


def move_integers(rng: np.random.Generator) -> Iterator[Case]:
    for op, dtype in itertools.product(MOVES, TYPES):
        if op == "MaxPool" and dtype not in BYTES:
            continue
        zero = zero_points(dtype)[len(op) % 4]
        net, x = Net(), integers(rng, dtype, SHAPE)
        result = net.quantize(move(net, op, net.dequantize("x", 0.03, zero)), 0.03, zero)
        yield Case(f"{op} {dtype.__name__}", net.model({"x": x}, result), [{"x": x}])


def dequantize_after_move(rng: np.random.Generator) -> Iterator[Case]:
    for op, dtype in itertools.product([op for op in MOVES if op not in GROWING], BYTES):
        net, x = Net(), integers(rng, dtype, SHAPE)
        result = move(net, op, net.dequantize("x", 0.03, zero_points(dtype)[len(op) % 4]))
        yield Case(f"{op} {dtype.__name__}", net.model({"x": x}, result), [{"x": x}])


def quantize_before_move(rng: np.random.Generator) -> Iterator[Case]:
    for op, dtype in itertools.product([op for op in MOVES if op not in SHRINKING], BYTES):
        net, x = Net(), floats(rng, 0.03)[: np.prod(SHAPE)].reshape(SHAPE)
        result = net.quantize(move(net, op, "x"), 0.03, zero_points(dtype)[len(op) % 4])
        yield Case(f"{op} {dtype.__name__}", net.model({"x": x}, result), [{"x": x}])


def concat_integers(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, count in itertools.product(TYPES, (1, 2, 5)):
        net, feeds = Net(), {f"x{i}": integers(rng, dtype, (1, 2 + i, 3)) for i in range(count)}
        parts = [net.dequantize(name, np.full((1,) * (i % 2), 0.03), dtype(7)) for i, name in enumerate(feeds)]
        result = net.op("Concat", *parts, axis=1)
        yield Case(f"{dtype.__name__} {count}", net.model(feeds, result), [feeds])


def transpose_weight(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, perm, axis in itertools.product(BYTES, ((1, 0, 2), (2, 0, 1), None), (None, 0, -1)):
        net, shape = Net(), (3, 4, 5)
        size = () if axis is None else (shape[axis],)
        grid = rng.uniform(0.01, 0.1, size), integers(rng, dtype, size)
        weight = net.dequantize(integers(rng, dtype, shape), *grid, **({} if axis is None else {"axis": axis}))
        turned = net.op("Transpose", weight, **({} if perm is None else {"perm": perm}))
        x = rng.normal(size=1).astype(np.float32)
        yield Case(f"{dtype.__name__} {perm} {axis}", net.model({"x": x}, net.op("Mul", turned, "x")), [{"x": x}])


CASES: dict[str, Generator] = {
    "move_integers": move_integers,
    "dequantize_after_move": dequantize_after_move,
    "quantize_before_move": quantize_before_move,
    "concat_integers": concat_integers,
    "transpose_weight": transpose_weight,
}
