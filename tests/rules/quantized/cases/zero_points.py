"""Weights with a zero point for each channel: types, groups, dimensions, and numbers at the ends of nine bits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, integers, zero_points

KINDS = ((np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8))
GROUPS = {"dense": (1, 1), "group 2": (2, 1), "group 4": (4, 1), "depthwise": (8, 1), "multiplier 2": (8, 2)}
"""Groups of the eight input channels, and output channels for each of them where it is depthwise."""

X_SCALE = np.float32(0.02)


def weights(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], axis: int, *, narrow: bool = False) -> Any:
    """A weight and distinct zero points: over the whole type, or so that every difference fits int8."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    count = shape[axis]
    along = [-1 if index == axis % len(shape) else 1 for index in range(len(shape))]
    if narrow:
        zeros = np.linspace(low + 10, high - 10, count).round().astype(int)
        least, most = np.maximum(low, zeros - 128).reshape(along), np.minimum(high, zeros + 127).reshape(along)
        w = rng.integers(np.broadcast_to(least, shape), np.broadcast_to(most, shape) + 1)
    else:
        zeros, w = rng.integers(low, high + 1, count), rng.integers(low, high + 1, shape)
        # The ends of nine bits, where copies are needed most.
        zeros[:2] = low, high
        w.reshape(-1)[:1], w.reshape(-1)[-1:] = high, low
    return w.astype(dtype), zeros.astype(dtype)


