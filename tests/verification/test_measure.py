"""Several forms at once: one pass over the rows, agreement, labels, and tolerances that really hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.data.labels import Labels
from intact.errors import DataError
from intact.results import Accuracy
from intact.verification.compare import Runner, compare, measure
from intact.verification.task import classes
from intact.verification.tolerance import tolerance

RNG = np.random.default_rng(3)


def runner(values, form="quantized"):
    """A model that gives the next of `values` for each row."""
    return Runner(form, "cpu", lambda rows: ({"y": value} for value, _ in zip(values, rows, strict=True)))


class TestMeasuring:
    def test_every_model_sees_every_row_and_each_row_is_read_once(self):
        read, seen = [], []

        def rows():
            for number in range(5):
                read.append(number)
                yield {"x": np.float32([number])}

        def watching(rows):
            for row in rows:
                seen.append(float(row["x"][0]))
                yield {"y": row["x"]}

        runners = [Runner("quantized", "cpu", watching) for _ in range(3)]
        _, found = measure(rows(), runners[0], runners[1:])
        assert read == list(range(5)) and sorted(seen) == sorted([*range(5)] * 3)
        assert [row.identical for one in found for row in one.accuracy] == [True, True]

    def test_no_row_is_kept_once_all_models_have_seen_it(self):
        alive = []

        class Row(dict):
            def __init__(self):
                alive.append(None)
                super().__init__(x=np.zeros(1))

            def __del__(self):
                alive.pop()

        def run(rows):
            for _ in rows:
                assert len(alive) <= 3
                yield {"y": np.zeros(1)}

        measure((Row() for _ in range(20)), Runner("original", "", run), [Runner("float", "", run)])

    def test_each_model_is_held_against_the_reference(self):
        base = [np.float32([[1, 2, 3]])] * 2
        rows = [{}] * 2
        _, found = measure(rows, runner(base), [runner(base, "float"), runner([b + 1 for b in base], "compiled")])
        assert [(one.accuracy[0].form, one.accuracy[0].max_abs_error) for one in found] == [
            ("float", 0),
            ("compiled", 1),
        ]


class TestAgreement:
    def test_top_five_is_the_best_class_of_the_original_among_the_five_best(self):
        a, b = RNG.standard_normal((2, 40, 30))
        (row,) = compare("quantized", "cpu", [{"y": a}], [{"y": b}])
        expected = [x.argmax() in np.argsort(-y)[:5] for x, y in zip(a, b, strict=True)]
        assert row.top5_agreement == pytest.approx(np.mean(expected)) and 0 < row.top5_agreement < 1

    @pytest.mark.parametrize(("classes_", "known"), [(5, False), (6, True)])
    def test_five_of_five_classes_say_nothing(self, classes_, known):
        scores = RNG.standard_normal((2, classes_))
        (row,) = compare("quantized", "cpu", [{"y": scores}], [{"y": scores}])
        assert row.top1_agreement == 1 and (row.top5_agreement == 1) == known == (row.top5_agreement is not None)

    def test_what_is_no_number_is_no_good_score(self):
        scores = np.arange(8.0)[None]
        (row,) = compare("quantized", "cpu", [{"y": scores}], [{"y": np.full_like(scores, np.nan)}])
        assert row.top5_agreement == 0


def labels(values, name="labels"):
    return Labels("labels.npy", {name: np.asarray(values)})


class TestLabels:
    def test_accuracy_of_each_form_is_the_share_of_right_answers(self):
        right = [[0], [1], [2], [1]]
        good = [np.eye(3)[label] for label in right]
        bad = [*good[:3], np.float64([[1, 0, 0]])]
        first, (same, worse) = measure([{}] * 4, runner(good, "original"), [runner(good), runner(bad)], labels(right))
        rows = (*first.task, *same.task, *worse.task)
        assert [(row.output, row.correct, row.total, row.accuracy) for row in rows] == [
            ("y", 4, 4, 1.0),
            ("y", 4, 4, 1.0),
            ("y", 3, 4, 0.75),
        ]

    @pytest.mark.parametrize(
        ("output", "count", "expected"),
        [
            (np.float32([[0.1, 0.9]]), 1, [1]),
            (np.float32([0.1, 0.9]), 1, [1]),
            (np.float32([[[1, 0], [0, 1], [0, 1]]]), 3, [0, 1, 1]),
            (np.int64([2, 0]), 2, [2, 0]),
            (np.uint8([[3, 200]]), 1, [1]),
        ],
    )
    def test_classes_are_the_best_scores_or_the_integers_themselves(self, output, count, expected):
        assert classes(output, count, "y").tolist() == expected

    @pytest.mark.parametrize(("shape", "count"), [((1, 1), 1), ((), 1), ((2, 3), 1), ((1, 3), 2)])
    def test_what_is_no_score_of_classes_is_refused(self, shape, count):
        with pytest.raises(DataError, match="output y has shape"):
            classes(np.zeros(shape, np.float32), count, "y")

    def test_labels_of_an_output_that_is_not_there_are_refused(self):
        scores = [np.eye(3)[[0]]]
        with pytest.raises(DataError, match="boxes is no output"):
            measure([{}], runner(scores), [runner(scores)], labels([[0]], "boxes"))


class TestTolerance:
    @given(st.integers(0, 2**32 - 1), st.floats(1e-6, 10))
    def test_what_is_printed_passes_and_is_not_slack(self, seed, noise):
        rng = np.random.default_rng(seed)
        a = rng.standard_normal((3, 7))
        b = a + noise * rng.standard_normal(a.shape)
        rows = compare("quantized", "cpu", [{"y": a}], [{"y": b}])
        found = tolerance(rows)
        assert np.allclose(b, a, rtol=found.rtol, atol=found.atol)
        assert np.allclose(b, a, rtol=0, atol=found.max_abs_error)
        assert not np.allclose(b, a, rtol=0, atol=0.98 * found.max_abs_error)
        assert rows[0].sqnr_db - 0.01 <= found.min_sqnr <= rows[0].sqnr_db
        assert rows[0].cosine - 1e-6 <= found.min_cosine <= rows[0].cosine

    def test_figures_have_few_digits_rounded_to_the_safe_side(self):
        row = Accuracy("float", "cpu", "y", 31.419, False, 0.9998765999, 0.0012341, 0.0, atol_beside_rtol=12.301)
        found = tolerance([row])
        assert (found.min_sqnr, found.min_cosine, found.max_abs_error, found.atol) == (31.41, 0.999876, 0.00124, 12.4)

    def test_the_worst_output_decides(self):
        bad = Accuracy("float", "cpu", "y", 10.0, False, None, 0.5, 0.0, atol_beside_rtol=0.25)
        good = Accuracy("float", "cpu", "z", 30.0, False, 0.5, 0.125, 0.0, atol_beside_rtol=0.125)
        found = tolerance([good, bad, good])
        assert (found.min_sqnr, found.min_cosine, found.max_abs_error, found.atol) == (10.0, 0.0, 0.5, 0.25)

    def test_identical_outputs_pass_any(self):
        found = tolerance([Accuracy("float", "cpu", "y", None, True, 1.0, 0.0, 0.0)])
        assert (found.min_sqnr, found.min_cosine, found.max_abs_error, found.atol) == (None, None, 0, 0)
