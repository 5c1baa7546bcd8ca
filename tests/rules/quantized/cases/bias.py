"""Convolutions of integers with constants after them: types, groups, dimensions, extremes of zero points and scales."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, integers

MICROSOFT = "com.microsoft"
KINDS = ((np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8))
SHAPES = ((1, 1, 2), (2, 1, 2), (8, 1, 2), (8, 2, 2), (1, 1, 1), (1, 1, 3))
"""Groups, channels out for each channel in, spatial dimensions."""


@dataclass(frozen=True)
class Conv:
    """A convolution, inputs that reach the ends of its sums, and a grid that covers all it can reach."""

    x: np.ndarray
    x_zero: Any
    w: np.ndarray
    w_scale: np.ndarray
    w_zero: np.ndarray
    bias: np.ndarray | None
    attributes: dict[str, Any]
    mid_scale: np.float32
    mid_zero: Any

    @property
    def channels(self) -> int:
        return len(self.w)

    @property
    def column(self) -> tuple[int, ...]:
        """The shape of one number for each channel of the output."""
        return (1, self.channels, *(1,) * (self.w.ndim - 2))


X_SCALE = np.float32(0.02)


def conv(rng: np.random.Generator, kind: Any, shape: Any, *, per_channel: bool, bias: bool) -> Conv:
    act, wt = kind
    group, multiplier, spatial = shape
    low, high = np.iinfo(act).min, np.iinfo(act).max
    inside = 8
    outside = inside * multiplier if group > 1 else 6
    w = integers(rng, wt, (outside, inside // group, *(3,) * spatial))
    count = (outside,) if per_channel else ()
    w_scale = rng.uniform(0.002, 0.01, count).astype(np.float32)
    w_zero = integers(rng, wt, count) if per_channel else np.asarray(wt(np.iinfo(wt).min + 100))
    x_zero = act(rng.choice([low, high, (low + high) // 2]))
    zeros = w_zero.astype(np.int64).reshape(-1, *(1,) * (w.ndim - 1))
    centred = w.astype(np.int64) - zeros
    ends = np.array([low - int(x_zero), high - int(x_zero)])
    size = (2, inside, *(5,) * spatial)
    extremes = np.where(rng.random(size) < 0.5, low, high).astype(act)
    x = np.concatenate([integers(rng, act, size), extremes])
    b = rng.integers(-3000, 3000, outside).astype(np.int32) if bias else None
    sums = np.abs(centred).reshape(outside, -1).sum(axis=1) * np.abs(ends).max() + (0 if b is None else np.abs(b))
    reach = float((sums * X_SCALE * w_scale).max())
    return Conv(
        x=x,
        x_zero=x_zero,
        w=w,
        w_scale=w_scale,
        w_zero=w_zero,
        bias=b,
        attributes={"group": group, "pads": [1] * 2 * spatial, "strides": [1 + spatial % 2] * spatial},
        mid_scale=np.float32(reach / 126),
        mid_zero=act((low + high + 1) // 2),
    )


def convs(rng: np.random.Generator) -> Iterator[tuple[str, Conv]]:
    for kind, shape in itertools.product(KINDS, SHAPES):
        for per_channel, bias in ((True, False), (False, True), (True, True)):
            label = f"{kind[0].__name__} {kind[1].__name__} {shape} {'channel' if per_channel else 'tensor'}"
            yield label, conv(rng, kind, shape, per_channel=per_channel, bias=bias)


def qlinear_conv(net: Net, c: Conv) -> str:
    grids = ("x", X_SCALE, c.x_zero, c.w, c.w_scale, c.w_zero, c.mid_scale, c.mid_zero)
    return net.op("QLinearConv", *grids, c.bias, **c.attributes)


def case(label: str, net: Net, c: Conv, output: str) -> Case:
    return Case(label, net.model({"x": c.x}, output), [{"x": c.x}])


def after_qlinear(op: str, scales: Any) -> Generator:
    """The constant is on a grid of its own, first or second among the operands."""

    def generate(rng: np.random.Generator) -> Iterator[Case]:
        for index, (label, c) in enumerate(convs(rng)):
            dtype = type(c.mid_zero)
            low = np.iinfo(dtype).min
            if op == "QLinearAdd":
                k, k_zero = integers(rng, dtype, c.column), dtype(low + 120)
            else:
                k, k_zero = (low + rng.integers(60, 120, c.column)).astype(dtype), dtype(low)
            constant = (k if index % 3 else k.reshape(c.column[1:]), np.float32(0.01), k_zero)
            value = (qlinear_conv(net := Net(), c), c.mid_scale, c.mid_zero)
            operands = (*value, *constant) if index % 2 else (*constant, *value)
            y_scale = np.float32(c.mid_scale * scales[index % len(scales)])
            result = net.op(op, *operands, y_scale, dtype(low + 17), _domain=MICROSOFT)
            yield case(f"{label} {index}", net, c, result)

    return generate


def fold_requantize(rng: np.random.Generator) -> Iterator[Case]:
    for index, (label, c) in enumerate(convs(rng)):
        net, dtype = Net(), type(c.mid_zero)
        factor, shift = ((1.0, 0), (0.7, 0), (2.3, 3))[index % 3]
        real = net.dequantize(qlinear_conv(net, c), c.mid_scale * factor, dtype(c.mid_zero + shift))
        zero = (np.iinfo(dtype).min, np.iinfo(dtype).max, c.mid_zero)[index % 3]
        yield case(label, net, c, net.quantize(real, c.mid_scale * factor * (0.55, 1.0, 3.0)[index % 3], dtype(zero)))


def fold_arithmetic(rng: np.random.Generator) -> Iterator[Case]:
    for index, (label, c) in enumerate(convs(rng)):
        op = ("Add", "Sub", "Mul", "Div")[index % 4]
        net = Net()
        real = net.dequantize(qlinear_conv(net, c), c.mid_scale, c.mid_zero)
        yield case(f"{label} {op}", net, c, with_constant(rng, net, c, op, real, index))


def with_constant(rng: np.random.Generator, net: Net, c: Conv, op: str, real: str, index: int) -> str:
    """Q of a constant applied to `real`: a float, or integers on a grid of their own."""
    numbers = rng.uniform(0.5, 1.5, c.column).astype(np.float32)
    if op in ("Add", "Sub"):
        numbers = (numbers - np.float32(1)) * c.mid_scale * np.float32(40)
    constant: Any = numbers if index % 2 else numbers.reshape(c.column[1:])
    if op == "Add" and index % 3 == 0:
        constant = net.dequantize(np.rint(numbers * 1000).astype(np.int32), 0.001, np.int32(0))
    operands = (constant, real) if op in ("Add", "Mul") and index % 5 == 0 else (real, constant)
    return net.quantize(net.op(op, *operands), c.mid_scale * np.float32(1.6), c.mid_zero)


def fold_norm(rng: np.random.Generator) -> Iterator[Case]:
    for label, c in convs(rng):
        net = Net()
        real = net.dequantize(qlinear_conv(net, c), c.mid_scale, c.mid_zero)
        yield case(label, net, c, normed(rng, net, c, real))


def normed(rng: np.random.Generator, net: Net, c: Conv, real: str) -> str:
    """Q of a BatchNormalization of `real`."""
    spread = c.mid_scale * 30
    gamma = rng.uniform(0.5, 1.5, c.channels) * spread
    beta, mean = rng.normal(size=(2, c.channels)) * spread
    statistics = [np.float32(item) for item in (gamma, beta, mean, np.full(c.channels, spread**2))]
    return net.quantize(net.op("BatchNormalization", real, *statistics), c.mid_scale * np.float32(1.6), c.mid_zero)


def float_conv(net: Net, c: Conv, index: int) -> str:
    """A float Conv between DQ nodes, its bias as int32 behind a DQ, or as float."""
    weight = net.dequantize(c.w, c.w_scale, c.w_zero, axis=0)
    bias: Any = None
    if c.bias is not None:
        scale = np.broadcast_to(X_SCALE * c.w_scale, (c.channels,))
        bias = net.dequantize(c.bias, scale, np.zeros(c.channels, np.int32), axis=0)
        bias = bias if index % 2 else (c.bias * scale).astype(np.float32)
    return net.op("Conv", net.dequantize("x", X_SCALE, c.x_zero), weight, bias, **c.attributes)


def fold_arithmetic_into_conv(rng: np.random.Generator) -> Iterator[Case]:
    for index, (label, c) in enumerate(convs(rng)):
        op = ("Add", "Sub", "Mul", "Div")[index % 4]
        net = Net()
        yield case(f"{label} {op}", net, c, with_constant(rng, net, c, op, float_conv(net, c, index), index))


def fold_norm_into_conv(rng: np.random.Generator) -> Iterator[Case]:
    for index, (label, c) in enumerate(convs(rng)):
        net = Net()
        yield case(label, net, c, normed(rng, net, c, float_conv(net, c, index)))


CASES: dict[str, Generator] = {
    "fold_qlinear_add": after_qlinear("QLinearAdd", (0.5, 0.55, 1.0, 4.0)),
    "fold_qlinear_mul": after_qlinear("QLinearMul", (0.7, 1.0, 4.0)),
    "fold_requantize": fold_requantize,
    "fold_arithmetic": fold_arithmetic,
    "fold_norm": fold_norm,
    "fold_arithmetic_into_conv": fold_arithmetic_into_conv,
    "fold_norm_into_conv": fold_norm_into_conv,
}
