"""Imports go one way, and no stage imports another: the layers of the design, enforced."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import intact

ROOT = Path(intact.__file__).parent

STAGES = {"optimize", "analyze", "quantize", "rewrite", "compile", "verify", "lint", "perf", "report", "export"}
LAYERS = [
    {"errors"},
    {"config", "results", "environment", "events"},
    {"graph", "vendor"},
    {"targets", "data"},
    STAGES,
    {"execution", "acceptance", "verdict"},
    {"loading"},
    {"preparation"},
    {"pipeline"},
    {"files"},
    {"rewriting"},
    {"search"},
    {"cli"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The parts of the package that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    names = [name.split(".") for name in found]
    return {parts[1] for parts in names if parts[0] == "intact" and len(parts) > 1 and parts[1] in LEVEL}


def forbidden(importer: str, wanted: str) -> bool:
    """Whether one part must not import another: one above it, or a neighbour that is a stage or of the base."""
    if importer == wanted:
        return False
    if LEVEL[wanted] != LEVEL[importer]:
        return LEVEL[wanted] > LEVEL[importer]
    return importer in STAGES or (importer, wanted) == ("graph", "vendor")


def test_every_part_of_the_package_has_a_place_in_the_layers():
    assert {part_of(path) for path in FILES} <= set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_what_lies_below_it(path):
    importer = part_of(path)
    assert [wanted for wanted in sorted(imported(path)) if forbidden(importer, wanted)] == []


@pytest.mark.parametrize(
    ("importer", "wanted", "refused"),
    [
        ("quantize", "rewrite", True),
        ("compile", "vendor", False),
        ("graph", "vendor", True),
        ("config", "targets", True),
        ("pipeline", "cli", True),
        ("cli", "pipeline", False),
        ("data", "quantize", True),
    ],
)
def test_the_rule_refuses_what_the_design_refuses(importer, wanted, refused):
    assert forbidden(importer, wanted) == refused


def test_protobuf_appears_where_files_are_read_and_upgraded_only():
    """In memory a model is an onnx_ir.Model."""
    users = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(module == "onnx" or module.startswith("onnx.") for module in modules):
                users.add(part_of(path))
    assert users <= {"graph"}
