"""Other forms of what slides a window over axes: pools, and convolutions that are transposed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from intact.model import edit, query
from intact.model.node_encodings import encoding_of
from intact.search.mending.fault_site import FaultSite, constant_for, cut_behind, grid_pair, replace_before
from intact.targets.operands import DEQUANTIZE


def crop_outside(site: FaultSite) -> str | None:
    """Let a ConvTranspose compute what its pads would cut off, and cut it off behind it.

    Pads before the first number are brought to the least of them, if they differ; else all pads go.
    """
    node = next((n for n in site.nodes if n.op_type == "ConvTranspose" and any(query.ints(n, "pads"))), None)
    shape = None if node is None else query.static_shape(node.outputs[0])
    if node is None or shape is None or not _has_plain_pads(node):
        return None
    pads, spatial = query.ints(node, "pads"), len(shape) - 2
    begins, least = pads[:spatial], min(pads[:spatial])
    kept = [*[least] * spatial, *pads[spatial:]] if max(begins) > least else [0] * len(pads)
    cut = [pad - left for pad, left in zip(pads, kept, strict=True)]
    whole = [*shape[:2], *(size + cut[i] + cut[i + spatial] for i, size in enumerate(shape[2:]))]
    wide = _changed(node, list(node.inputs), pads=kept)
    axes = [axis for axis in range(spatial) if cut[axis] or cut[axis + spatial]]
    starts, ends = [cut[axis] for axis in axes], [cut[axis] + shape[2 + axis] for axis in axes]
    cut_behind(site, node, wide, whole, (starts, ends, [2 + axis for axis in axes]))
    return f"{node.name} (ConvTranspose) computes what its pads leave out, and a Slice leaves it out"


def _has_plain_pads(node: ir.Node) -> bool:
    return "output_shape" not in node.attributes and query.string(node, "auto_pad", "NOTSET") == "NOTSET"


def _changed(node: ir.Node, inputs: list[ir.Value | None], op: str = "", **numbers: list[int]) -> ir.Node:
    """A node with other inputs, and other numbers for some attributes."""
    attributes = {**node.attributes, **{name: ir.AttrInt64s(name, found) for name, found in numbers.items()}}
    return ir.Node("", op or node.op_type, inputs, attributes.values(), name=node.name)


def as_convolution(site: FaultSite) -> str | None:
    """Let a Conv with the kernel turned round compute a ConvTranspose of stride 1: y(o) = sum of w(o + p - i) x(i)."""
    node, spatial = _transposed(site), 0
    if node is not None:
        spatial = len(query.static_shape(node.outputs[0]) or ()) - 2
    if node is None or spatial < 1 or any(step != 1 for step in query.ints(node, "strides")):
        return None
    if query.int_(node, "group", 1) != 1 or any(query.ints(node, "output_padding")):
        return None
    weights = _stored(node)
    if weights is None or (axis := _channel_axis(node)) not in (None, 1):
        return None
    dilations = query.ints(node, "dilations", (1,) * spatial)
    reach = [step * (size - 1) for step, size in zip(dilations, weights.shape[2:], strict=True)]
    pads = [end - pad for end, pad in zip((*reach, *reach), query.ints(node, "pads", (0,) * 2 * spatial), strict=True)]
    if min(pads) < 0:
        return None
    turned = np.flip(weights, axis=tuple(range(2, weights.ndim))).swapaxes(0, 1)
    kernel = _with_weights(site, node, np.ascontiguousarray(turned), None if axis is None else 0)
    other = _changed(node, [node.inputs[0], kernel, *node.inputs[2:]], "Conv", pads=pads)
    other.attributes.pop("output_padding", None)
    _put_in_place(site, node, other)
    return f"{node.name} (ConvTranspose) of stride 1 is a Conv with its kernel turned round"


def lengthen_kernel(site: FaultSite) -> str | None:
    """Let a ConvTranspose have as many pads before its first two axes; the new ones cut off zeros of its kernel."""
    node = _transposed(site)
    weights, pads = (None, ()) if node is None else (_stored(node), query.ints(node, "pads"))
    if node is None or weights is None or len(pads) < 4 or pads[0] == pads[1]:
        return None
    spatial = len(pads) // 2
    if any(step != 1 for step in query.ints(node, "dilations")):
        return None
    axis, more = (0, pads[1] - pads[0]) if pads[0] < pads[1] else (1, pads[0] - pads[1])
    around = [(more, 0) if index == 2 + axis else (0, 0) for index in range(weights.ndim)]
    zero = _zero_of(node)
    if zero is None:
        return None
    longer = np.pad(weights, around, constant_values=zero)
    kernel = _with_weights(site, node, longer, _channel_axis(node))
    other = _changed(
        node,
        [node.inputs[0], kernel, *node.inputs[2:]],
        pads=[pad + more if index == axis else pad for index, pad in enumerate(pads)],
        kernel_shape=list(longer.shape[2 : 2 + spatial]),
    )
    _put_in_place(site, node, other)
    return f"{node.name} (ConvTranspose) has {more} more pads and zeros in its kernel along axis {2 + axis}"


def _transposed(site: FaultSite) -> ir.Node | None:
    """The ConvTranspose that computes the tensor of a site, if its pads are numbers."""
    found = (n for n in site.nodes if n.op_type == "ConvTranspose" and n.outputs[0].name == site.tensor)
    node = next(found, None)
    return node if node is not None and _has_plain_pads(node) else None


def _stored(node: ir.Node) -> np.ndarray | None:
    """The constant weights of a layer: the integers of those on a grid."""
    read = _read_weights(node)
    return query.constant(node.inputs[1] if read is None else read.inputs[0])


def _read_weights(node: ir.Node) -> ir.Node | None:
    producer = None if node.inputs[1] is None else node.inputs[1].producer()
    return producer if producer is not None and producer.op_type == DEQUANTIZE else None


def _channel_axis(node: ir.Node) -> int | None:
    read = _read_weights(node)
    encoding = None if read is None else encoding_of(read)
    return None if encoding is None or encoding.scale.size == 1 else encoding.axis


def _zero_of(node: ir.Node) -> int | None:
    """The integer of weights that stands for 0; None where channels have different ones."""
    read = _read_weights(node)
    if read is None:
        return 0
    encoding = encoding_of(read)
    zeros = set() if encoding is None else set(encoding.zero_point.reshape(-1).tolist())
    return int(zeros.pop()) if len(zeros) == 1 else None


def _with_weights(site: FaultSite, node: ir.Node, numbers: np.ndarray, axis: int | None) -> ir.Value:
    """Other weights for a layer, on the grid of its own, in front of it."""
    names, graph, read = edit.Names(site.model), site.model.graph, _read_weights(node)
    constant = edit.add_initializer(graph, numbers, names.take(f"{site.tensor}/weight"))
    if read is None:
        return constant
    attributes = {**read.attributes, **({} if axis is None else {"axis": ir.AttrInt64("axis", axis)})}
    other = ir.Node(
        "", DEQUANTIZE, [constant, *read.inputs[1:]], attributes.values(), name=names.take(f"{read.name}/o")
    )
    values = other.outputs[0]
    values.name, values.type = names.take(f"{site.tensor}/weight/values"), read.outputs[0].type
    values.shape = ir.Shape(numbers.shape)
    graph.insert_before(node, other)
    return values


def _put_in_place(site: FaultSite, old: ir.Node, new: ir.Node) -> None:
    """Put a node with the same result in the place of one."""
    value, result = old.outputs[0], new.outputs[0]
    result.type, result.shape = value.type, value.shape
    site.model.graph.insert_before(old, new)
    name, is_output = value.name, value.is_graph_output()
    edit.replace_value(value, result, edit.Names(site.model))
    site.model.graph.remove(old, safe=True)
    if not is_output:
        result.name = name


def shrink_window(site: FaultSite) -> str | None:
    """Shrink the window of an AveragePool to 1 along axes of size 1, where it covers pads that it does not count."""
    node = next((n for n in site.nodes if n.op_type == "AveragePool" and any(query.ints(n, "pads"))), None)
    shape = None if node is None or node.inputs[0] is None else query.static_shape(node.inputs[0])
    after = None if node is None else query.static_shape(node.outputs[0])
    if node is None or shape is None or after is None or query.int_(node, "count_include_pad", 0):
        return None
    single = [size == 1 == new for size, new in zip(shape[2:], after[2:], strict=True)]
    if not any(single) or query.string(node, "auto_pad", "NOTSET") != "NOTSET":
        return None
    kernel = [1 if one else size for one, size in zip(single, query.ints(node, "kernel_shape"), strict=True)]
    pads = [0 if one else pad for one, pad in zip((*single, *single), query.ints(node, "pads"), strict=True)]
    node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", kernel)
    node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    return f"{node.name} (AveragePool) has no window along axes of one number"


def count_pads(site: FaultSite) -> str | None:
    """Let an AveragePool count its pads, and multiply by what that takes away, a constant for each place."""
    node = next((n for n in site.nodes if n.op_type == "AveragePool" and n.outputs[0].name == site.tensor), None)
    shape = None if node is None or node.inputs[0] is None else query.static_shape(node.inputs[0])
    after = None if node is None else query.static_shape(node.outputs[0])
    if node is None or shape is None or after is None or not any(query.ints(node, "pads")):
        return None
    is_plain = query.string(node, "auto_pad", "NOTSET") == "NOTSET" and not query.int_(node, "ceil_mode", 0)
    if not is_plain or query.int_(node, "count_include_pad", 0):
        return None
    counted = {**node.attributes, "count_include_pad": ir.AttrInt64("count_include_pad", 1)}
    pool = ir.Node("", node.op_type, list(node.inputs), counted.values(), name=node.name)
    factors = _shares_inside(node, shape[2:], after[2:])
    names = edit.Names(site.model)
    constant = constant_for(site, node, factors, names.take(f"{site.tensor}/factors"))
    replace_before(site, node, pool, list(after), ir.Node("", "Mul", [pool.outputs[0], constant]))
    return f"{node.name} (AveragePool) counts its pads, and a Mul makes up for it"


def _shares_inside(pool: ir.Node, before: Sequence[int], after: Sequence[int]) -> np.ndarray:
    """For each place of a pool's result, the size of its window by how much of it is inside, as (1, 1, …)."""
    kernel, spatial = query.ints(pool, "kernel_shape"), len(before)
    pads, strides = query.ints(pool, "pads"), query.ints(pool, "strides", (1,) * spatial)
    dilations = query.ints(pool, "dilations", (1,) * spatial)
    result = np.ones((1, 1, *after))
    for axis, size in enumerate(before):
        starts = np.arange(after[axis])[:, None] * strides[axis] - pads[axis]
        places = starts + np.arange(kernel[axis]) * dilations[axis]
        share = kernel[axis] / ((places >= 0) & (places < size)).sum(axis=1)
        result *= share.reshape([1, 1, *(-1 if axis == other else 1 for other in range(spatial))])
    return result


