"""Check that a parsed file is a model: versions, names, tensors. Nothing here changes it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import onnx
import onnx_ir as ir
from google.protobuf.message import Message  # type: ignore[import-untyped]

from intact.errors import ModelError, some, steers
from intact.model import query

DEFAULT_DOMAIN = ""
DOMAIN_ALIAS = "ai.onnx"

SHOWN = 8

# Nodes once functions are written out: no exporter calls one function more often than a network has layers.
LEAST_EXPANDED = 20_000
MOST_EXPANSION = 100
COUNTED = 10**12

# Fields whose content is numbers, however it is typed; to look at them would be to copy them.
TENSOR_DATA = {"raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data"}

TYPED_FIELDS = {
    "float_data": ("FLOAT", "COMPLEX64"),
    "int64_data": ("INT64",),
    "double_data": ("DOUBLE", "COMPLEX128"),
    "uint64_data": ("UINT32", "UINT64"),
    "string_data": ("STRING",),
}


def check_header(proto: onnx.ModelProto, newest_ir: int, newest_opsets: Mapping[str, int]) -> None:
    """The file has a graph with nodes, and no version that the installed onnx does not know."""
    if not proto.HasField("graph"):
        raise ModelError("M104", "the file holds no graph", allowed="an ONNX model", fix="export the model again")
    if not proto.graph.node:
        raise ModelError("M104", "the graph has no nodes, so there is nothing to run", fix="export the model again")
    if proto.ir_version > newest_ir:
        raise _too_new(f"IR version {proto.ir_version}", str(newest_ir))
    for domain, version in imports_of(proto.opset_import).items():
        newest = newest_opsets.get(domain, version)
        if version > newest:
            raise _too_new(f"opset {version} of {domain or DOMAIN_ALIAS}", str(newest))


def check_inputs(graph: onnx.GraphProto) -> None:
    """Every input of the model says of which type its elements are."""
    untyped = [
        value.name
        for value in graph.input
        if not value.HasField("type") or (value.type.HasField("tensor_type") and not value.type.tensor_type.elem_type)
    ]
    if untyped:
        raise ModelError("M117", f"the inputs {_listed(untyped)} have no element type", fix="export the model again")


def holds_map(kind: onnx.TypeProto) -> bool:
    """True for a map, also inside a sequence or an optional: ZipMap makes such of the scores of classes."""
    match kind.WhichOneof("value"):
        case "map_type":
            return True
        case "sequence_type":
            return holds_map(kind.sequence_type.elem_type)
        case "optional_type":
            return holds_map(kind.optional_type.elem_type)
    return False


def imports_of(entries: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Version by domain, with `ai.onnx` spelled as the empty name; one domain cannot have two versions."""
    versions: dict[str, int] = {}
    for entry in entries:
        domain = DEFAULT_DOMAIN if entry.domain == DOMAIN_ALIAS else entry.domain
        if versions.setdefault(domain, entry.version) != entry.version:
            raise ModelError(
                "M107",
                f"the model imports {domain or DOMAIN_ALIAS} as opset {versions[domain]} and as {entry.version}",
                allowed="one version for each domain",
            )
    return versions


def check_text(message: Message) -> None:
    """All names are UTF-8 that can be printed, and every attribute says of which type it is."""
    for field, found in message.ListFields():
        if field.name in TENSOR_DATA:
            continue
        items = found if field.is_repeated else [found]
        if field.type == field.TYPE_STRING and any(isinstance(item, bytes) for item in items):
            raise ModelError("M103", "the file is damaged: it holds a name that is not UTF-8", fix="copy it again")
        if field.type == field.TYPE_STRING and not _is_prose(message, field.name):
            _check_printable(items)
        if field.type == field.TYPE_MESSAGE:
            for item in items:
                check_text(item)
    if message.DESCRIPTOR.name == "AttributeProto" and message.type == 0:
        raise ModelError("M118", f"the attribute {message.name!r} does not say of which type it is")


def _is_prose(message: Message, field: str) -> bool:
    """True of text that is no name, and is never printed as it is."""
    return field == "doc_string" or message.DESCRIPTOR.name == "StringStringEntryProto"


