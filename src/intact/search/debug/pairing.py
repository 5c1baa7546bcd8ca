"""Pairs the tensors of two models: by name where names survived, by structure elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from intact.errors import ModelError
from intact.model import query
from intact.model.activation_grids import base_of
from intact.model.node_encodings import constant_behind

# What quantizers append to the name of a tensor that they put on a grid: intact, and ONNX Runtime.
_ON_A_GRID = re.compile(r"_((de)?quantized|(Quantize|Dequantize)Linear_Output)(_\d+)?$")


def pair(reference: ir.Model, candidate: ir.Model) -> dict[str, str]:
    """Tensors of the candidate with their counterparts, by name, in the order of the candidate.

    A tensor on a grid counts as the tensor that was put there.
    """
    found = _inputs(reference, candidate)
    named = {value.name: value for node in reference.graph for value in node.outputs if value.name}
    for value, names in _computed(candidate):
        match = next((named[name] for name in names if name in named and _alike(named[name], value)), None)
        if match is not None:
            found[value] = match
    _add_by_structure(candidate, found)
    order = [*candidate.graph.inputs, *(value for node in candidate.graph for value in node.outputs)]
    return {value.name or "": found[value].name or "" for value in order if value in found}


def _inputs(reference: ir.Model, candidate: ir.Model) -> dict[ir.Value, ir.Value]:
    """Inputs by name, or else by position."""
    ours, theirs = list(candidate.graph.inputs), list(reference.graph.inputs)
    by_name = {value.name: value for value in theirs}
    if len(ours) != len(theirs):
        raise ModelError("M195", f"the models take {len(theirs)} and {len(ours)} inputs, so they cannot be compared")
    same = all(value.name in by_name for value in ours)
    pairs = [(v, by_name[v.name] if same else theirs[index]) for index, v in enumerate(ours)]
    for value, match in pairs:
        if value.dtype != match.dtype:
            raise ModelError(
                "M196",
                f"input {value.name!r} is {value.dtype}, the reference's is {match.dtype}",
                fix="compare a model with float inputs and outputs (--io float)",
            )
    return dict(pairs)


def _computed(model: ir.Model) -> Iterator[tuple[ir.Value, list[str]]]:
    """Every tensor that a node computes, with the names that it has: its own, and those it has behind a grid."""
    aliases: dict[ir.Value, list[str]] = {}
    for node in model.graph:
        for value in node.outputs:
            if value.name:
                aliases.setdefault(base_of(value), []).append(value.name)
    for value, names in aliases.items():
        if value.producer() is not None:
            yield value, [*names, *(_ON_A_GRID.sub("", name) for name in _names_on_grid(value))]


def _names_on_grid(value: ir.Value) -> list[str]:
    """The names of a tensor's integers: all that is left of its name where operators take integers."""
    return [node.outputs[0].name or "" for node in value.consumers() if node.op_type == "QuantizeLinear"]


def _alike(left: ir.Value, right: ir.Value) -> bool:
    """True if nothing that is known of both speaks against their being the same tensor."""
    if left.dtype is not None and right.dtype is not None and left.dtype != right.dtype:
        return False
    a, b = query.static_shape(left), query.static_shape(right)
    return a is None or b is None or a == b


def _add_by_structure(candidate: ir.Model, found: dict[ir.Value, ir.Value]) -> None:
    """Pair what the same operator computes from paired tensors; of several, that with the nearest constants."""
    taken = {match.producer() for match in found.values()}
    for node in candidate.graph:
        if any(base_of(value) is not value or value in found for value in node.outputs):
            continue
        inputs = [None if value is None else base_of(value) for value in node.inputs]
        first = next((found[value] for value in inputs if value in found), None)
        readers = () if first is None else first.consumers()
        options = [other for other in readers if other not in taken and _same_operator(node, other, inputs, found)]
        if options:
            match = max(options, key=lambda other: _likeness(node, other))
            taken.add(match)
            found |= dict(zip(node.outputs, match.outputs, strict=True))


def _same_operator(
    node: ir.Node, other: ir.Node, inputs: list[ir.Value | None], found: dict[ir.Value, ir.Value]
) -> bool:
    if (node.op_identifier(), len(node.outputs)) != (other.op_identifier(), len(other.outputs)):
        return False
    if len(inputs) != len(other.inputs) or any(query.bodies(node)):
        return False
    if {k: v.value for k, v in node.attributes.items()} != {k: v.value for k, v in other.attributes.items()}:
        return False
    for value, theirs in zip(inputs, other.inputs, strict=True):
        same = (value is None) == (theirs is None)
        if value is not None and theirs is not None:
            same = found[value] is theirs if value in found else _shape_of(value) == _shape_of(theirs) is not None
        if not same:
            return False
    return all(_alike(a, b) for a, b in zip(node.outputs, other.outputs, strict=True))


def _likeness(node: ir.Node, other: ir.Node) -> float:
    """The cosine between the constants of two nodes, which no wrong scale changes."""
    total = 0.0
    for left, right in zip(node.inputs, other.inputs, strict=True):
        a, b = constant_behind(left), constant_behind(right)
        if a is None or b is None or a.dtype.kind != "f" or a.shape != b.shape:
            continue
        a, b = a.astype(np.float64), b.astype(np.float64)
        size = float(np.sqrt(np.sum(a * a) * np.sum(b * b)))
        total += float(np.sum(a * b)) / size if size > 0 else 0.0
    return total


def _shape_of(value: ir.Value) -> tuple[int, ...] | None:
    """The shape of a constant, or of what is dequantized from one; None for what is computed."""
    array = constant_behind(value)
    return None if array is None else array.shape
