"""Everything that does not depend on an input, computed once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from intact.model import edit, query
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


def fold(model: ir.Model) -> int:
    """Replace, in place, every constant expression by its value; return the number of nodes that became constant."""
    names = edit.Names(model)
    known = _known_shapes(model)
    foldable = _foldable(model, known)
    arrays = {**known, **_evaluate(foldable, known, model.opset_imports)}
    nodes = [*_producers(known), *_worthwhile(foldable, arrays)]
    for node in nodes:
        _replace(node, arrays, names)
    edit.remove_dead(reversed(nodes))
    return len(nodes)


def _producers(values: Iterable[ir.Value]) -> list[ir.Node]:
    return [node for value in values if (node := value.producer()) is not None]


def _known_shapes(model: ir.Model) -> dict[ir.Value, np.ndarray]:
    """The results of Shape and Size nodes whose input has a shape that is known, constant or not."""
    results: dict[ir.Value, np.ndarray] = {}
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


def _foldable(model: ir.Model, known: Mapping[ir.Value, np.ndarray]) -> list[ir.Node]:
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
    inputs = [value for value in node.inputs if value is not None]
    if not all(value in constant or query.is_constant(value) for value in inputs):
        return False
    sizes = [_bytes(output) for output in node.outputs]
    known = None not in sizes and None not in (_bytes(value) for value in inputs)
    return not known or _is_worth(sum(_bytes(value) or 0 for value in inputs), sum(size or 0 for size in sizes))


def _is_array(value: ir.Value) -> bool:
    """True for a tensor that numpy can hold; a sequence or an optional has an element type too."""
    return isinstance(value.type, ir.TensorType) and value.type.dtype in _TYPES


def _bytes(value: ir.Value) -> int | None:
    tensor, shape = query.constant_tensor(value), query.static_shape(value)
    if tensor is not None:
        return tensor.nbytes
    if shape is None or value.dtype is None:
        return None
    return int(np.prod(shape, dtype=np.int64) * value.dtype.itemsize)


def _is_worth(inputs: int, outputs: int) -> bool:
    return outputs <= _LARGE_BYTES or outputs <= _MOST_GROWTH * inputs


def _evaluate(
    nodes: list[ir.Node], known: Mapping[ir.Value, np.ndarray], opsets: Mapping[str, int]
) -> dict[ir.Value, np.ndarray]:
    """The outputs of all `nodes`, from one run of a model made of them alone."""
    if not nodes:
        return {}
    copies: dict[ir.Value, ir.Value] = {}
    graph = ir.Graph([], [], nodes=[], opset_imports=dict(opsets), name="constants")
    for node in nodes:
        inputs = [None if value is None else _copy(value, copies, known, graph) for value in node.inputs]
        outputs = [ir.Value(name=f"v{len(copies) + i}", type=item.type) for i, item in enumerate(node.outputs)]
        graph.append(ir.Node("", node.op_type, inputs, node.attributes.values(), outputs=outputs))
        copies.update(zip(node.outputs, outputs, strict=True))
        graph.outputs.extend(outputs)
    results = ort_cpu.run(ir.Model(graph, ir_version=10), {})
    return {value: results[copies[value].name or ""] for node in nodes for value in node.outputs}


def _copy(
    value: ir.Value, copies: dict[ir.Value, ir.Value], known: Mapping[ir.Value, np.ndarray], graph: ir.Graph
) -> ir.Value:
    """Stand in for the value in the model that is run, under a number: bodies may use one name twice."""
    if value not in copies:
        array = known[value] if value in known else query.constant(value)
        assert array is not None, f"{query.describe(value)} is not constant"
        copies[value] = edit.add_initializer(graph, array, f"v{len(copies)}")
    return copies[value]


def _worthwhile(nodes: list[ir.Node], arrays: Mapping[ir.Value, np.ndarray]) -> list[ir.Node]:
    """The nodes whose results, now that their sizes are known, are not much larger than what they come from."""
    kept: list[ir.Node] = []
    large: set[ir.Value] = set()
    for node in nodes:
        inputs = [value for value in node.inputs if value is not None]
        before = sum(arrays[value].nbytes if value in arrays else _bytes(value) or 0 for value in inputs)
        after = sum(arrays[value].nbytes for value in node.outputs)
        if large.isdisjoint(inputs) and _is_worth(before, after):
            kept.append(node)
        else:
            large.update(node.outputs)
    return kept


def _replace(node: ir.Node, arrays: Mapping[ir.Value, np.ndarray], names: edit.Names) -> None:
    """Put an initializer of the same name in place of every output that something uses."""
    assert node.graph is not None, f"{node.name!r} is in no graph"
    for output in node.outputs:
        if output.uses():
            name = output.name or ""
            output.name = names.take(name)
            edit.replace_value(output, edit.add_initializer(node.graph, arrays[output], name), names)
