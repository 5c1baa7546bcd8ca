"""Jobs in a child process: vendor code prints, leaks and aborts, and its death must not be ours."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict

from intact import errors, scratch
from intact.errors import IntactError, ToolchainError
from intact.runtime import forked

# Codes of jobs that did not live to answer: killed by a signal, by the clock, by the lack of memory.
LATE = "E103"
DEATHS = ("E102", LATE, "E104")

_WORKER = Path(__file__).with_name("worker.py")
# Settings of our interpreter that would lead another one to our packages.
_OUR_PYTHON = ("PYTHONPATH", "PYTHONHOME", "__PYVENV_LAUNCHER__")

# A verbose log of a large model has a tenth.
_LOG_END_BYTES = 16 << 20

# Seconds; a step of a small model in a simulator takes ten times as long. Whoever has waited for long waits for this
# share of it before the next look, which costs processor time, too.
_BETWEEN_LOOKS, _SHARE_BETWEEN_LOOKS = 0.002, 0.02
# As often as a terminal shows it.
_BETWEEN_COUNTS = 0.1

_OUT_OF_MEMORY = re.compile(r"bad_alloc|MemoryError|[Cc]annot allocate memory")
_TELLING = re.compile(r"REASON|error|fail|abort|bad_alloc|exception", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STAMP = re.compile(r"^\d{4}-\d\d-\d\d \S+ \[\w:[^\]]*\] ")


# A child process that takes one order after another.
Worker = subprocess.Popen[bytes] | forked.Fork


class RefusedJob(TypedDict):
    """An IntactError that a job raised: its class and its fields."""

    kind: str
    code: str
    message: str
    allowed: str | None
    source: str | None
    fix: str | None


class JobAnswer(TypedDict, total=False):
    """The file that the worker leaves: one of these, or none if it died first."""

    result: dict[str, Any]
    refusal: RefusedJob
    failure: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a job, and everything that was printed while it ran."""

    result: dict[str, Any]
    log: str


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that a job runs in: its executable, and what it imports from.

    Without `ahead` it is another one than ours and sees nothing of our packages: the file of the job is loaded by its
    path, and imports the standard library and what is installed there. With `ahead` it is one like ours, which
    imports what we would, after those folders.
    """

    executable: Path
    ahead: tuple[Path, ...] = ()


class Call(Protocol):
    """Run `job` on `request` and return its answer, as `call` does; now and then `look`."""

    def __call__(self, job: str, request: Mapping[str, object], look: Callable[[], None] | None = None) -> Reply: ...


class Awaited(Protocol):
    """Wait for the answer of a job; now and then `look`, to tell somebody how far it is."""

    def __call__(self, look: Callable[[], None] | None = None) -> Reply: ...


def call(
    job: str,
    request: Mapping[str, object],
    *,
    timeout: float,
    memory_limit: int | None = None,
    python: Interpreter | None = None,
) -> Reply:
    """Run `job` ("package.module:function") on `request` in a child process and return its answer.

    The job takes and returns a dictionary of JSON values; larger things travel as files whose paths are in it.
    It gets `timeout` seconds and, except on Windows, `memory_limit` bytes of address space. An IntactError that
    it raises is raised here; any other end without an answer is a ToolchainError with the vendor's last words.
    `python` is another interpreter than the one of this process, such as that of a toolchain.
    """
    with started(job, request, timeout=timeout, memory_limit=memory_limit, python=python) as reply:
        return reply()


@contextmanager
def started(
    job: str,
    request: Mapping[str, object],
    *,
    timeout: float,
    memory_limit: int | None = None,
    python: Interpreter | None = None,
) -> Iterator[Awaited]:
    """A job under way, as in `call`: the function that this gives waits for its answer; leaving the block ends it."""
    with scratch.folder("job") as folder:
        _write_order(folder, job, request, memory_limit, python)
        deadline = time.monotonic() + timeout
        process = _start(folder, python, str(folder))

        def reply(look: Callable[[], None] | None = None) -> Reply:
            status = _wait(process, deadline, look)
            answer, log = _answer(folder / "answer.json"), _read_ends(folder / "log.txt")
            return _reply(job, status, answer, log, timeout, memory_limit)

        try:
            yield reply
        finally:
            _kill_group(process)


@contextmanager
def staying(
    *,
    timeout: float,
    memory_limit: int | None = None,
    python: Interpreter | None = None,
    imports: str | None = None,
    environment: Mapping[str, str] | None = None,
    forks: bool = False,
) -> Iterator[Call]:
    """A child process that stays for one job after another, each as in `call`, and keeps what they have cached.

    A module that it `imports` is there for the first job already: this process need not wait for it. `environment` are
    variables that it has beside those of this process. With `forks` it may be a fork of this process.
    """
    with scratch.folder("jobs") as home:
        told = 0
        process: Worker | None = None

        def begun() -> Worker:
            if forks and forked.is_safe():
                return forked.Fork(home, _own_settings(home, environment))
            early = () if imports is None else ("--import", imports)
            return _start(home, python, *early, stdin=subprocess.PIPE, environment=environment)

        def call_next(job: str, request: Mapping[str, object], look: Callable[[], None] | None = None) -> Reply:
            nonlocal told, process
            process = process or begun()
            with scratch.folder("job") as folder:
                _write_order(folder, job, request, memory_limit, python)
                status = _carried_out(process, folder, time.monotonic() + timeout, look)
                answer, log = _answer(folder / "answer.json"), _read_ends(home / "log.txt", told)
                told = (home / "log.txt").stat().st_size
            return _reply(job, status, answer, log, timeout, memory_limit)

        # A fork is there at once, and what this process writes before is not written twice: there is nothing to begin.
        process = None if forks and forked.may_be_safe() else begun()
        try:
            yield call_next
        finally:
            if process is not None:
                _kill_group(process)
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()  # type: ignore[union-attr]


def telling_lines(log: str, limit: int = 5) -> list[str]:
    """The last few lines of a vendor's output that sound like a reason, or else its last lines."""
    lines = list(dict.fromkeys(filter(None, map(plain, log.splitlines()))))
    return [line[:400] for line in ([line for line in lines if _TELLING.search(line)] or lines)[-limit:]]


