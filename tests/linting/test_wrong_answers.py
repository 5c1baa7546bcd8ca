"""What ONNX Runtime gets wrong is found, and after the repair it gets it right, with all its optimizations."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from intact.errors import ModelError
from intact.linting import linter, repairs
from intact.runtime import ort_cpu
from tests.linting.wrong import CASES, SOUND, feeds

# What float32 sums may differ by in another order, relative to the largest output: Q109 claims no more than that.
WEIGHT_ONLY_TOLERANCE = 1e-6

cases = pytest.mark.parametrize(("code", "build"), CASES.values(), ids=CASES.keys())
sound = pytest.mark.parametrize("build", SOUND.values(), ids=SOUND.keys())
measured = pytest.mark.skipif(
    not onnxruntime.__version__.startswith("1.31."), reason="what this version gets wrong another may get right"
)


def outputs(model: ir.Model, *, optimize: bool) -> list[np.ndarray]:
    session = ort_cpu.Session(model, optimize=optimize, threads=1)
    return [array for row in feeds(model) for array in session.run(row).values()]


@measured
@cases
def test_without_the_repair_the_optimized_model_fails_or_differs(code: str, build: object) -> None:
    model = build()
    expected = outputs(model, optimize=False)
    try:
        got = outputs(model, optimize=True)
    except ModelError:
        return
    assert any((a != b).any() for a, b in zip(expected, got, strict=True))


@cases
def test_the_fault_is_found_and_nothing_else(code: str, build: object) -> None:
    found = linter.findings(build())
    assert {finding.code for finding in found} == {code}
    assert all(finding.fixable and finding.node and finding.message for finding in found)


@cases
def test_after_the_repair_the_optimized_model_is_right(code: str, build: object) -> None:
    model = build()
    expected = outputs(model, optimize=False)
    got = outputs(repairs.repair(model).model, optimize=True)
    tolerance = WEIGHT_ONLY_TOLERANCE if code == "Q109" else 0.0
    for a, b in zip(expected, got, strict=True):
        assert np.abs(a.astype(np.float64) - b).max() <= tolerance * np.abs(a).max()


@cases
def test_after_the_repair_nothing_is_found_and_nothing_is_left_to_repair(code: str, build: object) -> None:
    repaired = repairs.repair(build())
    assert repaired.applications
    assert not linter.findings(repaired.model)
    assert not repairs.repair(repaired.model).applications


@cases
def test_the_repair_leaves_the_given_model_alone(code: str, build: object) -> None:
    model = build()
    before = ir.to_proto(model).SerializeToString()
    repairs.repair(model)
    assert ir.to_proto(model).SerializeToString() == before


@sound
def test_a_sound_model_has_no_findings_and_stays_as_it_is(build: object) -> None:
    model = build()
    assert not linter.findings(model)
    assert not repairs.repair(model).applications


@sound
def test_a_sound_model_is_right_when_it_is_optimized(build: object) -> None:
    model = build()
    for a, b in zip(outputs(model, optimize=False), outputs(model, optimize=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