def convolution(
    rng: np.random.Generator, act: Any, wt: Any, form: str, spatial: int, op: str = "QLinearConv", **options: Any
) -> Case:
    """A convolution of eight channels: `op` is QLinearConv, ConvInteger, or Conv between DQ and Q."""
    (group, multiplier), net = GROUPS[form], Net()
    outside = 8 * multiplier if group == 8 else 12
    attributes = options.get("attributes") or {"pads": [1, 0, 1][:spatial] + [0, 1, 1][:spatial]}
    w, wz = weights(rng, wt, (outside, 8 // group, *(3,) * spatial), 0, narrow=options.get("narrow", False))
    wz = options.get("zeros", lambda found: found)(wz)
    ws = rng.uniform(0.002, 0.01, outside).astype(np.float32)
    x, xz, yz = integers(rng, act, (2, 8, *(6,) * spatial)), rng.choice(zero_points(act)), rng.choice(zero_points(act))
    ys = np.float32(X_SCALE * ws.max() * 90 * 70 * np.sqrt(w[0].size) / rng.choice([20, 60, 120]))
    biased = options.get("bias", True)
    b = rng.integers(-3000, 3000, outside).astype(np.int32) if biased else None
    if op == "QLinearConv":
        y = net.op(op, "x", X_SCALE, xz, w, ws, wz, ys, yz, b, group=group, **attributes)
    elif op == "ConvInteger":
        y = net.op(op, "x", w, xz, wz, group=group, **attributes)
    else:
        data, weight = net.dequantize("x", X_SCALE, xz), net.dequantize(w, ws, wz, axis=0)
        added = net.dequantize(b, X_SCALE * ws, np.zeros(outside, np.int32), axis=0) if biased else None
        y = net.op("Conv", data, weight, added, group=group, **attributes)
        y = net.quantize(y, ys, yz) if options.get("to_grid", True) else y
    label = f"{act.__name__} {wt.__name__} {form} {spatial}d {op} {options}"
    return Case(label, net.model({"x": x}, y), [{"x": x}], step=float(ys) * 1e-2)


def product(rng: np.random.Generator, act: Any, wt: Any, op: str, *, narrow: bool = False, **trans: int) -> Case:
    """A product of matrices with a zero point for each column, by the operator `op`."""
    net, xz, yz = Net(), rng.choice(zero_points(act)), rng.choice(zero_points(act))
    shape = (10, 12) if trans.get("transB") else (12, 10)
    b, bz = weights(rng, wt, shape, 0 if trans.get("transB") else 1, narrow=narrow)
    bs, ys = rng.uniform(0.002, 0.01, 10).astype(np.float32), np.float32(1.1)
    a = integers(rng, act, (12, 5) if trans.get("transA") else (5, 12))
    if op == "QLinearMatMul":
        y = net.op(op, "a", X_SCALE, xz, b, bs, bz, ys, yz)
    elif op == "MatMulInteger":
        y = net.op(op, "a", b, xz, bz)
    elif op == "QGemm":
        c = rng.integers(-3000, 3000, 10).astype(np.int32)
        y = net.op(op, "a", X_SCALE, xz, b, bs, bz, c, ys, yz, _domain="com.microsoft", **trans)
    elif op == "MatMulIntegerToFloat":
        y = net.op(op, "a", b, X_SCALE, bs, xz, bz, _domain="com.microsoft")
    else:
        left, right = net.dequantize("a", X_SCALE, xz), net.dequantize(b, bs, bz, axis=0 if trans.get("transB") else 1)
        y = net.op(op, left, right, **trans)
    return Case(f"{act.__name__} {wt.__name__} {op} {trans}", net.model({"a": a}, y), [{"a": a}], step=1e-3)


MATRICES: tuple[tuple[str, dict[str, int]], ...] = (
    ("QLinearMatMul", {}),
    ("QGemm", {}),
    ("QGemm", {"transA": 1, "transB": 1}),
    ("MatMulInteger", {}),
    ("MatMulIntegerToFloat", {}),
)


def absorbed(rng: np.random.Generator) -> Iterator[Case]:
    for (act, wt), form, spatial in itertools.product(KINDS, GROUPS, (1, 2, 3)):
        for op in ("QLinearConv", "ConvInteger"):
            yield convolution(rng, act, wt, form, spatial, op, narrow=True)
    for (act, wt), (op, trans) in itertools.product(KINDS, MATRICES):
        yield product(rng, act, wt, op, narrow=True, **trans)


def duplicated(rng: np.random.Generator) -> Iterator[Case]:
    for (act, wt), form, spatial in itertools.product(KINDS, GROUPS, (1, 2, 3)):
        for op in ("QLinearConv", "ConvInteger"):
            yield convolution(rng, act, wt, form, spatial, op)


def duplicated_matrix(rng: np.random.Generator) -> Iterator[Case]:
    for (act, wt), (op, trans) in itertools.product(KINDS, MATRICES):
        yield product(rng, act, wt, op, **trans)


def depthwise(op: str) -> Generator:
    def cases(rng: np.random.Generator) -> Iterator[Case]:
        for (act, wt), form, spatial in itertools.product(KINDS, ("depthwise", "multiplier 2"), (1, 2, 3)):
            for bias in (True, False):
                yield convolution(rng, act, wt, form, spatial, op, bias=bias)

    return cases


def between_dq(*, narrow: bool, matrices: bool = True) -> Generator:
    def cases(rng: np.random.Generator) -> Iterator[Case]:
        for (act, wt), form in itertools.product(KINDS, GROUPS):
            yield convolution(rng, act, wt, form, 2, "Conv", narrow=narrow, to_grid=False)
        for (act, wt), (op, trans) in itertools.product(KINDS, (("MatMul", {}), ("Gemm", {}), ("Gemm", {"transB": 1}))):
            yield product(rng, act, wt, op, narrow=narrow, **trans)

    return cases


def united(rng: np.random.Generator) -> Iterator[Case]:
    for (act, wt), form, spatial in itertools.product(KINDS, GROUPS, (1, 2, 3)):
        yield convolution(rng, act, wt, form, spatial, "ConvInteger", zeros=lambda zeros: np.full_like(zeros, zeros[2]))


def dense_and_grouped(rng: np.random.Generator) -> Iterator[Case]:
    for (act, wt), form, spatial, bias in itertools.product(KINDS, GROUPS, (1, 2, 3), (True, False)):
        yield convolution(rng, act, wt, form, spatial, "Conv", bias=bias)


CASES: dict[str, Generator] = {
    "unite_zero_points": united,
    "refused_conv_to_qlinear": dense_and_grouped,
    "absorb_zero_points": absorbed,
    "duplicate_conv_input": duplicated,
    "duplicate_mat_mul_input": duplicated_matrix,
    "conv_through_float": depthwise("QLinearConv"),
    "conv_integer_through_float": depthwise("ConvInteger"),
    "depthwise_to_qlinear": depthwise("Conv"),
    "absorb_dequantized": between_dq(narrow=True),
    "requantize_weight": between_dq(narrow=False),
    "duplicate_dequantized_input": between_dq(narrow=False),
}
