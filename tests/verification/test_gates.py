"""Each gate at its limit and one past it, what it says, and what it suggests."""

from __future__ import annotations

import pytest

from intact.errors import SettingsError
from intact.pipeline import acceptance
from intact.results import Accuracy, Gate, PlacedNode, Placement, TaskAccuracy
from intact.settings.config import BuildConfig
from intact.targets.registry import load_target
from intact.verification import gates
from intact.verification.remedies import with_remedy


def accuracy(sqnr_db=40.0, cosine=0.999, form="compiled"):
    return Accuracy(form, "npu", "y", sqnr_db, sqnr_db is None, cosine, 0.0, 0.0)


def task(correct, form="compiled", total=200):
    return TaskAccuracy(form, "npu", "y", correct, total, correct / total)


@pytest.mark.parametrize(
    ("cosines", "least", "passed"),
    [([0.9999, 0.999], 0.999, True), ([0.9999, 0.9989], 0.999, False), ([None], 0.5, False), ([None], 0.0, True)],
)
def test_the_least_cosine_decides_and_none_counts_as_zero(cosines, least, passed):
    gate = gates.cosine_gate([accuracy(cosine=cosine) for cosine in cosines], least)
    assert (gate.name, gate.passed) == ("min_cosine", passed)


@pytest.mark.parametrize("order", [1, -1], ids=["worst first", "worst last"])
@pytest.mark.parametrize(("least", "passed"), [(29.9, True), (30.0, False), (39.9, False)])
def test_the_least_sqnr_of_several_rows_decides_and_is_named(order, least, passed):
    rows = [accuracy(29.9, form="quantized"), accuracy(None, form="rewritten"), accuracy(40.0, form="compiled")]
    gate = gates.sqnr_gate(rows[::order], least)
    assert (gate.name, gate.value, gate.passed) == ("min_sqnr", 29.9, passed)
    assert gate.detail == "the least SQNR is 29.90 dB, at y of the quantized model on npu"


def test_identical_outputs_pass_any_sqnr():
    gate = gates.sqnr_gate([accuracy(sqnr_db=None)], 1000.0)
    assert gate.passed and gate.value is None


def test_identical_outputs_pass_any_cosine():
    assert gates.cosine_gate([accuracy(sqnr_db=None, cosine=None)], 1.0).passed


@pytest.mark.parametrize(
    ("correct", "most", "passed", "lost"),
    [(199, 0.0, True, 0.0), (200, 0.0, True, -0.5), (198, 0.5, True, 0.5), (197, 0.5, False, 1.0)],
)
def test_points_lost_are_counted_against_the_original(correct, most, passed, lost):
    gate = gates.task_gate([task(199, "original")], [task(199), task(correct)], most)
    worst = max(lost, 0.0)
    assert (gate.passed, gate.value) == (passed, worst)
    assert ("no accuracy is lost" in gate.detail) == (worst == 0)


@pytest.mark.parametrize(("ratio", "most", "passed"), [(1.0, 1.0, True), (1.001, 1.0, False), (0.4, 0.5, True)])
def test_latency_is_a_multiple_of_the_original(ratio, most, passed):
    assert gates.latency_gate(ratio, most, what="b.onnx").passed == passed


@pytest.mark.parametrize("least", [0.0, 100.0])
def test_a_placement_without_an_npu_passes_no_gate(least):
    gate = gates.placement_gate(Placement((), (PlacedNode("a", "Conv"),), 0, place="CPU"), least)
    assert (gate.passed, gate.value) == (False, 0.0) and "compiled for the CPU" in gate.detail


@pytest.mark.parametrize(("least", "passed"), [(50.0, True), (50.1, False)])
def test_the_share_of_nodes_on_the_npu_is_of_all_that_compute(least, passed):
    gate = gates.placement_gate(Placement((ON,), (OFF,), 1), least)
    assert (gate.value, gate.passed) == (50.0, passed) and "b (Loop): no" in gate.detail


SET = {"min_sqnr": 30, "min_cosine": 0.99, "labels": "y.npy", "max_accuracy_drop": 1, "require_npu": 100}
ON, OFF = PlacedNode("a", "Conv"), PlacedNode("b", "Loop", "no")


@pytest.mark.parametrize(
    ("found", "failed"),
    [
        ((accuracy(), task(199), (ON,), ()), []),
        ((accuracy(sqnr_db=29.9), task(199), (ON,), ()), ["min_sqnr"]),
        ((accuracy(cosine=0.9), task(199), (ON,), ()), ["min_cosine"]),
        ((accuracy(), task(100), (ON,), ()), ["max_accuracy_drop"]),
        ((accuracy(), task(199), (ON,), (OFF,)), ["require_npu"]),
    ],
)
def test_every_gate_that_is_set_is_checked_and_one_that_fails_says_what_to_try(found, failed):
    row, right, on, off = found
    config = BuildConfig.from_dict(SET)
    checked = acceptance.check(config, (row,), (task(200, "original"), right), Placement(on, off, 1))
    assert [gate.name for gate in checked] == ["min_sqnr", "min_cosine", "max_accuracy_drop", "require_npu"]
    assert [gate.name for gate in checked if not gate.passed] == failed
    assert all(bool(gate.fix) != gate.passed for gate in checked)


@pytest.mark.parametrize(
    ("precision", "calibration", "parts", "absent"),
    [
        ("uint8", "synthetic", ("--data", "--precision w8a16", "auto --min-sqnr 30", "intact debug"), ("more rows",)),
        ("w8a16", "npz", ("--precision int16", "more rows"), ("--data",)),
        ("int16", "npz", ("more rows", "intact debug"), ("--precision",)),
        (None, None, ("finer --precision",), ("more rows",)),
    ],
)
def test_what_to_try_depends_on_what_was_done(precision, calibration, parts, absent):
    fix = with_remedy(Gate("min_sqnr", 30.0, 20.0, False, ""), precision, calibration=calibration).fix
    assert all(part in fix for part in parts) and not any(part in fix for part in absent)


@pytest.mark.parametrize(
    ("settings", "device", "words"),
    [
        ({"max_latency_ratio": 1}, "qnn", "time of the simulator is not latency"),
        ({"max_latency_ratio": 1}, "dml", "not timed here"),
        ({"max_accuracy_drop": 1}, "cpu", "without labels"),
        ({"require_npu": 100}, "cpu", "has no NPU"),
    ],
)
def test_a_gate_that_cannot_be_checked_is_a_mistake_in_the_settings(settings, device, words):
    with pytest.raises(SettingsError, match=words):
        acceptance.check_settings(BuildConfig.from_dict(settings), load_target(device))


@pytest.mark.parametrize(
    ("takes", "proposed"),
    [((), "w8a16"), (("uint8", "w8a16"), "w8a16"), (("uint8", "fp16"), "--precision fp16"), (("uint8",), None)],
)
def test_no_precision_is_proposed_that_the_device_does_not_take(takes, proposed):
    fix = with_remedy(Gate("min_sqnr", 30.0, 20.0, False, ""), "uint8", takes=takes).fix
    assert proposed in fix if proposed is not None else "--precision" not in fix
