"""What is wrong with a quantized model: findings with stable codes, explanations, and repairs that keep the numbers."""

from __future__ import annotations

import dataclasses
import difflib

import onnx_ir as ir

from intact.errors import SettingsError
from intact.linting import (
    activations,
    biases,
    coverage,
    few_bits,
    int8,
    kernels,
    pools,
    saturated,
    scales,
    sight,
    softmax,
    weights,
)
from intact.linting.check import UNAFFECTED, Check, Finding, Severity
from intact.matching import rewriter
from intact.matching.rewriter import EXACT, Rewritten, Rule
from intact.model import shapes

__all__ = [
    "CHECKS",
    "SATURATED",
    "Check",
    "Finding",
    "Severity",
    "check_of",
    "findings",
    "fix",
    "fused_rightly",
    "loadable",
    "markdown",
    "repairs",
    "unsaturated",
]

_MODULES = (weights, biases, activations, softmax, int8, pools, kernels, few_bits, scales, coverage, saturated)

CHECKS: tuple[Check, ...] = tuple(
    sorted((check for module in _MODULES for check in module.CHECKS), key=lambda check: check.code)
)

SATURATED = saturated.SaturatedSums.code


def findings(model: ir.Model, *, opset: int | None = None, saturates: bool | None = None) -> tuple[Finding, ...]:
    """Everything that is wrong with the model, the worst first, then by code and in the order of its nodes.

    `opset` is that of the file which the model was before it was upgraded: some faults are those of newer ones only.
    `saturates` says that kernels of the machine which will run it add pairs of products in 16 bits; None: as here.
    """
    seen = sight.seen(model)
    concerned = [check for check in _checks(saturates) if opset is None or check.since <= opset]
    found = [finding for check in concerned for finding in check.find(seen)]
    order = list(Severity)
    return tuple(sorted(found, key=lambda finding: (order.index(finding.severity), finding.code)))


def _checks(saturates: bool | None) -> tuple[Check, ...]:
    """All checks, for a machine whose kernels saturate or do not."""
    machine = saturated.SaturatedSums(saturates)
    return tuple(machine if isinstance(check, saturated.SaturatedSums) else check for check in CHECKS)


def _rules(saturates: bool | None) -> tuple[Rule, ...]:
    return tuple(check for check in _checks(saturates) if isinstance(check, Rule))


def fix(model: ir.Model, *, saturates: bool | None = None) -> Rewritten:
    """A copy of the model with every fault repaired that can be repaired without changing what it computes."""
    result = sight.seen(model)
    shapes.infer_shapes(result)
    removed = coverage.remove_dead(result)
    rewritten = _repaired(result, _rules(saturates))
    applications = removed + rewritten.applications
    changed = rewritten.model if applications else model.clone()
    return dataclasses.replace(rewritten, model=changed, applications=applications)


def loadable(model: ir.Model) -> Rewritten:
    """A copy of a model with shapes, without what ONNX Runtime refuses to load beside int8 activations (Q119)."""
    return _repaired(model.clone(), int8.RULES)


def fused_rightly(model: ir.Model) -> Rewritten:
    """The model, or a copy without what ONNX Runtime fuses wrongly although its grids are sound (Q120, Q122, Q123)."""
    return _without(model, (*pools.RULES, *kernels.RULES, *softmax.RULES))


def unsaturated(model: ir.Model) -> Rewritten:
    """The model, or a copy whose products are exact on processors that add pairs of them in 16 bits, too (Q124)."""
    return _without(model, (saturated.SaturatedSums(saturates=True),))


def _without(model: ir.Model, rules: tuple[Rule, ...]) -> Rewritten:
    """The model itself, or a copy where one of these faults is found."""
    affected = any(found for rule in rules if isinstance(rule, Check) for found in rule.find(model))
    return _repaired(model.clone(), rules) if affected else Rewritten(model)


def repairs(model: ir.Model, *, fused: bool, saturates: bool | None = None) -> tuple[Rule, ...]:
    """Exact rules for what ONNX Runtime refuses to load (Q119) or, where a model is `fused`, spoils by fusing it."""
    rules = [rule for rule in (_rules(saturates) if fused else int8.RULES) if rule.exactness is EXACT]
    return tuple(rule for rule in rules if isinstance(rule, Check) and _spoiled_by_fusion(rule, model))


def _spoiled_by_fusion(check: Check, model: ir.Model) -> bool:
    """Whether there is an error that unfused nodes do not have; an integer operator has it in any case."""
    found = [finding.op for finding in check.find(model)] if check.severity is Severity.ERROR else []
    return bool(found) and not any(op.startswith("QLinear") for op in found)


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
