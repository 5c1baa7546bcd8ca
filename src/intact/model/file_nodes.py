"""The nodes of a file as it has them, without a model of it in memory."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import onnx


class NodeInFile(NamedTuple):
    """An operator, the names of what it reads and computes, and its attributes as bytes."""

    domain: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[bytes, ...]


def nodes_of(path: Path) -> list[NodeInFile]:
    """The nodes of the main graph of a file that was written here."""
    found = onnx.load(path, load_external_data=False).graph.node
    return [
        NodeInFile(
            node.domain,
            node.op_type,
            tuple(node.input),
            tuple(node.output),
            tuple(sorted(item.SerializeToString(deterministic=True) for item in node.attribute)),
        )
        for node in found
    ]
