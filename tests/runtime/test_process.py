"""The worker: whatever vendor code does, the caller gets an answer or an error that says what happened."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from intact.errors import TargetError, ToolchainError
from intact.runtime import process

JOBS = "tests.runtime.jobs"


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir()), "a job left files behind"


def call(name, request=None, *, timeout=30, memory_limit=None):
    return process.call(f"{JOBS}:{name}", request or {}, timeout=timeout, memory_limit=memory_limit)


def test_the_answer_of_a_job_is_what_it_returned():
    request = {"text": "naïve", "list": [1, 2.5, None]}
    assert call("echo", request).result == request


def test_a_job_runs_in_a_session_of_its_own_and_away_from_our_folder():
    where = call("whereabouts").result
    assert where["pid"] == where["session"] != os.getpid()
    assert where["cwd"] != os.getcwd()


def test_what_a_job_leaves_in_the_temporary_folder_goes_with_it(temporary):
    left = Path(call("litter").result["path"])
    assert left.is_relative_to(temporary) and not left.exists()


def test_a_flood_is_read_at_its_ends(monkeypatch):
    held = []
    plain = process.telling_lines
    monkeypatch.setattr(process, "telling_lines", lambda log: held.append(log) or plain(log))
    with pytest.raises(ToolchainError, match="the last error"):
        call("flood", {"bytes": 600_000_000})
    assert held[0].startswith("the first line\n") and "bytes are left out" in held[0]
    assert len(held[0]) < 40_000_000


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 19, 20, 21, 50])
def test_a_log_that_is_short_is_read_whole(size, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "_LOG_END_BYTES", 10)
    text = "".join(chr(97 + number % 26) for number in range(size))
    (tmp_path / "log").write_text(text)
    read = process._read_ends(tmp_path / "log")
    assert (read == text) == (size <= 20)
    assert read.startswith(text[:10]) and read.endswith(text[-10:])


def test_a_job_that_needs_no_vendor_loads_none():
    assert not [name for name in call("whereabouts").result["modules"] if name.startswith(("onnx", "numpy"))]


@pytest.mark.parametrize(
    "module",
    [
        pytest.param("intact.backends.qnn.job", marks=pytest.mark.qnn),
        pytest.param("intact.backends.openvino.job", marks=pytest.mark.openvino),
        "intact.runtime.loads",
    ],
)
def test_a_job_of_every_build_does_not_wait_for_what_it_has_no_use_for(module):
    """Each of them is a second of the user's time, several times a build."""
    modules = call("modules_with", {"module": module}).result["modules"]
    assert module in modules and not {"onnx", "onnx_ir", "sympy", "pydantic", "joblib"} & set(modules)


def test_a_file_in_the_working_directory_cannot_shadow_a_module(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    assert call("echo", {"a": 1}).result == {"a": 1}


def test_what_the_vendor_prints_is_in_the_log_and_nowhere_else(capfd):
    reply = call("chatter", {"a": 1})
    assert reply.result == {"a": 1}
    assert "junk on stdout" in reply.log
    assert "junk on stderr" in reply.log
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("job", "code", "words"),
    [
        ("abort", "E102", ["SIGABRT", "\n  | Failed to finalize: Code: 1002"]),
        ("leave", "E105", ["exit status 7"]),
        ("stumble", "E105", ["RuntimeError: the vendor's library is confused"]),
        ("absent", "E105", ["AttributeError"]),
    ],
)
def test_a_job_that_fails_says_how_and_names_itself(job, code, words):
    with pytest.raises(ToolchainError) as caught:
        call(job)
    assert (caught.value.code, caught.value.status) == (code, 5)
    for word in [f"{JOBS}:{job}", *words]:
        assert word in str(caught.value)


def test_an_error_of_ours_crosses_the_border_whole():
    with pytest.raises(TargetError) as caught:
        call("refuse")
    assert (caught.value.code, caught.value.message, caught.value.fix) == ("T100", "the device says no", "ask nicely")


def test_a_job_that_hangs_is_stopped_in_time():
    with pytest.raises(ToolchainError, match=r"no answer within 0\.5 seconds") as caught:
        call("sleep", timeout=0.5)
    assert caught.value.code == "E103"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_stopped_job_had_started_is_stopped_too(tmp_path):
    pid_file = tmp_path / "pid"
    seconds = 1.0
    while not (pid_file.exists() and pid_file.read_text()):  # a busy machine may take longer than that to start it
        seconds *= 2
        with pytest.raises(ToolchainError, match="no answer"):
            call("sleep_with_child", {"pid_file": str(pid_file)}, timeout=seconds)
    assert _ends(int(pid_file.read_text()))


