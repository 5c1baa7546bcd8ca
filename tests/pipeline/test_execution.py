"""Rows of a compiled model come in blocks that a simulator is worth starting for; those of one on the CPU run once."""

from __future__ import annotations

import numpy as np
import pytest

from intact.pipeline import execution
from intact.pipeline.execution import WatchedModel
from intact.runtime import ort_cpu
from tests.builder import from_text


@pytest.mark.parametrize(
    ("bytes_each", "blocks"),
    [(4, [192, 58]), (1 << 20, [64, 64, 64, 58]), (128 << 10, [128, 122])],
    ids=["small rows", "large rows", "rows between"],
)
def test_small_rows_come_in_larger_blocks(monkeypatch, bytes_each, blocks):
    seen = []

    def run(path, rows, device):
        seen.append(len(rows))
        return rows

    monkeypatch.setattr(execution.compiling, "run", run)
    row = np.broadcast_to(np.float32(0), (bytes_each // 4,))
    rows = ({"x": row, "n": np.int8([n % 100])[:0]} for n in range(250))
    found = list(execution.stream_compiled("m", rows, None))
    assert seen == blocks and len(found) == 250


def test_rows_are_counted_by_whoever_is_ahead():
    told = []
    rows = execution.Furthest(lambda: told.append(1))
    device, comparison = rows.counter(), rows.counter()
    for step in (device, device, device, comparison, comparison):
        step()
    assert len(told) == 3, "what the device has told is not told again"
    comparison()
    comparison()
    assert len(told) == 4, "a device that tells nothing leaves it to the comparison"


ROWS = [{"x": np.full(4, value, np.float32)} for value in (-1, 2, 3)]
BYTES = {"the inside, too": 1 << 20, "the outputs alone": 60, "nothing": 10}


@pytest.fixture
def runs(monkeypatch):
    """The first number of every row that a session runs."""
    seen = []
    for name in ("run", "run_over"):
        real = getattr(ort_cpu.Session, name)

        def counted(self, feeds, *names, real=real, over=name == "run_over"):
            # The first time, `run_over` calls `run`.
            is_told = "x" in feeds and not (over and self._binding is None)
            seen.extend([float(feeds["x"][0])] if is_told else [])
            return real(self, feeds, *names)

        monkeypatch.setattr(ort_cpu.Session, name, counted)
    return seen


def watched():
    return WatchedModel(from_text("(float[4] x) => (float[4] y)", "h = Relu (x)\ny = Add (h, h)"), ["x", "h"])


@pytest.mark.parametrize(
    ("kept", "again", "inside"),
    [("the inside, too", [], []), ("the outputs alone", [], [-1, 2, 3]), ("nothing", [-1, 2, 3], [-1, 2, 3])],
)
def test_the_first_rows_run_once_for_all_who_ask_as_far_as_memory_allows(runs, monkeypatch, kept, again, inside):
    monkeypatch.setattr(execution, "BYTES_KEPT", BYTES[kept])
    model, expected = watched(), [np.maximum(row["x"], 0) for row in ROWS]
    for wanted in ([-1, 2, 3], again):
        runs.clear()
        found = [outputs["y"] for outputs in model.stream(ROWS, together=True)]
        assert runs == wanted and np.array_equal(found, np.multiply(expected, 2))
    runs.clear()
    tensors = [(number, values["h"].copy(), values["x"]) for number, values in model.inside(ROWS)]
    assert runs == inside and [number for number, *_ in tensors] == [0, 1, 2]
    assert np.array_equal([h for _, h, _ in tensors], expected) and [x[0] for *_, x in tensors] == [-1, 2, 3]


@pytest.mark.parametrize("in_pieces", [False, True])
def test_the_inside_of_so_many_rows_as_are_looked_at_is_kept(runs, monkeypatch, in_pieces):
    for name, most in (("SHORTEST", 1), ("NODES", 1)):
        monkeypatch.setattr(execution.pieces, name, most if in_pieces else 1000)
    graph = from_text("(float[4] x) => (float[4] y)", "h = Relu (x)\ny = Add (h, h)")
    model = WatchedModel(graph, ["x", "h"], 2)
    assert [float(outputs["y"][0]) for outputs in model.stream(ROWS, together=True)] == [0, 4, 6]
    assert len(model._seen) == 2
    runs.clear()
    seen = [(number, float(values["h"][0])) for number, values in model.inside(ROWS[:2]) if "h" in values]
    assert seen == [(0, 0), (1, 2)] and runs == []


def test_a_row_that_differs_from_the_first_ones_runs_and_rows_in_turn_are_never_taken_from_others(runs):
    model = watched()
    list(model.stream(ROWS[:2], together=True))
    runs.clear()
    assert [float(found["y"][0]) for found in model.stream(ROWS, together=True)] == [0, 4, 6] and runs == [3]
    assert len(list(model.stream(ROWS))) == 3 and runs == [3, -1, 2, 3]


@pytest.mark.parametrize("text", [["ab", "c"], ["ab", "d"]])
def test_rows_of_text_are_told_apart_by_what_they_say(text):
    first, second = (execution._digest({"x": np.array(words, object)}) for words in (["ab", "c"], text))
    assert (first == second) == (text == ["ab", "c"])
