"""What is wrong with a quantized model: findings with stable codes, explanations, and repairs that keep the numbers."""

from __future__ import annotations

import dataclasses
import difflib

import onnx_ir as ir

from intact.errors import SettingsError
from intact.graph import edit, query, rewriter, shapes
from intact.graph.rewriter import Rewritten, Rule
from intact.lint import activations, bias, coverage, int8, pools, scales, weight_only, weights
from intact.lint.check import UNAFFECTED, Check, Finding, Severity

__all__ = [
    "CHECKS",
    "Check",
    "Finding",
    "Severity",
    "check_of",
    "findings",
    "fix",
    "fused_rightly",
    "loadable",
    "markdown",
]

_MODULES = (weights, bias, activations, int8, pools, weight_only, scales, coverage)

CHECKS: tuple[Check, ...] = tuple(
    sorted((check for module in _MODULES for check in module.CHECKS), key=lambda check: check.code)
)

_RULES: tuple[Rule, ...] = tuple(check for check in CHECKS if isinstance(check, Rule))


def findings(model: ir.Model) -> tuple[Finding, ...]:
    """Everything that is wrong with the model, the worst first, then by code and in the order of its nodes."""
    seen = _without_identity(model)
    found = [finding for check in CHECKS for finding in check.find(seen)]
    order = list(Severity)
    return tuple(sorted(found, key=lambda finding: (order.index(finding.severity), finding.code)))


def fix(model: ir.Model) -> Rewritten:
    """A copy of the model with every fault repaired that can be repaired without changing what it computes."""
    result = _without_identity(model)
    shapes.infer_shapes(result)
    removed = coverage.remove_dead(result)
    rewritten = _repaired(result, _RULES)
    applications = removed + rewritten.applications
    changed = rewritten.model if applications else model.clone()
    return dataclasses.replace(rewritten, model=changed, applications=applications)


def loadable(model: ir.Model) -> Rewritten:
    """A copy of a model with shapes, without what ONNX Runtime refuses to load beside int8 activations (Q119)."""
    return _repaired(model.clone(), int8.RULES)


def fused_rightly(model: ir.Model) -> Rewritten:
    """The model, or a copy without what ONNX Runtime fuses wrongly whatever its grids are (Q120)."""
    affected = any(found for check in pools.CHECKS for found in check.find(model))
    return _repaired(model.clone(), pools.RULES) if affected else Rewritten(model)


def _without_identity(model: ir.Model) -> ir.Model:
    """A copy without what ONNX Runtime removes before it fuses, so that checks see the neighbours that it sees."""
    result = model.clone()
    for node in list(query.all_nodes(result)):
        source = node.inputs[0] if (node.domain, node.op_type) == ("", "Identity") else None
        # What a body hands out has to be its own.
        if source is not None and not node.outputs[0].is_graph_output():
            node.outputs[0].replace_all_uses_with(source)
            edit.remove_dead([node])
    return result


def _repaired(model: ir.Model, rules: tuple[Rule, ...]) -> Rewritten:
    rewritten = rewriter.apply(model, rules)
    if rewritten.applications:
        shapes.infer_shapes(rewritten.model)
    refusals = tuple(refusal for refusal in rewritten.refusals if refusal.reason != UNAFFECTED)
    return dataclasses.replace(rewritten, refusals=refusals)


def check_of(code: str) -> Check:
    """The check with this code, in upper or lower case."""
    codes = {check.code: check for check in CHECKS}
    if code.upper() in codes:
        return codes[code.upper()]
    near = difflib.get_close_matches(code.upper(), codes, n=3, cutoff=0.5)
    raise SettingsError(
        "S180",
        f"no check has the code {code!r}",
        allowed=", ".join(codes),
        fix=f"did you mean {' or '.join(near)}?" if near else None,
    )


def markdown() -> str:
    """The page of the documentation about all checks, made from their docstrings."""
    head = (
        "# What `intact lint` finds\n\n"
        "`intact lint model.onnx` looks for what is wrong with a quantized model; `intact explain CODE` prints one of\n"
        "these texts. `--fix -o fixed.onnx` repairs what can be repaired without changing what the model computes.\n"
        "This page is the output of `intact explain --all`.\n\n"
        "| code | severity | fixable | what is wrong |\n| --- | --- | --- | --- |\n"
    )
    rows = "".join(
        f"| [{c.code}](#{c.code.lower()}) | {c.severity} | {'yes' if isinstance(c, Rule) else 'no'} | {c.title()} |\n"
        for c in CHECKS
    )
    texts = "".join(f"\n## {check.code}\n\n{check.explanation()}\n" for check in CHECKS)
    return head + rows + texts
