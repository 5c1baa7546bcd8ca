"""A short run of every target of `make fuzz`, the same every time, and that it would find something."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intact.errors import ModelError
from intact.model import io
from tests.fuzz import targets
from tests.fuzz.targets import TARGETS, NotRefusedRightly, check

FILES = {"models": 6, "external": 6, "compiled": 8}
MOST = 15


@pytest.mark.parametrize("name", TARGETS)
def test_files_that_are_nearly_right_are_taken_or_refused(name: str, tmp_path: Path) -> None:
    @settings(
        max_examples=FILES.get(name, MOST),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def one(data: st.DataObject) -> None:
        check(TARGETS[name], TARGETS[name].drawn(data.draw, tmp_path), tmp_path)

    one()


def test_an_error_of_ours_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: Path) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(io, "load", load)
    with pytest.raises(NotRefusedRightly, match="status 70"):
        check(TARGETS["compiled"], targets.small().SerializeToString(), tmp_path)


def test_a_refusal_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: Path) -> None:
        raise ModelError("M104", "the file holds no graph")

    monkeypatch.setattr(io, "load", load)
    check(TARGETS["compiled"], b"", tmp_path)
