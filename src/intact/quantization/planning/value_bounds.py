"""The range that operators give their results whatever the data: known before anything is observed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

import onnx_ir as ir

from intact.results import Range

ALWAYS: Mapping[str, Range] = {
    "HardSigmoid": Range(0.0, 1.0),
    "Sigmoid": Range(0.0, 1.0),
    "Softmax": Range(0.0, 1.0),
    "Tanh": Range(-1.0, 1.0),
}
# They choose, move or average what they read first; zeros that they put around it are in every range above.
KEEPING = {
    *("AveragePool", "GlobalAveragePool", "MaxPool", "GlobalMaxPool", "ReduceMean", "ReduceMax", "ReduceMin"),
    *("Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose"),
    "Unsqueeze",
}
JOINING = {"Concat", "Max", "Mean", "Min"}


def value_bounds(nodes: Iterable[ir.Node]) -> dict[ir.Value, Range]:
    """The ranges that follow from operators alone, for nodes in their order."""
    found: dict[ir.Value, Range] = {}
    for node in nodes:
        bounds = _bounds(node, found) if not node.domain else None
        found |= dict.fromkeys(node.outputs, bounds) if bounds is not None else {}
    return found


def hull(ranges: Iterable[Range | None]) -> Range | None:
    """The least range that holds all of them; None if one of them is not known, or there is none."""
    given = list(ranges)
    known = [item for item in given if item is not None]
    if not known or len(known) < len(given):
        return None
    return Range(min(item.low for item in known), max(item.high for item in known))


def _bounds(node: ir.Node, found: Mapping[ir.Value, Range]) -> Range | None:
    read = [None if value is None else found.get(value) for value in node.inputs]
    if node.op_type in KEEPING:
        return read[0] if read else None
    if node.op_type in JOINING:
        return hull(read)
    if node.op_type == "Mul" and read[0] is not None and read[1] is not None:
        ends = [a * b for a, b in product((read[0].low, read[0].high), (read[1].low, read[1].high))]
        return Range(min(ends), max(ends))
    return ALWAYS.get(node.op_type)
