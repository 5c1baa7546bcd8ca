"""Every rule is proved: its claim holds on generated models, in plain numpy arithmetic."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from intact.matching.rewriter import EXACT, WITHIN_ONE_STEP, Rule, apply
from intact.rules.proof.reference import runnable
from intact.rules.quantized.families import RULES, rules_for
from intact.runtime import ort_cpu
from intact.targets.registry import load_target
from tests.builder import Net
from tests.kernels import exact
from tests.rules.proof.harness import Case, all_cases, distance, every_level, prove

CASES = all_cases()
MOST_IN_RUNTIME = 6


def test_every_rule_has_cases():
    assert {rule.name for rule in RULES} == CASES.keys()


def test_rules_have_names_of_their_own():
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_keeps_its_claim(rule):
    rng = np.random.default_rng(zlib.crc32(rule.name.encode()))
    compared = [prove(rule, case) for case in CASES[rule.name](rng)]
    assert len(compared) >= 3 and sum(compared) > 0


# What it writes is uint8 × int8 of two computed operands: the kernels of other processors have nothing else for it.
NEEDS_VNNI = "sign_second_operand"


def rules_in_runtime() -> list[Any]:
    """The rules that CPUs with or without VNNI ask for; with it fewer of them refuse."""
    targets = [load_target("cpu", vnni=vnni, ort="1.26") for vnni in (False, True)]
    rules = {rule.name: rule for target in targets for rule in rules_for(target)}
    marks = {NEEDS_VNNI: [pytest.mark.vnni]}
    return [pytest.param(rule, id=name, marks=marks.get(name, [])) for name, rule in rules.items()]


@pytest.mark.parametrize("rule", rules_in_runtime())
def test_a_rule_keeps_its_claim_in_onnxruntime(rule):
    """On a few of the cases, of types that the CPU has kernels for; the oldest version needs the most rules."""
    rng = np.random.default_rng(0)
    cases = list(CASES[rule.name](rng))
    tried = 0
    for case in cases[:: max(1, len(cases) // MOST_IN_RUNTIME)]:
        done = apply(case.model.clone(), [rule])
        tried += bool(done.applications)
        for feeds in case.feeds if done.applications else ():
            before, after = (ort_cpu.run(exact(model), feeds) for model in (runnable(case.model), done.model))
            for name, reference in before.items():
                steps = distance(reference, after[name], case.step)
                assert steps <= (0 if rule.exactness is EXACT else 1), f"{case.label}: {name} moves by {steps}"
    assert tried > 0


class ShiftByOne(Rule):
    """DQ(x, s, z) = DQ(x, s, z + 1): wrong by one step."""

    exactness = EXACT

    def pattern(self, op, x, s):
        return op.DequantizeLinear(x, s, np.uint8(3))

    def rewrite(self, op, x, s):
        return op.DequantizeLinear(x, s, op.constant(np.uint8(4)))


class ShiftByOneHonestly(ShiftByOne):
    """DQ(x, s, z) = DQ(x, s, z + 1) within one step."""

    exactness = WITHIN_ONE_STEP


def shifted() -> Case:
    net, x = Net(), every_level(np.uint8, (256,))
    net.quantize(net.dequantize("x", 0.5, np.uint8(3)), 0.5, np.uint8(3))
    return Case("shifted", net.model({"x": x}, "t1"), [{"x": x}])


def test_a_claim_that_does_not_hold_is_found():
    with pytest.raises(AssertionError, match="steps, exact is claimed"):
        prove(ShiftByOne(), shifted())
    assert prove(ShiftByOneHonestly(), shifted()) == 256


def test_a_case_on_which_the_rule_does_not_fire_is_found():
    case = Case("nothing", Net().model({"x": np.zeros(1, np.float32)}, "x"), [])
    with pytest.raises(AssertionError, match="does not fire"):
        prove(ShiftByOne(), case)


@pytest.mark.parametrize(
    ("a", "b", "step", "apart"),
    [
        ([1, 2], [1, 4], None, 2),
        ([1.0, 2.0], [1.0, 2.0], None, 0),
        ([1.0, 2.0], [1.0, 2.1], None, np.inf),
        ([1.0, 2.0], [1.0, 2.5], 0.25, 2),
    ],
)
def test_distance_counts_levels_or_steps(a, b, step, apart):
    assert distance(np.array(a), np.array(b), step) == pytest.approx(apart)
