"""Everything that does not depend on an input, computed once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from intact.model import edit, io, query, shapes
from intact.runtime import ort_cpu

# Quantizers have to survive (a weight stays integers), and chance has to stay chance.
KEPT = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Bernoulli", "Dropout", "Multinomial"}
    | {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)

# Types that cross from ORT to numpy as they are.
_TYPES = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BOOL}
    | {ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64}
    | {ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64}
)

# A constant that grows beyond both is cheaper to compute than to ship.
_LARGE_BYTES = 1 << 20
_MOST_GROWTH = 4
# All results together, beside so many times the weights: a small file may ask for any number of large ones.
_BUDGET = 1 << 28

# Operators that select: how much depends on values, but it is never more than 8 bytes an element and dimension.
_SELECTING = frozenset({"Compress", "NonZero", "Unique"})
_SELECTED_BYTES = 8

Arrays = dict[ir.Value, np.ndarray]


def fold(model: ir.Model) -> int:
    """Replace, in place, every constant expression by its value; return the number of nodes that became constant.

    A node is computed once the size of its result is known, from shapes or from the constants that it reads.
    """
    names = edit.Names(model)
    known = _known_shapes(model)
    arrays, computed = dict(known), list[ir.Node]()
    waiting, budget = _foldable(model, known), _BUDGET + _MOST_GROWTH * io.size_of_weights(model)
    while ready := _affordable(waiting, arrays, model.opset_imports, budget):
        arrays |= _evaluate(ready, arrays, model.opset_imports)
        computed += ready
        budget -= sum(arrays[value].nbytes for node in ready for value in node.outputs)
        waiting = [node for node in waiting if node.outputs[0] not in arrays]
    nodes = [*_producers(known), *_worthwhile(computed, arrays)]
    for node in nodes:
        _replace(node, arrays, names)
    edit.remove_dead(reversed(nodes))
    return len(nodes)


def _producers(values: Iterable[ir.Value]) -> list[ir.Node]:
    return [node for value in values if (node := value.producer()) is not None]


def _known_shapes(model: ir.Model) -> Arrays:
    """The results of Shape and Size nodes whose input has a shape that is known, constant or not."""
    results: Arrays = {}
    for node in query.all_nodes(model):
        if node.domain or node.op_type not in ("Shape", "Size") or node.outputs[0].is_graph_output():
            continue
        dims = query.static_shape(node.inputs[0])
        if dims is None:
            continue
        if node.op_type == "Size":
            results[node.outputs[0]] = np.array(np.prod(dims, dtype=np.int64))
        else:
            end = query.int_(node, "end", len(dims))
            results[node.outputs[0]] = np.array(dims[query.int_(node, "start", 0) : end], np.int64)
    return results


def _foldable(model: ir.Model, known: Arrays) -> list[ir.Node]:
    """The nodes that depend on constants alone, in an order in which they can be computed."""
    constant: set[ir.Value] = set(known)
    nodes: list[ir.Node] = []
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.outputs[0] not in constant and _is_foldable(node, constant):
            nodes.append(node)
            constant.update(node.outputs)
    return nodes


def _is_foldable(node: ir.Node, constant: set[ir.Value]) -> bool:
    if node.domain or node.op_type in KEPT or node.op_type == "Constant" or any(query.bodies(node)):
        return False
    if any(output.is_graph_output() or not _is_array(output) for output in node.outputs):
        return False
    return all(value in constant or query.is_constant(value) for value in _inputs(node))


def _inputs(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None]


def _is_array(value: ir.Value) -> bool:
    """True for a tensor that numpy can hold; a sequence or an optional has an element type too."""
    return isinstance(value.type, ir.TensorType) and value.type.dtype in _TYPES


def _affordable(nodes: list[ir.Node], arrays: Arrays, opsets: Mapping[str, int], budget: int) -> list[ir.Node]:
    """The nodes that can be computed now: their results are worth it, and fit into `budget` bytes together."""
    if not nodes:
        return []
    model, copies = _alone(nodes, arrays, opsets)
    # Not the shapes that the file claims: a wrong one would let a small node make a large result.
    shapes.infer_shapes(model)
    sizes = {value: array.nbytes for value, array in arrays.items()}
    ready: list[ir.Node] = []
    for node in nodes:
        given = [sizes.get(value, _given_bytes(value)) for value in _inputs(node)]
        if None in given:
            continue  # it reads what has not been computed
        inputs = sum(filter(None, given))
        made = [
            _selected_bytes(node, inputs) if node.op_type in _SELECTING else _bytes(copies[v]) for v in node.outputs
        ]
        total = sum(filter(None, made))
        if None in made or total > budget or not (_is_worth(inputs, total) or node.op_type in _SELECTING):
            continue
        ready.append(node)
        budget -= total
        sizes |= {value: size or 0 for value, size in zip(node.outputs, made, strict=True)}
    return ready


def _selected_bytes(node: ir.Node, inputs: int) -> int:
    """The most that a node which selects from `inputs` bytes makes; `_worthwhile` sees in the end what it was."""
    return _SELECTED_BYTES * max(query.rank(value) or 1 for value in _inputs(node)) * inputs


def _given_bytes(value: ir.Value) -> int | None:
    tensor = query.constant_tensor(value)
    return None if tensor is None else tensor.nbytes


def _bytes(value: ir.Value) -> int | None:
    shape = query.static_shape(value)
    return None if shape is None or value.dtype is None else math.prod(shape) * value.dtype.bitwidth // 8


def _is_worth(inputs: int, outputs: int) -> bool:
    return outputs <= _LARGE_BYTES or outputs <= _MOST_GROWTH * inputs


def _evaluate(nodes: list[ir.Node], arrays: Arrays, opsets: Mapping[str, int]) -> Arrays:
    """The outputs of all `nodes`, from one run of a model made of them alone."""
    model, copies = _alone(nodes, arrays, opsets)
    results = ort_cpu.run(model, {})
    return {value: results[copies[value].name or ""] for node in nodes for value in node.outputs}


def _alone(
    nodes: list[ir.Node], arrays: Arrays, opsets: Mapping[str, int]
) -> tuple[ir.Model, dict[ir.Value, ir.Value]]:
    """A model made of `nodes` alone that returns all of their outputs, and its values by those that they stand for."""
    copies: dict[ir.Value, ir.Value] = {}
    graph = ir.Graph([], [], nodes=[], opset_imports=dict(opsets), name="constants")
    for node in nodes:
        inputs = [None if value is None else _copy(value, copies, arrays, graph) for value in node.inputs]
        outputs = [ir.Value(name=f"v{len(copies) + i}", type=item.type) for i, item in enumerate(node.outputs)]
        graph.append(ir.Node("", node.op_type, inputs, node.attributes.values(), outputs=outputs))
        copies.update(zip(node.outputs, outputs, strict=True))
        graph.outputs.extend(outputs)
    return ir.Model(graph, ir_version=10), copies


def _copy(value: ir.Value, copies: dict[ir.Value, ir.Value], arrays: Arrays, graph: ir.Graph) -> ir.Value:
    """Stand in for the value in the model that is run, under a number: bodies may use one name twice."""
    if value not in copies:
        array = arrays[value] if value in arrays else query.constant(value)
        assert array is not None, f"{query.describe(value)} is not constant"
        copies[value] = edit.add_initializer(graph, array, f"v{len(copies)}")
    return copies[value]


def _worthwhile(nodes: list[ir.Node], arrays: Arrays) -> list[ir.Node]:
    """The nodes whose results, now that their sizes are known, are not much larger than what they come from."""
    kept: list[ir.Node] = []
    large: set[ir.Value] = set()
    for node in nodes:
        inputs = _inputs(node)
        before = sum(arrays[value].nbytes if value in arrays else _given_bytes(value) or 0 for value in inputs)
        after = sum(arrays[value].nbytes for value in node.outputs)
        if large.isdisjoint(inputs) and _is_worth(before, after):
            kept.append(node)
        else:
            large.update(node.outputs)
    return kept


def _replace(node: ir.Node, arrays: Arrays, names: edit.Names) -> None:
    """Put an initializer of the same name in place of every output that something uses."""
    assert node.graph is not None, f"{node.name!r} is in no graph"
    for output in node.outputs:
        if output.uses():
            name = output.name or ""
            output.name = names.take(name)
            edit.replace_value(output, edit.add_initializer(node.graph, arrays[output], name), names)