def plain(line: str) -> str:
    """A line of a log without colours, time and place."""
    return _STAMP.sub("", _COLOUR.sub("", line).strip()).strip()


def default_memory_limit() -> int | None:
    """Bytes of address space for a child: this machine's memory, and never less than the libraries themselves need."""
    if sys.platform == "win32":
        return None
    return max(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), 4 << 30)


def _write_order(
    folder: Path, job: str, request: Mapping[str, object], memory_limit: int | None, python: Interpreter | None
) -> None:
    alone = python is not None and not python.ahead
    order = {
        "job": job,
        "file": _file_of(job) if alone else None,
        "request": dict(request),
        "memory_limit": memory_limit,
    }
    (folder / "order.json").write_text(json.dumps(order), encoding="utf-8")


def _start(
    folder: Path,
    python: Interpreter | None,
    *arguments: str,
    stdin: int = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    executable = sys.executable if python is None else str(python.executable)
    own = _own_settings(folder, environment)
    with open(folder / "log.txt", "wb") as log:
        return subprocess.Popen(
            [executable, str(_WORKER), *arguments],
            stdin=stdin,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_environment(python) | own,
            start_new_session=True,
        )


def _own_settings(folder: Path, environment: Mapping[str, str] | None) -> dict[str, str]:
    """The variables of a child alone; a vendor's temporary files go with the job, even if it is killed."""
    temporary = folder / "tmp"
    temporary.mkdir()
    return {**dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary)), **(environment or {})}


def _file_of(job: str) -> str:
    """The file that holds a job; only the packages around it are imported, not the file."""
    spec = importlib.util.find_spec(job.partition(":")[0])
    assert spec is not None and spec.origin is not None, f"{job}: no file holds it"
    return spec.origin


def _wait(process: subprocess.Popen[bytes], deadline: float, look: Callable[[], None] | None = None) -> int | None:
    """The exit status of the worker, negative for a signal, or None if it ran out of time."""
    try:
        while True:
            left = max(deadline - time.monotonic(), 0)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(left if look is None else min(left, _BETWEEN_COUNTS))
            if look is None or not left:
                return None
            look()
    finally:
        _kill_group(process)


