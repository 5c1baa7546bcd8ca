"""The place of a remedy in a quantized model, and the edits that remedies are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field

import numpy as np
import onnx_ir as ir

from intact.model import edit, query
from intact.model.node_encodings import encoding_of
from intact.numbers.encoding import Encoding, quantize
from intact.numbers.integer_types import limits
from intact.records import dataclass
from intact.targets.operands import DEQUANTIZE, QUANTIZE


@dataclass(frozen=True, slots=True)
class FaultSite:
    """The place of a remedy: a model of its own to edit, and the tensor that comes out wrong."""

    model: ir.Model
    tensor: str
    seen: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The least and the greatest value that was seen of the tensors that the unit reads."""

    @property
    def nodes(self) -> list[ir.Node]:
        """The node that computes the tensor, and those behind it back to the grids that they read, if there are any."""
        found: list[ir.Node] = []
        pending = [self.value.producer()]
        if not any(node.op_type == QUANTIZE for node in self.model.graph):
            return [node for node in pending if node is not None]
        while pending:
            node = pending.pop()
            if node is None or node in found or node.op_type in (QUANTIZE, DEQUANTIZE):
                continue
            found.append(node)
            pending += [value.producer() for value in node.inputs if value is not None]
        return found

    @property
    def value(self) -> ir.Value:
        """The tensor that comes out wrong."""
        return next(v for node in self.model.graph for v in node.outputs if v.name == self.tensor)

    def reads(self) -> Iterator[tuple[ir.Node, int, ir.Node]]:
        """Each input that a node reads from a grid of activations, with the DequantizeLinear that gives it."""
        for node in self.nodes:
            for index, value in enumerate(node.inputs):
                producer = None if value is None else value.producer()
                if (
                    producer is not None
                    and producer.op_type == DEQUANTIZE
                    and not query.is_constant(producer.inputs[0])
                ):
                    yield node, index, producer


# Edits the model of a site, and returns what it did in words, or None where it does not apply.
Remedy = Callable[[FaultSite], str | None]


def cut_behind(
    site: FaultSite, old: ir.Node, wide: ir.Node, shape: list[int], window: tuple[list[int], list[int], list[int]]
) -> None:
    """Put a wider node in the place of one, on the same grid, and behind it a Slice to starts, ends and axes."""
    names, name = edit.Names(site.model), old.outputs[0].name
    numbers = [
        edit.add_initializer(site.model.graph, np.array(part, np.int64), names.take(f"{name}/{what}"))
        for part, what in zip(window, ("starts", "ends", "axes"), strict=True)
    ]
    replace_before(site, old, wide, shape, ir.Node("", "Slice", [wide.outputs[0], *numbers]))


def replace_before(site: FaultSite, old: ir.Node, new: ir.Node, shape: list[int], last: ir.Node) -> None:
    """Put a node with a result of another shape in the place of one, on the same grid, and `last` behind it."""
    names, graph, value = edit.Names(site.model), site.model.graph, old.outputs[0]
    name, grid = value.name, next((node for node in value.consumers() if node.op_type == QUANTIZE), None)
    whole = new.outputs[0]
    whole.name, whole.type, whole.shape = names.take(f"{name}/whole"), value.type, ir.Shape(shape)
    encoding = None if grid is None else encoding_of(grid)
    pair = [] if encoding is None else grid_pair(site.model, whole, encoding)
    last.name = names.take(f"{name}/{last.op_type}")
    last.replace_input_with(0, pair[-1].outputs[0] if pair else whole)
    graph.insert_before(old, [new, *pair, last])
    is_output = value.is_graph_output()
    edit.replace_value(value, last.outputs[0], names)
    last.outputs[0].type, last.outputs[0].shape = value.type, value.shape
    graph.remove(old, safe=True)
    if not is_output:
        last.outputs[0].name = name


def constant_for(site: FaultSite, node: ir.Node, numbers: np.ndarray, name: str) -> ir.Value:
    """A constant of positive numbers beside the result of a node: on a grid of the same type, or in its floats."""
    value, graph, names = node.outputs[0], site.model.graph, edit.Names(site.model)
    grid = next((user for user in value.consumers() if user.op_type == QUANTIZE), None)
    encoding = None if grid is None else encoding_of(grid)
    if encoding is None:
        dtype = np.dtype(np.float32) if value.dtype is None else value.dtype.numpy()
        return edit.add_initializer(graph, numbers.astype(dtype), names.take(name))
    low, high = limits(encoding.dtype)
    own = Encoding(encoding.dtype, np.asarray(numbers.max() / (high - low), np.float32), np.asarray(low))
    constants = (quantize(numbers, own), own.scale, own.zero_point)
    typed = zip(constants, (own.dtype, "float32", own.dtype), ("", "/step", "/zero_point"), strict=True)
    inputs = [edit.add_initializer(graph, one.astype(dtype), names.take(name + end)) for one, dtype, end in typed]
    read = ir.Node("", DEQUANTIZE, inputs, name=names.take(f"{name}/{DEQUANTIZE}"))
    read.outputs[0].name, read.outputs[0].type = names.take(f"{name}/values"), value.type
    read.outputs[0].shape = ir.Shape(numbers.shape)
    graph.insert_before(node, read)
    return read.outputs[0]


def grid_pair(model: ir.Model, value: ir.Value, grid: Encoding) -> list[ir.Node]:
    """A QuantizeLinear of a value, and the DequantizeLinear behind it."""
    names = edit.Names(model)
    step = edit.add_initializer(model.graph, grid.scale.reshape(()), names.take(f"{value.name}/step"))
    zero = grid.zero_point.reshape(()).astype(np.dtype(grid.dtype))
    zero_point = edit.add_initializer(model.graph, zero, names.take(f"{value.name}/zero_point"))
    nodes, source = [], value
    for op in (QUANTIZE, DEQUANTIZE):
        node = ir.Node("", op, [source, step, zero_point], name=names.take(f"{value.name}/{op}"))
        node.outputs[0].name = names.take(f"{value.name}/{op}/output")
        source = node.outputs[0]
        nodes.append(node)
    assert zero_point.dtype is not None, "it was made here"
    nodes[0].outputs[0].type = ir.TensorType(zero_point.dtype)
    nodes[1].outputs[0].type, nodes[1].outputs[0].shape = value.type, value.shape
    return nodes
