"""Pad and Split over integers that were quantized just before, and rows of tables of integers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, every_level, zero_points
from tests.rules.quantized.cases.padding import BYTES, PADS, PARTS, SHAPE

# The level that a Pad adds, by its place in the type: none, the zero point, the ends; and the modes that add none.
FILLS = ((None, "constant"), ("zero", "constant"), ("min", "constant"), ("max", "constant"), (None, "edge"))


def pad(rng: np.random.Generator) -> Iterator[Case]:
    for (fill, mode), dtype in itertools.product(FILLS, BYTES):
        for zero in zero_points(dtype):
            ends = np.iinfo(dtype)
            level = {None: None, "zero": zero, "min": dtype(ends.min), "max": dtype(ends.max)}[fill]
            net, x = Net(), rng.normal(0, 2, SHAPE).astype(np.float32)
            y = net.op("Pad", net.quantize("x", 0.03, zero), PADS, level, mode=mode)
            yield Case(f"{dtype.__name__} {zero} {fill} {mode}", net.model({"x": x}, y), [{"x": x}])


def split(rng: np.random.Generator) -> Iterator[Case]:
    for count, dtype, size in itertools.product(PARTS, BYTES, (1, 3)):
        for zero in zero_points(dtype):
            sizes = [size, *[2] * (count - 1)]
            net, x = Net(), rng.normal(0, 2, (2, sum(sizes))).astype(np.float32)
            parts = net.split(net.quantize("x", 0.03, zero), sizes, axis=1)
            yield Case(f"{dtype.__name__} {zero} {sizes}", net.model({"x": x}, *parts), [{"x": x}])


def look_up(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in (*BYTES, np.uint16):
        for zero in zero_points(dtype):
            net, ids = Net(), rng.integers(0, 16, (2, 5))
            rows = net.op("Gather", every_level(dtype, (16, 32)), "ids")
            y = net.op("Relu", net.dequantize(rows, 0.03, zero))
            yield Case(f"{dtype.__name__} {zero}", net.model({"ids": ids}, y), [{"ids": ids}])


CASES: dict[str, Generator] = {
    "pad_to_qdq": pad,
    "split_to_qdq": split,
    "move_constant_to_qdq": look_up,
}
