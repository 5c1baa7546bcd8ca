"""Other forms of one unit of a quantized model: what it computes stays the same, or nearly; how changes.

A remedy edits a copy of the model at one tensor, and returns what it did in words, or None where it does not apply.
The tensor keeps its name, so that both forms are compared there. Remedies stand in the order of what they cost.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from intact.matching import rewriter
from intact.model import edit, query
from intact.model.node_encodings import encoding_of
from intact.rules.quantized import folding
from intact.search.mending.fault_site import FaultSite, Remedy, cut_behind
from intact.search.mending.grid_forms import (
    fit_operand,
    other_width,
    separate,
    split_operand,
    tighten_inputs,
    widen_inputs,
    widen_more,
)
from intact.search.mending.window_forms import (
    as_convolution,
    count_pads,
    crop_outside,
    lengthen_kernel,
    shrink_window,
    turn_axes,
)
from intact.targets.operands import DEQUANTIZE, QUANTIZE

COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min"})


def swap_operands(site: FaultSite) -> str | None:
    """Exchange the two operands of an operator that does not mind."""
    node = next((n for n in site.nodes if n.op_type in COMMUTATIVE and len(n.inputs) == 2), None)
    if node is None:
        return None
    first, second = node.inputs
    node.replace_input_with(0, second)
    node.replace_input_with(1, first)
    return f"the operands of {node.name} ({node.op_type}) are exchanged"


class _MergeAtSite(folding.MergeRequantize):
    """`MergeRequantize` of some grids alone: elsewhere two grids may be what a device asks for."""

    name = "merge_at_site"

    def __init__(self, grids: Collection[ir.Node]) -> None:
        self._grids = grids

    def check(self, x: ir.Value, middle: ir.Node, back: ir.Node, last: ir.Node) -> str | None:
        if last not in self._grids:
            return "it is not a grid of the site"
        return super().check(x, middle, back, last)


def merge_grids(site: FaultSite) -> str | None:
    """Leave out grids right in front of those that a unit reads and of the one that it writes, within a step."""
    read = [dequantize.inputs[0] for _, _, dequantize in site.reads()]
    written = [node for node in site.value.consumers() if node.op_type == QUANTIZE]
    behind = [user for node in written for back in node.outputs[0].consumers() for user in back.outputs[0].consumers()]
    grids = {*written, *behind, *(value.producer() for value in read if value is not None)} - {None}
    merged = rewriter.apply(site.model, [_MergeAtSite({node for node in grids if node is not None})]).applications
    return f"{len(merged)} grids right in front of others are left out" if merged else None


def pad_rows(site: FaultSite, least: int = 32) -> str | None:
    """Read longer rows from a constant table, and cut them behind the Gather."""
    node = next((n for n in site.nodes if n.op_type == "Gather" and n.outputs[0].name == site.tensor), None)
    table = None if node is None or node.inputs[0] is None else node.inputs[0].producer()
    shape = None if node is None else query.static_shape(node.outputs[0])
    integers = None if table is None or table.op_type != DEQUANTIZE else query.constant(table.inputs[0])
    encoding = None if table is None else encoding_of(table)
    if node is None or table is None or shape is None or integers is None or encoding is None:
        return None
    if integers.ndim != 2 or query.int_(node, "axis", 0) != 0 or integers.shape[1] >= least or encoding.scale.size != 1:
        return None
    more = least - integers.shape[1]
    padded = np.pad(integers, [(0, 0), (0, more)], constant_values=int(encoding.zero_point))
    names, graph = edit.Names(site.model), site.model.graph
    constant = edit.add_initializer(graph, padded, names.take(f"{site.tensor}/table"))
    read = ir.Node("", DEQUANTIZE, [constant, *table.inputs[1:]], name=names.take(f"{table.name}/padded"))
    read.outputs[0].name = names.take(f"{site.tensor}/table/values")
    graph.insert_before(node, read)
    wide = ir.Node("", "Gather", [read.outputs[0], node.inputs[1]], node.attributes.values(), name=node.name)
    last = len(shape) - 1
    cut_behind(site, node, wide, [*shape[:-1], least], ([0], [shape[-1]], [last]))
    return f"the table of {node.name} (Gather) has rows of {least} numbers, and a Slice leaves out what was added"


REMEDIES: tuple[Remedy, ...] = (
    *(swap_operands, merge_grids, widen_inputs, tighten_inputs, separate),
    *(
        as_convolution,
        lengthen_kernel,
        crop_outside,
        turn_axes,
        shrink_window,
        count_pads,
        pad_rows,
        widen_more,
        other_width,
        fit_operand,
        split_operand,
    ),
)
