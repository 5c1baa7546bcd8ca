"""Names of questions that share a model: each begins with the number of its question."""

from __future__ import annotations

import re

import onnx

_PREFIX = "q{}/"
_OF_A_QUESTION = re.compile(r"q(\d+)/")


def prefix_of(number: int) -> str:
    """The beginning of all names of a question."""
    return _PREFIX.format(number)


def owner_of(name: str) -> int | None:
    """The number of the question that a name is of, or None."""
    found = _OF_A_QUESTION.match(name)
    return None if found is None else int(found[1])


def part_of(model: onnx.ModelProto, numbers: set[int]) -> onnx.ModelProto:
    """Some of the questions of a model that joins them."""
    part = onnx.ModelProto()
    part.CopyFrom(model)
    for field in ("node", "initializer", "input", "output", "value_info"):
        own = [item for item in getattr(model.graph, field) if owner_of(item.name) in numbers]
        part.graph.ClearField(field)
        getattr(part.graph, field).extend(own)
    return part
