"""Valid models that ONNX Runtime 1.31.1, with all its optimizations, computes wrongly or does not run.

Scales are powers of two wherever a sum is involved: then every order of summation gives the same float, and "bit for
bit" is a fair demand on float kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import TensorProto

from tests.builder import Net

u8, s8, u16, s32 = np.uint8, np.int8, np.uint16, np.int32
X, Y = 2.0**-5, 0.5
ZERO = s8(3)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def weight(*shape: int) -> np.ndarray:
    """Integers whose products with uint8 no processor adds up wrongly, two at a time: 2 · 255 · 64 fits in int16."""
    return rng().integers(-64, 65, shape).astype(s8)


def scales(number: int) -> np.ndarray:
    return (2.0 ** -(4.0 + np.arange(number) % 4)).astype(np.float32)


def conv(
    channels: int = 8,
    out: int = 8,
    *,
    group: int = 1,
    axis: int = 1,
    activation_axis: int | None = None,
    biased: bool = False,
) -> ir.Model:
    g = Net()
    x = g.input("x", [1, channels, 8, 8])
    if activation_axis is None:
        x = g.qdq(x, X, u8(128))
    else:
        x = g.qdq(x, scales(channels), np.full(channels, 128, u8), axis=activation_axis)
    w = weight(out, channels // group, 3, 3)
    number = w.shape[axis]
    w = g.dequantize(
        g.constant(w),
        scales(number) if activation_axis is None else np.full(number, X),
        np.zeros(number, s8),
        axis=axis,
    )
    bias = [g.constant(np.ones(out, np.float32))] if biased else []
    return g.normalized(g.qdq(g.op("Conv", x, w, *bias, group=group, pads=[1] * 4), Y, u8(128)))


def biased_conv(ratio: float, *, channels: int = 1, x: float = 2.0**-11, w: float = 2.0**-10) -> ir.Model:
    """A Conv whose bias scale is `ratio` times what it should be, small enough for ORT's absolute tolerance."""
    g = Net()
    one = channels == 1
    grid, zeros = (w, s8(0)) if one else (np.full(8, w), np.zeros(8, s8))
    kernel = g.dequantize(g.constant(weight(8, 8, 3, 3)), grid, zeros, axis=0)
    stored = g.constant((1 + np.arange(8)).astype(s32) * 10_001)
    bias = g.dequantize(
        stored, x * w * ratio if one else np.full(8, x * w * ratio), s32(0) if one else np.zeros(8, s32), axis=0
    )
    y = g.op("Conv", g.qdq(g.input("x", [1, 8, 8, 8]), x, u8(128)), kernel, bias, pads=[1] * 4)
    return g.normalized(g.qdq(y, 2.0**-11, u8(128)))


def matmul(left: list[int], right: list[int], axis: int, *, rows: int | None = None, last: bool = True) -> ir.Model:
    g = Net()
    x = g.input("x", left)
    several = None if rows is None else (scales(left[rows]), np.full(left[rows], 128, u8))
    x = g.qdq(x, X, u8(128)) if several is None else g.qdq(x, *several, axis=rows)
    w = g.dequantize(g.constant(weight(*right)), scales(right[axis]), np.zeros(right[axis], s8), axis=axis)
    y = g.op("MatMul", x, w)
    return g.normalized(g.qdq(y, Y, u8(128)) if last else y)


def blocks() -> ir.Model:
    g = Net()
    w = g.dequantize(
        g.constant(weight(64, 32)), scales(64).reshape(2, 32), np.zeros((2, 32), s8), axis=0, block_size=32
    )
    return g.normalized(g.qdq(g.op("MatMul", g.qdq(g.input("x", [4, 64]), X, u8(128)), w), Y, u8(128)))


def gemm(axis: int, **attributes: Any) -> ir.Model:
    g = Net()
    w = g.dequantize(g.constant(weight(16, 16)), scales(16), np.zeros(16, s8), axis=axis)
    return g.normalized(g.qdq(g.op("Gemm", g.qdq(g.input("x", [4, 16]), X, u8(128)), w, **attributes), Y, u8(128)))


