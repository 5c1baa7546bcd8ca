"""Constants on grids of every type: one for the whole, one for each channel, in blocks; values beyond the grid."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, zero_points

TYPES = (np.uint8, np.int8, np.uint16, np.int16)
SHAPE = (4, 6)


def quantize_constant(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, size in itertools.product(TYPES, (0, 4, 6)):
        for zero in zero_points(dtype):
            span = 2.0 * (np.iinfo(dtype).max - np.iinfo(dtype).min)
            scales = np.float32(0.1) if not size else rng.uniform(0.05, 0.2, size).astype(np.float32)
            weight = (rng.uniform(-span, span, SHAPE) * 0.05).astype(np.float32)
            grid, axis = (scales, np.full(np.shape(scales), zero)), {"axis": 0 if size == 4 else 1} if size else {}
            net, x = Net(), np.ones(SHAPE, np.float32)
            real = net.dequantize(net.quantize(net.constant(weight), *grid, **axis), *grid, **axis)
            yield Case(f"{dtype.__name__} {zero} {size}", net.model({"x": x}, net.op("Add", real, "x")), [{"x": x}])


CASES: dict[str, Generator] = {"quantize_constant": quantize_constant}
