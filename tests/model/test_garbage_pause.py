"""Python's cycle collector while a build runs."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from contextlib import ExitStack

import pytest

from intact.model import garbage_pause
from intact.model.garbage_pause import collected_by_stage, collecting, tidy
from tests.builder import from_text


@pytest.fixture
def model():
    return from_text("(float[2] x) => (float[2] y)", "h = Relu(x) y = Neg(h)")


@pytest.mark.parametrize("most", [0, 2000], ids=["large", "small"])
def test_a_dropped_copy_goes_between_stages_and_not_before(model, most, monkeypatch):
    monkeypatch.setattr(garbage_pause, "MANY_NODES", most)
    with collected_by_stage():
        gone = weakref.ref(model.clone().graph)
        [[] for _ in range(100_000)]
        assert gone() is not None
        tidy(model)
        assert gone() is None


def test_the_collector_works_as_before_when_a_build_has_failed():
    def fail():
        assert not gc.isenabled() and gc.get_freeze_count() > 0
        raise ValueError("the end")

    with pytest.raises(ValueError, match="the end"), collected_by_stage():
        fail()
    assert gc.isenabled() and gc.get_freeze_count() == 0


def test_cycles_that_code_of_the_user_drops_are_collected_while_a_build_runs():
    """In a process of its own: what a test runner did to the collector before decides when it works."""
    program = """
import gc, weakref
import numpy as np
from intact.data.input_specs import input_specs
from intact.data.python import CallableSource
from intact.model.garbage_pause import collected_by_stage
from tests.builder import from_text
dropped = []
class Cycle:
    def __init__(self):
        self.me = self
def rows():
    for _ in range(3000):
        dropped.append(weakref.ref(Cycle()))
        yield {"x": np.zeros(2, np.float32)}
specs = input_specs(from_text("(float[2] x) => (float[2] y)", "y = Neg(x)"))
with collected_by_stage():
    CallableSource("rows", specs, 3000, function=rows)
    left = sum(one() is not None for one in dropped)
    assert left < 2000, left
    assert not gc.isenabled()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_code_of_the_user_that_outlives_a_build_leaves_the_collector_as_it_was():
    with ExitStack() as thread:
        with collected_by_stage():
            thread.enter_context(collecting())
        assert gc.isenabled()
    assert gc.isenabled()


def test_a_program_that_keeps_objects_out_of_the_collector_is_let_be():
    """In a process of its own: threads of a test runner free objects that were kept out, and the count changes."""
    program = """
import gc
from intact.model.garbage_pause import collected_by_stage
gc.freeze()
kept = gc.get_freeze_count()
with collected_by_stage():
    assert gc.isenabled(), "the collector was held back"
assert gc.get_freeze_count() == kept, (gc.get_freeze_count(), kept)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("statement", ["", "import intact; intact.IntactError"])
def test_a_program_that_uses_us_ends_as_without_us(statement):
    """Objects in cycles may have something to do in the end, as to close a file: only commands of ours skip that."""
    assert _printed_at_exit(statement) == "by hand\ncollected\n"


def _printed_at_exit(statement: str) -> str:
    program = f"""
import atexit, os
class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self, say=os.write):
        say(1, b"collected\\n")
{statement}
import gc
gc.disable()
Cycle()
atexit.register(os.write, 1, b"by hand\\n")
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
