"""Questions about a graph; nothing here changes one."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import onnx_ir as ir

T = TypeVar("T", bound=Hashable)

ORIGIN = "intact.origin"
"""Metadata key of a node: the names, as JSON, of the nodes of the given model that it came from."""

_CONSTANT_DTYPES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_string": np.bytes_,
    "value_strings": np.bytes_,
}


def is_constant(value: ir.Value | None) -> bool:
    """True if the value is an initializer that no input overrides, or comes from a Constant node."""
    if value is None:
        return False
    if value.is_initializer():
        return value.const_value is not None and not value.is_graph_input()
    producer = value.producer()
    return producer is not None and producer.op_type == "Constant" and producer.domain == ""


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor behind a constant, or None for anything else."""
    if value is None:
        return None
    if value.is_initializer():
        return None if value.is_graph_input() else value.const_value
    producer = value.producer()
    if producer is None or producer.op_type != "Constant" or producer.domain:
        return None
    return _given_tensor(producer)


def _given_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """The tensor of a Constant node."""
    for name, attribute in node.attributes.items():
        if name == "value":
            return attribute.as_tensor()
        if name in _CONSTANT_DTYPES:
            return ir.tensor(np.array(attribute.value, dtype=_CONSTANT_DTYPES[name]))
    return None


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The array behind a constant, or None for anything else."""
    tensor = constant_tensor(value)
    return None if tensor is None else tensor.numpy()


def known_constant(value: ir.Value | None) -> np.ndarray:
    """The array behind a value that was found to be a constant before."""
    array = constant(value)
    assert array is not None, f"{describe(value)} was taken for a constant"
    return array


def scalar(value: ir.Value | None) -> float | int | None:
    """The number in a constant of one element and any rank, or None for anything else."""
    tensor = constant_tensor(value)
    if tensor is None:
        return None
    array = tensor.numpy()
    if array.size != 1 or array.dtype.kind in "OSU":
        return None
    number: float | int = array.item()
    return number


def is_scalar(value: ir.Value | None) -> bool:
    """True if the value is a constant of one element, of any rank."""
    tensor = constant_tensor(value)
    return tensor is not None and tensor.size == 1


def same_constant(left: ir.Value | None, right: ir.Value | None) -> bool:
    """True if both are constants of one dtype and equal elements; one element counts as a scalar of any rank."""
    a, b = constant_tensor(left), constant_tensor(right)
    if a is None or b is None:
        return False
    if a is b:
        return True
    if a.dtype != b.dtype:
        return False
    one, other = a.numpy(), b.numpy()
    if one.size == other.size == 1:
        return bool(one.item() == other.item())
    return one.shape == other.shape and bool((one == other).all())


def ints(node: ir.Node, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The integers of an attribute, or `default` where the node does not have it."""
    return tuple(node.attributes.get_ints(name, default))


def int_(node: ir.Node, name: str, default: int) -> int:
    """The integer of an attribute, or `default` where the node does not have it."""
    # `data` is the plain dict below: rules ask this more often than anything else.
    attribute = node.attributes.data.get(name)
    return default if attribute is None else attribute.as_int()


def float_(node: ir.Node, name: str, default: float) -> float:
    """The float of an attribute, or `default` where the node does not have it."""
    return float(node.attributes.get_float(name, default))


def string(node: ir.Node, name: str, default: str) -> str:
    """The text of an attribute, or `default` where the node does not have it."""
    return str(node.attributes.get_string(name, default))


def input_(node: ir.Node, index: int) -> ir.Value | None:
    """An input of the node, or None where it is absent or empty."""
    inputs = node.inputs
    return inputs[index] if index < len(inputs) else None


