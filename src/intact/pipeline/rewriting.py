"""Files of quantized models brought to another form: rewritten for a target, or converted, and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import onnx_ir as ir

from intact.backends import compiling
from intact.errors import ModelError
from intact.events import Log
from intact.linting import repairs
from intact.linting.repairs import Purpose
from intact.matching import rewriter
from intact.matching.rewriter import Rewritten, Rule
from intact.model import normalize, shapes, upgrade
from intact.model.copying import copied
from intact.pipeline import deployment, execution, loading, model_files, preparation
from intact.records import dataclass
from intact.results import Refusal, RequantizedWeight, RewriteCheck, RuleCount
from intact.rules.proof import exactness
from intact.rules.quantized import families
from intact.settings.config import BuildConfig
from intact.targets.spec import Target


@dataclass(frozen=True, slots=True)
class RewriteOrder:
    """A file to rewrite into another, for a target, by some rules.

    `explain` names a node, of the model or of the result, or none (""): the result then says which rules fired there,
    and why others did not, those of `left_out` among them.
    """

    path: Path
    output: Path
    target: Target
    rules: Sequence[Rule]
    explain: str | None = None
    left_out: Sequence[Rule] = ()


@dataclass(frozen=True, slots=True)
class RewrittenFile:
    """A rewritten model as it was written, and what running it beside the given one showed."""

    output: Path
    target: str
    rules: list[RuleCount]
    operators: dict[str, dict[str, int]]
    validation: RewriteCheck
    requantized_weights: list[RequantizedWeight]
    explain: tuple[Refusal, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """The result for programs."""
        return {**asdict(self), "output": str(self.output), "warnings": list(self.warnings)}


def rewrite_file(order: RewriteOrder, config: BuildConfig, log: Log) -> RewrittenFile:
    """Rewrite a model file as ordered, and run both to compare them; layers that `near` would spoil stay exact."""
    target = order.target
    source = loading.load(order.path, config, log)
    if compiling.is_compiled(source.model):
        found = f"{order.path}: it is compiled already; rules are for models that a compiler has not taken"
        raise ModelError("M166", found, fix="rewrite the model that it was made from, and compile that")
    inputs = preparation.inputs_for(source.model, config, log)
    with log.stage("rewrite"):
        rows = deployment.validation_rows(inputs)
        lossy = exactness.lossy(source.model, order.rules, rows)
        rules = exactness.except_at(order.rules, lossy)
        chosen = rewriter.apply(copied(source.model), rules)
        rewritten, validation = _repaired(source.model, chosen, rules, rows, target)
    for node, reason in lossy.items():
        log.events.note(f"--near: {node} stays exact: {reason}")
    requantized = deployment.tell_zero_points(rewritten, target, log)
    normalize.drop_unused_opsets(rewritten.model)
    upgrade.keep_kernels(rewritten.model, source.opset)
    asked = order.explain
    refusals = () if asked is None else families.explain(source.model, chosen, rules, asked, order.left_out)
    foreign = config.compile.assume_ort is not None
    model_files.write_model(rewritten.model, order.output, order.path, log, foreign=foreign)
    return RewrittenFile(
        order.output,
        target.name,
        families.counts(rewritten.applications),
        families.operators(source.model, rewritten.model),
        validation,
        requantized,
        tuple(refusals),
        tuple(log.warnings),
    )


def _repaired(
    model: ir.Model, first: Rewritten, rules: Sequence[Rule], rows: Sequence[execution.Outputs], target: Target
) -> tuple[Rewritten, RewriteCheck]:
    """Repair in a rewritten model what ONNX Runtime would do wrong with it, and run it."""
    found = deployment.check_rewriting(model, first, rules, rows, target)
    shapes.infer_shapes(first.model)
    forms = target.rewrite
    purpose = Purpose.EVERYTHING if forms.form == "qlinear" else Purpose.LOAD
    needed = repairs.needed(first.model, purpose, saturates=forms.saturates)
    if not needed:
        return first, found
    # Both together, so that rewriting once more finds nothing to do.
    repaired = rewriter.apply(copied(first.model), (*rules, *needed))
    shapes.infer_shapes(repaired.model)
    again = deployment.check_rewriting(first.model, repaired, (*rules, *needed), rows, target)
    return replace(repaired, applications=first.applications + repaired.applications), _together(found, again)


def _together(first: RewriteCheck, second: RewriteCheck) -> RewriteCheck:
    """Join the outcomes of two steps, one after the other."""
    both = (first, second)
    distances = [found["rewriting_sqnr_db"] for found in both if found["rewriting_sqnr_db"] is not None]
    rules = first["steps_moved"] | second["steps_moved"]
    return {
        **first,
        "validated_rewrites": sum(found["validated_rewrites"] for found in both),
        "rewriting_identical": all(found["rewriting_identical"] for found in both),
        "rewriting_sqnr_db": min(distances, default=None),
        "steps_moved": {rule: max(found["steps_moved"].get(rule, 0.0) for found in both) for rule in rules},
    }