def transposed(op: str, axis: int) -> ir.Model:
    """A weight that is transposed behind its DequantizeLinear, with scales along an axis of what is stored."""
    g = Net()
    shape, kernel = ([1, 8, 8, 8], (8, 8, 3, 3)) if op == "Conv" else ([4, 16], (16, 16))
    stored = weight(*kernel)
    w = g.dequantize(g.constant(stored), scales(kernel[axis]), np.zeros(kernel[axis], s8), axis=axis)
    w = g.op("Transpose", w, perm=[1, 0, *range(2, stored.ndim)])
    return g.normalized(g.qdq(g.op(op, g.qdq(g.input("x", shape), X, u8(128)), w), Y, u8(128)))


def biased_gemm(ratio: float, zero: int = 0, *, last: bool = True) -> ir.Model:
    g = Net()
    w = g.dequantize(g.constant(weight(16, 8)), 2.0**-5, s8(0))
    bias = g.dequantize(g.constant(np.arange(8).astype(s32) * 501), X * 2.0**-5 * ratio, s32(zero))
    y = g.op("Gemm", g.qdq(g.input("x", [4, 16]), X, u8(128)), w, bias)
    return g.normalized(g.qdq(y, Y, u8(128)) if last else y)


def relu(kind: int, zero: Any, scale: Any = 0.25) -> ir.Model:
    g = Net()
    return g.normalized(g.qdq(g.op("Relu", g.input("x", [4, 16])), scale, zero, kind))


def pointwise(op: str, *, several: str = "in", last: bool = True, kind: type = u8, **attributes: Any) -> ir.Model:
    """An operator with one scale for each channel on its first input (`in`) or on its output (`out`), if it has one."""
    g = Net()
    x = g.input("x", [1, 4, 8, 8])
    middle = kind(0 if kind is s8 else 128)
    channels = scales(4), np.full(4, middle, kind)
    inputs = [g.qdq(x, *channels, axis=1) if several == "in" else g.qdq(x, X, middle)]
    if op in ("Add", "Mul", "Concat", "Where"):
        inputs.append(g.qdq(x, 2.0**-4, kind(100)))
    if op == "Where":
        inputs.insert(0, g.constant(rng().random((1, 4, 8, 8)) > 0.5))
    y = g.op(op, *inputs, **attributes)
    if not last:
        return g.normalized(y)
    return g.normalized(g.qdq(y, *channels, axis=1) if several == "out" else g.qdq(y, X, middle))


def softmax(scale: float, zero: Any) -> ir.Model:
    g = Net()
    middle = zero.dtype.type(0 if zero.dtype == s8 else 128)
    return g.normalized(g.qdq(g.op("Softmax", g.qdq(g.input("x", [64, 16]), 0.1, middle)), scale, zero))


def pool(size: int = 8, *, clipped: bool = False, **attributes: Any) -> ir.Model:
    """An AveragePool of 3 x 3 windows whose last one reaches beyond the padding where the size is even."""
    g = Net()
    x = g.qdq(g.input("x", [1, 4, size, size]), X, u8(20))
    given = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "ceil_mode": 1, "count_include_pad": 1}
    y = g.op("AveragePool", x, **{**given, **attributes})
    return g.normalized(g.qdq(g.op("Relu", y), X, u8(0)) if clipped else g.qdq(y, X, u8(20)))


def scaled(op: str, x: float, y: float, *, then: str | None = None, **attributes: Any) -> ir.Model:
    """An operator between grids of which one may be much finer than the other."""
    g = Net()
    value = g.qdq(g.input("x", [1, 8, 16, 16]), x, u8(128))
    inputs = [value, g.qdq("x", x, u8(100))] if op in ("Add", "Mul") else [value]
    result = g.op(op, *inputs, **attributes)
    return g.normalized(g.qdq(result if then is None else g.op(then, result), y, u8(0 if then else 20)))


