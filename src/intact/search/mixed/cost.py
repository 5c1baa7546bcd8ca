"""The cost of an inference at given precisions: multiply-adds and bytes moved, at the prices of the target's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from intact.model.multiplications import elements, multiply_adds
from intact.records import dataclass
from intact.search.mixed.groups import Structure
from intact.targets.spec import Costs, Level


@dataclass(frozen=True, slots=True)
class Workload:
    """The work of an inference: multiply-adds and weights of each group, values of each tensor.

    Multiply-adds are those of a target that multiplies `lanes` channels at once. Where a compiler has told what groups
    take, with all that they read and write, moving is `included`, and tensors cost something only where they are
    converted. `dearer` is what it told that groups above the first level cost beyond that.
    """

    products: tuple[int, ...]
    weights: tuple[int, ...]
    values: tuple[int, ...]
    lanes: int = 1
    included: bool = False
    dearer: tuple[float, ...] = ()


def work(model: ir.Model, found: Structure, lanes: int = 1) -> Workload:
    """The work of a model, by its groups and tensors, for a target that multiplies `lanes` channels at once."""
    nodes: Mapping[str | None, ir.Node] = {node.name: node for node in model.graph}
    values = {value.name: value for node in model.graph for value in node.outputs}
    values |= {value.name: value for value in (*model.graph.inputs, *model.graph.initializers.values())}
    return Workload(
        tuple(sum(multiply_adds(nodes[name], lanes) for name in group.nodes) for group in found.groups),
        tuple(sum(elements(values[name]) for name in group.weights) for group in found.groups),
        tuple(elements(values[tensor.name]) for tensor in found.tensors),
        lanes,
    )


@dataclass(frozen=True, slots=True)
class Prices:
    """The cost of groups and tensors at given levels, as multiples of one multiply-add of 8 bits."""

    structure: Structure
    work: Workload
    costs: Costs

    def of_group(self, index: int, level: int) -> float:
        """Multiplying, and reading the weights."""
        row = self.costs.levels[level]
        told = self.work.dearer[index] if level and self.work.dearer else 0.0
        read = self.work.weights[index] * row.bytes[1] * self.costs.byte
        return self.work.products[index] * row.multiply + read + told

    def of_tensor(self, index: int, levels: Sequence[int]) -> float:
        """Writing a tensor, reading it, and converting it once for each other type that it is read in."""
        tensor, rows = self.structure.tensors[index], self.costs.levels
        written = rows[levels[tensor.writer]] if tensor.writer is not None else None
        return self.moved(index, written, [rows[levels[group]] for group in tensor.readers])

    def moved(self, index: int, written: Level | None, read: Sequence[Level]) -> float:
        """The price of a tensor that is written at one level, or comes as float, and read at others."""
        moved = sum(row.bytes[0] for row in read) + (written.bytes[0] if written is not None else 0.0)
        others = {row.activation: row for row in read if written is not None and row.activation != written.activation}
        converted = sum(row.bytes[0] + (written.bytes[0] if written is not None else 0.0) for row in others.values())
        return self.work.values[index] * (converted if self.work.included else moved + converted) * self.costs.byte

    def total(self, levels: Sequence[int]) -> float:
        """Everything."""
        groups = sum(self.of_group(index, level) for index, level in enumerate(levels))
        return groups + sum(self.of_tensor(index, levels) for index in range(len(self.structure.tensors)))