def _check_printable(names: Iterable[str]) -> None:
    """Refuse a name that would steer a terminal or forge lines of messages: no exporter writes such."""
    for name in filter(steers, names):
        raise ModelError(
            "M123",
            f"the name {ascii(name)[:200]} holds control characters",
            allowed="names that can be printed on one line",
            fix="rename it with onnx, or export the model again",
        )


def check_names(graph: onnx.GraphProto, outer: frozenset[str] = frozenset()) -> None:
    """Every value is defined once, and every value that is used is defined."""
    where = graph.name or "graph"
    inputs = [value.name for value in graph.input]
    initializers = [tensor.name for tensor in graph.initializer]
    # An initializer may repeat an input (its default value); nothing else may repeat anything.
    own = set(inputs) | set(initializers)
    _check_unique(where, inputs)
    _check_unique(where, initializers)
    _check_scope(where, graph.node, own, [value.name for value in graph.output], outer)


def check_function_names(function: onnx.FunctionProto) -> None:
    """The same for the body of a function, which sees nothing but its own inputs."""
    _check_unique(function.name, function.input)
    _check_scope(function.name, function.node, set(function.input), list(function.output), frozenset())


def check_no_recursion(functions: Iterable[onnx.FunctionProto]) -> None:
    """No function calls itself, directly or through others: it could not be inlined."""
    calls = {_key(function): [_key(node) for node in nodes_of(function.node)] for function in functions}
    circle = query.cycle(calls, lambda key: [callee for callee in calls[key] if callee in calls])
    if circle:
        loop = " → ".join(name for _, name, _ in circle)
        raise ModelError("M111", f"the functions of the model call each other in a circle: {loop}")


def check_expansion(proto: onnx.ModelProto) -> None:
    """Refuse functions whose calls of each other turn a few nodes into very many when they are written out."""
    functions = {_key(function): function for function in proto.functions}
    sizes: dict[tuple[str, str, str], int] = {}
    waiting = list(functions)
    while waiting:
        missing = [
            key for node in nodes_of(functions[waiting[-1]].node) if (key := _key(node)) in functions.keys() - sizes
        ]
        if missing:
            waiting += set(missing)
        else:
            key = waiting.pop()
            sizes[key] = _expanded(functions[key].node, sizes)
    written = sum(1 for body in (proto.graph, *proto.functions) for _ in nodes_of(body.node))
    total, most = _expanded(proto.graph.node, sizes), max(LEAST_EXPANDED, MOST_EXPANSION * written)
    if total > most:
        raise ModelError(
            "M124",
            f"its functions call each other so often that {written} nodes become {total} or more",
            allowed=f"{most} nodes: {LEAST_EXPANDED}, or {MOST_EXPANSION} times those in the file",
            fix="export the model again, with its functions written out",
        )


def _expanded(nodes: Iterable[onnx.NodeProto], sizes: Mapping[tuple[str, str, str], int]) -> int:
    """The number of nodes once every call is written out, as far as anybody counts."""
    return min(sum(sizes.get(_key(node), 1) for node in nodes_of(nodes)), COUNTED)


def nodes_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Every node, those in the bodies of If, Loop and Scan included."""
    for node in nodes:
        yield node
        for graph in _bodies(node):
            yield from nodes_of(graph.node)


def tensors_of(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Every tensor of the model with the name to call it by: initializers, and attributes of nodes."""
    yield from _graph_tensors(proto.graph)
    for function in proto.functions:
        yield from _node_tensors(function.node)


def check_no_sparse(proto: onnx.ModelProto) -> None:
    """Sparse constants would be lost on the way, so that a model that has some is refused."""
    sparse = bool(proto.graph.sparse_initializer) or any(
        attribute.HasField("sparse_tensor") or attribute.sparse_tensors
        for node in nodes_of(proto.graph.node)
        for attribute in node.attribute
    )
    if sparse:
        raise ModelError("M117", "the model has sparse constants", allowed="dense tensors", fix="export them dense")


def bytes_needed(name: str, tensor: onnx.TensorProto) -> int:
    """The number of bytes that the data of `tensor` has by its shape and type."""
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError("M112", f"{name}: its shape is {list(tensor.dims)}", allowed="dimensions from 0 up")
    dtype = _dtype(name, tensor)
    if dtype == ir.DataType.STRING:
        raise ModelError(
            "M112", f"{name}: its strings are said to lie in another file", allowed="in the model's own file"
        )
    return _packed(math.prod(tensor.dims), dtype)