def turn_axes(site: FaultSite) -> str | None:
    """Let a ConvTranspose over three axes, of which two have one stride, compute with those two last."""
    node = next((n for n in site.nodes if n.op_type == "ConvTranspose" and n.outputs[0].name == site.tensor), None)
    strides = () if node is None else query.ints(node, "strides")
    weight = None if node is None or node.inputs[1] is None else node.inputs[1].producer()
    if node is None or len(strides) != 3 or strides[1] == strides[2] or len(set(strides)) != 2:
        return None
    if weight is None or any(name in node.attributes for name in ("output_shape", "auto_pad")):
        return None
    integers = query.constant(weight.inputs[0]) if weight.op_type == DEQUANTIZE else None
    x, shape = node.inputs[0], query.static_shape(node.outputs[0])
    read = None if x is None else x.producer()
    encoding = None if read is None or read.op_type != DEQUANTIZE else encoding_of(read)
    if integers is None or x is None or encoding is None or shape is None:
        return None
    # Of three strides one is unlike the others: it changes places with the first.
    odd = next(index for index in (1, 2) if strides.count(strides[index]) == 1)
    turn = [{0: odd, odd: 0}.get(index, index) for index in range(3)]
    axes = [0, 1, *(2 + index for index in turn)]
    names, graph = edit.Names(site.model), site.model.graph
    before = ir.Node("", "Transpose", [x], [ir.AttrInt64s("perm", axes)], name=names.take(f"{node.name}/turned"))
    turned = before.outputs[0]
    turned.name, turned.type = names.take(f"{site.tensor}/turned"), x.type
    turned.shape = ir.Shape([(query.static_shape(x) or ())[index] for index in axes])
    pair = grid_pair(site.model, turned, encoding)
    constant = edit.add_initializer(graph, integers.transpose(axes), names.take(f"{site.tensor}/weight"))
    kept = ir.Node(
        "", DEQUANTIZE, [constant, *weight.inputs[1:]], weight.attributes.values(), name=names.take(f"{weight.name}/t")
    )
    kept.outputs[0].name = names.take(f"{site.tensor}/weight/values")
    graph.insert_before(node, [before, *pair, kept])
    changed = {name: _turned(attribute, turn) for name, attribute in node.attributes.items()}
    inputs = [pair[-1].outputs[0], kept.outputs[0], *node.inputs[2:]]
    other = ir.Node("", node.op_type, inputs, changed.values(), name=node.name)
    back = ir.Node("", "Transpose", [other.outputs[0]], [ir.AttrInt64s("perm", axes)])
    replace_before(site, node, other, [shape[index] for index in axes], back)
    return f"{node.name} (ConvTranspose) computes with its axes in another order, between two Transposes"


def _turned(attribute: ir.Attr, turn: list[int]) -> ir.Attr:
    """An attribute with a number for each axis, or one for each end of each, in another order of axes."""
    if attribute.name not in ("strides", "pads", "dilations", "kernel_shape", "output_padding"):
        return attribute
    numbers = list(attribute.as_ints())
    halves = [numbers[start : start + 3] for start in range(0, len(numbers), 3)]
    return ir.AttrInt64s(attribute.name, [half[index] for half in halves for index in turn])
