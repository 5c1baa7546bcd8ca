"""The bench on which one node is rewritten for a newer opset."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from intact.model import edit, query

Attribute = int | float | str | Sequence[int] | Sequence[float] | ir.TensorProtocol | ir.Graph


class Patch:
    """Builds nodes in front of one node, and turns that node itself into the last of them.

    The node keeps its outputs, so that whatever reads them, and the outputs of the graph, stay as they are.
    """

    def __init__(self, node: ir.Node, opset: int, names: edit.Names, notes: list[str]) -> None:
        self.node = node
        self.opset = opset
        self._names = names
        self._notes = notes
        self._origin = json.dumps(query.origin(node))

    def add(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        suffix: str,
        attributes: Mapping[str, Attribute] | None = None,
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        """Add a node of one output in front, and return that output."""
        name = self.take(suffix)
        node = ir.node(op, inputs, dict(attributes or {}), name=name)
        node.metadata_props.update(self.node.metadata_props)
        node.metadata_props[query.ORIGIN] = self._origin
        node.outputs[0].name = self._names.take(f"{name}/output")
        if dtype is not None:
            node.outputs[0].dtype = dtype
        self.node.prepend(node)
        return node.outputs[0]

    def take(self, suffix: str) -> str:
        """A name that nothing else has, for what is made of the node."""
        return self._names.take(f"{self.node.name or self.node.op_type}/{suffix}")

    def become(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Attribute] | None = None
    ) -> None:
        """Make the node itself a node of this op, with these inputs and no other attributes than these."""
        self.node.op_type = op
        self.set_inputs(inputs)
        self.node.attributes.clear()
        for attribute in ir.convenience.convert_attributes(dict(attributes or {})):
            self.node.attributes.add(attribute)

    def set_inputs(self, inputs: Sequence[ir.Value | None]) -> None:
        """Give the node these inputs and no others."""
        self.node.resize_inputs(len(inputs))
        for index, value in enumerate(inputs):
            self.node.replace_input_with(index, value)

    def move_output(self, index: int, value: ir.Value) -> None:
        """Let `value` stand wherever the last output of the node, number `index`, was used."""
        edit.replace_value(self.node.outputs[index], value, self._names)
        self.node.resize_outputs(index)

    def constant(self, array: np.ndarray | ir.TensorProtocol, suffix: str) -> ir.Value:
        """Add a constant."""
        tensor = ir.tensor(array)
        value = self.add("Constant", [], suffix, {"value": tensor}, tensor.dtype)
        value.shape = ir.Shape(tensor.shape.numpy())
        return value

    def ints(self, numbers: Sequence[int], suffix: str) -> ir.Value:
        """Add a list of int64, as axes, pads and shapes are given since they became inputs."""
        return self.constant(np.array(numbers, dtype=np.int64), suffix)

    def like(self, model: ir.Value, numbers: ArrayLike, suffix: str) -> ir.Value:
        """Add a constant of the element type that `model` has, also where that type is not known here."""
        array = np.asarray(numbers, dtype=np.float32)
        if model.dtype is None:
            return self.add("CastLike", [self.constant(array, suffix), model], f"{suffix}_cast")
        # A bound of a 16-bit clip may be beyond its type, where infinity means the same.
        with np.errstate(over="ignore"):
            return self.constant(ir.tensor(array.astype(model.dtype.numpy()), dtype=model.dtype), suffix)

    def note(self, text: str) -> None:
        """Record something that the user should know about this node."""
        self._notes.append(f"{self.node.name or 'a node'} ({self.node.op_type}): {text}")