def rank(value: ir.Value | None) -> int | None:
    """The number of dimensions, or None where it is unknown."""
    if value is None or value.shape is None:
        return None
    return len(value.shape)


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape, or None where any dimension is unknown."""
    if value is None or value.shape is None:
        return None
    dims = value.shape.dims
    known = [dim for dim in dims if isinstance(dim, int)]
    return tuple(known) if len(known) == len(dims) else None


def known_shape(value: ir.Value | None) -> tuple[int, ...]:
    """The shape of a value that was found to have a static one before."""
    shape = static_shape(value)
    assert shape is not None, f"the shape of {describe(value)} was taken for static"
    return shape


def same_shape(left: ir.Value, right: ir.Value) -> bool:
    """True if both shapes are known and equal; a named dimension equals itself."""
    return left.shape is not None and left.shape == right.shape


def is_float(value: ir.Value | None) -> bool:
    """True if the elements are floats of any width."""
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()


def is_quantized(value: ir.Value | None) -> bool:
    """True if the elements are integers of 16 bits or fewer: a grid, not an index."""
    return value is not None and value.dtype is not None and value.dtype.is_integer() and value.dtype.bitwidth <= 16


def consumers(value: ir.Value) -> tuple[ir.Node, ...]:
    """The nodes that use the value, bodies of If and Loop included, each once."""
    return tuple(value.consumers())


def is_unused(value: ir.Value) -> bool:
    """True if neither a node nor a graph output uses the value."""
    return not value.uses() and not value.is_graph_output()


def only_consumer(value: ir.Value) -> ir.Node | None:
    """The one node that uses the value, or None where there is another use; a graph output is a use."""
    uses = value.uses()
    first = next((use.node for use in uses), None)
    # The first other user decides: of a tensor that very many nodes read, not all are looked at.
    alone = all(use.node is first for use in uses) and not value.is_graph_output()
    return first if alone else None


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs that the node holds directly: the branches of an If, the body of a Loop or a Scan."""
    return (graph for _, graph in named_bodies(node))


def named_bodies(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """The graphs that the node holds directly, each with its name: `then`, `else`, `body`."""
    for name, attribute in node.attributes.data.items():
        if attribute.type == ir.AttributeType.GRAPH:
            yield name.removesuffix("_branch"), attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from ((f"{name}_{index}", graph) for index, graph in enumerate(attribute.as_graphs()))


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph, then the bodies of its nodes, outer before inner."""
    pending = [model.graph]
    while pending:
        graph = pending.pop()
        yield graph
        inner = [body for node in graph if node.attributes.data for body in bodies(node)]
        pending += reversed(inner)


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes of every graph of the model, each graph in its own order."""
    pending = [model.graph]
    while pending:
        inner: list[ir.Graph] = []
        for node in pending.pop():
            yield node
            if node.attributes.data:
                inner += bodies(node)
        pending += reversed(inner)


def values(model: ir.Model) -> dict[str, ir.Value]:
    """The values of every graph of a normalised model, by name."""
    found: dict[str, ir.Value] = {}
    for graph in all_graphs(model):
        found |= {value.name: value for node in graph for value in node.outputs if value.name}
        found |= {value.name: value for value in (*graph.inputs, *graph.initializers.values()) if value.name}
    return found


def initializers(model: ir.Model) -> dict[str, ir.Value]:
    """The initializers of every graph of a normalised model, by name."""
    return {name: value for graph in all_graphs(model) for name, value in graph.initializers.items()}


def cycle(starts: Iterable[T], followers: Callable[[T], Iterable[T]]) -> list[T]:
    """A way from an item back to itself, which stands at both ends; nothing where there is no such way."""
    finished: set[T] = set()
    for start in starts:
        path = [] if start in finished else [start]
        waiting = [iter(followers(item)) for item in path]
        while path:
            item = next((item for item in waiting[-1] if item not in finished), None)
            if item is None:
                finished.add(path.pop())
                waiting.pop()
            elif item in path:
                return [*path[path.index(item) :], item]
            else:
                path.append(item)
                waiting.append(iter(followers(item)))
    return []


def origin(node: ir.Node) -> tuple[str, ...]:
    """The names of the nodes of the given model that this node came from; its own name if it is one of them."""
    recorded = node.metadata_props.get(ORIGIN)
    if recorded is None:
        return (node.name or "",)
    return tuple(json.loads(recorded))


def describe(value: ir.Value | None) -> str:
    """Describe the value in words for a message."""
    if value is None:
        return "nothing"
    if is_constant(value):
        return f"constant {value.name!r}"
    producer = value.producer()
    if producer is None:
        return f"graph input {value.name!r}"
    return f"{producer.op_type} {producer.name!r}"
