"""Pad and Split over integers: values on and off the grid, beyond it, and none; parts of all sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, integers, zero_points
from tests.rules.quantized.cases.folding import floats

SHAPE = (1, 2, 3, 4)
PADS = np.int64([0, 1, 0, 2, 0, 0, 1, 1])
BYTES = (np.uint8, np.int8)
# Into how many parts a Split goes.
PARTS = (1, 2, 3, 5, 8)
# The value that a Pad adds: none, on the grid, between two levels, beyond the grid; and the modes that add none.
FILLS = ((None, "constant"), (0.3, "constant"), (0.3141, "constant"), (-99.0, "constant"), (None, "edge"))


def pad(net: Net, x: str, fill: float | None, mode: str) -> str:
    return net.op("Pad", x, PADS, None if fill is None else np.float32(fill), mode=mode)


def pad_integers(rng: np.random.Generator) -> Iterator[Case]:
    for (fill, mode), dtype in itertools.product(FILLS, BYTES):
        zero = zero_points(dtype)[len(mode) % 4]
        net, x = Net(), integers(rng, dtype, SHAPE)
        result = net.quantize(pad(net, net.dequantize("x", 0.03, zero), fill, mode), 0.03, zero)
        yield Case(f"{fill} {mode} {dtype.__name__}", net.model({"x": x}, result), [{"x": x}])


def quantize_before_pad(rng: np.random.Generator) -> Iterator[Case]:
    for (fill, mode), dtype in itertools.product(FILLS, BYTES):
        net, x = Net(), floats(rng, 0.03)[: np.prod(SHAPE)].reshape(SHAPE)
        result = net.quantize(pad(net, "x", fill, mode), 0.03, zero_points(dtype)[len(mode) % 4])
        yield Case(f"{fill} {mode} {dtype.__name__}", net.model({"x": x}, result), [{"x": x}])


def split_integers(rng: np.random.Generator) -> Iterator[Case]:
    for count, dtype, zero, size in itertools.product(PARTS, BYTES, (0, -1), (1, 3)):
        sizes = [size, *[2] * (count - 1)]
        net, x = Net(), integers(rng, dtype, (2, sum(sizes)))
        real = net.dequantize("x", 0.03, zero_points(dtype)[zero])
        parts = net.split(real, sizes, axis=1)
        outputs = [net.op("Identity", part) for part in parts]
        yield Case(f"{dtype.__name__} {zero} {sizes}", net.model({"x": x}, *outputs), [{"x": x}])


CASES: dict[str, Generator] = {
    "pad_integers": pad_integers,
    "quantize_before_pad": quantize_before_pad,
    "split_integers": split_integers,
}
