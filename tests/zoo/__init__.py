"""Small models, faithful in structure to what exporters write: seeded, without torch, opset 17, batch 1.

`ZOO` names a builder for each; `data(model, rows, seed)` makes inputs for any of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto

from tests.zoo.cnn import depthwise_cnn, residual_cnn
from tests.zoo.transformer import bert, vit

ZOO: dict[str, Callable[[], onnx.ModelProto]] = {
    "residual_cnn": residual_cnn,
    "depthwise_cnn": depthwise_cnn,
    "bert": bert,
    "vit": vit,
}

__all__ = ["ZOO", "bert", "data", "depthwise_cnn", "residual_cnn", "vit"]


def data(model: onnx.ModelProto, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs with samples on axis 0: images, ids below the rows of their table, masks with a live first key."""
    rng = np.random.default_rng(seed)
    return {value.name: _values(rng, model, value, rows) for value in model.graph.input}


def _values(rng: np.random.Generator, model: onnx.ModelProto, value: onnx.ValueInfoProto, rows: int) -> np.ndarray:
    tensor = value.type.tensor_type
    shape = (rows, *(dim.dim_value for dim in tensor.shape.dim[1:]))
    if tensor.elem_type == TensorProto.FLOAT:
        return _images(rng, shape)
    table = _table_rows(model, value.name)
    if table is not None:
        return rng.integers(0, table, shape)
    lengths = rng.integers(1, shape[1] + 1, (rows, 1))
    return (np.arange(shape[1]) < lengths).astype(np.int64)


def _images(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Noise over a coarse pattern, so that neighbouring pixels agree as in a photograph."""
    coarse = rng.standard_normal((*shape[:2], 4, 4)).repeat(shape[2] // 4, 2).repeat(shape[3] // 4, 3)
    return (0.9 * coarse + 0.4 * rng.standard_normal(shape)).astype(np.float32)


def _table_rows(model: onnx.ModelProto, ids: str) -> int | None:
    """The number of rows of the table that these ids index, or None where they index none."""
    shapes = {weight.name: weight.dims for weight in model.graph.initializer}
    lookups = (node for node in model.graph.node if node.op_type == "Gather" and node.input[1] == ids)
    return next((shapes[node.input[0]][0] for node in lookups), None)
