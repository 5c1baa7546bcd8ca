"""Children side by side: order, how many at once, and none left behind."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import numpy as np
import pytest

from intact.backends.qnn import client as qnn_client
from intact.runtime import pool
from tests.backends import qdq


class Jobs:
    """Jobs that know how many of them are under way."""

    def __init__(self, count, failing=None):
        self.under_way = self.most = self.begun = 0
        self.count, self.failing = count, failing

    def __iter__(self):
        return (self.job(number) for number in range(self.count))

    @contextmanager
    def job(self, number):
        self.under_way += 1
        self.begun += 1
        self.most = max(self.most, self.under_way)

        def wait():
            if number == self.failing:
                raise RuntimeError("no")
            return number

        try:
            yield wait
        finally:
            self.under_way -= 1


@pytest.mark.parametrize("workers", [1, 2, 5, 50])
def test_results_come_in_order_and_no_more_than_the_workers_are_under_way(workers):
    jobs = Jobs(10)
    assert list(pool.in_order(jobs, workers)) == list(range(10))
    assert (jobs.most, jobs.under_way) == (min(workers, 10), 0)


def test_jobs_begin_only_when_there_is_room():
    jobs = Jobs(100)
    results = pool.in_order(jobs, 3)
    assert (next(results), jobs.begun) == (0, 3)
    results.close()
    assert jobs.under_way == 0


def test_a_job_that_fails_ends_the_others():
    jobs = Jobs(10, failing=2)
    with pytest.raises(RuntimeError):
        list(pool.in_order(jobs, 4))
    assert jobs.under_way == 0 and jobs.begun < 10


@pytest.mark.parametrize(
    ("cores", "free", "jobs", "expected"),
    [(8, 64, 100, 8), (8, 64, 3, 3), (8, 8, 100, 4), (8, 1, 100, 1), (8, None, 100, 8), (4, 64, 0, 1)],
)
def test_workers_are_bounded_by_cores_jobs_and_half_of_the_memory(monkeypatch, cores, free, jobs, expected):
    monkeypatch.setattr(pool, "cores", lambda: cores)
    monkeypatch.setattr(pool, "free_memory", lambda: free)
    assert pool.workers(jobs, 1) == expected


@pytest.mark.qnn
@pytest.mark.parametrize("most", [1, 2])
def test_simulators_that_share_samples_give_what_one_gives(tmp_path, monkeypatch, most):
    from intact.model import io

    io.save(qdq.cnn(), tmp_path / "q.onnx")
    samples = qdq.images(5)
    monkeypatch.setattr(qnn_client, "_MOST_SAMPLES", most)
    monkeypatch.setattr(pool, "workers", lambda *_: 3)
    told: list[int] = []
    chip = qnn_client.Chip(73)
    shared = qnn_client.run(tmp_path / "q.onnx", samples, chip, timeout=120, done=lambda: told.append(1))
    assert len(told) == len(samples), "each is counted once, whichever simulator ran it"
    monkeypatch.setattr(qnn_client, "_MOST_SAMPLES", 64)
    monkeypatch.setattr(pool, "workers", lambda *_: 1)
    alone = qnn_client.run(tmp_path / "q.onnx", samples, qnn_client.Chip(73), timeout=120)
    assert len(shared) == 5
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(shared, alone, strict=True) for name in b)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody may choose a core")
@pytest.mark.parametrize(("ours", "workers", "expected"), [({3, 5}, 2, [3, 5]), ({3, 5, 6}, 2, [None, None])])
def test_simulators_keep_to_a_core_each_only_where_they_take_all(monkeypatch, ours, workers, expected):
    monkeypatch.setattr(qnn_client.os, "sched_getaffinity", lambda _: ours)
    assert qnn_client._cores(workers) == expected
