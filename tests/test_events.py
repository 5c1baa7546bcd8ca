"""Events: a stage whose steps are told as so many of so many."""

from __future__ import annotations

from contextlib import contextmanager

from intact.events import Silence, counting


class Watcher(Silence):
    """Remembers the stages that it is told about, with the steps taken in each."""

    def __init__(self):
        self.stages = []

    @contextmanager
    def stage(self, name, total=None):
        steps = [name, total, 0, "open"]
        self.stages.append(steps)

        def advance():
            steps[2] += 1

        yield advance
        steps[3] = "closed"


def test_steps_that_are_told_as_a_number_become_steps_of_one_stage():
    watcher = Watcher()
    with counting(watcher, "ask") as tell:
        for done in (2, 2, 5):
            tell(done, 9)
        assert watcher.stages == [["ask", 9, 5, "open"]]
    assert watcher.stages == [["ask", 9, 5, "closed"]]


def test_another_round_is_another_stage_and_none_outlives_the_last():
    watcher = Watcher()
    with counting(watcher, "ask") as tell:
        for done, total in ((3, 4), (4, 4), (1, 7)):
            tell(done, total)
    assert watcher.stages == [["ask", 4, 4, "closed"], ["ask", 7, 1, "closed"]]


def test_nothing_told_is_no_stage():
    watcher = Watcher()
    with counting(watcher, "ask"):
        pass
    assert watcher.stages == []
