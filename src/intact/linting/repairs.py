"""The one place that has ONNX Runtime load a quantized model, and compute it rightly with all its optimizations.

`repair` writes a model differently, for a `Purpose`, and keeps its numbers. `needed` gives the rules of a purpose to
those who apply them together with rules of their own.
"""

from __future__ import annotations

import dataclasses
import enum

import onnx_ir as ir

from intact.linting import coverage, linter, sight
from intact.linting.check import UNAFFECTED, Check, Severity
from intact.matching import rewriter
from intact.matching.rewriter import EXACT, Rewritten, Rule
from intact.model import shapes
from intact.model.copying import copied


class Purpose(enum.Enum):
    """A reason to repair a model, as the end of a sentence about ONNX Runtime, and the checks that belong to it."""

    LOAD = ("loads them beside int8", "Q119")
    FUSE = ("computes them rightly", "Q120", "Q122", "Q123")
    MULTIPLY = ("multiplies them rightly without VNNI", linter.SATURATED)
    EVERYTHING = ("has nothing to stumble over", *(check.code for check in linter.CHECKS))

    def __init__(self, gain: str, *codes: str) -> None:
        self.gain = gain
        self.codes = codes

    def __str__(self) -> str:
        return f"{self.gain} (intact explain {', '.join(self.codes)})"

    def rules(self, saturates: bool | None) -> tuple[Rule, ...]:
        """The checks that are repairs as well, for a machine whose kernels saturate or do not; None: as here."""
        checks = (check for check in linter.checks(saturates) if check.code in self.codes)
        return tuple(check for check in checks if isinstance(check, Rule))


def repair(model: ir.Model, purpose: Purpose = Purpose.EVERYTHING, *, saturates: bool | None = None) -> Rewritten:
    """Return a copy of the model without the faults of a purpose, or the model itself where it has none of them.

    `EVERYTHING` takes out dead nodes as well, and what hides a fault: it always returns a copy.
    """
    rules = purpose.rules(saturates)
    if purpose is Purpose.EVERYTHING:
        return _all_repaired(model, rules)
    affected = any(found for rule in rules if isinstance(rule, Check) for found in rule.find(model))
    return _repaired(copied(model), rules) if affected else Rewritten(model)


def needed(model: ir.Model, purpose: Purpose, *, saturates: bool | None = None) -> tuple[Rule, ...]:
    """Select the exact repairs of a purpose whose faults the model has, as far as fusing nodes brings them about."""
    exact = [rule for rule in purpose.rules(saturates) if rule.exactness is EXACT]
    return tuple(rule for rule in exact if isinstance(rule, Check) and _spoiled_by_fusion(rule, model))


def _spoiled_by_fusion(check: Check, model: ir.Model) -> bool:
    """True if there is an error that unfused nodes do not have; an integer operator has it in any case."""
    found = [finding.op for finding in check.find(model)] if check.severity is Severity.ERROR else []
    return bool(found) and not any(op.startswith("QLinear") for op in found)


def _all_repaired(model: ir.Model, rules: tuple[Rule, ...]) -> Rewritten:
    result = sight.seen(model)
    shapes.infer_shapes(result)
    removed = coverage.remove_dead(result)
    rewritten = _repaired(result, rules)
    applications = removed + rewritten.applications
    changed = rewritten.model if applications else copied(model)
    return dataclasses.replace(rewritten, model=changed, applications=applications)


def _repaired(model: ir.Model, rules: tuple[Rule, ...]) -> Rewritten:
    rewritten = rewriter.apply(model, rules)
    if rewritten.applications:
        shapes.infer_shapes(rewritten.model)
    refusals = tuple(refusal for refusal in rewritten.refusals if refusal.reason != UNAFFECTED)
    return dataclasses.replace(rewritten, refusals=refusals)