def short_softmax(elements: int, scale: float) -> ir.Model:
    g = Net()
    return g.normalized(g.qdq(g.op("Softmax", g.qdq(g.input("x", [16, elements]), 0.1, u8(128))), scale, u8(0)))


def weight_only(kind: int | None, per: str) -> ir.Model:
    g = Net()
    integers = rng().integers(-8, 8, (64, 24)) if kind == TensorProto.INT4 else rng().integers(0, 16, (64, 24))
    w = g.constant(weight(64, 24)) if kind is None else g.constant(integers, kind)
    sizes = {"tensor": (), "column": (24,), "block": (2, 24)}[per]
    zero = np.full(sizes, 0 if kind != TensorProto.UINT4 else 7)
    attributes = {"tensor": {}, "column": {"axis": 1}, "block": {"axis": 0, "block_size": 32}}[per]
    grid = np.asarray(0.01 + 0.01 * rng().random(sizes))
    w = g.dequantize(w, grid, zero.astype(s8) if kind is None else zero, kind, **attributes)
    return g.normalized(g.op("MatMul", g.input("x", [5, 64]), w))


def requantized(
    first: tuple[float, Any],
    second: tuple[float, Any],
    *,
    kind: int | None = None,
    domain: str = "",
    between: str | None = None,
) -> ir.Model:
    g = Net()
    x = g.qdq(g.input("x", [64, 16]), *first, kind, _domain=domain)
    x = x if between is None else g.op(between, x)
    return g.normalized(g.qdq(x, *second, kind, _domain=domain))


def computed_batch() -> ir.Model:
    """Two computed operands in the domain of ONNX Runtime, whose shapes nobody infers; the second per column."""
    g, own = Net(), {"_domain": "com.microsoft"}
    x = g.input("x", [2, 8, 8])
    left, right = g.qdq(x, X, u8(128), **own), g.qdq(x, scales(8), np.full(8, 128, u8), axis=2, **own)
    return g.normalized(g.qdq(g.op("MatMul", left, right), Y, u8(128), **own))


def passed_conv() -> ir.Model:
    g = Net()
    w = g.op(
        "Identity", g.dequantize(g.op("Identity", g.constant(weight(8, 8, 3, 3))), scales(8), np.zeros(8, s8), axis=1)
    )
    x = g.op("Identity", g.qdq(g.input("x", [1, 8, 8, 8]), X, u8(128)))
    return g.normalized(g.qdq(g.op("Identity", g.op("Conv", x, w)), Y, u8(128)))


def overflowing(op: str) -> ir.Model:
    """A float bias of 1.7e11 units of x_scale · w_scale."""
    g = Net()
    shape, kernel = ([1, 4, 8, 8], (4, 4, 3, 3)) if op == "Conv" else ([4, 16], (16, 4))
    w = g.dequantize(g.constant(weight(*kernel)), 2.0**-20, s8(0))
    y = g.op(op, g.qdq(g.input("x", shape), X, u8(128)), w, g.constant(np.full(4, 5000, np.float32)))
    return g.normalized(g.qdq(y, 128.0, u8(128)))


def float_weight(op: str) -> ir.Model:
    g = Net()
    shape, kernel = ([1, 4, 8, 8], (4, 4, 3, 3)) if op == "Conv" else ([4, 16], (16, 4))
    spread = scales(4).reshape((4, 1, 1, 1) if op == "Conv" else (1, 4)) ** 2
    w = g.constant((weight(*kernel) * spread).astype(np.float32))
    y = g.op("Relu", g.op(op, g.qdq(g.input("x", shape), X, u8(128)), w))
    return g.normalized(g.qdq(y, 2.0**-8, u8(0)))


