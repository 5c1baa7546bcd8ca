"""Relu and Clip between a quantized operator and a grid that does not do their work."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, every_level
from tests.rules.quantized.cases.folding import TYPES


def split(call: tuple[object, ...], dtype: type, zero: int, factor: float) -> Case:
    """Values on, between and beyond the levels: those of the input times a factor that is no whole number."""
    info = np.iinfo(dtype)
    net, x = Net(), every_level(dtype, (info.max - info.min + 1,))
    product = net.op("Mul", net.dequantize("x", 0.07, dtype(zero)), np.float32(factor))
    net.quantize(net.op(call[0], product, *call[1:]), 0.07, dtype(zero))
    return Case(f"{dtype.__name__} {zero} {factor} {call}", net.model({"x": x}, "t3"), [{"x": x}])


def split_relu(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, factor in itertools.product(TYPES, (0.37, 1.5, 19.0)):
        info = np.iinfo(dtype)
        for zero in (info.min + 1, (info.min + info.max) // 2, info.max):
            yield split(("Relu",), dtype, zero, factor)


def split_clip(rng: np.random.Generator) -> Iterator[Case]:
    ends = ((-1.0, 2.5), (0.0, 6.0), (None, 0.8), (-0.105, None))
    for dtype, (low, high) in itertools.product(TYPES, ends):
        limits = [None if end is None else np.float32(end) for end in (low, high)]
        yield split(("Clip", *limits), dtype, (np.iinfo(dtype).min + np.iinfo(dtype).max) // 2, 0.37)


CASES: dict[str, Generator] = {"split_relu": split_relu, "split_clip": split_clip}
