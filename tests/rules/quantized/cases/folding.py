"""Chains of Q and DQ nodes: equal and unequal grids, narrow and wide types, values far beyond the grid."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, every_level, integers, zero_points

TYPES = (np.uint8, np.int8, np.uint16, np.int16)


def floats(rng: np.random.Generator, scale: float, count: int = 4096) -> np.ndarray:
    """Values on, between and far beyond the levels of a grid, ties included."""
    ties = (np.arange(-300, 300) + 0.5) * scale
    wide = rng.normal(0, 200 * scale, count)
    return np.concatenate([ties, wide, [-1e30, 1e30, 0.0]]).astype(np.float32)


def drop_self_requantize(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, scale in itertools.product(TYPES, (2.0**-90, 0.0173, 1.0, 3e20)):
        for zero in zero_points(dtype):
            net, x = Net(), every_level(dtype, (np.iinfo(dtype).max - np.iinfo(dtype).min + 1,))
            net.quantize(net.dequantize("x", [scale], zero), scale, np.reshape(zero, (1,)))
            yield Case(f"{dtype.__name__} {scale} {zero}", net.model({"x": x}, "t1"), [{"x": x}])
    net, x = Net(), integers(rng, np.int8, (2, 4, 5))
    grid = rng.uniform(0.01, 0.1, 4), integers(rng, np.int8, (4,))
    net.quantize(net.dequantize("x", *grid, axis=1), *grid, axis=1)
    yield Case("per channel", net.model({"x": x}, "t1"), [{"x": x}])


def skip_requantize(rng: np.random.Generator) -> Iterator[Case]:
    """Bytes that take a detour over a finer grid, and come back to where they would have gone."""
    for dtype, zero in itertools.product((np.uint8, np.int8), (0, 5, 100)):
        net, x = Net(), every_level(dtype, (256,))
        real = net.dequantize("x", 0.1, dtype(zero))
        detour = net.dequantize(net.quantize(real, 0.1 / 128, np.int16(0)), 0.1 / 128, np.int16(0))
        net.quantize(detour, 0.3, dtype(zero))
        yield Case(f"{dtype.__name__} {zero}", net.model({"x": x}, "t3"), [{"x": x}])


def merge_requantize(rng: np.random.Generator) -> Iterator[Case]:
    for (wide, narrow), ratio in itertools.product(
        [(np.uint16, np.uint8), (np.int16, np.int8), (np.uint16, np.int8), (np.uint16, np.uint16)],
        (1 / 256, 0.01, 0.3, 1.0, 1.7, 2.0),
    ):
        scale = 0.0231
        middle = wide((np.iinfo(wide).min + np.iinfo(wide).max + 1) // 2)
        target = narrow((np.iinfo(narrow).min + np.iinfo(narrow).max + 1) // 2)
        if ratio < 1 and wide is narrow:
            continue
        net, x = Net(), floats(rng, scale * ratio)
        there = net.quantize("x", scale * ratio, middle)
        net.quantize(net.dequantize(there, scale * ratio, middle), scale, target)
        yield Case(f"{wide.__name__} {narrow.__name__} {ratio}", net.model({"x": x}, "t2"), [{"x": x}])
    for zero in zero_points(np.uint8):
        net, x = Net(), every_level(np.uint8, (256,))
        via = net.quantize(net.dequantize("x", 0.1, zero), 0.13, zero)
        net.quantize(net.dequantize(via, 0.13, zero), 0.14, zero)
        yield Case(f"integers, zero point {zero}", net.model({"x": x}, "t3"), [{"x": x}])


def merge_equal_quantizers(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in TYPES:
        net, x = Net(), floats(rng, 0.1)
        for shape in ((), (1,), ()):
            net.quantize("x", np.full(shape, 0.1), np.full(shape, 3, dtype))
        yield Case(dtype.__name__, net.model({"x": x}, "t0", "t1", "t2"), [{"x": x}])


def merge_equal_dequantizers(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in TYPES:
        net, x = Net(), integers(rng, dtype, (500,))
        for shape in ((), (1,)):
            net.dequantize("x", np.full(shape, 0.1), np.full(shape, 3, dtype))
        yield Case(dtype.__name__, net.model({"x": x}, "t0", "t1"), [{"x": x}])


CASES: dict[str, Generator] = {
    "drop_self_requantize": drop_self_requantize,
    "skip_requantize": skip_requantize,
    "merge_requantize": merge_requantize,
    "merge_equal_quantizers": merge_equal_quantizers,
    "merge_equal_dequantizers": merge_equal_dequantizers,
}
