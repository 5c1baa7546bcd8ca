"""Conditions under which a device takes a node and computes it wrongly, as they come in a file beside its table.

The file is what `intact probe --numeric` writes. A condition is about one operator between certain types, or one among
others in a row, and holds inside the bounds that were asked about, nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NotRequired, TypedDict

import onnx_ir as ir

from intact.records import dataclass
from intact.targets.operands import DEQUANTIZE, QUANTIZE, NodeOperand, Use
from intact.targets.quantities import Quantity, grid_quantities, shape_quantities

# A quantity is a quotient of numbers in float32: a few units in the last place are no difference.
SLACK = 1e-5
# Stands in a row for a grid right behind another one.
REGRIDDED = ""

# The values of a quantity: from a least to a greatest one, or those that are listed.
Bounds = tuple[float, float] | tuple[Quantity, ...]
Box = Mapping[str, Sequence[Quantity]]


@dataclass(frozen=True, slots=True)
class FaultCondition:
    """A node that is computed wrongly: its operator and types, those around it, and boxes of quantities.

    `operands` are the types of inputs and results in the words of `operands_of`. `before` and `behind` are operators
    in a row, the nearest first. It holds where all quantities of one of the `boxes` are inside: a pair of numbers
    under `between`, or one of a list under `among`.
    """

    op: str
    operands: str
    boxes: tuple[FaultBox, ...]
    before: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class FaultBox:
    """Quantities that lie between two numbers, or are among some, all at once."""

    between: Mapping[str, tuple[float, float]]
    among: Mapping[str, tuple[Quantity, ...]]

    def holds(self, found: Mapping[str, Quantity]) -> bool:
        """True if all quantities are there and inside."""
        return all(_is_between(found.get(name), ends) for name, ends in self.between.items()) and all(
            found.get(name) in values for name, values in self.among.items()
        )


def _is_between(value: Quantity | None, ends: tuple[float, float]) -> bool:
    low, high = ends
    return isinstance(value, float) and low - SLACK * abs(low) <= value <= high + SLACK * abs(high)


def operator_of(use: Use) -> str:
    """The operator of a node, with its domain where that is not ONNX's own."""
    return f"{use.domain}::{use.op}" if use.domain else use.op


def operands_of(use: Use) -> str:
    """The types of a node's inputs and results, with constants and scales per channel, and without zero points."""
    inputs = ", ".join(map(_word, use.inputs))
    shared = use.outputs and any(one is not None and use.outputs[0].same_grid(one) for one in use.inputs)
    return f"({inputs}) -> {_word(use.outputs[0] if use.outputs else None)}{', same grid' if shared else ''}"


def _word(operand: NodeOperand | None) -> str:
    if operand is None:
        return "-"
    words = [operand.type, *(["constant"] if operand.constant else [])]
    return " ".join([*words, *([operand.granularity] if operand.granularity != "tensor" else [])])


def holds(condition: FaultCondition, use: Use) -> FaultBox | None:
    """The box of a condition that a node is in; None where it is in none."""
    if (operator_of(use), operands_of(use)) != (condition.op, condition.operands):
        return None
    found = grid_quantities(use) | shape_quantities(use)
    if condition.rank is not None and found.get("rank of input 0") != condition.rank:
        return None
    if not follows(use.node, condition.before) or not precedes(use.node, condition.behind):
        return None
    return next((box for box in condition.boxes if box.holds(found)), None)


def follows(node: ir.Node, ops: Sequence[str]) -> bool:
    """True if the operators stand before a node, the nearest first, with grids between them."""
    return not ops or any(_is_of(value, ops) for value in node.inputs)


def _is_of(value: ir.Value | None, ops: Sequence[str]) -> bool:
    """True if a value comes, by way of a grid, from these operators."""
    read = None if value is None else value.producer()
    if read is None or read.op_type != DEQUANTIZE or read.inputs[0] is None:
        return False
    written = read.inputs[0].producer()
    if written is None or written.op_type != QUANTIZE or written.inputs[0] is None:
        return False
    if ops[0] == REGRIDDED:
        return len(ops) == 1 or _is_of(written.inputs[0], ops[1:])
    source = written.inputs[0].producer()
    return source is not None and source.op_type == ops[0] and follows(source, ops[1:])


def precedes(node: ir.Node, ops: Sequence[str]) -> bool:
    """True if the operators stand behind a node, the nearest first, with grids between them."""
    return _continue(ops, [reader for value in node.outputs for reader in _readers(value)])


def _continue(ops: Sequence[str], readers: Sequence[ir.Node]) -> bool:
    """True if one of the readers is the first operator, and the others stand behind it."""
    if not ops:
        return True
    if ops[0] == REGRIDDED:
        grids = [reader for reader in readers if reader.op_type == QUANTIZE]
        return any(_continue(ops[1:], list(_behind(grid))) for grid in grids)
    return any(reader.op_type == ops[0] and precedes(reader, ops[1:]) for reader in readers)


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """The nodes that read a value by way of a grid."""
    for written in (node for node in value.consumers() if node.op_type == QUANTIZE):
        yield from _behind(written)


