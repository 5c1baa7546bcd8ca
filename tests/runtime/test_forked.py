"""A worker that is a fork: in a program of one thread alone, and like a worker of its own in all that one sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A test runner has threads: what is forked here is a program of its own.
PROGRAM = """
import json, os, sys, threading, time
import numpy
from intact.errors import IntactError
from intact.runtime import forked, process
JOBS = "tests.runtime.jobs"
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")


def said(body: str) -> str:
    """What a program prints."""
    # Without buffers it would write out everything at once.
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + body],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**settings, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(body: str) -> dict:
    """What a program says as JSON in its last line."""
    return json.loads(said(body).splitlines()[-1])


def test_a_program_of_one_thread_is_forked_and_its_worker_has_what_it_has_imported():
    found = told("""
import colorsys
with process.staying(timeout=30, forks=True, environment={"THEIRS": "given"}) as call:
    where = call(f"{JOBS}:whereabouts", {}).result
    variables = call(f"{JOBS}:variables", {"names": ["THEIRS", "TMPDIR"]}).result
print(json.dumps({"modules": where["modules"], "other": where["pid"] != os.getpid(), **variables}))
""")
    assert found["other"] and "colorsys" in found["modules"]
    assert found["THEIRS"] == "given" and "intact-jobs" in found["TMPDIR"]


def test_a_program_with_a_thread_gets_a_worker_of_its_own():
    found = told("""
import colorsys
end = threading.Event()
threading.Thread(target=end.wait).start()
safe = forked.is_safe()
with process.staying(timeout=30, forks=True) as call:
    modules = call(f"{JOBS}:whereabouts", {}).result["modules"]
end.set()
print(json.dumps({"safe": safe, "modules": modules}))
""")
    assert not found["safe"] and "colorsys" not in found["modules"]


def test_a_thread_that_python_does_not_know_counts():
    found = told("""
import _thread
lock = _thread.allocate_lock()
lock.acquire()
before = forked.is_safe()
_thread.start_new_thread(lock.acquire, ())
time.sleep(0.2)
print(json.dumps({"before": before, "after": forked.is_safe()}))
sys.stdout.flush()
os._exit(0)
""")
    assert found == {"before": True, "after": False}


def test_what_a_program_has_not_written_out_yet_is_written_once():
    printed = said("""
print("said before", end=" ")
with process.staying(timeout=30, forks=True) as call:
    log = call(f"{JOBS}:chatter", {}).log
assert log.count("junk on stdout") == 1 and "said before" not in log, log
""")
    assert printed.count("said before") == 1 and "junk" not in printed


def test_the_death_of_a_fork_is_told_and_none_is_left_behind():
    found = told("""
with process.staying(timeout=30, forks=True) as call:
    try:
        call(f"{JOBS}:abort", {})
    except IntactError as error:
        died = error.message
with process.staying(timeout=30, forks=True) as call:
    pid = call(f"{JOBS}:whereabouts", {}).result["pid"]
with process.staying(timeout=30, forks=True):
    pass
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    left = 0
else:
    left = 1
print(json.dumps({"died": died, "left": left, "runs": os.path.exists(f"/proc/{pid}")}))
""")
    assert "SIGABRT" in found["died"] and found["left"] == 0 and not found["runs"]


def test_a_fork_is_not_waited_for_forever():
    found = told("""
with process.staying(timeout=1, forks=True) as call:
    try:
        call(f"{JOBS}:sleep", {})
    except IntactError as error:
        late = error.code
print(json.dumps({"late": late}))
""")
    assert found["late"] == "E103"