def _carried_out(process: Worker, folder: Path, deadline: float, look: Callable[[], None] | None) -> int | None:
    """Hand an order to a worker that stays; 0 if it was carried out, otherwise a status as in `_wait`."""
    assert process.stdin is not None, "a worker that stays is told what to do next"
    with contextlib.suppress(BrokenPipeError):  # it died before: its status says of what
        process.stdin.write(f"{folder}\n".encode())
        process.stdin.flush()
    begun = time.monotonic()
    while not (folder / "answer.json").exists():
        status = process.poll()
        if status is not None or time.monotonic() > deadline:
            return status
        if look is not None:
            look()
        longer = min(_SHARE_BETWEEN_LOOKS * (time.monotonic() - begun), _BETWEEN_COUNTS)
        time.sleep(max(_BETWEEN_LOOKS, longer) if look is None else _BETWEEN_COUNTS)
    return 0


def _environment(python: Interpreter | None) -> dict[str, str]:
    """Our environment, with what the child imports from: what we would, or, in an interpreter alone, its own packages.

    Whatever lies beside the worker or in the working directory is not importable.
    """
    settings = {"PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1"}
    if python is not None and not python.ahead:
        inherited = {name: value for name, value in os.environ.items() if name not in _OUR_PYTHON}
        return {**inherited, **settings, "PYTHONNOUSERSITE": "1"}
    first = [] if python is None else [str(entry) for entry in python.ahead]
    path = [*first, *(entry for entry in sys.path if os.path.isabs(entry))]
    return {**os.environ, **settings, "PYTHONPATH": os.pathsep.join(path)}


def _kill_group(process: Worker) -> None:
    """End the worker and whatever it started."""
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read_ends(path: Path, start: int = 0) -> str:
    """The beginning and the end of a log: what matters stands there, and a vendor may print for as long as it runs.

    Whatever stands before `start` was printed for an earlier job.
    """
    with open(path, "rb") as file:
        file.seek(start)
        head = file.read(_LOG_END_BYTES)
        size = os.fstat(file.fileno()).st_size
        rest = max(size - _LOG_END_BYTES, start + len(head))
        file.seek(rest)
        tail = file.read(_LOG_END_BYTES)
    left_out = rest - start - len(head)
    between = f"\n… {left_out} bytes are left out …\n".encode() if left_out > 0 else b""
    return (head + between + tail).decode("utf-8", errors="replace")


def _answer(path: Path) -> JobAnswer:
    if not path.exists():
        return {}
    answer: JobAnswer = json.loads(path.read_text(encoding="utf-8"))
    return answer


def _reply(job: str, status: int | None, answer: JobAnswer, log: str, timeout: float, limit: int | None) -> Reply:
    """Return the answer of a job; raise its refusal, or the cause of its death."""
    if "result" in answer:
        return Reply(answer["result"], log)
    raise _error(job, status, answer, log, timeout, limit)


def _error(job: str, status: int | None, answer: JobAnswer, log: str, timeout: float, limit: int | None) -> IntactError:
    if "refusal" in answer:
        told = answer["refusal"]
        kind: type[IntactError] = getattr(errors, told["kind"])
        return kind(told["code"], told["message"], allowed=told["allowed"], source=told["source"], fix=told["fix"])
    words = "".join(f"\n  | {line}" for line in telling_lines(log))
    if status is None:
        message = f"{job}: no answer within {timeout:g} seconds; it was stopped{words}"
        return ToolchainError("E103", message, fix="allow more time, or use a smaller model")
    if _OUT_OF_MEMORY.search(answer.get("failure", "") + log):
        found = f"{job}: out of memory" + (f" (limit {limit / 2**30:.1f} GiB)" if limit else "")
        return ToolchainError("E104", found + words, fix="allow more memory, or use a smaller model")
    if status < 0:
        return ToolchainError("E102", f"{job}: the process died of {signal.Signals(-status).name}{words}")
    return ToolchainError("E105", f"{job}: {answer.get('failure', f'exit status {status} without an answer')}{words}")
