"""Float to float: the same function in fewer and friendlier operators."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from intact.matching.rewriter import Rewritten, Rule, apply
from intact.model import edit, normalize, shapes
from intact.results import Application, Refusal
from intact.rules.float import (
    activation,
    attention_mask,
    division,
    duplicates,
    identity,
    indicator,
    linear,
    normalization,
    space,
)
from intact.rules.float import affine_folding as affine
from intact.rules.float import constant_folding as constants
from intact.rules.float import moves as movement
from intact.rules.float import pads as padding
from intact.rules.float import scalar_factors as scaling

RULES: tuple[Rule, ...] = (
    *identity.RULES,
    *space.RULES,
    *movement.RULES,
    *attention_mask.RULES,
    *indicator.RULES,
    *padding.RULES,
    *affine.RULES,
    *scaling.RULES,
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
        folded = constants.fold(result)
        done = apply(result, rules)
        applications += done.applications
        refusals, attempts = done.refusals, attempts + done.attempts
        # Last, because rules want a value to have one use where exporters gave it one.
        merged = () if folded or done.applications else duplicates.merge(result)
        applications += merged
        changed = bool(folded or done.applications or merged)
    edit.prune(result)
    return Rewritten(result, tuple(applications), refusals, attempts)
