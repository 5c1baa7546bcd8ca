"""Relu and Clip in front of grids that clip."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator
from tests.rules.quantized.cases.folding import TYPES, floats


def absorb_relu(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, scale in itertools.product(TYPES, (1e-6, 0.07, 40.0)):
        net, x = Net(), floats(rng, scale)
        net.quantize(net.op("Relu", "x"), scale, dtype(np.iinfo(dtype).min))
        yield Case(f"{dtype.__name__} {scale}", net.model({"x": x}, "t1"), [{"x": x}])


def absorb_clip(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, zero in itertools.product(TYPES, (0, 3)):
        info, scale = np.iinfo(dtype), np.float32(0.07)
        low, high = (np.float32((end - zero) * scale) for end in (info.min, info.max))
        for ends in ((low, high), (low, None), (None, high), (low - np.float32(1), high + np.float32(1))):
            net, x = Net(), floats(rng, float(scale))
            net.quantize(net.op("Clip", "x", *ends), scale, dtype(zero))
            yield Case(f"{dtype.__name__} {zero} {ends}", net.model({"x": x}, "t1"), [{"x": x}])


CASES: dict[str, Generator] = {"absorb_relu": absorb_relu, "absorb_clip": absorb_clip}
