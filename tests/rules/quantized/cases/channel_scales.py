"""Activations with a scale for each channel: what comes before them, types of weights and biases, readers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, integers
from tests.rules.quantized.cases.bias import X_SCALE

CHANNELS = 6
CLIPS = ("Relu", "Clip", "none", "sum")


def producer(net: Net, rng: np.random.Generator, kind: str) -> str:
    """A Conv with this kind of weight and bias: on grids by channel or tensor, or in float."""
    weight, bias = rng.normal(0, 0.3, (CHANNELS, 4, 3, 3)).astype(np.float32), rng.normal(0, 0.5, CHANNELS)
    operands: tuple[Any, ...] = (weight, bias.astype(np.float32))
    if kind != "float":
        scales = np.full(CHANNELS if kind == "channel" else (), 0.01, np.float32)
        levels = np.clip(np.rint(weight / 0.01), -127, 127).astype(np.int8)
        sums = np.broadcast_to(np.float32(X_SCALE) * scales, (CHANNELS,))
        grid = net.dequantize(levels, scales, np.zeros(scales.shape, np.int8), axis=0)
        int32 = net.dequantize(np.rint(bias / sums).astype(np.int32), sums, np.zeros(CHANNELS, np.int32), axis=0)
        operands = (grid, int32) if kind == "channel" else (grid,)
    return net.op("Conv", net.dequantize("x", X_SCALE, np.uint8(120)), *operands, pads=[1] * 4)


def depthwise(
    net: Net, rng: np.random.Generator, x: str, *, scales: int = CHANNELS, outputs: int = 1, kernel: int = 3
) -> str:
    """A depthwise Conv of `x` with a weight on a grid."""
    weight = integers(rng, np.int8, (CHANNELS * outputs, 1, kernel, kernel))
    steps = rng.uniform(0.002, 0.02, scales * outputs if scales > 1 else ()).astype(np.float32)
    grid = net.dequantize(weight, steps, np.zeros(steps.shape, np.int8), axis=0)
    bias = rng.normal(0, 1, CHANNELS * outputs).astype(np.float32)
    return net.op("Conv", x, grid, bias, group=CHANNELS, pads=[kernel // 2] * 4)


def by_channel(rng: np.random.Generator, net: Net, kind: str, clip: str, dtype: Any) -> str:
    """Integers with a scale for each channel, dequantized."""
    y, scales = producer(net, rng, kind), rng.uniform(0.005, 0.04, CHANNELS).astype(np.float32)
    zero = np.full(CHANNELS, np.iinfo(dtype).min if clip != "none" else np.iinfo(dtype).min + 120, dtype)
    if clip == "sum":
        y = net.op("Add", y, producer(net, rng, kind))
    if clip in ("Relu", "sum"):
        y = net.op("Relu", y)
    elif clip == "Clip":
        y = net.op("Clip", y, np.float32(0), np.float32(scales.max() * 255))
    return net.dequantize(net.quantize(y, scales, zero, axis=1), scales, zero, axis=1)


def one_scale(rng: np.random.Generator) -> Iterator[Case]:
    kinds = itertools.product(("channel", "tensor", "float"), CLIPS, (np.uint8, np.int8))
    for index, (kind, clip, dtype) in enumerate(kinds):
        net, x = Net(), integers(rng, np.uint8, (2, 4, 7, 7))
        real = by_channel(rng, net, kind, clip, dtype)
        scales = (1, CHANNELS)[index % 2]
        readers = [depthwise(net, rng, real, scales=scales, kernel=1) for _ in range(1 + index % 3)]
        model = net.model({"x": x}, net.op("Concat", *readers, axis=1))
        # A step of the tensor, in what weights of 128 steps make of it.
        yield Case(f"{kind} {clip} {dtype.__name__}", model, [{"x": x}], step=0.04 * 128 * 0.02)


def fold_factor(rng: np.random.Generator) -> Iterator[Case]:
    for outputs, scales, count in itertools.product((1, 2), (1, CHANNELS), (1, 3)):
        net, x = Net(), rng.normal(0, 1, (2, CHANNELS, 7, 7)).astype(np.float32)
        factor = net.op("Mul", "x", rng.uniform(0.1, 1, (CHANNELS, 1, 1)).astype(np.float32))
        readers = [depthwise(net, rng, factor, scales=scales, outputs=outputs) for _ in range(count)]
        yield Case(
            f"{outputs} {scales} {count}",
            net.model({"x": x}, net.op("Concat", *readers, axis=1)),
            [{"x": x}],
            step=1e-4,
        )


CASES: dict[str, Generator] = {"one_scale_for_channels": one_scale, "fold_factor_into_depthwise": fold_factor}
