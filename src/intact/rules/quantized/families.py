"""Rules for quantized graphs, by family, and the stage that applies those that a target asks for."""

from __future__ import annotations

import difflib
import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import onnx_ir as ir

from intact.errors import SettingsError
from intact.matching import explanation, rewriter
from intact.matching.rewriter import EXACT, NEAR, Firing, Rewritten, Rule
from intact.model import query
from intact.model.copying import copied
from intact.results import Application, Refusal, RuleCount
from intact.rules import discovery, quantized
from intact.rules.quantized.target_rule import TargetRule
from intact.settings.devices import HOST
from intact.targets.registry import load_target
from intact.targets.spec import Forms, Target

# The order in which rules are tried at a node where a table names their whole family, and that of the documentation.
# A file that is not named here comes after those that are.
ORDER = (
    *("constants", "folding", "scaling", "channel_scales", "clipping", "split_clips", "movement", "padding"),
    *("bias", "conv_bias"),
    "left_in_float",
    *("integer_forms", "signs", "operator_signs", "gemm", "qgemm", "matmul_integer", "fully_connected"),
    *("to_qlinear", "to_qdq", "moves_to_qdq", "zero_points", "depthwise", "input_copies", "symmetric"),
    *("channels", "norms"),
)

FAMILIES: Mapping[str, tuple[Rule, ...]] = discovery.families_of(quantized, ORDER)

# What `conversion` applies: operators in the other form, and what stands in the way of that.
CONVERSIONS: Mapping[Literal["qdq", "qlinear"], tuple[str, ...]] = {
    "qdq": ("to_qdq",),
    "qlinear": (
        "integer_forms.relu_to_integer_clip",
        "integer_forms.clip_to_integer_clip",
        "folding.quantize_constant",
        "folding.drop_self_requantize",
        "clipping",
        "movement",
        "bias.fold_arithmetic_into_conv",
        "bias.fold_norm_into_conv",
        "gemm.fold_gemm_factors",
        "gemm.matmul_add_to_qgemm",
        "gemm.mat_mul_to_float",
        "gemm.add_to_mat_mul_to_float",
        "to_qlinear",
    ),
}

RULES: tuple[Rule, ...] = tuple(rule for family in FAMILIES.values() for rule in family)


class Latitude(enum.StrEnum):
    """A limit on how far rules move numbers: not at all, a step as in a build, or to another grid of a weight."""

    EXACT = "exact"
    BUILD = "build"
    NEAR = "near"

    def allows(self, rule: Rule) -> bool:
        """True if the rule's claim is within this latitude."""
        if self is Latitude.EXACT:
            return rule.exactness is EXACT or (isinstance(rule, TargetRule) and rule.exact_in_integers)
        return self is Latitude.NEAR or rule.exactness is not NEAR


def rewrite(model: ir.Model, target: Target, latitude: Latitude = Latitude.BUILD) -> Rewritten:
    """Rewrite a copy of a quantized model to the form that `target` takes, with the rules that `rules_for` chooses."""
    return rewriter.apply(copied(model), rules_for(target, latitude))


def explain(
    before: ir.Model, rewritten: Rewritten, rules: Sequence[Rule], node: str, left_out: Sequence[Rule] = ()
) -> tuple[Refusal, ...]:
    """Tell which rules fired at a node, and why each other that has a place for what became of it does not.

    Those of `left_out` that would fire are told, too: `--exact` is why they did not. Without a node ("") it is why
    rules did not fire where they match, all over the result.
    """
    if not node:
        doubted = (Refusal(rule.name, at, why) for rule, at, why in explanation.doubts(rewritten.model, rules) if why)
        missed = (_left_out(rule, at) for rule, at, why in explanation.doubts(rewritten.model, left_out) if why is None)
        return (*doubted, *missed)
    given, left = ({item.name or "": item for item in query.all_nodes(m)} for m in (before, rewritten.model))
    if node not in given and node not in left:
        near = difflib.get_close_matches(node, [*(left | given)], 2)
        fix = f"did you mean {' or '.join(near)}?" if near else None
        raise SettingsError("S146", f"--explain {node}: the model has no such node, before or after", fix=fix)
    fired = [Refusal(item.rule, node, "fired here") for item in _fired_with(node, before, rules)]
    places = [name for name, item in left.items() if name == node or node in query.origin(item)]
    gone = [] if places else [Refusal("none", node, "nothing is left of it that a rule could match")]
    stands = [refusal for place in places for refusal in explanation.explain(rewritten.model, rules, place)]
    barred = [
        _left_out(rule, place)
        for place in places
        for rule in left_out
        if explanation.fires_at(rewritten.model, rule, place)
    ]
    told = (*dict.fromkeys(fired), *stands, *barred, *gone)
    return told or (Refusal("none", node, f"no rule has a place for {left[places[0]].op_type}"),)


def _fired_with(node: str, model: ir.Model, rules: Sequence[Rule]) -> list[Application]:
    """The applications whose match had the node in it, or what came of it before."""
    found: list[Application] = []
    heirs: set[ir.Node] = set()

    def watch(firing: Firing) -> None:
        if any(item.name == node or item in heirs for item in firing.covered):
            found.append(firing.application)
            heirs.update(firing.created)

    rewriter.apply(copied(model), rules, watch=watch)
    return found


def _left_out(rule: Rule, node: str) -> Refusal:
    return Refusal(rule.name, node, f"left out by --exact: its claim is {rule.exactness}")


def rules_for(target: Target, latitude: Latitude = Latitude.BUILD) -> tuple[Rule, ...]:
    """The rules that the table of a target names, in its order, as far as the target has what they create."""
    forms = target.rewrite
    named = [rule for name in forms.rules for rule in _named(name, forms)]
    needed = [rule for rule in named if not isinstance(rule, TargetRule) or rule.is_needed(forms)]
    fitted = [rule.for_target(forms) if isinstance(rule, TargetRule) else rule for rule in needed]
    return tuple(rule for rule in fitted if forms.kernels.issuperset(rule.creates) and latitude.allows(rule))


def conversion(form: str | None) -> Target:
    """A target whose table asks for one form of every operator that has two, and for nothing else."""
    found = next((known for known in CONVERSIONS if known == form), None)
    if found is None:
        raise SettingsError("S134", f"unknown form {form!r} of a quantized model", allowed=", ".join(CONVERSIONS))
    target = load_target(HOST)
    return replace(target, rewrite=replace(target.rewrite, form=found, rules=CONVERSIONS[found]))


def counts(applications: Iterable[Application]) -> list[RuleCount]:
    """Count the applications of each rule, in the order of first firing."""
    found = Counter((item.rule, item.exactness) for item in applications)
    return [{"rule": rule, "exactness": exactness, "count": count} for (rule, exactness), count in found.items()]


def operators(before: ir.Model, after: ir.Model) -> dict[str, dict[str, int]]:
    """Count the nodes of each type before and after."""
    found = [Counter(node.op_type for node in query.all_nodes(model)) for model in (before, after)]
    return {op: {"before": found[0][op], "after": found[1][op]} for op in sorted(found[0] | found[1])}


def _named(name: str, forms: Forms) -> tuple[Rule, ...]:
    family, _, single = name.partition(".")
    found = tuple(rule for rule in FAMILIES.get(family, ()) if single in ("", rule.name))
    if family not in FAMILIES or (single and not found):
        raise SettingsError(
            "S133", f"{forms.source}: no rule or family is called {name!r}", allowed=", ".join(FAMILIES)
        )
    return found
