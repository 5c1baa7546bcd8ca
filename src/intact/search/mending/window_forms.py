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
    """Let a ConvTranspose compute what its pads would cut off, and cut it off behind it."""
    node = next((n for n in site.nodes if n.op_type == "ConvTranspose" and any(query.ints(n, "pads"))), None)
    shape = None if node is None else query.static_shape(node.outputs[0])
    if node is None or shape is None or "output_shape" in node.attributes:
        return None
    pads, spatial = query.ints(node, "pads"), len(shape) - 2
    if query.string(node, "auto_pad", "NOTSET") != "NOTSET":
        return None
    whole = [*shape[:2], *(size + pads[i] + pads[i + spatial] for i, size in enumerate(shape[2:]))]
    zeros = ir.AttrInt64s("pads", [0] * len(pads))
    wide = ir.Node("", node.op_type, list(node.inputs), {**node.attributes, "pads": zeros}.values(), name=node.name)
    ends = [pads[i] + size for i, size in enumerate(shape[2:])]
    cut_behind(site, node, wide, whole, (list(pads[:spatial]), ends, list(range(2, len(shape)))))
    return f"{node.name} (ConvTranspose) computes what its pads leave out, and a Slice leaves it out"


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
