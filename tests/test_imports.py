"""Imports go one way, and no stage imports another: the rooms of the design, enforced."""

from __future__ import annotations

import ast
import functools
from itertools import pairwise
from pathlib import Path

import pytest

import intact

ROOT = Path(intact.__file__).parent

STAGES = {"rules", "quantization", "linting", "verification", "profiling", "reports", "exporting"}
# From the bottom to the top. Neighbours on one floor do not import each other, except on the ground floor.
FLOORS = [
    {"errors", "events", "glimpse", "json_types", "records", "results", "environment", "scratch", "late_imports"},
    {"numbers", "settings"},
    {"model"},
    {"matching"},
    {"runtime"},
    {"targets", "data"},
    {"backends"},
    STAGES,
    {"pipeline"},
    {"search"},
    {"api"},
    {"cli"},
]
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
GROUND = FLOORS[0]
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
EVERY = frozenset(FILES)


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@functools.cache
def imports(path: Path) -> set[str]:
    """The modules that a file imports, at its top or inside a function, with the names that it takes of them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@functools.cache
def rooms_used(path: Path) -> set[str]:
    """The rooms of the package that a file imports from."""
    parts = [name.split(".") for name in imports(path)]
    return {names[1] for names in parts if names[0] == "intact" and len(names) > 1 and names[1] in LEVEL}


def forbidden(importer: str, wanted: str) -> bool:
    """True if one room must not import another: one above it, or a neighbour that is not on the ground floor."""
    if importer == wanted:
        return False
    if LEVEL[wanted] != LEVEL[importer]:
        return LEVEL[wanted] > LEVEL[importer]
    return importer not in GROUND


def test_every_file_has_a_place_in_the_order():
    assert {room_of(path) for path in FILES} == set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_what_lies_below_it(path):
    importer = room_of(path)
    assert [wanted for wanted in sorted(rooms_used(path)) if forbidden(importer, wanted)] == []


@pytest.mark.parametrize("room", sorted(set(LEVEL)))
def test_the_order_has_cases_in_every_room(room):
    """Files that are looked at, and imports to another room that would be refused the other way round."""
    files = [path for path in FILES if room_of(path) == room]
    edges = {(room, wanted) for path in files for wanted in rooms_used(path) - {room}}
    edges |= {(room_of(path), room) for path in FILES if room in rooms_used(path) and room_of(path) != room}
    imported_by_the_package = f"from intact import {room}\n" in (ROOT / "__init__.py").read_text(encoding="utf-8")
    assert files and (edges or imported_by_the_package)
    assert all(forbidden(wanted, importer) for importer, wanted in edges if not {importer, wanted} <= GROUND)


@pytest.mark.parametrize(("below", "above"), list(pairwise(FLOORS)), ids=lambda floor: "-".join(sorted(floor)))
def test_a_floor_takes_from_below_and_not_from_above(below, above):
    assert not any(forbidden(upper, lower) for upper in above for lower in below)
    assert all(forbidden(lower, upper) for upper in above for lower in below)


@pytest.mark.parametrize(
    ("importer", "wanted", "refused"),
    [
        ("quantization", "rules", True),
        ("rules", "linting", True),
        ("backends", "runtime", False),
        ("targets", "backends", True),
        ("model", "runtime", True),
        ("model", "matching", True),
        ("settings", "targets", True),
        ("numbers", "settings", True),
        ("pipeline", "search", True),
        ("pipeline", "cli", True),
        ("cli", "pipeline", False),
        ("data", "quantization", True),
        ("events", "results", False),
        ("results", "numbers", True),
    ],
)
def test_the_rule_refuses_what_the_design_refuses(importer, wanted, refused):
    assert forbidden(importer, wanted) == refused


def needed(path: Path) -> set[Path]:
    """The files of the package that a file imports, wherever in it, a name of a package by the package's own file."""
    found = set()
    for name in imports(path):
        parts = name.split(".")
        while parts[:1] == ["intact"] and len(parts) > 1:
            place = ROOT.joinpath(*parts[1:])
            one = next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file in EVERY), None)
            if one is not None:
                found.add(one)
                break
            parts.pop()
    return found - {path}


def cycle(graph: dict[Path, set[Path]]) -> set[Path]:
    """The files that are left when whatever imports nothing that is left is taken away, again and again."""
    left = dict(graph)
    while ends := [path for path, wanted in left.items() if not wanted & left.keys()]:
        for path in ends:
            del left[path]
    return set(left)


def test_no_file_imports_itself_by_way_of_others():
    graph = {path: needed(path) for path in FILES}
    assert sum(map(len, graph.values())) > 2000 and cycle(graph) == set()
    a, b, c = map(Path, "abc")
    assert cycle({a: {b}, b: {a}, c: set()}) == {a, b}


def test_no_room_bears_the_name_of_a_public_function():
    """Importing a room binds it in the package, over a function of the same name."""
    rooms = {path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()}
    assert rooms & set(intact.__all__) == set()


def test_protobuf_appears_where_files_are_read_and_upgraded_only():
    """In memory a model is an onnx_ir.Model."""
    protobuf = {path for path in FILES for name in imports(path) if name.split(".")[0] == "onnx"}
    assert {room_of(path) for path in protobuf} == {"model"}
