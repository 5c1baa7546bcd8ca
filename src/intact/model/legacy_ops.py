"""Ops that old exporters wrote and ONNX no longer defines, expressed by ops that it does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.model.patch import Patch

END = np.iinfo(np.int64).max


def image_scaler(patch: Patch) -> None:
    """ImageScaler(x) = x * scale + bias, with one bias for each channel."""
    node, data = patch.node, _data(patch)
    bias = np.array(node.attributes.get_floats("bias", ()), dtype=np.float32).reshape(-1, 1, 1)
    scale = patch.like(data, query.float_(node, "scale", 1.0), "scale")
    scaled = patch.add("Mul", [data, scale], "Mul", dtype=data.dtype)
    patch.become("Add", [scaled, patch.like(data, bias if bias.size else 0.0, "bias")])


def crop(patch: Patch) -> None:
    """Crop(x) = Slice(x) of rows and columns; `border` is left, top, right, bottom, `scale` a height and a width."""
    left, top, right, bottom = query.ints(patch.node, "border", (0, 0, 0, 0))
    size = query.ints(patch.node, "scale")
    ends = [top + size[0], left + size[1]] if size else [-bottom or END, -right or END]
    bounds = [("starts", [top, left]), ("ends", ends), ("axes", [2, 3])]
    patch.become("Slice", [_data(patch), *(patch.ints(numbers, name) for name, numbers in bounds)])


def dynamic_slice(patch: Patch) -> None:
    """DynamicSlice(x, starts, ends, axes) = Slice(x, starts, ends, axes)."""
    patch.become("Slice", patch.node.inputs)


def affine(patch: Patch) -> None:
    """Affine(x) = alpha * x + beta."""
    node, data = patch.node, _data(patch)
    alpha = patch.like(data, query.float_(node, "alpha", 1.0), "alpha")
    scaled = patch.add("Mul", [data, alpha], "Mul", dtype=data.dtype)
    patch.become("Add", [scaled, patch.like(data, query.float_(node, "beta", 0.0), "beta")])


def scale(patch: Patch) -> None:
    """Scale(x) = scale * x."""
    data = _data(patch)
    patch.become("Mul", [data, patch.like(data, query.float_(patch.node, "scale", 1.0), "scale")])


def scaled_tanh(patch: Patch) -> None:
    """ScaledTanh(x) = alpha * tanh(beta * x)."""
    _scaled(patch, "Tanh")


def parametric_softplus(patch: Patch) -> None:
    """ParametricSoftplus(x) = alpha * ln(1 + exp(beta * x))."""
    _scaled(patch, "Softplus")


def keep(patch: Patch) -> None:
    """ONNX defined the op later just as it was used before: it stays as it is."""


RULES: dict[str, Callable[[Patch], None]] = {
    "Affine": affine,
    "Crop": crop,
    "DynamicSlice": dynamic_slice,
    "ImageScaler": image_scaler,
    # ONNX Runtime's optimizer wrote it into models of older opsets than 17, which defined it.
    "LayerNormalization": keep,
    "ParametricSoftplus": parametric_softplus,
    "Scale": scale,
    "ScaledTanh": scaled_tanh,
    "ThresholdedRelu": keep,
}


def _scaled(patch: Patch, op: str) -> None:
    """op(x) with a factor before and a factor behind."""
    node, data = patch.node, _data(patch)
    alpha = patch.like(data, query.float_(node, "alpha", 1.0), "alpha")
    beta = patch.like(data, query.float_(node, "beta", 1.0), "beta")
    inner = patch.add("Mul", [data, beta], "Mul", dtype=data.dtype)
    patch.become("Mul", [patch.add(op, [inner], op, dtype=data.dtype), alpha])


def _data(patch: Patch) -> ir.Value:
    data = patch.node.inputs[0]
    assert data is not None, f"{patch.node.op_type} has an input"
    return data
