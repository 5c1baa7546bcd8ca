"""Weights and activations of int8 with zero point 0, with every integer and without the least."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator

CHANNELS = 5
STEP = 0.25


def weight(rng: np.random.Generator) -> Iterator[Case]:
    for least, channels in ((-127, 1), (-127, CHANNELS), (-128, 1), (-128, CHANNELS)):
        levels = rng.integers(least, 128, (CHANNELS, 60)).astype(np.int8)
        levels[:, 0] = least
        net, x = Net(), rng.integers(-2, 3, (CHANNELS, 60)).astype(np.float32)
        scale, zero = (STEP, np.int8(0)) if channels == 1 else (np.full(CHANNELS, STEP), np.zeros(CHANNELS, np.int8))
        real = net.dequantize(levels, scale, zero, **({} if channels == 1 else {"axis": 0}))
        yield Case(f"from {least}, {channels}", net.model({"x": x}, net.op("Max", "x", real)), [{"x": x}], STEP)


def activation(rng: np.random.Generator) -> Iterator[Case]:
    for label, reach in (("within the range", 20), ("to its ends", 32), ("beyond it", 60)):
        net, x = Net(), rng.uniform(-reach, reach, (4, 50)).astype(np.float32)
        y = net.op("Relu", net.op("Neg", net.qdq("x", STEP, np.int8(0))))
        yield Case(label, net.model({"x": x}, y), [{"x": x}], STEP)


CASES: dict[str, Generator] = {"move_weight_off_middle": weight, "move_grid_off_middle": activation}
