"""Runs small models in plain numpy: the arithmetic of `intact.numbers.integer`, and float32 as kernels have it.

Sums of products of floats are taken in float64 and rounded once, so that no order of summation is favoured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from intact.numbers import integer
from intact.numbers.integer_types import limits

Arrays = dict[str, np.ndarray]


def evaluate(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """The outputs of a model, by name."""
    every = tensors(model, feeds)
    return {value.name: every[value.name] for value in model.graph.outputs}


def tensors(model: ir.Model, feeds: Mapping[str, np.ndarray], nodes: Sequence[ir.Node] | None = None) -> Arrays:
    """Every tensor that (these) nodes of a model compute, by name, in their order; and outputs that are inputs."""
    nodes = list(model.graph) if nodes is None else nodes
    known: dict[ir.Value | None, Any] = {None: None}
    known |= {value: value.const_value.numpy() for value in model.graph.initializers.values()}
    known |= {value: feeds[value.name] for value in model.graph.inputs if value.name in feeds}
    for node in nodes:
        kernel = KERNELS.get((node.domain, node.op_type))
        assert kernel is not None, f"the interpreter has no {node.domain}::{node.op_type}"
        attributes = {name: item.value for name, item in node.attributes.items()}
        result = kernel(*(known[value] for value in node.inputs), **attributes)
        for value, array in zip(node.outputs, result if isinstance(result, tuple) else (result,), strict=False):
            known[value] = array
    computed = [value for node in nodes for value in node.outputs if value in known]
    return {value.name: known[value] for value in (*computed, *model.graph.outputs)}


def _pad(x, pads, value=None, axes=None, *, mode="constant"):
    ends = np.zeros((x.ndim, 2), np.int64)
    ends[slice(None) if axes is None else np.asarray(axes)] = np.reshape(pads, (2, -1)).T
    return np.pad(x, ends, mode, **({"constant_values": 0 if value is None else value} if mode == "constant" else {}))


def _quantize(x, scale, zero=None, *, axis=1, block_size=0, output_dtype=0, **_):
    dtype = ir.DataType(output_dtype).numpy() if output_dtype else np.uint8
    zero = np.zeros(np.shape(scale), dtype) if zero is None else zero
    return integer.quantize_linear(x, scale, zero, axis=axis, block_size=block_size)


def _dequantize(q, scale, zero=None, *, axis=1, block_size=0, **_):
    return integer.dequantize_linear(q, scale, zero, axis=axis, block_size=block_size)


def _qlinear_conv(x, xs, xz, w, ws, wz, ys, yz, b=None, *, kernel_shape=(), **attributes):
    return integer.qlinear_conv(x, xs, xz, w, ws, wz, ys, yz, b, **attributes)


def _conv_integer(x, w, xz=0, wz=0, *, kernel_shape=(), **attributes):
    return integer.conv_integer(x, w, 0 if xz is None else xz, 0 if wz is None else wz, **attributes)


def _qlinear(compute: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def kernel(*inputs):
        return compute(*(np.reshape(item, ()) if index not in (0, 3) else item for index, item in enumerate(inputs)))

    return kernel


def _conv(x, w, b=None, *, group=1, strides=(), dilations=(), pads=(), auto_pad="NOTSET", kernel_shape=()):
    spatial = w.ndim - 2
    steps, spread = tuple(strides) or (1,) * spatial, tuple(dilations) or (1,) * spatial
    around = integer.paddings(x.shape[2:], w.shape[2:], steps, spread, pads, auto_pad)
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *around])
    result = integer.convolve(padded, w.astype(np.float64), group, steps, spread)
    if b is not None:
        result = result + b.astype(np.float64).reshape(-1, *(1,) * spatial)
    return result.astype(np.float32)


def _gemm(a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
    left, right = (a.T if transA else a).astype(np.float64), (b.T if transB else b).astype(np.float64)
    result = alpha * (left @ right)
    return (result if c is None else result + beta * c.astype(np.float64)).astype(np.float32)


def _matmul(a, b):
    return np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)


def _matmul_integer(a, b, za=0, zb=0):
    return integer.matmul_integer(a, b, 0 if za is None else za, 0 if zb is None else zb)


def _matmul_to_float(a, b, a_scale, b_scale, za=None, zb=None, bias=None):
    scale = np.asarray(a_scale, np.float32) * np.asarray(b_scale, np.float32)
    result = _matmul_integer(a, b, za, zb).astype(np.float32) * scale
    return result if bias is None else (result + bias).astype(np.float32)


def _batch_norm(x, gamma, beta, mean, var, *, epsilon=1e-5, **_):
    factor = gamma / np.sqrt(var + np.float32(epsilon))
    shape = (1, -1, *(1,) * (x.ndim - 2))
    return (x * factor.reshape(shape) + (beta - mean * factor).reshape(shape)).astype(np.float32)


def _layer_norm(x, scale, bias=None, *, axis=-1, epsilon=1e-5, stash_type=1):
    axes, real = tuple(range(axis % x.ndim, x.ndim)), x.astype(np.float64)
    centred = real - real.mean(axis=axes, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=axes, keepdims=True) + epsilon)
    return (centred / spread * scale + (0 if bias is None else bias)).astype(np.float32)


def _pool(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode, fill):
    """Windows of a padded input, with `fill` around it."""
    assert not ceil_mode, "the interpreter rounds output sizes down"
    count = len(kernel_shape)
    steps, spread = tuple(strides) or (1,) * count, tuple(dilations) or (1,) * count
    around = integer.paddings(x.shape[2:], kernel_shape, steps, spread, pads, auto_pad)
    padded = np.pad(x, [(0, 0), (0, 0), *around], constant_values=fill)
    return integer.windows(padded, kernel_shape, steps, spread)


def _max_pool(x, *, kernel_shape, strides=(), dilations=(), pads=(), auto_pad="NOTSET", ceil_mode=0, **_):
    least = -np.inf if x.dtype.kind == "f" else limits(x.dtype.name)[0]
    seen = _pool(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode, least)
    return seen.max(axis=tuple(range(-len(kernel_shape), 0)))


def _average_pool(
    x, *, kernel_shape, strides=(), dilations=(), pads=(), auto_pad="NOTSET", ceil_mode=0, count_include_pad=0
):
    axes = tuple(range(-len(kernel_shape), 0))
    pooled = [strides, dilations, pads, auto_pad, ceil_mode]
    total = _pool(x.astype(np.float64), kernel_shape, *pooled, 0).sum(axis=axes)
    counted = np.ones_like(x, np.float64) if not count_include_pad else None
    size = np.prod(kernel_shape) if counted is None else _pool(counted, kernel_shape, *pooled, 0).sum(axis=axes)
    return (total / size).astype(np.float32)


def _global_average_pool(x):
    return x.mean(axis=tuple(range(2, x.ndim)), keepdims=True, dtype=np.float64).astype(np.float32)


def _reduce_mean(x, axes, *, keepdims=1):
    return x.mean(axis=tuple(int(axis) for axis in axes), keepdims=bool(keepdims), dtype=np.float64).astype(np.float32)


def _softmax(x, *, axis=-1, **_):
    powers = np.exp(x.astype(np.float64) - x.max(axis=axis, keepdims=True))
    return (powers / powers.sum(axis=axis, keepdims=True)).astype(np.float32)


def _sigmoid(x):
    return (1 / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32)


def _hard_sigmoid(x, *, alpha=0.2, beta=0.5):
    return np.clip(x.astype(np.float64) * alpha + beta, 0, 1).astype(np.float32)


def _hard_swish(x):
    return (x.astype(np.float64) * np.clip(x.astype(np.float64) / 6 + 0.5, 0, 1)).astype(np.float32)


def _erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(np.float32)


def _gelu(x, *, approximate="none"):
    real = x.astype(np.float64)
    if approximate == "tanh":
        return (real / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (real + 0.044715 * real**3)))).astype(np.float32)
    return (real / 2 * (1 + _erf(real / np.sqrt(2)))).astype(np.float32)


def _dynamic_quantize(x):
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = np.float32((high - low) / 255) if high > low else np.float32(1)
    zero = np.clip(np.rint(np.float32(-low) / scale), 0, 255).astype(np.uint8)
    return integer.quantize_linear(x, scale, zero), scale, zero


def _leaky_relu(x, *, alpha=0.01):
    return np.where(x < 0, x * np.float32(alpha), x)


def _through_float(compute: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """An integer operator of one input that is DQ, `compute`, Q."""

    def kernel(x, xs, xz, ys, yz, *, channels_last=0, opset=0, **attributes):
        real = integer.dequantize_linear(x, np.reshape(xs, ()), None if xz is None else np.reshape(xz, ()))
        zero = np.zeros((), x.dtype) if yz is None else np.reshape(yz, ())
        return integer.quantize_linear(compute(real, **attributes), np.reshape(ys, ()), zero)

    return kernel


def _qlinear_concat(ys, yz, *inputs, axis):
    parts = [integer.dequantize_linear(*inputs[index : index + 3]) for index in range(0, len(inputs), 3)]
    return integer.quantize_linear(np.concatenate(parts, axis), ys, np.reshape(yz, ()))


def _qlinear_where(condition, x, xs, xz, y, ys, yz, zs, zz):
    real = np.where(condition, integer.dequantize_linear(x, xs, xz), integer.dequantize_linear(y, ys, yz))
    return integer.quantize_linear(real, zs, np.reshape(zz, ()))


def _reshape(x, shape, *, allowzero=0):
    return x.reshape([x.shape[i] if size == 0 and not allowzero else int(size) for i, size in enumerate(shape)])


def _slice(x, starts, ends, axes=None, steps=None):
    index = [slice(None)] * x.ndim
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[int(axis)] = slice(int(start), None if end < -x.shape[axis] and step < 0 else int(end), int(step))
    return x[tuple(index)]


def _split(x, sizes=None, *, axis=0, num_outputs=0):
    """Into parts of `sizes`, or into equal parts, of which the last may be smaller."""
    part = -(-x.shape[axis] // num_outputs) if sizes is None else 0
    ends = range(part, x.shape[axis], part) if sizes is None else np.cumsum(sizes)[:-1]
    return tuple(np.split(x, list(ends), axis))


def _flatten(x, *, axis=1):
    return x.reshape(int(np.prod(x.shape[:axis], dtype=int)), -1)


def _squeeze(x, axes=None):
    return np.squeeze(x, None if axes is None else tuple(int(axis) for axis in axes))


def _depth_to_space(x, *, blocksize, mode="DCR"):
    n, c, h, w = x.shape
    if mode == "DCR":
        split = x.reshape(n, blocksize, blocksize, c // blocksize**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        split = x.reshape(n, c // blocksize**2, blocksize, blocksize, h, w).transpose(0, 1, 4, 2, 5, 3)
    return split.reshape(n, c // blocksize**2, h * blocksize, w * blocksize)


def _space_to_depth(x, *, blocksize):
    n, c, h, w = x.shape
    split = x.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize).transpose(0, 3, 5, 1, 2, 4)
    return split.reshape(n, c * blocksize**2, h // blocksize, w // blocksize)


def _resize(x, roi=None, scales=None, sizes=None, *, mode="nearest", **_):
    factors = scales if sizes is None else np.asarray(sizes) / x.shape
    if mode == "linear":
        return _interpolated(x, factors)
    assert mode == "nearest", "the interpreter has no other mode"
    assert all(factor == int(factor) for factor in factors), "by whole factors"
    for axis, factor in enumerate(factors):
        x = np.repeat(x, int(factor), axis)
    return x


def _interpolated(x, factors):
    """Between half pixels, axis by axis; of integers the fraction is cut off, as ONNX Runtime does."""
    result = x.astype(np.float64)
    for axis, factor in enumerate(factors):
        size = x.shape[axis]
        at = np.clip((np.arange(int(size * factor)) + 0.5) / factor - 0.5, 0, size - 1)
        low = np.floor(at).astype(int)
        share = (at - low).reshape([-1 if index == axis else 1 for index in range(x.ndim)])
        below, above = np.take(result, low, axis), np.take(result, np.minimum(low + 1, size - 1), axis)
        result = below * (1 - share) + above * share
    return (np.trunc(result) if np.issubdtype(x.dtype, np.integer) else result).astype(x.dtype)


def _clip(x, low=None, high=None):
    return np.clip(x, -np.inf if low is None else low, np.inf if high is None else high).astype(x.dtype)


def _integer_clip(x, low=None, high=None):
    least, greatest = limits(x.dtype.name)
    return np.clip(x, least if low is None else low, greatest if high is None else high).astype(x.dtype)


def _cast(x, *, to, **_):
    return x.astype(ir.DataType(to).numpy())


MICROSOFT = "com.microsoft"
KERNELS: dict[tuple[str, str], Callable[..., Any]] = {
    ("", "QuantizeLinear"): _quantize,
    ("", "DequantizeLinear"): _dequantize,
    (MICROSOFT, "QuantizeLinear"): _quantize,
    (MICROSOFT, "DequantizeLinear"): _dequantize,
    ("", "QLinearConv"): _qlinear_conv,
    ("", "ConvInteger"): _conv_integer,
    ("", "QLinearMatMul"): integer.qlinear_matmul,
    ("", "MatMulInteger"): _matmul_integer,
    (MICROSOFT, "QGemm"): integer.qgemm,
    (MICROSOFT, "MatMulIntegerToFloat"): _matmul_to_float,
    (MICROSOFT, "QLinearAdd"): _qlinear(integer.qlinear_add),
    (MICROSOFT, "QLinearMul"): _qlinear(integer.qlinear_mul),
    (MICROSOFT, "QLinearSigmoid"): _through_float(_sigmoid),
    (MICROSOFT, "QLinearLeakyRelu"): _through_float(_leaky_relu),
    (MICROSOFT, "QLinearSoftmax"): _through_float(_softmax),
    (MICROSOFT, "QLinearAveragePool"): _through_float(_average_pool),
    (MICROSOFT, "QLinearGlobalAveragePool"): _through_float(_global_average_pool),
    (MICROSOFT, "QLinearReduceMean"): _through_float(
        lambda x, *, axes, keepdims=1: _reduce_mean(x, axes, keepdims=keepdims)
    ),
    (MICROSOFT, "QLinearConcat"): _qlinear_concat,
    (MICROSOFT, "QLinearWhere"): _qlinear_where,
    ("", "Conv"): _conv,
    ("", "Gemm"): _gemm,
    ("", "MatMul"): _matmul,
    ("", "BatchNormalization"): _batch_norm,
    ("", "LayerNormalization"): _layer_norm,
    ("", "Add"): np.add,
    ("", "Sub"): np.subtract,
    ("", "Mul"): np.multiply,
    ("", "Div"): np.divide,
    ("", "Neg"): np.negative,
    ("", "BitwiseNot"): np.invert,
    ("", "Max"): lambda *inputs: np.max(np.broadcast_arrays(*inputs), axis=0),
    ("", "Min"): lambda *inputs: np.min(np.broadcast_arrays(*inputs), axis=0),
    ("", "Relu"): lambda x: np.maximum(x, x.dtype.type(0)),
    ("", "Clip"): lambda x, *ends: (_clip if x.dtype.kind == "f" else _integer_clip)(x, *ends),
    ("", "Sigmoid"): _sigmoid,
    ("", "LeakyRelu"): _leaky_relu,
    ("", "HardSigmoid"): _hard_sigmoid,
    ("", "HardSwish"): _hard_swish,
    ("", "Erf"): _erf,
    ("", "Gelu"): _gelu,
    ("", "Tanh"): lambda x: np.tanh(x.astype(np.float64)).astype(np.float32),
    ("", "Pow"): lambda x, power: np.power(x.astype(np.float64), power).astype(np.float32),
    ("", "DynamicQuantizeLinear"): _dynamic_quantize,
    ("", "Softmax"): _softmax,
    ("", "AveragePool"): _average_pool,
    ("", "GlobalAveragePool"): _global_average_pool,
    ("", "ReduceMean"): _reduce_mean,
    ("", "MaxPool"): _max_pool,
    ("", "Where"): np.where,
    ("", "Concat"): lambda *inputs, axis: np.concatenate(inputs, axis),
    ("", "Cast"): _cast,
    ("", "Identity"): lambda x: x,
    ("", "Reshape"): _reshape,
    ("", "Flatten"): _flatten,
    ("", "Squeeze"): _squeeze,
    ("", "Unsqueeze"): lambda x, axes: np.expand_dims(x, tuple(int(axis) for axis in axes)),
    ("", "Transpose"): lambda x, *, perm=None: np.transpose(x, perm),
    ("", "Slice"): _slice,
    ("", "Gather"): lambda x, indices, *, axis=0: np.take(x, indices, axis),
    ("", "Expand"): lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))),
    ("", "Tile"): lambda x, repeats: np.tile(x, tuple(repeats)),
    ("", "DepthToSpace"): _depth_to_space,
    ("", "SpaceToDepth"): _space_to_depth,
    ("", "Resize"): _resize,
    ("", "Pad"): _pad,
    ("", "Split"): _split,
}
