"""Draws faults, gives each to a child, remembers what came of it, and sums up."""

from __future__ import annotations

import ast
import fnmatch
import functools
import gc
import hashlib
import json
import os
import resource
import signal
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy  # noqa: F401
import onnx  # noqa: F401
import onnx_ir  # noqa: F401
import onnxruntime  # noqa: F401
import pydantic  # noqa: F401

from tests.mutation import child
from tests.mutation.imports import ROOT, SOURCES, TESTS, module_name, tests_of
from tests.mutation.mutants import Mutant, mutants

# The modules that rewrite, verify, validate, plan, resolve, round and insert.
SUBJECTS = (
    "intact.rules.quantized.*",
    "intact.rules.proof.*",
    "intact.verification.*",
    "intact.targets.validate",
    "intact.targets.match",
    "intact.targets.operands",
    "intact.quantization.planning.planner",
    "intact.quantization.planning.choose",
    "intact.numbers.*",
    "intact.quantization.calibration.resolve",
    "intact.quantization.insert",
    "intact.quantization.stopwatch",
    "intact.quantization.improve.rounding",
)
LEAST_SCORE = 0.95
# What one fault may cost, in seconds: of tests at one distance without it, of the processor with it, by the clock.
TEST_SECONDS, CPU_SECONDS, WALL_SECONDS = 20.0, 90, 900
# Tests of a module's own name, those that import it, and those near by.
DISTANCES = 3
# A test that takes the processor longer than this is left out; so many files that import a module are looked at.
LONGEST_TEST, MOST_FILES = 2.0, 8

FOLDER = ROOT / "output" / "mutation"
EQUIVALENTS = Path(__file__).with_name("equivalents.toml")


@dataclass(frozen=True)
class Planted:
    """A fault of a module."""

    module: str
    source: str
    mutant: Mutant

    @property
    def key(self) -> str:
        return f"{self.module.rpartition('.')[2]}.{self.mutant.key}"


def main(count: int, seed: int, workers: int, only: str) -> int:
    """Plant the faults, print the score and the survivors; 0 if enough were noticed."""
    start = time.monotonic()
    gc.freeze()  # Children need not look through what all of them share.
    FOLDER.mkdir(parents=True, exist_ok=True)
    drawn = draw(count, seed, only)
    results = run(drawn, workers)
    equivalent = equivalents()
    noticed = [planted for planted in drawn if results[planted.key] and planted.key in equivalent]
    survivors = [planted for planted in drawn if not results[planted.key]]
    unexplained = [planted for planted in survivors if planted.key not in equivalent]
    for planted in survivors:
        reason = equivalent.get(planted.key)
        mark = f"equivalent: {reason}" if reason else "survived"
        print(f"{planted.module}:{planted.mutant.lineno}: {planted.key}\n    {mark}")
    for planted in noticed:
        print(f"not equivalent, a test notices it: {planted.key}")
    counted = len(drawn) - (len(survivors) - len(unexplained))
    score = 1 - len(unexplained) / max(counted, 1)
    print(f"{len(drawn)} faults, {len(survivors)} survived, {len(survivors) - len(unexplained)} of them equivalent")
    print(f"score: {100 * score:.1f} % ({100 * LEAST_SCORE:g} % is the least)")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"this run: {time.monotonic() - start:.0f} s, and {used.ru_utime + used.ru_stime:.0f} s of the processor")
    return 0 if score >= LEAST_SCORE and not noticed else 1


def draw(count: int, seed: int, only: str = "") -> list[Planted]:
    """Faults of all subjects alike, drawn with a fixed seed."""
    found = [planted for module in subjects() if only in module for planted in _planted(module)]
    # By their names alone, so that a module that changes changes only its own share of what is drawn.
    return sorted(found, key=lambda planted: _digest(f"{seed} {planted.key}".encode()))[:count]


def subjects() -> list[str]:
    """The modules that faults are planted in; a pattern that fits none is an error, because modules move."""
    names = [module_name(path) for path in sorted(SOURCES.rglob("*.py"))]
    for pattern in SUBJECTS:
        assert fnmatch.filter(names, pattern), f"no module fits {pattern!r}: correct SUBJECTS in {__file__}"
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in SUBJECTS)]


def _planted(module: str) -> list[Planted]:
    path = SOURCES.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    source = path.read_text(encoding="utf-8")
    return [Planted(module, source, mutant) for mutant in mutants(source)]


def equivalents() -> Mapping[str, str]:
    """Faults that change nothing that anyone could see, by key, with the reason of each."""
    rows = tomllib.loads(EQUIVALENTS.read_text(encoding="utf-8")).get("equivalent", [])
    return {row["key"]: row["reason"] for row in rows}


def run(drawn: Sequence[Planted], workers: int) -> dict[str, bool]:
    """Whether each fault is noticed, by key; tests farther away are asked about what nearer ones do not notice."""
    known = _Results(FOLDER / "results.jsonl")
    waiting = [planted for planted in drawn if known.get(planted) is None]
    done = len(drawn) - len(waiting)
    for distance in range(DISTANCES):
        asked = [planted for planted in waiting if tests_for(planted.module, distance)]
        unnoticed = [planted for planted in waiting if not tests_for(planted.module, distance)]
        for planted, killed, seconds in _plant(asked, workers, distance):
            if killed:
                known.put(planted, True, seconds)
                done += 1
            else:
                unnoticed.append(planted)
            print(f"{done}/{len(drawn)} {'killed' if killed else 'not noticed:'} {planted.key}", flush=True)
        waiting = unnoticed
    for planted in waiting:
        known.put(planted, False, 0.0)
    return {planted.key: bool(known.get(planted)) for planted in drawn}