def moved(op: str, *rest: Any, then: str | None = "Exp", zero: Any = ZERO, **attributes: Any) -> ir.Model:
    """A dequantized tensor that is moved, and read by an operator that has no integers."""
    g = Net()
    x = g.op(
        op, g.qdq(g.input("x", [1, 4, 8]), X, zero), *(g.constant(np.asarray(item)) for item in rest), **attributes
    )
    return g.normalized(x if then is None else g.op(then, x))


def moved_twice() -> ir.Model:
    g = Net()
    x = g.op("Transpose", g.qdq(g.input("x", [1, 4, 8]), X, ZERO), perm=[0, 2, 1])
    return g.normalized(g.op("Exp", g.op("Reshape", x, g.constant(np.array([4, 8])))))


def moved_to(*readers: str) -> ir.Model:
    g = Net()
    x = g.op("Transpose", g.qdq(g.input("x", [1, 4, 8]), X, ZERO), perm=[0, 2, 1])
    return g.normalized(*(g.qdq(x, X, ZERO) if op == "Q" else g.op(op, x) for op in readers))


def moved_to_gelu() -> ir.Model:
    g = Net()
    x = g.op("Transpose", g.qdq(g.input("x", [1, 4, 8]), X, ZERO), perm=[0, 2, 1])
    two, one, half = (g.constant(np.float32(number)) for number in (2**0.5, 1.0, 0.5))
    return g.normalized(g.op("Mul", g.op("Mul", x, g.op("Add", g.op("Erf", g.op("Div", x, two)), one)), half))


def moved_on() -> ir.Model:
    """A tensor that is turned by its halves, as embeddings of positions are."""
    g = Net()
    x = g.op("Transpose", g.qdq(g.input("x", [1, 4, 8]), X, ZERO), perm=[0, 2, 1])
    ends = [[g.constant(np.array([end])) for end in part] for part in ((0, 2, 2), (2, 4, 2))]
    first, second = (g.op("Slice", x, *part) for part in ends)
    turned = g.op("Concat", g.op("Neg", second), first, axis=2)
    return g.normalized(g.op("Add", turned, g.op("Mul", x, g.constant(np.float32(0.5)))))


def moved_to_twins() -> ir.Model:
    g = Net()
    x = g.op("Transpose", g.qdq(g.input("x", [1, 4, 8]), X, ZERO), perm=[0, 2, 1])
    return g.normalized(g.op("Add", g.op("Exp", x), g.op("Exp", x)))


def linear(shape: list[int], vector: Any, *, zero: Any = ZERO, first: bool = False) -> ir.Model:
    """A MatMul of quantized numbers by quantized weights, and the Add of a constant."""
    g = Net()
    w = g.dequantize(g.constant(weight(16, 8)), 2.0**-5, s8(0))
    product = g.op("MatMul", g.qdq(g.input("x", shape), X, zero), w)
    added = g.constant(np.asarray(vector, np.float32))
    return g.normalized(g.op("Add", *((added, product) if first else (product, added))))


VECTOR = 2.0**-4 * np.arange(8)

Case = tuple[str, Callable[[], ir.Model]]