def _behind(written: ir.Node) -> Iterator[ir.Node]:
    """The nodes that read what is written on a grid."""
    for read in (node for node in written.outputs[0].consumers() if node.op_type == DEQUANTIZE):
        yield from read.outputs[0].consumers()


@dataclass(frozen=True, slots=True)
class KnownFault:
    """A condition with what is known about it: words for it, decibels there and otherwise, and architectures."""

    condition: FaultCondition
    where: str
    worst_db: float
    usual_db: float
    archs: tuple[int, ...]
    source: str

    @property
    def requirement(self) -> str:
        """The condition that it should not meet, in words, with what is left of the signal where it does."""
        around = [f"behind {', '.join(self.condition.before)}"] if any(self.condition.before) else []
        around += [f"in front of {', '.join(self.condition.behind)}"] if any(self.condition.behind) else []
        there = " ".join([self.condition.op, self.condition.operands, *around])
        return f"{there}: not {self.where} ({self.worst_db:g} dB are left there, otherwise {self.usual_db:g})"


Faults = Mapping[tuple[str, str], tuple[KnownFault, ...]]


@cache
def faults_in(folder: Path) -> Faults:
    """The faults that the newest file of a folder lists, by operator and types; none where there is no such folder."""
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not files:
        return {}
    data = json.loads(files[-1].read_text(encoding="utf-8"))
    source = f"probed: {data['library']}, simulator ({folder.parent.name}/{folder.name}/{files[-1].name})"
    found: dict[tuple[str, str], list[KnownFault]] = {}
    for row in (row for row in data["wrong"] if row.get("condition")):
        condition = condition_of(row["condition"])
        figures = (row["worst_db"], row["usual_db"], tuple(row["archs"]), source)
        found.setdefault((condition.op, condition.operands), []).append(KnownFault(condition, row["where"], *figures))
    return {key: tuple(rows) for key, rows in found.items()}


@dataclass(frozen=True, slots=True)
class MetFault:
    """A fault that a node has, and the quantities of the node that it is about."""

    fault: KnownFault
    quantities: Mapping[str, Quantity]

    def __str__(self) -> str:
        values = ((name, f"{v:.3g}" if isinstance(v, float) else v) for name, v in self.quantities.items())
        told = [f"{name} is {value}" for name, value in values]
        return ", ".join(told) or "types are those"


def met(use: Use, folder: Path | None, arch: int | None) -> MetFault | None:
    """The worst fault of an architecture that a node has, by the file in a folder; None where it has none."""
    known = {} if folder is None else faults_in(folder)
    rows = known.get((operator_of(use), operands_of(use)), ())
    found = [(fault, box) for fault in rows if arch in fault.archs and (box := holds(fault.condition, use))]
    if not found:
        return None
    fault, box = min(found, key=lambda item: item[0].worst_db)
    names = (*box.between, *box.among)
    have = grid_quantities(use) | shape_quantities(use)
    return MetFault(fault, {name: have[name] for name in names})


class WrittenBox(TypedDict, total=False):
    """A box as it is written in the file."""

    between: dict[str, list[float]]
    among: dict[str, list[Quantity]]


class WrittenCondition(TypedDict):
    """A condition as it is written in the file, without what is empty."""

    op: str
    operands: str
    boxes: list[WrittenBox]
    before: NotRequired[list[str]]
    behind: NotRequired[list[str]]
    rank: NotRequired[int]


def condition_of(row: WrittenCondition) -> FaultCondition:
    """Read a condition as it is written in the file."""
    boxes = tuple(
        FaultBox(
            {name: (float(ends[0]), float(ends[1])) for name, ends in box.get("between", {}).items()},
            {name: tuple(values) for name, values in box.get("among", {}).items()},
        )
        for box in row["boxes"]
    )
    around = (tuple(row.get("before", ())), tuple(row.get("behind", ())))
    return FaultCondition(row["op"], row["operands"], boxes, *around, row.get("rank"))


def written(condition: FaultCondition) -> WrittenCondition:
    """A condition for the file, without what is empty."""
    row: WrittenCondition = {
        "op": condition.op,
        "operands": condition.operands,
        "boxes": list(map(_written_box, condition.boxes)),
    }
    if condition.before:
        row["before"] = list(condition.before)
    if condition.behind:
        row["behind"] = list(condition.behind)
    if condition.rank:
        row["rank"] = condition.rank
    return row


def _written_box(box: FaultBox) -> WrittenBox:
    row: WrittenBox = {}
    if box.between:
        row["between"] = {name: list(ends) for name, ends in box.between.items()}
    if box.among:
        row["among"] = {name: list(values) for name, values in box.among.items()}
    return row
