"""Small float models from ONNX text, quantized, and the grids read back from the result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from intact.model import normalize, query
from intact.quantization import quantizing
from intact.quantization.improve.migrate import Migrated
from intact.quantization.quantizing import QuantizedModel
from intact.runtime import ort_cpu
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.builder import from_text


def model(inputs: str, outputs: str, body: str, *, opset: int = 21, **weights: np.ndarray) -> ir.Model:
    """A normalised model; `weights` become initializers. A node is named after its first output."""
    return normalize.normalize(from_text(f"({inputs}) => ({outputs})", body, opset=opset, weights=weights))


def rows(shapes: dict[str, tuple[int, ...]], count: int = 4, seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()} for _ in range(count)]


def quantized(
    float_model: ir.Model, feeds: list[dict[str, np.ndarray]], device: str = "cpu", **settings: object
) -> QuantizedModel:
    """The model quantized for a device with these settings over the plainest ones, checked by ONNX itself."""
    config = QuantConfig.from_dict({"method": "minmax", "effort": "fast", "rescue": False, **settings})
    result = quantizing.quantize(float_model, load_target(device), config, feeds)
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    return result


@dataclass(frozen=True)
class Grid:
    """A grid as it stands in a graph; `integers` are those of a constant."""

    dtype: str
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int | None
    integers: np.ndarray | None

    def values(self) -> np.ndarray:
        """The real values of a constant, in float64."""
        assert self.integers is not None
        shape = [1] * self.integers.ndim
        if self.axis is not None:
            shape[self.axis] = -1
        scale, zero = (array.astype(np.float64).reshape(shape) for array in (self.scale, self.zero_point))
        return (self.integers.astype(np.float64) - zero) * scale

    def same(self, other: Grid) -> bool:
        return self.dtype == other.dtype and self.scale == other.scale and self.zero_point == other.zero_point


def node(graph: ir.Model, name: str) -> ir.Node:
    return next(found for found in graph.graph if found.name == name)


def read(graph: ir.Model, name: str, index: int) -> Grid | None:
    """The grid that a node reads an input from, or None where it reads floats."""
    value = node(graph, name).inputs[index]
    producer = value.producer() if value is not None else None
    return None if producer is None or producer.op_type != "DequantizeLinear" else _grid(producer, producer.inputs[0])


def written(graph: ir.Model, name: str, index: int = 0) -> Grid | None:
    """The grid that an output of a node is put on, or None where it stays float."""
    users = node(graph, name).outputs[index].consumers()
    found = [user for user in users if user.op_type == "QuantizeLinear"]
    assert len(found) <= 1, "a tensor is quantized once"
    return _grid(found[0], found[0].outputs[0]) if found else None


def _grid(pair: ir.Node, integers: ir.Value | None) -> Grid:
    scale, zero = query.constant(pair.inputs[1]), query.constant(pair.inputs[2])
    assert scale is not None and zero is not None and integers is not None and integers.dtype is not None
    axis = pair.attributes["axis"].as_int() if "axis" in pair.attributes else None
    return Grid(integers.dtype.name.lower(), scale, zero, axis, query.constant(integers))


def assert_the_rest_is_the_same(net: ir.Model, found: Migrated, row: dict[str, np.ndarray]) -> None:
    """Every tensor of both models has other values exactly if it is said to be changed."""
    names = [v.name for node in net.graph for v in node.outputs if v.name and v.name in query.values(found.model)]
    before, after = (ort_cpu.run(each, row, outputs=names) for each in (net, found.model))
    kept = {name for name in names if np.allclose(before[name], after[name], atol=2e-3, rtol=1e-4)}
    assert kept and kept == set(names) - found.changed
