"""Convolutions with input channels in every number: kernels, strides, pads, zero points of the activations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, integers, zero_points

WINDOWS = (
    {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]},
    {"pads": [0, 2, 1, 0], "strides": [2, 1], "kernel_shape": [3, 2]},
    {"dilations": [2, 2], "kernel_shape": [2, 2]},
    {"kernel_shape": [1, 1]},
)


def convolution(rng: np.random.Generator, channels: int = 3, outputs: int = 16, **options: object) -> Case:
    """A QLinearConv of uint8 with int8 weights around 0; `options` are its attributes, types and zero points."""
    act, wt = options.pop("act", np.uint8), options.pop("wt", np.int8)
    window: dict = options.pop("window", WINDOWS[0])
    xz = options.pop("xz", act(7))
    group = int(options.get("group", 1))
    net, x = Net(), integers(rng, act, (2, channels, *options.pop("size", (24, 23))))
    w = integers(rng, wt, (outputs, channels // group, *window["kernel_shape"]))
    wz = options.pop("wz", np.zeros(outputs, wt))
    ws = rng.uniform(0.002, 0.01, outputs).astype(np.float32)
    weight = options.pop("weight", w)
    bias = rng.integers(-3000, 3000, outputs).astype(np.int32)
    operands = "x", np.float32(0.02), xz, weight, ws, wz, np.float32(0.4), act(100), bias
    y = net.op("QLinearConv", *operands, group=group, **window)
    inputs = {"x": x, **({weight: w} if isinstance(weight, str) else {})}
    return Case(f"{channels} to {outputs}, {xz} {window}", net.model(inputs, y), [inputs])


def pad_channels(rng: np.random.Generator) -> Iterator[Case]:
    for channels, window, xz in itertools.product((1, 3, 5), WINDOWS, zero_points(np.uint8)):
        yield convolution(rng, channels, window=window, xz=xz)


CASES: dict[str, Generator] = {"pad_channels": pad_channels}
