"""Files of quantized models brought to another form: rewritten for a target, or converted, and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from intact.events import Events, Log, Silence
from intact.linting import linter
from intact.matching import rewriter
from intact.matching.rewriter import Rewritten, Rule
from intact.model import normalize, shapes, upgrade
from intact.pipeline import execution, files, loading, preparation, stages
from intact.rules.proof import exactness
from intact.rules.quantized import families
from intact.settings.config import BuildConfig
from intact.targets.spec import Target


def rewrite_file(
    path: Path,
    config: BuildConfig,
    output: Path,
    *,
    exact: bool = False,
    near: bool = False,
    explain: str | None = None,
    overwrite: bool = False,
    events: Events | None = None,
) -> dict[str, Any]:
    """Rewrite the quantized model at `path` for a target into the file `output`, and run both to compare them.

    `exact` and `near` choose rules as in `rewrite.rules_for`; layers that `near` would take below 40 dB stay exact.
    `explain` names a node, of the model or of the result: which rules fired there, and why the others did not, is
    part of what is returned.
    """
    files.check_output(output, overwrite)
    target = preparation.target_of(config.compile)
    rules = families.rules_for(target, exact=exact, near=near)
    names = {rule.name for rule in rules}
    left_out = [rule for rule in families.rules_for(target, near=near) if rule.name not in names]
    return _rewrite_to(path, config, target, rules, output, explain, events, left_out)


def convert_file(
    path: Path,
    form: str | None,
    config: BuildConfig,
    output: Path,
    *,
    overwrite: bool = False,
    events: Events | None = None,
) -> dict[str, Any]:
    """Convert the quantized model at `path` to the form `qdq` or `qlinear`, and run both to compare them."""
    files.check_output(output, overwrite)
    target = families.conversion(form)
    return _rewrite_to(path, config, target, families.rules_for(target), output, None, events)


def _rewrite_to(
    path: Path,
    config: BuildConfig,
    target: Target,
    rules: Sequence[Rule],
    output: Path,
    explain: str | None,
    events: Events | None,
    left_out: Sequence[Rule] = (),
) -> dict[str, Any]:
    log = Log(events or Silence())
    source = loading.load_logged(path, config.dims, log)
    inputs = preparation.inputs_for(source.model, config, log)
    with log.stage("rewrite"):
        rows = stages.validation_rows(inputs)
        lossy = exactness.lossy(source.model, rules, rows)
        rules = exactness.except_at(rules, lossy)
        chosen = rewriter.apply(source.model.clone(), rules)
        rewritten, validation = _repaired(source.model, chosen, rules, rows, target)
    for node, reason in lossy.items():
        log.events.note(f"--near: {node} stays exact: {reason}")
    requantized = stages.tell_zero_points(rewritten, target, log)
    normalize.drop_unused_opsets(rewritten.model)
    upgrade.keep_kernels(rewritten.model, source.opset)
    refusals = () if explain is None else families.explain(source.model, chosen, rules, explain, left_out)
    files.write_model(rewritten.model, output, path, log, foreign=config.compile.assume_ort is not None)
    return {
        "output": str(output),
        "target": target.name,
        "rules": families.counts(rewritten.applications),
        "operators": families.operators(source.model, rewritten.model),
        "validation": validation,
        "requantized_weights": requantized,
        "explain": [asdict(refusal) for refusal in refusals],
        "warnings": log.warnings,
    }


def _repaired(
    model: ir.Model, first: Rewritten, rules: Sequence[Rule], rows: Sequence[execution.Outputs], target: Target
) -> tuple[Rewritten, dict[str, Any]]:
    """What `rules` made of a model, without what ONNX Runtime would do wrong with it, and what running it showed."""
    found = stages.check_rewriting(model, first, rules, rows, target)
    shapes.infer_shapes(first.model)
    repairs = linter.repairs(first.model, fused=target.rewrite.form == "qlinear")
    if not repairs:
        return first, found
    # Both together, so that rewriting once more finds nothing to do.
    repaired = rewriter.apply(first.model.clone(), (*rules, *repairs))
    shapes.infer_shapes(repaired.model)
    again = stages.check_rewriting(first.model, repaired, (*rules, *repairs), rows, target)
    return replace(repaired, applications=first.applications + repaired.applications), _together(found, again)


def _together(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """What running models before and after showed, of two steps one after the other."""
    both = (first, second)
    distances = [found["rewriting_sqnr_db"] for found in both if found["rewriting_sqnr_db"] is not None]
    rules = first["steps_moved"] | second["steps_moved"]
    return first | {
        "validated_rewrites": sum(found["validated_rewrites"] for found in both),
        "rewriting_identical": all(found["rewriting_identical"] for found in both),
        "rewriting_sqnr_db": min(distances, default=None),
        "steps_moved": {rule: max(found["steps_moved"].get(rule, 0.0) for found in both) for rule in rules},
    }
