"""The reasons why no node of a model is quantized, as a user can act on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from intact.errors import TargetError, some
from intact.model import query
from intact.model.deciding import deciding
from intact.model.multiplications import multiply_adds
from intact.quantization.planning.choose import FLOAT, reached, wanted_by
from intact.results import QuantPlan
from intact.settings.config import QuantConfig
from intact.targets import registry
from intact.targets.spec import OpSpec, Target

_SHOWN = 3
# A share of the multiplications below which integers are not worth the precision that they cost: a chip that computes
# the others in half precision takes at most this share longer.
LEAST_SHARE = 0.1
_EXCLUDED = "the settings leave it out"
_DECIDES = "decides a branch, a count or a shape, which rounding would change"


def refusal(model: ir.Model, target: Target, config: QuantConfig, types: Mapping[str, str]) -> TargetError:
    """Say that nothing is quantized, and for each kind of operator why."""
    reasons: dict[str, list[str]] = {}
    exact = deciding(model)
    for node in (node for graph in reached(model, target) for node in graph):
        reason = _DECIDES if node in exact else _reason(node, target, config, types)
        reasons.setdefault(reason, []).append(node.op_type)
    told = [f"{some(list(dict.fromkeys(ops)), _SHOWN)}: {reason}" for reason, ops in reasons.items()]
    precision = f"{config.activation_type} activations and {config.weight_type} weights"
    found = f"{target.name} takes no node of this model at {precision}: "
    return TargetError(
        "T110",
        found + (some(told, _SHOWN, "; ") if told else "it has no nodes"),
        fix=_fix(reasons, target),
    )


def lone(model: ir.Model, plan: QuantPlan, target: Target, config: QuantConfig) -> TargetError | None:
    """Say that next to nothing of a model would be in integers, among floats that the target computes all the same.

    None where integers do their share, and where the settings name nodes or forbid to keep any in float.
    """
    if not (target.npu and target.runs_float and target.halves and config.rescue) or is_chosen(config):
        return None
    products = {node.name: multiply_adds(node) for node in query.all_nodes(model)}
    total = sum(products.values())
    share = sum(products.get(name, 0) for name in plan.nodes) / total if total else 1.0
    if share >= LEAST_SHARE:
        return None
    return TargetError(
        "T110",
        f"{target.name} takes {share:.1%} of the multiplications of this model in integers, which cost accuracy and "
        "save next to no time",
        fix="--no-rescue quantizes them all the same",
    )


def is_chosen(config: QuantConfig) -> bool:
    """True if the settings say of single nodes or kinds of them whether they are quantized, or how."""
    nodes = config.nodes or config.exclude_nodes or config.op_types or config.exclude_op_types
    return bool(nodes or config.types or config.overrides or config.plan or config.encodings)


def _fix(reasons: Mapping[str, list[str]], target: Target) -> str | None:
    if not target.runs_float:
        halves = "--no-strict builds it in float, which is computed in half precision; or " if target.halves else ""
        return f"{halves}build it for a device that runs it in float: {', '.join(registry.running_float())}"
    return "let the settings include more nodes" if _EXCLUDED in reasons else None


def _reason(node: ir.Node, target: Target, config: QuantConfig, types: Mapping[str, str]) -> str:
    if types.get(node.name or "") == FLOAT or not wanted_by(node, config):
        return _EXCLUDED
    spec = target.op(node.domain, node.op_type)
    if spec is None or not any(_has_type(spec, config.activation_type)):
        return "no integer kernel at these types"
    if not spec.start:
        return "worth it only between quantized nodes"
    return _about_values(node, spec) or "does not meet what the target's table requires of it"


def _has_type(spec: OpSpec, wanted: str) -> Iterator[bool]:
    return (wanted in slot.types for signature in spec.signatures for slot in signature.inputs)


def _about_values(node: ir.Node, spec: OpSpec) -> str | None:
    """Name what is wrong with a value that the node reads or writes: unknown or another type, or no constant."""
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    unknown = next((value.name for value in values if value.dtype is None), None)
    if unknown is not None:
        return f"the type of {unknown} is not known"
    if any(value.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) for value in values):
        return "in half precision"
    if not any(value.dtype == ir.DataType.FLOAT for value in node.outputs):
        return "computes no float32"
    for index, value in enumerate(node.inputs):
        slots = [signature.input(index) for signature in spec.signatures]
        wants_constant = bool(slots) and all(slot is not None and slot.constant for slot in slots)
        if value is not None and wants_constant and not query.is_constant(value):
            kind = "an input" if value.is_graph_input() else "computed"
            return f"its weight {value.name} is {kind}, not constant"
    return None
