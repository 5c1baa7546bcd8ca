"""One form for every model: names, functions, constants, versions and free dimensions settled before any stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from intact.errors import ModelError, SettingsError
from intact.model import edit, fixed_inputs, query, shapes, upgrade
from intact.model.copying import copied

# Beside ONNX's first domain, which is upgraded: operators of these have changed from one version to the next.
VERSIONED_DOMAINS = ("ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
OVERRIDABLE = "overridable"
"""In the `meta` of an initializer that was an input, too: in the file as it was, a session may be given another."""


def normalize(
    model: ir.Model, *, dims: Mapping[str, int] | None = None, fixed: Mapping[str, np.ndarray] | None = None
) -> ir.Model:
    """Return a copy of `model` in the one form that stages take, its free dimensions fixed as `dims` says.

    `dims` maps the name of a dimension to its size; a dimension without a name goes by `input:axis`. The inputs in
    `fixed` become constants. The nodes of `model` must be sorted, as `io.load` leaves them.
    """
    return normalize_own(copied(model), dims=dims, fixed=fixed)


def normalize_own(
    result: ir.Model, *, dims: Mapping[str, int] | None = None, fixed: Mapping[str, np.ndarray] | None = None
) -> ir.Model:
    """`normalize` for a model that nobody else holds, which saves the copy: it is changed in place."""
    _fix_initializers(result)
    _free_negative_dims(result)
    _fix_dims(result, dims or {})
    fixed_inputs.fix(result, fixed or {})
    result = inline_functions(result)
    lift_constants(result)
    drop_copies_of_constants(result)
    make_grids_scalar(result)
    drop_unused_opsets(result)
    result.graph.opset_imports.setdefault("", upgrade.MINIMUM)
    result.ir_version = upgrade.ir_version_for(result.opset_imports)
    name_nodes(result)
    name_values(result)
    shapes.infer_shapes(result)
    drop_idle_casts(result)
    return result


def free_dims(model: ir.Model) -> list[str]:
    """The free dimensions of the inputs, in order: by name, and as `input:axis` where they have none."""
    return list(dict.fromkeys(name for name, _, _ in _free_axes(model)))


def advised_dims(model: ir.Model) -> str:
    """The options that fix the free dimensions: to 1 those of batches, which come first; others are the user's."""
    first = {name for name, _, axis in _free_axes(model) if axis == 0}
    return " ".join(f"--dim {name}={'1' if name in first else 'SIZE'}" for name in free_dims(model))


def sort_nodes(model: ir.Model) -> None:
    """Put the nodes of every graph in an order in which each comes after what it reads."""
    for body in upgrade.bodies_of(model):
        try:
            body.sort()
        except ValueError as problem:
            circle = reversed(query.cycle(body, _read_by))
            listed = " → ".join(f"{node.name or node.op_type} ({node.op_type})" for node in circle)
            raise ModelError(
                "M110",
                f"the nodes of the model wait for each other in a circle: {listed}",
                allowed="a graph without cycles",
                fix="export the model again; a recurrence has to be a Loop or a Scan",
            ) from problem


def name_nodes(model: ir.Model) -> None:
    """Give every node a name that no other has: `<op>_<n>` where it had none; names that are there stay.

    A node in a body is named by its path: `If_3/then/Conv_2`.
    """
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    taken = {node.name for node in nodes if node.name}
    seen: set[str] = set()
    counters: dict[str, int] = {}
    for node in nodes:
        if not node.name or node.name in seen:
            node.name = _next_name(node.name or node.op_type, taken, counters)
        seen.add(node.name)
    for graph in query.all_graphs(model):
        _name_by_path(graph)


def _name_by_path(graph: ir.Graph) -> None:
    """Put the name of the node that holds a body, and which of its bodies it is, before the names in it."""
    for node in (node for node in graph if node.attributes.data):
        for label, body in query.named_bodies(node):
            prefix = f"{node.name}/{label}/"
            for inner in body:
                inner.name = f"{prefix}{(inner.name or '').removeprefix(prefix)}"


def name_values(model: ir.Model) -> None:
    """Give every value of a body a name that no other value of the model has; those of the main graph stay."""
    graphs = list(query.all_graphs(model))
    names = edit.Names(model) if len(graphs) > 1 else None
    seen: set[str] = set()
    for value in (value for graph in graphs if names is not None for value in _values_of(graph)):
        if value.name in seen and names is not None:
            value.name = names.take(value.name)
        seen.add(value.name or "")


