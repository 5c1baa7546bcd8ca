"""The model as ONNX Runtime sees it when it begins to fuse, so that checks see the neighbours that it sees."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.linting import nearby
from intact.matching import rewriter
from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import EXACT, Rule
from intact.model import edit, query
from intact.model.copying import copied


class TransposeSeenWeight(Rule):
    """Transpose(DQ(w, s, z)) = DQ(w', s, z) for a constant w, with the scales along the axis that theirs becomes."""

    exactness = EXACT

    def pattern(self, op: Patterns, w: Var, s: Var, z: Var | None = None) -> Roots:
        weight = op.DequantizeLinear(op.constant(w), s, z, _shared=True, _name="weight")
        return op.Transpose(weight, _name="transpose")

    def check(self, weight: ir.Node) -> str | None:
        if nearby.block_size(weight) or nearby.axis(weight) is None:
            return "its scales are those of blocks, or along an axis that is not known"
        return None if nearby.bits(weight) == 8 else "its integers are not of 8 bits"

    def rewrite(self, op: Builder, w: ir.Value, weight: ir.Node, transpose: ir.Node) -> ir.Value:
        array, axis = query.constant(w), nearby.axis(weight)
        assert array is not None and axis is not None, "the check saw both"
        order = query.ints(transpose, "perm") or tuple(reversed(range(array.ndim)))
        moved = op.constant(np.ascontiguousarray(array.transpose(order)), "transposed")
        # One scale has no axis, and the default of the attribute may be none of the weight's.
        along = {"axis": order.index(axis)} if nearby.count(weight) > 1 else {}
        return op.DequantizeLinear(moved, *weight.inputs[1:], **{**weight.attributes, **along})


_TRANSPOSE_WEIGHT = TransposeSeenWeight()


def seen(model: ir.Model) -> ir.Model:
    """A copy without Identity nodes, and without Transpose nodes between a weight and its user."""
    result = copied(model)
    for node in list(query.all_nodes(result)):
        source = node.inputs[0] if (node.domain, node.op_type) == ("", "Identity") else None
        # What a body hands out has to be its own.
        if source is not None and not node.outputs[0].is_graph_output():
            node.outputs[0].replace_all_uses_with(source)
            edit.remove_dead([node])
    return rewriter.apply(result, (_TRANSPOSE_WEIGHT,)).model