CASES: dict[str, Case] = {
    "a Conv weight along its input channels": ("Q101", lambda: conv()),
    "a Conv weight along its input channels, of another number": ("Q101", lambda: conv(out=16)),
    "a grouped Conv weight along its input channels": ("Q101", lambda: conv(group=2)),
    "a Conv weight along its height": ("Q101", lambda: conv(out=3, axis=2)),
    "a square MatMul weight along its rows": ("Q102", lambda: matmul([4, 16], [16, 16], 0)),
    "a MatMul weight along its rows, without Q": ("Q102", lambda: matmul([4, 16], [16, 8], 0, last=False)),
    "a MatMul weight in blocks": ("Q102", blocks),
    "a Gemm weight along its rows": ("Q102", lambda: gemm(0)),
    "a transposed Gemm weight along its columns": ("Q102", lambda: gemm(1, transB=1)),
    "a MatMul weight along its columns, then transposed": ("Q102", lambda: transposed("MatMul", 1)),
    "a Gemm weight along its columns, then transposed": ("Q102", lambda: transposed("Gemm", 1)),
    "a Conv weight along its output channels, then transposed": ("Q101", lambda: transposed("Conv", 0)),
    "a batch of weights along their columns": ("Q103", lambda: matmul([2, 4, 16], [2, 16, 8], 2)),
    "a batch of weights along the batch": ("Q103", lambda: matmul([2, 4, 16], [2, 16, 8], 0, last=False)),
    "rows with scales of their own": ("Q103", lambda: matmul([4, 16], [16, 8], 1, rows=0)),
    "rows of a batch with scales of their own": ("Q103", lambda: matmul([2, 4, 16], [16, 8], 1, rows=1, last=False)),
    "a Conv bias at twice its scale": ("Q104", lambda: biased_conv(2.0)),
    "a Conv bias at half its scale, per channel": ("Q104", lambda: biased_conv(0.5, channels=8)),
    "a Conv bias at 1.5 times its scale": ("Q104", lambda: biased_conv(1.5)),
    "a Gemm bias at four times its scale": ("Q105", lambda: biased_gemm(4.0)),
    "a Gemm bias at 0.75 times its scale": ("Q105", lambda: biased_gemm(0.75)),
    "a Gemm bias with a zero point": ("Q105", lambda: biased_gemm(1.0, 900)),
    "a Gemm bias at the wrong scale, without Q": ("Q105", lambda: biased_gemm(2.0, last=False)),
    "a Relu before int4 around zero": ("Q106", lambda: relu(TensorProto.INT4, 0)),
    "a Relu before uint4 with zero point 3": ("Q106", lambda: relu(TensorProto.UINT4, 3)),
    "Sigmoid per channel": ("Q107", lambda: pointwise("Sigmoid")),
    "Add per channel": ("Q107", lambda: pointwise("Add")),
    "Mul per channel": ("Q107", lambda: pointwise("Mul")),
    "LeakyRelu per channel": ("Q107", lambda: pointwise("LeakyRelu")),
    "Softmax per channel": ("Q107", lambda: pointwise("Softmax", axis=-1)),
    "Concat per channel": ("Q107", lambda: pointwise("Concat", axis=2)),
    "Where per channel": ("Q107", lambda: pointwise("Where")),
    "AveragePool per channel": ("Q107", lambda: pointwise("AveragePool", kernel_shape=[2, 2])),
    "GlobalAveragePool per channel": ("Q107", lambda: pointwise("GlobalAveragePool")),
    "Conv of activations per channel": ("Q107", lambda: conv(axis=0, activation_axis=1)),
    "Add to a grid per channel": ("Q107", lambda: pointwise("Add", several="out")),
    "Sigmoid to a grid per channel": ("Q107", lambda: pointwise("Sigmoid", several="out")),
    "Softmax at 1/255": ("Q108", lambda: softmax(1 / 255, u8(0))),
    "Softmax at 1/255, int8": ("Q108", lambda: softmax(1 / 255, s8(-128))),
    "a pool beyond its padding": ("Q120", pool),
    "a pool beyond its padding, then Relu": ("Q120", lambda: pool(clipped=True)),
    "a pool beyond its padding on one side": ("Q120", lambda: pool(pads=[0, 0, 1, 1], size=9)),
    "an Add beyond int32, then Relu": ("Q122", lambda: scaled("Add", 1.0, 2.0**-26, then="Relu")),
    "an Add beyond the whole numbers of float32": ("Q122", lambda: scaled("Add", 1.1, 1.3e-6)),
    "a Mul beyond int32": ("Q122", lambda: scaled("Mul", 1.0, 2.0**-17)),
    "an AveragePool beyond int32": ("Q122", lambda: scaled("AveragePool", 1.0, 2.0**-25, kernel_shape=[2, 2])),
    "a GlobalAveragePool to a fine grid": ("Q122", lambda: scaled("GlobalAveragePool", 1.0, 2.0**-16)),
    "a GlobalAveragePool to a coarse grid": ("Q122", lambda: scaled("GlobalAveragePool", 1.0, 2.0**25)),
    "a Softmax of one element": ("Q123", lambda: short_softmax(1, 1 / 256)),
    "a Softmax of two elements below 1/297": ("Q123", lambda: short_softmax(2, 1 / 320)),
    "an int8 weight beside float activations": ("Q109", lambda: weight_only(None, "column")),
    "an int4 weight beside float activations": ("Q109", lambda: weight_only(TensorProto.INT4, "tensor")),
    "a uint4 weight in blocks beside float activations": ("Q109", lambda: weight_only(TensorProto.UINT4, "block")),
    "two grids of different scales": ("Q110", lambda: requantized((0.1, u8(128)), (0.05, u8(128)))),
    "two grids of different zero points": ("Q110", lambda: requantized((0.1, u8(128)), (0.1, u8(120)))),
    "two grids of int8": ("Q110", lambda: requantized((0.1, s8(0)), (0.07, s8(3)))),
    "two grids of uint16": ("Q110", lambda: requantized((2.0**-12, u16(9)), (2.0**-12, u16(12)))),
    "two grids of ONNX Runtime's own": (
        "Q110",
        lambda: requantized((0.1, u8(128)), (0.05, u8(128)), domain="com.microsoft"),
    ),
    "two grids with an Identity between": (
        "Q110",
        lambda: requantized((0.1, u8(128)), (0.05, u8(128)), between="Identity"),
    ),
    "a Conv weight along its input channels, with an Identity before and after everything": ("Q101", passed_conv),
    "a computed batch along its columns": ("Q103", computed_batch),
    "a Conv bias that leaves int32": ("Q111", lambda: overflowing("Conv")),
    "a Gemm bias that leaves int32": ("Q111", lambda: overflowing("Gemm")),
    "a float Conv weight between grids": ("Q118", lambda: float_weight("Conv")),
    "a float Gemm weight between grids": ("Q118", lambda: float_weight("Gemm")),
    "int8 reshaped": ("Q119", lambda: moved("Reshape", [1, 32])),
    "int8 transposed": ("Q119", lambda: moved("Transpose", perm=[0, 2, 1])),
    "int8 squeezed": ("Q119", lambda: moved("Squeeze", [0])),
    "int8 unsqueezed": ("Q119", lambda: moved("Unsqueeze", [0])),
    "int8 sliced": ("Q119", lambda: moved("Slice", [0, 0], [2, 4], [1, 2])),
    "int8 pooled": ("Q119", lambda: moved("MaxPool", kernel_shape=[2])),
    "int8 moved to the output": ("Q119", lambda: moved("Reshape", [1, 32], then=None)),
    "int8 moved twice": ("Q119", moved_twice),
    "int8 transposed for a Gelu": ("Q119", moved_to_gelu),
    "int8 transposed for two equal readers": ("Q119", moved_to_twins),
    "int8 transposed for readers that move it on": ("Q119", moved_on),
    "int8 multiplied, plus a vector": ("Q119", lambda: linear([1, 4, 16], VECTOR)),
    "a vector, plus int8 multiplied": ("Q119", lambda: linear([2, 3, 4, 16], VECTOR, first=True)),
    "an int8 vector multiplied, plus another": ("Q119", lambda: linear([16], VECTOR)),
}

