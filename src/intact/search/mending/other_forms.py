"""Other forms of one unit of a quantized model: what it computes stays the same, or nearly; how changes.

A remedy edits a copy of the model at one tensor, and returns what it did in words, or None where it does not apply.
The tensor keeps its name, so that both forms are compared there. Remedies stand in the order of what they cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from intact.matching import rewriter
from intact.model import edit, query
from intact.model.node_encodings import encoding_of
from intact.numbers.encoding import Encoding
from intact.numbers.integer_types import limits, middle
from intact.rules.quantized import folding
from intact.targets.operands import DEQUANTIZE, QUANTIZE

COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min"})
OTHER = {"uint8": "uint16", "uint16": "uint8"}
WIDE = ("int16", "uint16")
# A grid of so much other steps is another one for a compiler, and nearly the same for the numbers.
OTHER_STEP = 1.0 + 2.0**-7
# Values that were not seen may be so many times as large as those that were.
ROOM = 4.0


@dataclass(frozen=True, slots=True)
class FaultSite:
    """The place of a remedy: a model of its own to edit, and the tensor that comes out wrong."""

    model: ir.Model
    tensor: str
    reach: Mapping[str, float] = field(default_factory=dict)
    """The greatest absolute value that was seen of the tensors that the unit reads."""

    @property
    def nodes(self) -> list[ir.Node]:
        """The node that computes the tensor, and those behind it back to the grids that they read."""
        found: list[ir.Node] = []
        pending = [self._value.producer()]
        while pending:
            node = pending.pop()
            if node is None or node in found or node.op_type in (QUANTIZE, DEQUANTIZE):
                continue
            found.append(node)
            pending += [value.producer() for value in node.inputs if value is not None]
        return found

    @property
    def _value(self) -> ir.Value:
        return next(v for node in self.model.graph for v in node.outputs if v.name == self.tensor)

    def reads(self) -> Iterator[tuple[ir.Node, int, ir.Node]]:
        """Each input that a node reads from a grid of activations, with the DequantizeLinear that gives it."""
        for node in self.nodes:
            for index, value in enumerate(node.inputs):
                producer = None if value is None else value.producer()
                if (
                    producer is not None
                    and producer.op_type == DEQUANTIZE
                    and not query.is_constant(producer.inputs[0])
                ):
                    yield node, index, producer


Remedy = Callable[[FaultSite], str | None]


def swap_operands(site: FaultSite) -> str | None:
    """Exchange the two operands of an operator that does not mind."""
    node = next((n for n in site.nodes if n.op_type in COMMUTATIVE and len(n.inputs) == 2), None)
    if node is None:
        return None
    first, second = node.inputs
    node.replace_input_with(0, second)
    node.replace_input_with(1, first)
    return f"the operands of {node.name} ({node.op_type}) are exchanged"


def merge_grids(site: FaultSite) -> str | None:
    """Leave out grids right in front of others, within a step."""
    merged = rewriter.apply(site.model, [folding.MergeRequantize()]).applications
    return f"{len(merged)} grids right in front of others are left out" if merged else None


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
    _cut_behind(site, node, wide, whole, (list(pads[:spatial]), ends, list(range(2, len(shape)))))
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


def pad_rows(site: FaultSite, least: int = 32) -> str | None:
    """Read longer rows from a constant table, and cut them behind the Gather."""
    node = next((n for n in site.nodes if n.op_type == "Gather" and n.outputs[0].name == site.tensor), None)
    table = None if node is None or node.inputs[0] is None else node.inputs[0].producer()
    shape = None if node is None else query.static_shape(node.outputs[0])
    integers = None if table is None or table.op_type != DEQUANTIZE else query.constant(table.inputs[0])
    encoding = None if table is None else encoding_of(table)
    if node is None or table is None or shape is None or integers is None or encoding is None:
        return None
    if integers.ndim != 2 or query.int_(node, "axis", 0) != 0 or integers.shape[1] >= least or encoding.scale.size != 1:
        return None
    more = least - integers.shape[1]
    padded = np.pad(integers, [(0, 0), (0, more)], constant_values=int(encoding.zero_point))
    names, graph = edit.Names(site.model), site.model.graph
    constant = edit.add_initializer(graph, padded, names.take(f"{site.tensor}/table"))
    read = ir.Node("", DEQUANTIZE, [constant, *table.inputs[1:]], name=names.take(f"{table.name}/padded"))
    read.outputs[0].name = names.take(f"{site.tensor}/table/values")
    graph.insert_before(node, read)
    wide = ir.Node("", "Gather", [read.outputs[0], node.inputs[1]], node.attributes.values(), name=node.name)
    last = len(shape) - 1
    _cut_behind(site, node, wide, [*shape[:-1], least], ([0], [shape[-1]], [last]))
    return f"the table of {node.name} (Gather) has rows of {least} numbers, and a Slice leaves out what was added"


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
    pair = _pair(site.model, turned, encoding)
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
    _replace_before(site, node, other, [shape[index] for index in axes], back)
    return f"{node.name} (ConvTranspose) computes with its axes in another order, between two Transposes"


def _turned(attribute: ir.Attr, turn: list[int]) -> ir.Attr:
    """An attribute with a number for each axis, or one for each end of each, in another order of axes."""
    if attribute.name not in ("strides", "pads", "dilations", "kernel_shape", "output_padding"):
        return attribute
    numbers = list(attribute.as_ints())
    halves = [numbers[start : start + 3] for start in range(0, len(numbers), 3)]
    return ir.AttrInt64s(attribute.name, [half[index] for half in halves for index in turn])


def _cut_behind(
    site: FaultSite, old: ir.Node, wide: ir.Node, shape: list[int], window: tuple[list[int], list[int], list[int]]
) -> None:
    """Put a wider node in the place of one, on the same grid, and behind it a Slice to starts, ends and axes."""
    names, name = edit.Names(site.model), old.outputs[0].name
    numbers = [
        edit.add_initializer(site.model.graph, np.array(part, np.int64), names.take(f"{name}/{what}"))
        for part, what in zip(window, ("starts", "ends", "axes"), strict=True)
    ]
    _replace_before(site, old, wide, shape, ir.Node("", "Slice", [wide.outputs[0], *numbers]))


def _replace_before(site: FaultSite, old: ir.Node, new: ir.Node, shape: list[int], last: ir.Node) -> None:
    """Put a node with a result of another shape in the place of one, on the same grid, and `last` behind it."""
    names, graph, value = edit.Names(site.model), site.model.graph, old.outputs[0]
    name, grid = value.name, next((node for node in value.consumers() if node.op_type == QUANTIZE), None)
    whole = new.outputs[0]
    whole.name, whole.type, whole.shape = names.take(f"{name}/whole"), value.type, ir.Shape(shape)
    encoding = None if grid is None else encoding_of(grid)
    pair = [] if encoding is None else _pair(site.model, whole, encoding)
    last.name = names.take(f"{name}/{last.op_type}")
    last.replace_input_with(0, pair[-1].outputs[0] if pair else whole)
    graph.insert_before(old, [new, *pair, last])
    is_output = value.is_graph_output()
    edit.replace_value(value, last.outputs[0], names)
    last.outputs[0].type, last.outputs[0].shape = value.type, value.shape
    graph.remove(old, safe=True)
    if not is_output:
        last.outputs[0].name = name


def _regrid_reads(site: FaultSite, choose: Callable[[Encoding, str], Encoding | None]) -> list[str]:
    """Put what the unit reads on other grids, behind those that it is on; return the inputs that got one."""
    changed = []
    for node, index, dequantize in list(site.reads()):
        encoding, written = encoding_of(dequantize), dequantize.inputs[0]
        quantize = None if written is None else written.producer()
        source = None if quantize is None else quantize.inputs[0]
        is_plain = encoding is not None and encoding.scale.size == 1
        other = choose(encoding, source.name or "") if encoding and is_plain and source is not None else None
        value = node.inputs[index]
        if other is not None and value is not None:
            pair = _pair(site.model, value, other)
            site.model.graph.insert_before(node, pair)
            node.replace_input_with(index, pair[-1].outputs[0])
            changed.append(f"input {index} of {node.name} ({node.op_type})")
    return changed


def widen_inputs(site: FaultSite, factor: float = 16.0) -> str | None:
    """Give the 16-bit grids that a unit reads wider steps."""
    found = _regrid_reads(site, lambda old, _: _scaled(old, factor) if old.dtype in WIDE else None)
    return f"{', '.join(found)} has steps {factor:g} times as wide" if found else None


def widen_more(site: FaultSite) -> str | None:
    """Give the 16-bit grids that a unit reads far wider steps."""
    return widen_inputs(site, 256.0)


def tighten_inputs(site: FaultSite) -> str | None:
    """Give values that use few of the 16 bits of their grid smaller steps: a device may drop the lowest bits."""
    most = {name: ROOM * reach for name, reach in site.reach.items() if reach > 0}

    def choose(old: Encoding, source: str) -> Encoding | None:
        if old.dtype not in WIDE or source not in most or int(old.zero_point) != middle(old.dtype):
            return None
        factor = most[source] / (float(old.scale) * limits("int16")[1])
        return _scaled(old, factor) if factor < 1 else None

    found = _regrid_reads(site, choose)
    held = ", ".join(f"{source} up to {value:.4g}" for source, value in most.items())
    return f"{', '.join(found)} has smaller steps, which hold {held}" if found else None


def separate(site: FaultSite) -> str | None:
    """Put a grid of slightly other steps between a unit and what it reads, so that a compiler does not join them."""
    found = _regrid_reads(site, lambda old, _: _scaled(old, OTHER_STEP))
    return f"{', '.join(found)} stands apart from what is before it" if found else None


def other_width(site: FaultSite) -> str | None:
    """Compute a unit with 8 bits instead of 16, or with 16 instead of 8."""
    value = site._value
    writer = next((n for n in value.consumers() if n.op_type == QUANTIZE), None)
    written = None if writer is None else encoding_of(writer)
    if writer is None or written is None or written.scale.size != 1 or written.dtype not in OTHER:
        return None
    found = _regrid_reads(site, lambda old, _: _other(old) if old.dtype == written.dtype else None)
    if not found:
        return None
    pair = _pair(site.model, value, _other(written))
    site.model.graph.insert_before(writer, pair)
    writer.replace_input_with(0, pair[-1].outputs[0])
    node = site.nodes[0]
    return f"{node.name} ({node.op_type}) is computed with {8 if OTHER[written.dtype] == 'uint8' else 16} bits"


REMEDIES: tuple[Remedy, ...] = (
    *(swap_operands, merge_grids, widen_inputs, tighten_inputs, separate),
    *(crop_outside, turn_axes, shrink_window, pad_rows, widen_more, other_width),
)


def _scaled(old: Encoding, factor: float) -> Encoding:
    return replace(old, scale=np.asarray(old.scale * np.float32(factor), np.float32))


def _other(old: Encoding) -> Encoding:
    """The grid of the other width over the same range."""
    factor = limits(old.dtype)[1] / limits(OTHER[old.dtype])[1]
    return replace(_scaled(old, factor), dtype=OTHER[old.dtype], zero_point=np.rint(old.zero_point / factor))


def _pair(model: ir.Model, value: ir.Value, grid: Encoding) -> list[ir.Node]:
    """A QuantizeLinear of a value, and the DequantizeLinear behind it."""
    names = edit.Names(model)
    step = edit.add_initializer(model.graph, grid.scale.reshape(()), names.take(f"{value.name}/step"))
    zero = grid.zero_point.reshape(()).astype(np.dtype(grid.dtype))
    zero_point = edit.add_initializer(model.graph, zero, names.take(f"{value.name}/zero_point"))
    nodes, source = [], value
    for op in (QUANTIZE, DEQUANTIZE):
        node = ir.Node("", op, [source, step, zero_point], name=names.take(f"{value.name}/{op}"))
        node.outputs[0].name = names.take(f"{value.name}/{op}/output")
        source = node.outputs[0]
        nodes.append(node)
    assert zero_point.dtype is not None, "it was made here"
    nodes[0].outputs[0].type = ir.TensorType(zero_point.dtype)
    nodes[1].outputs[0].type, nodes[1].outputs[0].shape = value.type, value.shape
    return nodes
