"""Samples on their way to a job and back, and the count of those that it has run."""

from __future__ import annotations

import numpy as np

from intact.backends import sample_files


def test_whoever_sent_samples_is_told_of_each_that_ran():
    told = []
    run = sample_files.SamplesRun(lambda: told.append(1))
    with sample_files.sent([{"x": np.float32([row])} for row in range(3)]) as order:
        run.add(order)
        run.look()
        seen = []

        def results():
            for feeds in sample_files.each(order):
                seen.append(len(told))
                yield [feeds["x"] * 2]
                run.look()

        sample_files.answer(order, results())
        assert sample_files.received(order, ["y"])[2]["y"] == 4
    run.look()
    assert seen == [0, 1, 2] and len(told) == 3, "and nothing is forgotten or told twice when the files are gone"
