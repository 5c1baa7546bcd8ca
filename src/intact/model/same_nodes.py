"""Two models that are the same function by definition, so that nobody has to run them to know."""

from __future__ import annotations

import onnx_ir as ir

from intact.model import message, upgrade

# From this opset on, new versions of these operators took in further types, and nothing else but what those types need,
# such as the `saturate` of a Cast to 8-bit floats (ONNX's Changelog.md).
SINCE = 13
WIDENED = {"Cast", "Flatten", "Identity", "IsNaN", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}


def are_same(one: ir.Model, other: ir.Model) -> bool:
    """True if both have the same inputs, constants, nodes and outputs, in operators whose definition is the same.

    Models with bodies, functions or constants in nodes are not compared.
    """
    if not (message.is_flat(one) and message.is_flat(other)) or len(one.graph) != len(other.graph):
        return False
    if not (_ports(one) == _ports(other) and _have_same_constants(one.graph, other.graph)):
        return False
    ops = {(node.domain, node.op_type) for node in one.graph}
    if not all(_mean_the_same(domain, op, one, other) for domain, op in ops):
        return False
    return all(map(_alike, one.graph, other.graph))


def _ports(model: ir.Model) -> list[tuple[str | None, ir.DataType | None]]:
    return [(value.name, value.dtype) for value in (*model.graph.inputs, *model.graph.outputs)]


def _have_same_constants(one: ir.Graph, other: ir.Graph) -> bool:
    """True if the constants have the same names and are the very same tensors."""
    found = {name: value.const_value for name, value in other.initializers.items()}
    return len(found) == len(one.initializers) and all(
        value.const_value is not None and found.get(name) is value.const_value
        for name, value in one.initializers.items()
    )


def _mean_the_same(domain: str, op: str, one: ir.Model, other: ir.Model) -> bool:
    """True if the opsets of both models define an operator in the same version."""
    versions = (one.opset_imports.get(domain), other.opset_imports.get(domain))
    if domain:
        return versions[0] == versions[1]
    if None in versions or versions[0] == versions[1]:
        return versions[0] is not None
    first, second = (upgrade.schema_of(op, version or 0) for version in versions)
    if first is None or second is None:
        return False
    is_widened = op in WIDENED and min(first.since_version, second.since_version) >= SINCE
    return is_widened or bool(first.since_version == second.since_version)


def _alike(one: ir.Node, other: ir.Node) -> bool:
    """True if two nodes differ in their names at most."""
    if (one.op_type, one.domain, one.overload) != (other.op_type, other.domain, other.overload):
        return False
    for values, others in ((one.inputs, other.inputs), (one.outputs, other.outputs)):
        if len(values) != len(others) or not all(map(_same_name, values, others)):
            return False
    return one.attributes.data == other.attributes.data


def _same_name(one: ir.Value | None, other: ir.Value | None) -> bool:
    return (one is None) == (other is None) and (one is None or other is None or one.name == other.name)
