"""One process of the toolkit serves orders that follow each other."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from intact.backends.rknn import standing
from intact.backends.rknn.standing import StandingToolkit
from intact.errors import ToolchainError
from intact.runtime.process import Interpreter

JOBS = "tests.runtime.jobs"
PYTHON = Interpreter(Path(sys.executable))


@pytest.fixture
def toolkit():
    found = StandingToolkit()
    yield found
    found.close()


def where(toolkit, timeout=30.0):
    return toolkit.call(f"{JOBS}:whereabouts", {}, PYTHON, timeout).result["pid"]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_orders_that_follow_each_other_share_a_process_which_ends_when_it_is_closed(toolkit):
    first, second = where(toolkit), where(toolkit)
    assert first == second != os.getpid()
    toolkit.close()
    assert not is_running(first) and where(toolkit) != first


def test_an_order_that_fails_ends_the_process_and_the_next_one_starts_another(toolkit):
    first = where(toolkit)
    with pytest.raises(ToolchainError, match="RuntimeError"):
        toolkit.call(f"{JOBS}:stumble", {}, PYTHON, 30.0)
    assert not is_running(first) and where(toolkit) != first


def test_another_limit_of_time_is_another_process(toolkit):
    assert where(toolkit) != where(toolkit, timeout=20.0)


def test_a_process_without_orders_ends_by_itself(toolkit, monkeypatch):
    monkeypatch.setattr(standing, "IDLE_SECONDS", 0.05)
    pid, until = where(toolkit), time.monotonic() + 30
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_running(pid)


def test_whoever_waits_is_called_meanwhile(toolkit):
    looks = []
    toolkit.call(f"{JOBS}:whereabouts", {}, PYTHON, 30.0, lambda: looks.append(1))
    assert looks
