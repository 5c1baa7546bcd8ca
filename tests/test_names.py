"""A name occurs once: no two files and no two classes share one, so that a search for a name finds the thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import intact

ROOT = Path(intact.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def stands_alone(path: Path) -> bool:
    """True if the name of a file has to be its own: packages, commands and what every backend has are excepted."""
    parts = path.relative_to(ROOT).parts
    return path.name != "__init__.py" and not (parts[0] == "backends" and len(parts) > 2)


def places(path: Path) -> str:
    """The folder of a file, as far as names are compared: a command has a file in cli and one in api."""
    folder = path.relative_to(ROOT).parent.as_posix()
    return "cli or api" if folder in ("cli", "api") else folder


def several(found: dict[str, set[str]]) -> dict[str, list[str]]:
    return {name: sorted(where) for name, where in found.items() if len(where) > 1}


def test_a_file_name_occurs_once():
    found: dict[str, set[str]] = defaultdict(set)
    for path in filter(stands_alone, FILES):
        found[path.name].add(places(path))
    assert len(found) > 150
    assert several(found) == {}


def test_a_class_name_occurs_once():
    found: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].add(f"{path.relative_to(ROOT).as_posix()}:{node.lineno}")
    assert len(found) > 300
    assert several(found) == {}