@pytest.mark.skipif(sys.platform == "win32", reason="no address-space limit on Windows")
def test_a_job_that_wants_too_much_memory_is_refused_it():
    with pytest.raises(ToolchainError, match=r"out of memory \(limit 1\.0 GiB\)") as caught:
        call("hog", memory_limit=1 << 30)
    assert caught.value.code == "E104"


def test_a_crash_after_the_answer_does_not_matter():
    assert call("crash_at_exit").result == {"fine": True}


def test_a_job_under_way_is_ended_when_it_is_left(tmp_path):
    pid_file = tmp_path / "pid"
    start = time.monotonic()
    with process.started(f"{JOBS}:sleep_with_child", {"pid_file": str(pid_file)}, timeout=60):
        while not (pid_file.exists() and pid_file.read_text()):
            assert time.monotonic() - start < 30
            time.sleep(0.05)
    assert _ends(int(pid_file.read_text()))


def test_several_jobs_run_side_by_side():
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda n: call("echo", {"n": n}), range(8)))
    assert [reply.result["n"] for reply in replies] == list(range(8))


@pytest.mark.parametrize(
    ("log", "lines"),
    [
        ("", []),
        ("a\nb\n", ["a", "b"]),
        ("chat\n\tREASON : too wide\nchat\n", ["REASON : too wide"]),
        ("Failed: x\nFailed: x\nok", ["Failed: x"]),
    ],
)
def test_telling_lines_are_reasons_or_else_the_last_words(log, lines):
    assert process.telling_lines(log) == lines


def _ends(pid: int) -> bool:
    """Whether a process that would live for a minute is gone at once, as far as a busy machine lets it."""
    deadline = time.monotonic() + 10
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_process_that_stays_carries_out_one_job_after_another():
    with process.staying(timeout=30) as call_next:
        first, second = (call_next(f"{JOBS}:whereabouts", {}).result for _ in range(2))
        with pytest.raises(TargetError, match="the device says no"):
            call_next(f"{JOBS}:refuse", {})
        with pytest.raises(ToolchainError, match="RuntimeError") as failed:
            call_next(f"{JOBS}:stumble", {})
        assert call_next(f"{JOBS}:echo", {"rows": [1]}).result == {"rows": [1]}
    assert failed.value.code == "E105"
    assert first["pid"] == second["pid"] != os.getpid()


def test_a_process_that_stays_tells_of_each_job_what_was_printed_for_it_alone():
    with process.staying(timeout=30) as call_next:
        logs = [call_next(f"{JOBS}:{job}", {}).log for job in ("chatter", "echo", "chatter")]
    assert [log.count("junk on stdout") for log in logs] == [1, 0, 1]


@pytest.mark.parametrize(("module", "is_there"), [("colorsys", True), ("no_such_module", False), (None, False)])
def test_a_process_that_stays_imports_beforehand_what_its_jobs_need(module, is_there):
    with process.staying(timeout=30, imports=module) as call_next:
        modules = call_next(f"{JOBS}:whereabouts", {}).result["modules"]
    assert (module in modules) == is_there and "intact.errors" in modules


def test_a_process_that_stays_has_the_variables_that_it_is_given_beside_ours(monkeypatch):
    monkeypatch.setenv("OURS", "kept")
    with process.staying(timeout=30, environment={"THEIRS": "given"}) as call_next:
        found = call_next(f"{JOBS}:variables", {"names": ["OURS", "THEIRS"]}).result
    assert found == {"OURS": "kept", "THEIRS": "given"} and "THEIRS" not in os.environ


def test_the_death_of_a_process_that_stays_is_told_now_and_later():
    with process.staying(timeout=30) as call_next:
        for job in ("abort", "echo"):
            with pytest.raises(ToolchainError, match="SIGABRT") as died:
                call_next(f"{JOBS}:{job}", {})
            assert died.value.code == "E102"


def test_a_process_that_stays_is_not_waited_for_forever():
    with process.staying(timeout=1) as call_next, pytest.raises(ToolchainError, match="within 1 seconds") as late:
        call_next(f"{JOBS}:sleep", {})
    assert late.value.code == process.LATE


def test_whoever_waits_may_look_in_between_and_a_job_that_hangs_is_stopped_all_the_same():
    looks = []
    with (
        process.started(f"{JOBS}:sleep", {}, timeout=1.0) as reply,
        pytest.raises(ToolchainError, match="no answer within 1 seconds"),
    ):
        reply(lambda: looks.append(1))
    assert looks
