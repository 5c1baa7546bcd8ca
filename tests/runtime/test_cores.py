"""Cores that are ours, counted as joblib counts them."""

from __future__ import annotations

import os

import joblib
import pytest

from intact.runtime import cores


@pytest.mark.parametrize("asked", [None, "1", "3", "1000"])
def test_joblib_would_count_the_same(monkeypatch, asked):
    if asked is not None:
        monkeypatch.setenv("LOKY_MAX_CPU_COUNT", asked)
    assert cores.cores() == joblib.cpu_count()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to some cores")
def test_a_process_that_is_bound_to_one_core_has_one():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert cores.cores() == joblib.cpu_count() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("content", "found"),
    [("max 100000", 8), ("250000 100000", 3), ("50000 100000", 1), ("-1 100000", 8), ("0 100000", 8)],
)
@pytest.mark.parametrize("split", [False, True], ids=["one file", "two files, as older kernels have it"])
def test_a_quota_of_a_control_group_is_rounded_up(monkeypatch, tmp_path, content, found, split):
    """Eight cores; the time of two and a half needs three of them."""
    before = [tmp_path / "quota", tmp_path / "period"]
    if split:
        for path, word in zip(before, content.split(), strict=True):
            path.write_text(word + "\n", encoding="ascii")
    else:
        (tmp_path / "cpu.max").write_text(content + "\n", encoding="ascii")
    monkeypatch.setattr(cores, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(cores, "_QUOTA_BEFORE", tuple(before))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert cores.cores() == found
