"""Figures of a comparison, against plain numpy, and the cases that have no plain figure."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.errors import ModelError
from intact.results import Accuracy
from intact.verification.compare import GREATEST, Runner, compare, measure
from intact.verification.gates import sqnr_gate

RNG = np.random.default_rng(9)


def rows(reference, candidate, name="y"):
    return compare(
        "quantized", "cpu", [{name: np.asarray(r)} for r in reference], [{name: np.asarray(c)} for c in candidate]
    )


def one(reference, candidate) -> Accuracy:
    (row,) = rows([reference], [candidate])
    return row


def test_figures_are_those_of_plain_numpy_over_all_samples():
    a = RNG.standard_normal((5, 2, 7)).astype(np.float32)
    b = (a + 0.1 * RNG.standard_normal(a.shape)).astype(np.float32)
    (row,) = rows(list(a), list(b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    assert row.sqnr_db == pytest.approx(10 * np.log10((x**2).sum() / ((x - y) ** 2).sum()))
    assert row.cosine == pytest.approx((x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum()))
    assert row.max_abs_error == np.abs(x - y).max()
    assert row.mean_abs_error == pytest.approx(np.abs(x - y).mean())
    assert row.top1_agreement == pytest.approx((x.argmax(-1) == y.argmax(-1)).mean())
    assert (row.form, row.runtime, row.output, row.identical) == ("quantized", "cpu", "y", False)
    assert row.atol_beside_rtol == pytest.approx((np.abs(x - y) - 0.01 * np.abs(x)).max())
    assert (row.elements, row.nonfinite, row.equal) == (x.size, 0, None)


def test_a_decision_is_clear_if_its_two_best_scores_are_further_apart_than_the_rms_error():
    a = np.array([[3.0, 0.0, 0.0], [1.0, 0.0, 0.9], [0.0, 2.0, 0.0]])
    b = a + np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.2], [2.5, 0.0, 0.0]])
    row = one(a, b)  # The error is 0.84: the second decision is not clear, and the third one is lost.
    assert (row.clear_decisions, row.clear_agreement) == (2, 0.5)
    assert row.top1_agreement == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("values", "equal"),
    [
        (np.array([[True, False, True]]), 2),
        (np.int32([[5, 6, 7]]), 2),
        (np.int64([[5, 6, 7]]), 2),
        (np.int16([[5, 6, 7]]), None),
        (np.uint8([[5, 6, 7]]), None),
        (np.float32([[5, 6, 7]]), None),
    ],
)
def test_classes_and_decisions_are_counted_and_grids_are_not(values, equal):
    other = values.copy()
    other[0, 1] = 1
    assert one(values, other).equal == equal


def test_infinities_of_both_count_neither_as_signal_nor_as_noise():
    row = one([[np.inf, 1.0, -np.inf]], [[np.inf, 2.0, -np.inf]])
    assert (row.sqnr_db, row.cosine, row.max_abs_error, row.mean_abs_error) == (0.0, 1.0, 1.0, pytest.approx(1 / 3))


def test_numbers_that_became_none_are_counted():
    assert one([[1.0, 2.0, np.nan, 4.0]], [[np.nan, np.inf, 3.0, 4.0]]).nonfinite == 2


@pytest.mark.parametrize(
    ("reference", "candidate", "constant", "unmoved"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 5.0]], False, False),
        ([[1.0, 2.0], [3.0, 4.0]], [[7.0, 7.0], [7.0, 7.0]], True, True),
        ([[1.0, 2.0], [3.0, 4.0]], [[7.0, 8.0], [7.0, 8.0]], False, True),
        ([[1.0, 2.0], [1.0, 2.0]], [[7.0, 8.0], [7.0, 8.0]], False, False),
        ([[1.0, 1.0], [1.0, 1.0]], [[7.0, 7.0], [7.0, 7.0]], False, False),
        ([[0.1, 0.2]], [[0.1, 0.3]], False, False),
        ([[0.1, 0.2]], [[0.3, 0.3]], True, False),
    ],
)
def test_an_output_that_no_longer_depends_on_the_input_is_told(reference, candidate, constant, unmoved):
    (row,) = rows(reference, candidate)
    assert (row.constant, row.unmoved) == (constant, unmoved)


def test_identical_outputs_have_no_sqnr():
    row = one([[1.0, 2.0]], [[1.0, 2.0]])
    assert (row.sqnr_db, row.identical, row.max_abs_error, row.top1_agreement) == (None, True, 0.0, 1.0)
    assert row.cosine == pytest.approx(1.0)


@pytest.mark.parametrize("shape", [(3,), (1, 1), (1, 3, 4), ()])
def test_top1_agreement_is_only_for_scores_of_classes(shape):
    assert one(np.ones(shape), np.zeros(shape)).top1_agreement is None


@pytest.mark.parametrize(("classes", "counted"), [(4, False), (5, False), (6, True), (9, True)])
def test_the_best_five_are_counted_where_there_are_more_of_them(classes, counted):
    scores = np.arange(classes, dtype=np.float32)[None]
    assert (one(scores, scores[:, ::-1]).top5_agreement is not None) is counted
    assert one(scores, scores).top5_agreement == (1.0 if counted else None)
    both = np.concatenate([scores, scores]), np.concatenate([scores, scores[:, ::-1]])
    assert one(*both).top5_agreement == {6: 0.5, 9: 0.5}.get(classes)


def test_every_row_is_read_once_and_goes_to_all_in_its_order():
    """Rows come from an iterator that cannot be asked twice, and every runner has its own pace."""
    read = []

    def source():
        for index in range(5):
            read.append(index)
            yield {"x": np.float32([index])}

    def runner(form, factor):
        return Runner(form, "cpu", lambda rows: ({"y": factor * row["x"]} for row in rows))

    _, measured = measure(source(), runner("original", 1), [runner("quantized", 1), runner("rewritten", 2)])
    same, twice = (item.accuracy[0] for item in measured)
    assert read == [0, 1, 2, 3, 4]
    assert same.identical and same.elements == 5
    assert (twice.max_abs_error, twice.mean_abs_error) == (4.0, 2.0)


def test_equal_infinities_and_nans_are_no_error():
    values = [[-np.inf, 1.0, np.nan]]
    row = one(values, values)
    assert row.identical and row.sqnr_db is None


def test_top1_sees_infinite_scores():
    assert one([[-np.inf, -2.0, -1.0]], [[-np.inf, -1.0, -2.0]]).top1_agreement == 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_number_against_none_is_the_greatest_error_and_still_json(bad, swapped):
    pair = ([[1.0, 2.0]], [[1.0, bad]])
    row = one(*(reversed(pair) if swapped else pair))
    assert not row.identical and row.max_abs_error == GREATEST and row.sqnr_db < -300
    figures = [row.sqnr_db, row.cosine, row.max_abs_error, row.mean_abs_error]
    json.dumps(figures, allow_nan=False)


def test_noise_on_an_output_of_zeros_is_as_bad_as_can_be():
    row = one([[0.0, 0.0]], [[0.0, 0.1]])
    assert row.sqnr_db == -GREATEST and row.cosine is None and row.silent
    assert not one([[0.1, 0.0]], [[0.0, 0.0]]).silent


def test_integers_and_bools_compare_as_numbers():
    assert one(np.int64([[1, 2**40]]), np.int64([[1, 2**40]])).identical
    assert one(np.array([[True, False]]), np.array([[True, True]])).max_abs_error == 1.0


def test_there_is_one_row_for_each_output_of_the_original():
    reference = [{"a": np.ones(2), "b": np.ones(2)}]
    found = compare("compiled", "npu", reference, [{"b": np.zeros(2), "a": np.ones(2), "c": np.ones(1)}])
    assert [(row.output, row.identical) for row in found] == [("a", True), ("b", False)]


def test_a_missing_output_and_another_shape_are_errors():
    with pytest.raises(ModelError, match="the quantized model has no output 'y'"):
        compare("quantized", "cpu", [{"y": np.ones(1)}], [{"z": np.ones(1)}])
    with pytest.raises(ModelError, match="shape"):
        rows([np.ones(2)], [np.ones((1, 2))])
    with pytest.raises(ValueError):
        rows([np.ones(2)], [])


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20), st.integers(1, 19))
def test_the_split_into_samples_changes_no_figure(values, at):
    a = np.array(values)
    b = a + np.linspace(-1, 1, a.size)
    (whole,), (parts,) = rows([a], [b]), rows([a[:at], a[at:]], [b[:at], b[at:]])
    assert whole.sqnr_db == pytest.approx(parts.sqnr_db) and whole.max_abs_error == parts.max_abs_error


def accuracy(sqnr_db, output="y"):
    return Accuracy("compiled", "npu", output, sqnr_db, sqnr_db is None, 1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("values", "least", "passed", "value"),
    [
        ([40.0, 31.0], 30.0, True, 31.0),
        ([40.0, 30.0], 30.0, True, 30.0),
        ([40.0, 29.99], 30.0, False, 29.99),
        ([None, 31.0], 30.0, True, 31.0),
        ([None, None], 200.0, True, None),
        ([-GREATEST], -10.0, False, -GREATEST),
    ],
)
def test_a_gate_holds_for_the_worst_output_and_for_identical_ones(values, least, passed, value):
    gate = sqnr_gate([accuracy(db) for db in values], least)
    assert (gate.name, gate.limit, gate.passed, gate.value) == ("min_sqnr", least, passed, value)


def test_a_gate_says_where_the_worst_is():
    gate = sqnr_gate([accuracy(40.0), accuracy(12.5, "boxes")], 30.0)
    assert gate.detail == "the least SQNR is 12.50 dB, at boxes of the compiled model on npu"
