"""Normalizations whose scales are int8, with every zero point, with a bias and without."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, integers, zero_points

WIDTH = 16


def norm(rng: np.random.Generator) -> Iterator[Case]:
    for zero, dtype, biased in itertools.product(zero_points(np.int8), (np.uint8, np.uint16), (True, False)):
        net, x = Net(), integers(rng, dtype, (3, WIDTH))
        scale = net.dequantize(integers(rng, np.int8, (WIDTH,)), 0.02, zero)
        bias = rng.normal(0, 1, WIDTH).astype(np.float32) if biased else None
        y = net.op("LayerNormalization", net.dequantize("x", 0.01, dtype(90)), scale, bias, axis=-1)
        yield Case(f"{zero} {dtype.__name__} {biased}", net.model({"x": x}, y), [{"x": x}])


CASES: dict[str, Generator] = {"unsign_norm_scale": norm}
