"""A model as the compiler sees it: units from grid to grid, each with the nodes that compute between them.

In a model without grids, one in half precision, every node that computes floats is a unit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from intact.model import activation_grids, query
from intact.model.cutting import Cutter
from intact.records import dataclass
from intact.targets.provider_placement import CONVERSIONS

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True, slots=True)
class Unit:
    """The nodes that compute one tensor: `output` is it behind its grid, `reads` are the tensors of other units."""

    tensor: str
    output: str
    reads: tuple[str, ...]
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    pattern: str

    @property
    def node(self) -> str:
        """The name of its first node; that of the tensor where it only puts the tensor on a grid."""
        return self.nodes[0] if self.nodes else self.tensor

    @property
    def op(self) -> str:
        """The operator of its first node."""
        return self.ops[0] if self.ops else "QuantizeLinear"


class Units:
    """The units of a model, in its order, and models of some of them."""

    def __init__(self, model: ir.Model) -> None:
        self.cutter = Cutter(model)
        found = activation_grids.grids_of(model)
        self.grids = {grid.base: grid for grid in reversed(found)}
        inputs = {value.name or "" for value in model.graph.inputs}
        self.ends = {activation_grids.base_of(value).name or "" for value in model.graph.outputs}
        computed = {v.name or "": None for node in model.graph for v in node.outputs}
        whole = not self.grids
        self.tensors = [name for name in computed if self._is_end_of_unit(name, whole=whole)]
        self.stops = {*self.tensors, *inputs}
        self._seen = self._readable()
        self.units = [self._unit(name) for name in self.tensors if name not in inputs]

    def _is_end_of_unit(self, name: str, *, whole: bool) -> bool:
        """True for a tensor on a grid, an output, and where the `whole` model has no grids, each tensor of floats."""
        if name in self.grids or name in self.ends:
            return True
        value = self.cutter.values.get(name)
        return whole and value is not None and value.dtype in FLOATS and bool(self.cutter.behind([name], ()))

    def model_of(self, chosen: Collection[int], like: Mapping[str, np.ndarray] | None = None) -> ir.Model:
        """The units at these positions as a model; what they read from elsewhere becomes an input."""
        inside = {self.units[index].tensor for index in chosen}
        read = {name for index in chosen for name in self.units[index].reads}
        # A tensor that nothing else here reads would otherwise not be computed at all.
        outputs = [self.units[index].output for index in sorted(chosen) if self.units[index].tensor not in read]
        return self.cutter.piece(outputs, self.stops - inside, like)

    def piece(self, unit: Unit, like: Mapping[str, np.ndarray]) -> ir.Model:
        """One unit as a model with two outputs: its tensor as computed, and behind its grid."""
        names = dict.fromkeys((unit.output, unit.tensor))
        return self.cutter.piece(list(names), self.stops - {unit.tensor}, like)

    def _readable(self) -> dict[str, str]:
        """For each tensor on a grid, the first DequantizeLinear's output; others are read as they are."""
        found: dict[str, str] = {}
        for name in self.tensors:
            value = self.cutter.values[name]
            readers = [d for q in value.consumers() if q.op_type == "QuantizeLinear" for d in q.outputs[0].consumers()]
            outputs = [d.outputs[0].name or "" for d in readers if d.op_type == "DequantizeLinear"]
            found[name] = outputs[0] if outputs else name
        return found

    def _unit(self, tensor: str) -> Unit:
        nodes = [n for n in self.cutter.nodes_behind([tensor], self.stops) if n.op_type not in CONVERSIONS]
        return Unit(
            tensor,
            self._seen[tensor],
            tuple(self.cutter.behind([tensor], self.stops)),
            tuple(node.name or "" for node in nodes),
            tuple(node.op_type for node in nodes),
            "; ".join(self._pattern(node) for node in nodes),
        )

    def _pattern(self, node: ir.Node) -> str:
        """A node as operator and grid types: `Gelu(uint16) -> uint8`."""
        read = ", ".join(_type_read(value) for value in node.inputs if value is not None)
        written = ", ".join(self._type_written(value) for value in node.outputs if value.name)
        return f"{node.op_type}({read}) -> {written}"

    def _type_written(self, value: ir.Value) -> str:
        grid = self.grids.get(value.name or "")
        return grid.dtype if grid is not None else _plain_type(value)


def _type_read(value: ir.Value) -> str:
    """The type of the grid that a value is read from, or its own; constants are marked."""
    producer = value.producer()
    if producer is None or producer.op_type != "DequantizeLinear" or producer.inputs[0] is None:
        return f"{_plain_type(value)} constant" if query.is_constant(value) else _plain_type(value)
    source = producer.inputs[0]
    per_channel = (query.constant(producer.inputs[1]) is not None) and not query.is_scalar(producer.inputs[1])
    kind = _plain_type(source) + (" per channel" if per_channel else "")
    return f"{kind} constant" if query.is_constant(source) else kind


def _plain_type(value: ir.Value) -> str:
    return value.dtype.name.lower() if value.dtype is not None else "unknown"
