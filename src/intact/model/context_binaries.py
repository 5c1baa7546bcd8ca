"""The binaries of a compiled model: files that its EPContext nodes name, held to the same rules as weights outside."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from intact.errors import ModelError
from intact.model import external, query

OP = "EPContext"
MISSING = "M114"


def contexts_of(model: ir.Model) -> list[ir.Node]:
    """The nodes in which a vendor's compiler left what it made, in bodies of nodes too."""
    return [node for node in query.all_nodes(model) if node.op_type == OP]


def check(path: Path, model: ir.Model) -> None:
    """Refuse a binary outside the folder of the model, or no ordinary file; one that is not there is nobody's harm."""
    for function in model.functions.values():
        if any(node.op_type == OP for node in ir.traversal.RecursiveGraphIterator(function)):
            raise ModelError(
                "M165",
                f"the function {function.name} holds a compiled part ({OP}), whose binary only a call would name",
                allowed=f"{OP} in graphs",
                fix="compile the model again",
            )
    for node, name in _named(model):
        try:
            external.locate(path, name, node, "binary")
        except ModelError as problem:
            if problem.code != MISSING or (path.parent / name).exists():
                raise


def find(path: Path, model: ir.Model) -> dict[str, Path]:
    """The binaries that a compiled model needs, by the name that it gives them."""
    return {name: external.locate(path, name, node, "binary").path for node, name in _named(model)}


def _named(model: ir.Model) -> list[tuple[str, str]]:
    """Each node whose binary is a file, with the file's name."""
    outside = [node for node in contexts_of(model) if query.int_(node, "embed_mode", 1) == 0]
    named = [(node, query.string(node, "ep_cache_context", "")) for node in outside]
    # A further partition is in the binary of the main one, and names none.
    return [(node.name or OP, name) for node, name in named if name or query.int_(node, "main_context", 1)]
