"""Which tests are those of a module: the files that import it, or else those of the modules that import it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES, TESTS = ROOT / "src", ROOT / "tests"


def module_name(path: Path) -> str:
    """The dotted name of a file of the package, or of the tests."""
    relative = path.relative_to(SOURCES if path.is_relative_to(SOURCES) else ROOT).with_suffix("")
    return ".".join(part for part in relative.parts if part != "__init__")


@cache
def _files() -> Mapping[str, Path]:
    return {module_name(path): path for folder in (SOURCES, TESTS) for path in sorted(folder.rglob("*.py"))}


@cache
def imported(module: str) -> frozenset[str]:
    """The modules of package and tests that the text of `module` imports."""
    known = _files()
    names: set[str] = set()
    for node in ast.walk(ast.parse(known[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
            names.add(node.module)
    return frozenset(names & known.keys())


def tests_of(module: str) -> list[list[Path]]:
    """Test files in rings: those that import `module`, then those of the modules that import it, and so on."""
    rings: list[list[Path]] = []
    around, seen, taken = {module}, {module}, set()
    while around:
        users = {name for name in _files() if imported(name) & around}
        found = {name for name in _with_users(users) if name.rpartition(".")[2].startswith("test_")} - taken
        if found:
            rings.append([_files()[name] for name in sorted(found, key=lambda name: (_apart(name, module), name))])
        taken |= found
        around = {name for name in users if not name.startswith("tests.")} - seen
        seen |= around
    return rings


def _with_users(names: Iterable[str]) -> set[str]:
    """Modules of the tests among `names`, and those that import them: support files have tests, too."""
    found = {name for name in names if name.startswith("tests.")}
    while True:
        more = {name for name in _files() if name.startswith("tests.") and imported(name) & found} - found
        if not more:
            return found
        found |= more


def _apart(test: str, module: str) -> int:
    """How unlike the names of a test and of a module are: tests of the same folder and name come first."""
    folders, file = test.split(".")[1:-1], test.rpartition(".")[2]
    same_folder = module.split(".")[1 : 1 + len(folders)] == folders
    return 0 if file == f"test_{module.rpartition('.')[2]}" else 1 if same_folder else 2