def _values_of(graph: ir.Graph) -> list[ir.Value]:
    """The values that the graph itself defines, which have names."""
    made = (value for node in graph for value in node.outputs)
    return [value for value in (*graph.inputs, *graph.initializers.values(), *made) if value.name]


def inline_functions(model: ir.Model) -> ir.Model:
    """Return the model with every call of a function replaced by the body of the function."""
    if not model.functions:
        return model
    if _disagree_on_versions(model):
        # A body keeps its meaning only among nodes of the same opset.
        model = upgrade.upgrade(model).model
        _agree_on_versions(model)
    _complete_calls(model)
    passes.InlinePass()(model)
    for key in list(model.functions):
        del model.functions[key]
    return model


def lift_constants(model: ir.Model) -> None:
    """Make an initializer of every Constant node, in bodies of If, Loop and Scan too."""
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def drop_unused_opsets(model: ir.Model) -> None:
    """Leave out domains that no node is of any more."""
    passes.RemoveUnusedOpsetsPass()(model)


def drop_copies_of_constants(model: ir.Model) -> None:
    """Let every reader of an Identity of a constant read the constant: exporters write one for each shared scale."""
    copies = [node for node in query.all_nodes(model) if node.op_type == "Identity" and node.domain == ""]
    # In order, so that a copy of a copy has become a copy of the constant.
    _drop(node for node in copies if query.is_constant(node.inputs[0]))


def drop_idle_casts(model: ir.Model) -> None:
    """Drop every Cast of integers of a grid to the type that they have, as torch writes one between Q and DQ."""
    casts = [node for node in query.all_nodes(model) if node.op_type == "Cast" and node.domain == ""]
    _drop(node for node in casts if query.is_quantized(node.inputs[0]) and _type_of(node.inputs[0]) == _target(node))


def _type_of(value: ir.Value | None) -> ir.DataType | None:
    return None if value is None else value.dtype


def _target(node: ir.Node) -> int:
    return query.int_(node, "to", ir.DataType.UNDEFINED)


def _drop(idle: Iterator[ir.Node]) -> None:
    """Remove nodes that do nothing, one after the other; the name of a graph output stays with its node."""
    for node in idle:
        source, output = node.inputs[0], node.outputs[0]
        if source is None or output.is_graph_output():
            continue
        output.replace_all_uses_with(source)
        assert node.graph is not None, f"{node.name!r} is in a graph"
        node.graph.remove(node, safe=True)


def make_grids_scalar(model: ir.Model) -> None:
    """Make a scalar of every scale or zero point of shape [1] that a Q or DQ node reads, which means the same.

    ONNX Runtime makes integer operators of QDQ ones, and refuses some of those where it finds the other shape.
    """
    places: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
    for node in query.all_nodes(model):
        for index in _listed_numbers(node):
            value = node.inputs[index]
            assert value is not None, f"{node.name!r} reads its grid"
            places.setdefault(value, []).append((node, index))
    names = edit.Names(model) if places else None
    for value, uses in places.items():
        assert names is not None, "there are values to name"
        if len(uses) == len(value.uses()) and not value.is_graph_output():
            value.const_value, value.shape = _number_in(value), ir.Shape(())
            continue
        assert value.graph is not None, f"{value.name!r} is an initializer"
        number = edit.add_initializer(value.graph, _number_in(value), names.take(f"{value.name}/scalar"))
        for node, index in uses:
            node.replace_input_with(index, number)


def _listed_numbers(node: ir.Node) -> list[int]:
    """The inputs of a Q or DQ node that are a scale or a zero point, constant and of shape [1]."""
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or query.int_(node, "block_size", 0):
        return []
    given = ((index, node.inputs[index]) for index in range(1, len(node.inputs)))
    return [index for index, value in given if query.is_constant(value) and query.static_shape(value) == (1,)]


def _number_in(value: ir.Value) -> ir.TensorProtocol:
    """The one element of a constant, as a tensor without dimensions."""
    tensor = query.constant_tensor(value)
    assert tensor is not None, f"{value.name!r} is constant"
    return ir.tensor(tensor.numpy().reshape(()), dtype=tensor.dtype, name=value.name)


