"""Float to float: the same function in fewer and friendlier operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from intact.matching.rewriter import Rewritten, Rule, apply
from intact.model import edit, normalize, shapes
from intact.model.copying import copied
from intact.results import Application, Refusal
from intact.rules import discovery
from intact.rules import float as float_rules
from intact.rules.float import branches, composites, constant_folding, duplicates, loops
from intact.rules.float.flat_ends import CutHardSigmoid, CutHardSwish, FlatEndRule
from intact.rules.float.flat_linear import FlatLinearRule, FlattenBiasedLinear, FlattenLinear, NegateProduct
from intact.rules.float.fused_layers import FusedRule
from intact.rules.float.joint_linear import PartJointLinear
from intact.rules.float.many_dimensions import ManyDimensionsRule, ReduceInThree, SplitInThree, TransposeInTurns
from intact.rules.float.means import MeanOfPatches
from intact.rules.float.patches import SplitLongStride, TakeNeighboursIntoChannels, TakePixelsIntoChannels
from intact.rules.float.recurrent import UnrolledLayer
from intact.targets.spec import Target

# The order in which rules are tried at a node. A file that is not named here comes after those that are.
ORDER = (
    *(
        "fused_layers",
        "fused_attention",
        "fused_decoder",
        "identity",
        "space",
        "moves",
        "attention_mask",
        "indicator",
        "pads",
        "affine_folding",
        "scalar_factors",
    ),
    *("commuting", "division", "linear", "normalization", "magnitude", "activation"),
)

_ALL = [rule for module in discovery.files_of(float_rules, ORDER) for rule in discovery.rules_of(module)]

RULES: tuple[Rule, ...] = tuple(rule for rule in _ALL if not rule.is_rare and not rule.replaces)

RARE: tuple[Rule, ...] = tuple(rule for rule in _ALL if rule.is_rare or rule.replaces)


# Rules that are not used unless a fact about the target asks for them.
ASKED = (
    FlatEndRule,
    FlatLinearRule,
    ManyDimensionsRule,
    MeanOfPatches,
    NegateProduct,
    PartJointLinear,
    SplitLongStride,
    TakeNeighboursIntoChannels,
    TakePixelsIntoChannels,
)


def rules_of(target: Target, *, in_integers: bool, ends_anywhere: bool = False) -> list[Rule]:
    """The rules that facts about a target ask for, in a model that is going to be computed in integers or not.

    `ends_anywhere` says that these have few bits, and that their grids need not reach as far below zero as above it.
    """
    flat, lanes = in_integers and target.multiplies_matrices_only, target.channels_at_once
    most = target.most_dimensions
    return [
        *([CutHardSwish(), CutHardSigmoid()] if ends_anywhere and target.cuts_flat_ends else ()),
        *([FlattenBiasedLinear(), FlattenLinear(), NegateProduct()] if flat else ()),
        *([PartJointLinear()] if flat and target.computes_softmax else ()),
        *([] if most is None else [TransposeInTurns(most), SplitInThree(most), ReduceInThree(most)]),
        *([MeanOfPatches(target.most_in_mean)] if in_integers and target.most_in_mean is not None else ()),
        *([] if target.longest_stride is None else [SplitLongStride(target.longest_stride)]),
        *([] if lanes is None else [TakePixelsIntoChannels(lanes), TakeNeighboursIntoChannels(lanes)]),
    ]


def optimize(
    model: ir.Model,
    *,
    ops: Callable[[str, str], bool] | None = None,
    take_apart: bool = True,
    unroll_layers: bool = False,
    asked: Sequence[Rule] = (),
) -> Rewritten:
    """Return a copy of `model` that computes the same function with constants folded and operators fused.

    `ops` says whether the target has an operator, by domain and type; without it every fusion is made but those
    to operators that few targets have. `take_apart` says whether operators that ONNX Runtime's own optimizers fuse
    are taken apart, as quantizing them needs it, and every device but its CPU provider; `unroll_layers`, whether
    recurrent layers are. `asked` are rules that a fact about the target asks for (see `rules_of`).
    """
    result = copied(model)
    normalize.lift_constants(result)
    known = RULES if ops is None else [rule for rule in (*RULES, *RARE) if _is_for(rule, ops)]
    apart = (*(() if take_apart else (FusedRule,)), *(() if unroll_layers else (UnrolledLayer,)))
    rules = [*(rule for rule in known if not isinstance(rule, (*apart, *ASKED))), *asked]
    applications: list[Application] = []
    refusals: tuple[Refusal, ...] = ()
    attempts, changed = 0, True
    while changed:
        shapes.infer_shapes(result)
        folded = constant_folding.fold(result)
        decided = (*branches.inline(result), *(() if ops is None else loops.unroll(result)))
        if not (decided or folded) and ops is not None and ops("", "Where") and not ops("", "If"):
            decided = branches.select(result)
        applications += decided
        if decided:
            continue  # the types behind them are known only now
        done = apply(result, rules)
        applications += done.applications
        refusals, attempts = done.refusals, attempts + done.attempts
        # Last, because rules want a value to have one use where exporters gave it one.
        merged = () if folded or done.applications else duplicates.merge(result)
        # What a rule knows a better form of is gone by then.
        apart = () if ops is None or folded or done.applications else composites.take_apart(result, ops)
        applications += (*merged, *apart)
        changed = bool(folded or done.applications or merged or apart)
    edit.prune(result)
    return Rewritten(result, tuple(applications), refusals, attempts)


def in_older_forms(model: ir.Model, ops: Callable[[str, str], bool]) -> ir.Model:
    """A copy of `model` without operators that a target lacks where others mean the same; nothing else changes."""
    return apply(copied(model), [rule for rule in (*RULES, *RARE) if rule.replaces and _is_for(rule, ops)]).model


def _is_for(rule: Rule, ops: Callable[[str, str], bool]) -> bool:
    """True if a target has what a rule creates, and lacks what it replaces."""
    return all(ops(*key) for key in rule.creates) and not any(ops(*key) for key in rule.replaces)
