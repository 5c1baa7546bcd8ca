"""Writes a model in half precision: types, constants, and one Cast where a value is read in another type."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from intact.model import edit, query
from intact.model.copying import copied
from intact.quantization.float16.follow import is_half, reads_half
from intact.quantization.float16.form import Form

_HALF, _SINGLE = ir.DataType.FLOAT16, ir.DataType.FLOAT


def cast(model: ir.Model, forms: Mapping[ir.Node, Form], half: Collection[ir.Node]) -> ir.Model:
    """A copy of `model` in which the nodes of `half` compute in half precision; its inputs and outputs stay."""
    result = copied(model)
    copies = dict(zip(model.graph, result.graph, strict=True))
    writer = _HalfWriter(result, {copies[node]: form for node, form in forms.items()}, {copies[node] for node in half})
    writer.write()
    edit.prune(result)
    return result


class _HalfWriter:
    """One conversion, in place."""

    def __init__(self, model: ir.Model, forms: Mapping[ir.Node, Form], half: Collection[ir.Node]) -> None:
        self.model, self.graph = model, model.graph
        self.forms, self.half = forms, half
        self.names = edit.Names(model)

    def write(self) -> None:
        for value in list(self.graph.initializers.values()):
            self._constant(value)
        for value in [*self.graph.inputs, *(value for node in list(self.graph) for value in node.outputs)]:
            if value.dtype == _SINGLE:
                self._computed(value)
        for node in self.half:
            _retype(node)

    def _constant(self, value: ir.Value) -> None:
        """Give readers in half precision a half copy; a constant that only they read is converted itself."""
        uses = [use for use in value.uses() if self._reads_half(*use)]
        if value.dtype != _SINGLE or not uses:
            return
        array = query.constant(value)
        assert array is not None, "initializers of a normalised model are constants"
        # Values beyond the range do not come here; digits below it are lost knowingly.
        with np.errstate(under="ignore"):
            converted = array.astype(np.float16)
        name = self.names.take(f"{value.name}_half")
        copy = edit.add_initializer(self.graph, converted, name)
        for node, index in uses:
            node.replace_input_with(index, copy)

    def _computed(self, value: ir.Value) -> None:
        half = is_half(value, self.forms, self.half)
        others = [use for use in value.uses() if self._reads_half(*use) != half]
        is_output = value.is_graph_output()
        if half:
            value.type = ir.TensorType(_HALF)  # a clone shares the old type object
        if others or (half and is_output):
            self._cast(value, _SINGLE if half else _HALF, others, rename=half and is_output)

    def _cast(self, value: ir.Value, dtype: ir.DataType, uses: Sequence[tuple[ir.Node, int]], *, rename: bool) -> None:
        """One Cast behind a value for all `uses`; it takes the name of a graph output that keeps its type."""
        suffix = "half" if dtype == _HALF else "single"
        node = ir.node("Cast", [value], {"to": int(dtype)}, name=self.names.take(f"{value.name}_to_{suffix}"))
        output = node.outputs[0]
        output.type, output.shape = ir.TensorType(dtype), value.shape
        output.name = self.names.take(f"{value.name}_{suffix}")
        edit.place(self.graph, node, value.producer())
        for user, index in uses:
            user.replace_input_with(index, output)
        if rename:
            name = value.name
            value.name, output.name = self.names.take(f"{name}_half"), name
            for index, found in enumerate(self.graph.outputs):
                if found is value:
                    self.graph.outputs[index] = output

    def _reads_half(self, node: ir.Node, index: int) -> bool:
        return reads_half(node, index, self.forms, self.half)


def _retype(node: ir.Node) -> None:
    """Say the new type where an attribute says the type of an output."""
    if node.outputs[0].dtype != _HALF:
        return
    if node.op_type == "Cast":
        node.attributes["to"] = ir.AttrInt64("to", int(_HALF))
    elif node.op_type == "ConstantOfShape":
        tensor = node.attributes.get_tensor("value", None)
        array = np.zeros(1, np.float16) if tensor is None else tensor.numpy().astype(np.float16)
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(array))
