"""Questions about single values and nodes that a match asks, each answered without looking any further."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from intact.matching.pattern import SWAPPABLE, AnyOf, Each, Literal, NodePattern, Output, ValuePattern, Var
from intact.model import query

# Beyond this, trying all orders of a Max or Sum would cost more than such a match is worth.
_MOST_PERMUTED = 4


def plausible(pattern: ValuePattern, value: ir.Value | None) -> bool:
    """True if the value could match, by a look at its producer alone."""
    if type(pattern) is Output:
        producer = None if value is None else value.producer()
        if value is None or producer is None:
            return False
        return (producer.domain, producer.op_type) in pattern.node.keys and value.index() == pattern.index
    if type(pattern) is Var:
        return pattern.optional if value is None else not pattern.constant or query.is_constant(value)
    if type(pattern) is Literal:
        return query.is_constant(value)
    if type(pattern) is AnyOf:
        return any(plausible(option, value) for option in pattern.options)
    return value is None


def outputs_of(pattern: Output, node: ir.Node) -> tuple[ir.Value, ...]:
    """The outputs of a node that a pattern stands for; none where the node has too few."""
    index = pattern.index
    return tuple(node.outputs if index is None else node.outputs[index : index + 1])


def equals(literal: Literal, value: ir.Value | None) -> bool:
    """True if a constant holds the literal, rounded to the constant's own dtype if that is a float."""
    array = query.constant(value)
    if array is None or array.size != literal.array.size or array.dtype.kind in "OSU":
        return False
    if array.size != 1 and array.shape != literal.array.shape:
        return False
    rounded = literal.array if array.dtype.kind in "iub" else literal.array.astype(array.dtype)
    wanted = rounded.astype(np.float64).reshape(-1)
    found = array.astype(np.float64).reshape(-1)
    return bool(np.all(np.abs(found - wanted) <= literal.rtol * np.abs(wanted)))


def wrong_attribute(pattern: NodePattern, node: ir.Node) -> str | None:
    """The first attribute of the node that is not as the pattern wants it; an absent one counts as None."""
    for name, wanted in pattern.attributes:
        attribute = node.attributes.data.get(name)
        found = None if attribute is None else attribute.value
        fits = wanted(found) if callable(wanted) else _plain(found) == _plain(wanted)
        if not fits:
            expected = "another value" if callable(wanted) else repr(wanted)
            return f"{node.op_type} {node.name!r}: expected {name} = {expected}, found {found!r}"
    return None


def _plain(attribute: object) -> object:
    return tuple(attribute) if isinstance(attribute, Sequence) and not isinstance(attribute, str) else attribute


def orders(node: ir.Node, wanted: Sequence[ValuePattern]) -> Sequence[Sequence[ir.Value | None]]:
    """The inputs of the node in every order that means the same."""
    inputs = node.inputs
    size = SWAPPABLE.get((node.domain, node.op_type), 0)
    if size == 0 or (wanted and type(wanted[-1]) is Each):
        return (inputs,)
    if size == 1 and 2 < len(inputs) <= _MOST_PERMUTED:
        return tuple(itertools.permutations(inputs))
    left, right, rest = inputs[:size], inputs[size : 2 * size], inputs[2 * size :]
    if left == right or (size == 1 and rest):
        return (inputs,)
    return (inputs, (*right, *left, *rest))