SOUND: dict[str, Callable[[], ir.Model]] = {
    "a pool whose windows end where the padding does": lambda: pool(9),
    "a pool without a last window beyond": lambda: pool(ceil_mode=0),
    "a pool whose padding does not count": lambda: pool(count_include_pad=0),
    "a Mul within int32": lambda: scaled("Mul", 1.0, 2.0**-16),
    "an AveragePool within int32": lambda: scaled("AveragePool", 1.0, 2.0**-23, kernel_shape=[2, 2]),
    "a GlobalAveragePool to the finest grid": lambda: scaled("GlobalAveragePool", 1.0, 2.0**-15),
    "a GlobalAveragePool to the coarsest grid": lambda: scaled("GlobalAveragePool", 1.0, 2.0**24),
    "a Softmax of two elements": lambda: short_softmax(2, 1 / 256),
    "a Conv weight along its output channels": lambda: conv(axis=0),
    "a MatMul weight along its columns": lambda: matmul([2, 4, 16], [16, 8], 1),
    "a Gemm weight along its columns": lambda: gemm(1),
    "a transposed Gemm weight along its rows": lambda: gemm(0, transB=1),
    "a Conv bias at its scale": lambda: biased_conv(1.0),
    "a Conv bias whose scale was rounded otherwise": lambda: biased_conv(1.0 + 2.0**-24, x=0.0123, w=0.00456),
    "a Gemm bias at its scale": lambda: biased_gemm(1.0),
    "a Relu before int4 from zero": lambda: relu(TensorProto.INT4, -8),
    "a Relu before uint4 from zero": lambda: relu(TensorProto.UINT4, 0),
    "a Relu before int4 per channel": lambda: relu(TensorProto.INT4, np.zeros(16), np.full(16, 0.25)),
    "a MatMul weight along its rows, then transposed": lambda: transposed("MatMul", 0),
    "Add per channel, int8": lambda: pointwise("Add", kind=s8),
    "Sigmoid to a grid per channel, int8": lambda: pointwise("Sigmoid", several="out", kind=s8),
    "a biased depthwise Conv of activations per channel": lambda: conv(group=8, axis=0, activation_axis=1, biased=True),
    "Add per channel, in float": lambda: pointwise("Add", last=False),
    "two grids of 4 bits": lambda: requantized((0.5, 0), (0.25, 0), kind=TensorProto.INT4),
    "MaxPool per channel": lambda: pointwise("MaxPool", kernel_shape=[2, 2]),
    "Softmax at 1/256": lambda: softmax(1 / 256, u8(0)),
    "Softmax at 1/100": lambda: softmax(1 / 100, u8(0)),
    "two grids of different types": lambda: requantized((0.1, u8(128)), (0.11, s8(3))),
    "uint8 reshaped": lambda: moved("Reshape", [1, 32], zero=u8(131)),
    "int8 gathered": lambda: moved("Gather", [2, 0], axis=1),
    "int8 transposed for two readers": lambda: moved_to("Exp", "Neg"),
    "int8 transposed for one reader and a grid": lambda: moved_to("Exp", "Q"),
    "int8 transposed and quantized again": lambda: moved_to("Q"),
    "int8 multiplied, plus a matrix of one row": lambda: linear([1, 4, 16], VECTOR[None]),
    "int8 multiplied, plus a number": lambda: linear([1, 4, 16], 0.5),
    "an int8 matrix multiplied, plus a vector": lambda: linear([4, 16], VECTOR),
    "uint8 multiplied, plus a vector": lambda: linear([1, 4, 16], VECTOR, zero=u8(131)),
    "the same real grid in two types": lambda: requantized((0.1, u8(128)), (0.1, s8(0))),
}


def feeds(model: ir.Model, rows: int = 3) -> list[dict[str, np.ndarray]]:
    """Inputs that fill the grid of the first QuantizeLinear, its ends included."""
    generator = rng()
    shape = tuple(int(size) for size in model.graph.inputs[0].shape)
    first = next((node for node in model.graph if node.op_type == "QuantizeLinear"), None)
    scale = 0.01 if first is None else float(np.max(first.inputs[1].const_value.numpy()))
    return [{"x": (generator.uniform(-140, 140, shape) * scale).astype(np.float32)} for _ in range(rows)]