def _plant(drawn: Sequence[Planted], workers: int, distance: int) -> Iterator[tuple[Planted, bool, float]]:
    """Every fault, True if a test at this distance noticed it, and the seconds of the processor that this took."""
    waiting = list(drawn)
    running: dict[int, tuple[Planted, float]] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            planted = waiting.pop(0)
            _control(planted.module, planted.source, distance)
            work = functools.partial(_survives, planted, tests_for(planted.module, distance))
            running[child.start(work, CPU_SECONDS)] = planted, time.monotonic()
        for pid, status, seconds in _ended(running):
            planted, _ = running.pop(pid)
            assert os.waitstatus_to_exitcode(status) != child.BROKEN, f"a child broke down at {planted.key}"
            yield planted, status != 0, seconds
        time.sleep(0.05)


@functools.cache
def _control(module: str, source: str, distance: int) -> None:
    """Assert that the tests of a module pass, in their order, as long as there is no fault."""
    tests = tests_for(module, distance)
    proof = FOLDER / "control" / f"{module}-{_digest(json.dumps([source, tests]).encode())}"
    if proof.exists():
        return
    status = wait(child.start(lambda: child.passes(module, ast.parse(source), tests), 10 * CPU_SECONDS))
    assert status == child.SURVIVED, f"the tests of {module} fail without a fault when they are run on their own"
    proof.parent.mkdir(exist_ok=True)
    proof.touch()


def wait(pid: int) -> int:
    """How a child ended: SURVIVED, KILLED or BROKEN, or less than 0 for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _survives(planted: Planted, tests: Sequence[str]) -> bool:
    return child.passes(planted.module, planted.mutant.tree(planted.source), tests)


def _ended(running: Mapping[int, tuple[Planted, float]]) -> Iterator[tuple[int, int, float]]:
    """Children that have ended, with their status and the seconds of the processor that each took."""
    for pid in list(running):
        if time.monotonic() - running[pid][1] > WALL_SECONDS:
            os.killpg(pid, signal.SIGKILL)
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            yield pid, status, used.ru_utime + used.ru_stime


def files_for(module: str) -> list[list[Path]]:
    """The test files of a module: that of its name, those that import it, and those of its room farther away."""
    rings = [*tests_of(module), [], []]
    room, name = module.split(".")[1], f"test_{module.rpartition('.')[2]}"
    own = [path for path in (*rings[0], *rings[1]) if path.stem == name]
    direct = [path for path in rings[0] if path not in own]
    near = [path for path in rings[1] if path not in own and path.relative_to(TESTS).parts[0] == room]
    return [own, direct[:MOST_FILES], near]


@functools.cache
def tests_for(module: str, distance: int) -> list[str]:
    """The tests at a distance of a module that pass without a fault, quickest first, as far as the time goes."""
    files = files_for(module)[distance]
    rows = [(taken, name) for path in files for name, (passed, taken) in _without_fault(path).items() if passed]
    chosen, seconds = [], 0.0
    for taken, name in sorted(rows):
        seconds += taken
        if taken <= LONGEST_TEST and seconds <= TEST_SECONDS:
            chosen.append(name)
    return chosen


@functools.cache
def _without_fault(path: Path) -> Mapping[str, tuple[bool, float]]:
    """How the tests of a file end as they are; kept until the file changes, or while one fails until the next run."""
    folder = FOLDER / "baseline"
    folder.mkdir(parents=True, exist_ok=True)
    answer = folder / f"{module_name(path)}-{_digest(path.read_bytes())}.json"
    if not answer.exists() or not all(passed for passed, _ in _rows(answer).values()):
        print(f"timing {path.relative_to(ROOT)}", flush=True)
        status = wait(child.start(lambda: child.record(path, answer), 10 * CPU_SECONDS))
        assert status == child.SURVIVED, f"the tests of {path} cannot be timed"
    found = _rows(answer)
    failing = [name for name, (passed, _) in found.items() if not passed]
    if failing:
        listed = "\n    ".join([*failing[:5], *(["…"] if len(failing) > 5 else [])])
        print(f"left out: {len(failing)} of {len(found)} tests, which fail without a fault\n    {listed}", flush=True)
    return found


def _rows(answer: Path) -> Mapping[str, tuple[bool, float]]:
    found = json.loads(answer.read_text(encoding="utf-8"))
    return {name: (bool(passed), float(seconds)) for name, (passed, seconds) in found.items()}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


class _Results:
    """What is known of faults, in a file of JSON lines that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.rows = {row["key"]: row for row in map(json.loads, lines)}

    def get(self, planted: Planted) -> bool | None:
        """Whether the fault is noticed; None where that is not known of this module, or of these tests."""
        row = self.rows.get(planted.key)
        if row is None or row["source"] != _digest(planted.source.encode()):
            return None
        return None if not row["killed"] and row["tests"] != self._tests(planted) else bool(row["killed"])

    def put(self, planted: Planted, killed: bool, seconds: float) -> None:
        row = {"key": planted.key, "killed": killed, "seconds": round(seconds, 2)}
        row |= {"source": _digest(planted.source.encode()), "tests": self._tests(planted)}
        self.rows[planted.key] = row
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    @staticmethod
    @functools.cache
    def _digest_of_tests(module: str) -> str:
        return _digest(b"".join(path.read_bytes() for files in files_for(module) for path in files))

    def _tests(self, planted: Planted) -> str:
        return self._digest_of_tests(planted.module)
