"""Float to float: the same function in fewer and friendlier operators."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from intact.matching.rewriter import Rewritten, Rule, apply
from intact.model import edit, normalize, shapes
from intact.results import Application, Refusal
from intact.rules.float import (
    activation,
    affine_folding,
    attention_mask,
    constant_folding,
    division,
    duplicates,
    identity,
    indicator,
    linear,
    moves,
    normalization,
    pads,
    scalar_factors,
    space,
)

RULES: tuple[Rule, ...] = (
    *identity.RULES,
    *space.RULES,
    *moves.RULES,
    *attention_mask.RULES,
    *indicator.RULES,
    *pads.RULES,
    *affine_folding.RULES,
    *scalar_factors.RULES,
    *division.RULES,
    *linear.RULES,
    *normalization.RULES,
    *activation.RULES,
)

RARE: tuple[Rule, ...] = normalization.RARE


def optimize(model: ir.Model, *, ops: Callable[[str, str], bool] | None = None) -> Rewritten:
    """Return a copy of `model` that computes the same function with constants folded and operators fused.

    `ops` says whether the target has an operator, by domain and type; without it every fusion is made but those
    to operators that few targets have.
    """
    result = model.clone()
    normalize.lift_constants(result)
    rules = RULES if ops is None else [rule for rule in (*RULES, *RARE) if all(ops(*key) for key in rule.creates)]
    applications: list[Application] = []
    refusals: tuple[Refusal, ...] = ()
    attempts, changed = 0, True
    while changed:
        shapes.infer_shapes(result)
        folded = constant_folding.fold(result)
        done = apply(result, rules)
        applications += done.applications
        refusals, attempts = done.refusals, attempts + done.attempts
        # Last, because rules want a value to have one use where exporters gave it one.
        merged = () if folded or done.applications else duplicates.merge(result)
        applications += merged
        changed = bool(folded or done.applications or merged)
    edit.prune(result)
    return Rewritten(result, tuple(applications), refusals, attempts)