def _complete_calls(model: ir.Model) -> None:
    """Give every call all outputs of its function: a call may leave out the last ones, but the inliner counts them."""
    for body in upgrade.bodies_of(model):
        for node in ir.traversal.RecursiveGraphIterator(body):
            function = model.functions.get(node.op_identifier())
            if function is not None and len(node.outputs) < len(function.outputs):
                node.resize_outputs(len(function.outputs))


def _disagree_on_versions(model: ir.Model) -> bool:
    """True if a domain has two versions among the functions and the graph that they will be written into."""
    versions = {version for body in upgrade.bodies_of(model) for version in body.opset_imports.items()}
    return len(versions) > len({domain for domain, _ in versions})


def _agree_on_versions(model: ir.Model) -> None:
    """Give functions the model's version of every domain; those of ONNX mean something, so they have to agree."""
    versions = dict(model.opset_imports)
    for function in model.functions.values():
        for domain, version in function.opset_imports.items():
            if versions.setdefault(domain, version) != version and domain in VERSIONED_DOMAINS:
                raise ModelError(
                    "M125",
                    f"function {function.name!r} is written in version {version} of domain {domain!r}, "
                    f"but is called where version {versions[domain]} holds",
                    fix="export the model again, with one version of this domain, or with its functions written out",
                )
            function.opset_imports[domain] = versions[domain]


def _next_name(stem: str, taken: set[str], counters: dict[str, int]) -> str:
    while True:
        number = counters.get(stem, 0)
        counters[stem] = number + 1
        name = f"{stem}_{number}"
        if name not in taken:
            taken.add(name)
            return name


def _fix_initializers(model: ir.Model) -> None:
    """Make every initializer a constant: no input overrides it any more, but `OVERRIDABLE` tells that one did."""
    for value in model.graph.inputs:
        if value.is_initializer():
            value.meta[OVERRIDABLE] = True
    passes.RemoveInitializersFromInputsPass()(model)


def _free_axes(model: ir.Model) -> Iterator[tuple[str, ir.Value, int]]:
    for value in model.graph.inputs:
        if value.is_initializer() or value.shape is None:
            continue
        for axis, size in enumerate(value.shape):
            if isinstance(size, ir.SymbolicDim):
                yield size.value or f"{value.name}:{axis}", value, axis
            elif size < 0:
                yield f"{value.name}:{axis}", value, axis


def _free_negative_dims(model: ir.Model) -> None:
    """Some exporters write -1 for a free dimension, which ONNX does not define."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is not None and any(isinstance(size, int) and size < 0 for size in value.shape):
            value.shape = ir.Shape(None if isinstance(size, int) and size < 0 else size for size in value.shape)


def _fix_dims(model: ir.Model, dims: Mapping[str, int]) -> None:
    _check_dims(dims, free_dims(model))
    for name, value, axis in list(_free_axes(model)):
        if name in dims:
            assert value.shape is not None, "a free axis has a shape"
            value.shape = ir.Shape(dims[name] if at == axis else size for at, size in enumerate(value.shape))
    for graph in model.graphs():
        for value in ir.convenience.create_value_mapping(graph).values():
            value.shape = _with_sizes(value.shape, dims)
        for value in graph.outputs:
            value.shape = _with_sizes(value.shape, dims)


def _check_dims(dims: Mapping[str, int], free: list[str]) -> None:
    for name, size in dims.items():
        if name not in free:
            import difflib

            near = difflib.get_close_matches(name, free, n=1)
            raise SettingsError(
                "S131",
                f"the model has no free dimension {name!r}",
                allowed=", ".join(free) if free else "none: every dimension of its inputs is fixed already",
                fix=f"did you mean {near[0]}?" if near else None,
            )
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise SettingsError("S132", f"the dimension {name} cannot be {size!r}", allowed="a whole number from 1 up")


def _with_sizes(shape: ir.Shape | None, dims: Mapping[str, int]) -> ir.Shape | None:
    if shape is None or not any(isinstance(size, ir.SymbolicDim) and size.value in dims for size in shape):
        return shape
    return ir.Shape(
        dims.get(size.value, size) if isinstance(size, ir.SymbolicDim) and size.value else size for size in shape
    )


def _read_by(node: ir.Node) -> list[ir.Node]:
    """The nodes of the same graph whose outputs `node` reads, itself or in its bodies."""
    readers = [node]
    for body in query.bodies(node):
        readers += ir.traversal.RecursiveGraphIterator(body)
    producers = [value.producer() for reader in readers for value in reader.inputs if value is not None]
    return [producer for producer in producers if producer is not None and producer.graph is node.graph]
