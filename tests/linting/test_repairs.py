"""Repairs for one purpose put right what belongs to it, and leave everything else alone."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import pytest

from intact.linting import linter, repairs
from intact.linting.repairs import Purpose
from tests.linting.wrong import CASES

SINGLE = [purpose for purpose in Purpose if purpose is not Purpose.EVERYTHING]


def codes(model: ir.Model) -> set[str]:
    return {finding.code for finding in linter.findings(model, saturates=True)}


@pytest.mark.parametrize("purpose", SINGLE, ids=lambda purpose: purpose.name)
@pytest.mark.parametrize(("code", "build"), CASES.values(), ids=CASES.keys())
def test_a_purpose_repairs_its_own_faults_and_no_others(
    purpose: Purpose, code: str, build: Callable[[], ir.Model]
) -> None:
    model = build()
    given = codes(model)
    repaired = repairs.repair(model, purpose, saturates=True)
    assert codes(repaired.model) == given - set(purpose.codes)
    # A model that needs nothing is not copied.
    assert (repaired.model is model) is given.isdisjoint(purpose.codes)


@pytest.mark.parametrize("purpose", SINGLE, ids=lambda purpose: purpose.name)
def test_every_code_of_a_purpose_is_that_of_a_repair(purpose: Purpose) -> None:
    assert [rule.code for rule in purpose.rules(saturates=True)] == list(purpose.codes)


def test_rules_that_are_applied_beside_others_are_exact_and_for_faults_that_are_there() -> None:
    needed = {code: repairs.needed(build(), Purpose.EVERYTHING, saturates=False) for code, build in CASES.values()}
    assert [rule.code for rule in needed["Q120"]] == ["Q120"] and not needed["Q108"]


def test_a_purpose_reads_as_the_end_of_a_sentence_with_the_codes_to_look_up() -> None:
    assert [str(purpose) for purpose in SINGLE] == [
        "loads them beside int8 (intact explain Q119)",
        "computes them rightly (intact explain Q120, Q122, Q123)",
        "multiplies them rightly without VNNI (intact explain Q124)",
    ]
