"""Writes scaled constants, and nodes that scale, into a model."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.model import edit, query
from intact.quantization.improve.fold import Fold
from intact.quantization.improve.scale_labels import factors


class Editor:
    """A model whose constants are replaced one after the other; `divided` are the tensors whose values change."""

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.names = edit.Names(model)
        self.divided: set[str] = set()

    def divide(self, fold: Fold, scales: np.ndarray) -> None:
        """Divide the constants of a fold, each element by the scale of its label."""
        for division in fold.divisions:
            array = query.constant(division.node.inputs[division.index])
            assert array is not None, "a fold divides constants"
            self.replace(division.node, division.index, array / factors(division.labels, scales))
        self.divided |= {value.name or "" for value, _ in fold.divided}

    def divide_by_node(self, source: ir.Value, scales: np.ndarray) -> ir.Value:
        """Add a Mul behind `source` that divides each channel, along the last axis, by its scale."""
        name = source.name or ""
        reciprocals = self._constant((1 / scales).astype(np.float32), f"{name}_smoothing")
        node = ir.node("Mul", [source, reciprocals], name=self.names.take(f"{name}_smooth"))
        node.outputs[0].name = self.names.take(f"{name}_smoothed")
        edit.describe_as(node.outputs[0], source)
        edit.place(self.graph, node, source.producer())
        return node.outputs[0]

    def replace(self, node: ir.Node, index: int, array: np.ndarray) -> None:
        """Give a node another constant; under the same name, unless others read the old one or its shape changed."""
        value = node.inputs[index]
        assert value is not None, "only present inputs are replaced"
        stored = np.ascontiguousarray(array, np.float32)
        own = len(value.uses()) == 1 and value.is_initializer() and not value.is_graph_output()
        if own and query.static_shape(value) == stored.shape:
            value.const_value = ir.tensor(stored, name=value.name)
        else:
            node.replace_input_with(index, self._constant(stored, f"{value.name}_scaled"))

    def _constant(self, array: np.ndarray, name: str) -> ir.Value:
        return edit.add_initializer(self.graph, array, self.names.take(name))
