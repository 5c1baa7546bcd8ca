"""Notes for whoever builds about zero points that differ by channel: what was done, what not, and what it cost."""

from __future__ import annotations

import json
from collections import Counter

import onnx_ir as ir

from intact.matching.rewriter import Rewritten
from intact.model import query
from intact.results import RequantizedWeight
from intact.rules.discovery import rules_of
from intact.rules.quantized import depthwise, input_copies, symmetric, zero_points
from intact.rules.quantized.operand import Operand, dq_operand
from intact.rules.quantized.product import CONVOLUTIONS, not_distinct, product
from intact.rules.quantized.symmetric import WEIGHT_SQNR, DuplicateDequantizedInput, RequantizeWeight
from intact.targets.spec import Target

_NAMES = frozenset(
    rule.name for module in (zero_points, depthwise, input_copies, symmetric) for rule in rules_of(module)
)


def notes(rewritten: Rewritten, target: Target) -> list[str]:
    """A sentence on the weights that were rewritten, and why, and one on those that need a new runtime."""
    found = Counter(item.rule for item in rewritten.applications if item.rule in _NAMES)
    done = ", ".join(f"{rule} ({count})" for rule, count in found.items())
    taken = [node for node in _convolutions(rewritten.model) if node.op_type in target.rewrite.takes_distinct]
    kept = [node for node in taken if not_distinct(product(node)) is None]
    said = [f"weights whose zero points differ by channel: {done}, because {_why(target)}"] if found else []
    tried = {item.rule for item in rewritten.applications} | {item.rule for item in rewritten.refusals}
    if DuplicateDequantizedInput.name in found and RequantizeWeight.name not in tried:
        said.append("their inputs are there twice: intact rewrite --near spares that where a layer keeps 40 dB without")
    if kept:
        said.append(
            f"zero points that differ by channel stay in {len(kept)} QLinearConv: --assume-ort 1.26 takes them out"
        )
    return said


def _why(target: Target) -> str:
    if target.rewrite.weight_zero_points == "middle":
        return f"{target.name} takes zero point 0 only"
    refused = " and ".join(sorted(target.rewrite.refuses_distinct))
    portable = target.rewrite.portable_up_to and "QLinearConv" in target.rewrite.takes_distinct
    older = " and, in older versions, in QLinearConv" if portable else ""
    return f"ONNX Runtime refuses them in {refused}{older}, and depthwise is slow with them"


def warnings(rewritten: Rewritten, target: Target) -> list[str]:
    """A sentence for each operator that the target refuses and no rule could change, with the reason."""
    if target.rewrite.weight_zero_points == "middle":
        rule, refuses = DuplicateDequantizedInput.name, f"{target.name} takes zero point 0 only"
        left = [node for node in query.all_nodes(rewritten.model) if _may_be_asymmetric(node, target)]
    else:
        rule, refuses = "duplicate_conv_input", "ONNX Runtime refuses zero points that differ by channel"
        left = [node for node in _convolutions(rewritten.model) if node.op_type in target.rewrite.refuses_distinct]
    reasons = {item.node: item.reason for item in rewritten.refusals if item.rule == rule}
    return [
        f"{node.name} ({node.op_type}): {refuses}, and it stays as it is: {reasons[node.name or '']}"
        for node in left
        if (node.name or "") in reasons
    ]


def _may_be_asymmetric(node: ir.Node, target: Target) -> bool:
    """True if a node has a weight behind a DequantizeLinear whose zero points differ by channel, or may."""
    source = node.inputs[1].producer() if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if node.op_type not in target.rewrite.makes_symmetric or source is None or source.op_type != "DequantizeLinear":
        return False
    return _several(dq_operand(source))


def _convolutions(model: ir.Model) -> list[ir.Node]:
    """The convolutions on integers whose zero points differ by channel, or may."""
    found = [node for node in query.all_nodes(model) if (node.domain, node.op_type) in CONVOLUTIONS]
    return [node for node in found if _may_differ(node)]


def _may_differ(node: ir.Node) -> bool:
    return _several(product(node).w)


def _several(weight: Operand) -> bool:
    """True if a weight has zero points that differ, or may."""
    if weight.zero_point is None:
        return False
    if query.is_constant(weight.zero_point):
        return len(set(weight.zeros().tolist())) > 1
    shape = query.static_shape(weight.zero_point)
    return shape is None or any(size > 1 for size in shape)


def requantized(model: ir.Model) -> list[RequantizedWeight]:
    """The layers whose weight was requantized, with the SQNR in dB that each of its channels keeps."""
    marked = ((node, node.metadata_props.get(WEIGHT_SQNR)) for node in query.all_nodes(model))
    return [{"node": node.name or "", "weight_sqnr_db": json.loads(text)} for node, text in marked if text is not None]
