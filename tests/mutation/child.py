"""What runs in a forked child: pytest on chosen tests, with one module compiled from a faulty tree."""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest

from tests.mutation.imports import ROOT

OPTIONS = [
    *("-q", "-m", "not slow and not qnn and not openvino"),
    # Nobody reads what a child says, and most of its time would go into plugins that it has no use for.
    "--assert=plain",
    *(f"-pno:{name}" for name in ("xdist", "xdist.looponfail", "anyio", "cacheprovider", "unraisableexception")),
    # The parent has imported the plugin, so that children start at once.
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
]
SURVIVED, KILLED, BROKEN = 0, 1, 9


def start(work: Callable[[], bool], cpu_seconds: int) -> int:
    """Fork a child that does `work` in silence and exits with SURVIVED if it returns True; return the child's id."""
    child = os.fork()
    if child:
        return child
    status = BROKEN
    with contextlib.suppress(BaseException):
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        hypothesis.settings.register_profile("mutation", derandomize=True, database=None, deadline=None)
        hypothesis.settings.load_profile("mutation")
        status = SURVIVED if work() else KILLED
    os._exit(status)


@dataclass
class Chosen:
    """Keeps the tests that were chosen, in their order, and no other."""

    tests: Sequence[str]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        place = {name: index for index, name in enumerate(self.tests)}
        items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])


def passes(module: str, tree: ast.Module, tests: Sequence[str]) -> bool:
    """Whether all tests pass, in their order, where `module` is what `tree` says."""
    assert module not in sys.modules, f"{module} is imported already, without a fault"
    sys.meta_path.insert(0, _Faulty(module, tree))
    files = list(dict.fromkeys(name.partition("::")[0] for name in tests))
    ended = pytest.main([*OPTIONS, "-x", *files], plugins=[Chosen(tests)])
    return ended in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


class _Faulty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module, and compiles it from a tree."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self.module, self.tree = module, tree

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        assert found is not None and found.origin is not None, f"{name} is a module of the package"
        inside = found.submodule_search_locations
        return importlib.util.spec_from_file_location(
            name, found.origin, loader=self, submodule_search_locations=inside
        )

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.tree, module.__file__ or "?", "exec"), module.__dict__)


@dataclass
class Recorder:
    """Writes down how each test ends without any fault, and the time of the processor that it takes."""

    found: dict[str, tuple[bool, float]] = field(default_factory=dict)
    before: float = 0.0

    def pytest_runtest_logstart(self) -> None:
        self.before = sum(os.times()[:4])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        passed, seconds = self.found.get(report.nodeid, (True, 0.0))
        is_fine = report.passed or report.outcome == "skipped"
        now = sum(os.times()[:4])
        self.found[report.nodeid] = (passed and is_fine, round(seconds + now - self.before, 3))
        self.before = now


def record(test: Path, answer: Path) -> bool:
    """Run one test file as it is, and write what came of it."""
    recorder = Recorder()
    pytest.main([*OPTIONS, str(test.relative_to(ROOT))], plugins=[recorder])
    answer.write_text(json.dumps(recorder.found), encoding="utf-8")
    return True
