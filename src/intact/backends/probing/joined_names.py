"""Names of questions that share a model: each begins with the number of its question."""

from __future__ import annotations

import re

import onnx_ir as ir

_PREFIX = "q{}/"
_OF_A_QUESTION = re.compile(r"q(\d+)/")


def prefix_of(number: int) -> str:
    """The beginning of all names of a question."""
    return _PREFIX.format(number)


def owner_of(name: str) -> int | None:
    """The number of the question that a name is of, or None."""
    found = _OF_A_QUESTION.match(name)
    return None if found is None else int(found[1])


def keep(model: ir.Model, numbers: set[int]) -> None:
    """Leave some of the questions in a model that joins them."""
    graph = model.graph
    for values in (graph.inputs, graph.outputs):
        own = [value for value in values if owner_of(value.name or "") in numbers]
        values.clear()
        values.extend(own)
    graph.remove([node for node in graph if owner_of(node.name or "") not in numbers])
    for name in [name for name in graph.initializers if owner_of(name) not in numbers]:
        del graph.initializers[name]