def check_tensor(name: str, tensor: onnx.TensorProto) -> None:
    """The data that `tensor` carries is as long as its shape and type say."""
    dtype = _dtype(name, tensor)
    needed = bytes_needed(name, tensor) if dtype != ir.DataType.STRING else 0
    if tensor.HasField("raw_data") and dtype != ir.DataType.STRING:
        found, expected, unit = len(tensor.raw_data), needed, "bytes"
    else:
        field = next((field for field, names in TYPED_FIELDS.items() if dtype.name in names), "int32_data")
        found, expected, unit = len(getattr(tensor, field)), _entries(tensor, dtype, field), "values"
    if found != expected:
        raise ModelError(
            "M112",
            f"{name}: its data has {found} {unit}, but its shape {list(tensor.dims)} of {dtype.name} needs {expected}",
            fix="the file is damaged, or was written wrongly: export the model again",
        )


def _entries(tensor: onnx.TensorProto, dtype: ir.DataType, field: str) -> int:
    """The number of entries of the typed `field` that hold the data of `tensor`."""
    count: int = math.prod(tensor.dims)
    if dtype.name.startswith("COMPLEX"):
        return 2 * count
    # Types below a byte are packed: an entry of int32_data holds one byte of them.
    return _packed(count, dtype) if field == "int32_data" and dtype.bitwidth < 8 else count


def _packed(count: int, dtype: ir.DataType) -> int:
    """Bytes of `count` elements; integers throughout, for a damaged shape may ask for more than a float can count."""
    return -(-count * dtype.bitwidth // 8)


def _dtype(name: str, tensor: onnx.TensorProto) -> ir.DataType:
    try:
        dtype = ir.DataType(tensor.data_type)
    except ValueError:
        dtype = ir.DataType.UNDEFINED
    if dtype == ir.DataType.UNDEFINED:
        raise ModelError("M112", f"{name}: its type has the number {tensor.data_type}, which ONNX does not define")
    return dtype


def _check_scope(
    where: str, nodes: Iterable[onnx.NodeProto], own: set[str], outputs: Iterable[str], outer: frozenset[str]
) -> None:
    made = [name for node in nodes for name in node.output if name]
    _check_unique(where, [*own, *made])
    visible = outer.union(own, made)
    for node in nodes:
        label = f"{node.name or 'a node'} ({node.op_type})"
        _check_defined(where, f"{label} reads", (name for name in node.input if name), visible)
        for body in _bodies(node):
            check_names(body, visible)
    _check_defined(where, "the graph returns", outputs, frozenset(own).union(made))


def _check_unique(where: str, names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ModelError(
            "M108",
            f"{where}: more than one value is called {_listed(twice)}",
            allowed="each value is defined once (single assignment)",
            fix="export the model again, or rename the values",
        )


def _check_defined(where: str, who: str, names: Iterable[str], visible: frozenset[str]) -> None:
    missing = [name for name in names if name not in visible]
    if missing:
        raise ModelError(
            "M109",
            f"{where}: {who} {_listed(missing)}, which nothing produces",
            allowed="values that are an input, an initializer or the output of a node",
            fix="export the model again; if it was cut out of a larger one, add the missing value to its inputs",
        )


def _listed(names: list[str]) -> str:
    return some([repr(name) for name in names], SHOWN)


def _too_new(found: str, newest: str) -> ModelError:
    return ModelError(
        "M106",
        f"the model has {found}, which is newer than the installed onnx knows",
        allowed=f"up to {newest}",
        fix="upgrade the onnx package, or export the model for an older version",
    )


def _key(proto: onnx.NodeProto | onnx.FunctionProto) -> tuple[str, str, str]:
    """The key of a function, or of the function that a node calls."""
    return (proto.domain, getattr(proto, "op_type", None) or proto.name, proto.overload)


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    for tensor in graph.initializer:
        yield tensor.name or "an initializer without a name", tensor
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, onnx.TensorProto]]:
    for node in nodes:
        for attribute in node.attribute:
            tensors = [attribute.t] if attribute.HasField("t") or attribute.type == attribute.TENSOR else []
            for tensor in [*tensors, *attribute.tensors]:
                yield f"{node.name or node.op_type}.{attribute.name}", tensor
        for body in _bodies(node):
            yield from _graph_tensors(body)
