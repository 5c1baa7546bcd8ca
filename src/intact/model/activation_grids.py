"""The grids of activations in a quantized model: each QuantizeLinear with the DequantizeLinear nodes behind it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.numbers import integer


@dataclass(frozen=True, slots=True)
class NodeGrid:
    """Scale and zero point of one node, with the axis that they lie along."""

    scale: np.ndarray
    zero_point: np.ndarray
    axis: int
    block_size: int

    def parameters(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Both in float32, in a shape that broadcasts against a tensor."""
        scale = integer.along(self.scale, shape, self.axis, self.block_size).astype(np.float32)
        return scale, integer.along(self.zero_point, shape, self.axis, self.block_size).astype(np.float32)


@dataclass(frozen=True, slots=True)
class ActivationGrid:
    """The grid that one QuantizeLinear puts a tensor on, and how the nodes behind it read it.

    `tensor` is what is quantized; `base` is the computed tensor behind it, another one where grids follow each other.
    """

    quantize: str
    tensor: str
    base: str
    dtype: ir.DataType
    write: NodeGrid
    reads: tuple[NodeGrid, ...]

    def rounded(self, value: np.ndarray) -> np.ndarray:
        """A tensor as its readers see it; where they differ, as the one sees it that is furthest from it."""
        scale, zero_point = self.write.parameters(value.shape)
        low, high = float(self.dtype.min), float(self.dtype.max)
        with np.errstate(over="ignore", invalid="ignore"):
            levels = np.clip(np.rint(value.astype(np.float32) / scale) + zero_point, low, high)
            seen = [_restored(levels, read) for read in self.reads or (self.write,)]
            return max(seen, key=lambda found: float(np.sum(np.square(found - value, dtype=np.float64))))

    def range(self) -> tuple[float, float]:
        """The least and the greatest value that its readers can see."""
        read = self.reads[0] if self.reads else self.write
        zero_point = read.zero_point.astype(np.float64)
        low, high = (float(self.dtype.min) - zero_point) * read.scale, (float(self.dtype.max) - zero_point) * read.scale
        return float(low.min()), float(high.max())

    def levels(self) -> float:
        """The number of steps that the type has."""
        return float(self.dtype.max) - float(self.dtype.min)


def _restored(levels: np.ndarray, read: NodeGrid) -> np.ndarray:
    scale, zero_point = read.parameters(levels.shape)
    return np.asarray((levels - zero_point) * scale, np.float32)


def grids_of(model: ir.Model) -> list[ActivationGrid]:
    """Every grid of an activation with a constant scale, in the order of the model."""
    return [_grid(node) for node in model.graph if _puts_on_grid(node)]


def base_of(value: ir.Value) -> ir.Value:
    """The computed tensor behind a value that only went through grids."""
    producer = value.producer()
    while producer is not None and _reads_grid(producer):
        quantize = _writer(producer)
        assert quantize is not None and quantize.inputs[0] is not None, "a grid has a writer"
        value = quantize.inputs[0]
        producer = value.producer()
    return value


def unrounded(model: ir.Model) -> ir.Model:
    """A copy of a quantized model in which activations are not rounded; its weights are."""
    result = model.clone()
    for node in list(result.graph):
        if _reads_grid(node):
            source = base_of(node.outputs[0])
            for user, index in node.outputs[0].uses():
                user.replace_input_with(index, source)
    return result


def _puts_on_grid(node: ir.Node) -> bool:
    if node.op_type != "QuantizeLinear" or query.is_constant(node.inputs[0]):
        return False
    return all(value is None or query.is_constant(value) for value in node.inputs[1:])


def _writer(node: ir.Node) -> ir.Node | None:
    return node.inputs[0].producer() if node.inputs[0] is not None else None


def _reads_grid(node: ir.Node) -> bool:
    """Whether a DequantizeLinear reads what a QuantizeLinear wrote, both with constant scales."""
    if node.op_type != "DequantizeLinear":
        return False
    writer = _writer(node)
    constant = all(value is None or query.is_constant(value) for value in node.inputs[1:])
    return constant and writer is not None and _puts_on_grid(writer)


def _grid(node: ir.Node) -> ActivationGrid:
    source = node.inputs[0]
    assert source is not None, "QuantizeLinear has an input"
    readers = [reader for reader in node.outputs[0].consumers() if _reads_grid(reader)]
    write = _affine(node)
    kind = ir.DataType.from_numpy(write.zero_point.dtype)
    declared = query.constant_tensor(query.input_(node, 2))
    return ActivationGrid(
        quantize=node.name or "",
        tensor=source.name or "",
        base=base_of(source).name or "",
        dtype=declared.dtype if declared is not None else kind,
        write=write,
        reads=tuple(_affine(reader) for reader in readers),
    )


def _affine(node: ir.Node) -> NodeGrid:
    scale, zero_point = query.constant(node.inputs[1]), query.constant(query.input_(node, 2))
    assert scale is not None, "only grids with constant scales are read"
    zeros = np.zeros(scale.shape, np.uint8) if zero_point is None else zero_point
    return NodeGrid(scale, zeros, query.int_(node, "axis", 1), query.int_(node, "block_size", 0))
