"""Other forms of one unit of a quantized model: what it computes stays the same, or nearly; how changes.

A remedy edits a copy of the model at one tensor, and returns what it did in words, or None where it does not apply.
The tensor keeps its name, so that both forms are compared there. Remedies stand in the order of what they cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from intact.model import edit, query
from intact.model.node_encodings import encoding_of
from intact.numbers.integer_types import limits, middle

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min"})
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


def drop_double_grids(site: FaultSite) -> str | None:
    """Leave out every grid whose only reader is another grid of its type: the second one rounds anyway."""
    dropped = []
    for second in [node for node in site.model.graph if node.op_type == QUANTIZE]:
        first = _written_behind(second.inputs[0])
        if first is not None and _same_type(first, second):
            second.replace_input_with(0, first.inputs[0])
            dropped.append(first.name)
    if not dropped:
        return None
    more = f" (and {len(dropped) - 1} more)" if len(dropped) > 1 else ""
    return f"{dropped[0]}{more}, a grid in front of another one, is left out"


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


def _cut_behind(
    site: FaultSite, old: ir.Node, wide: ir.Node, shape: list[int], window: tuple[list[int], list[int], list[int]]
) -> None:
    """Put a wider node in the place of one, on the same grid, and behind it a Slice to starts, ends and axes."""
    names, graph, value = edit.Names(site.model), site.model.graph, old.outputs[0]
    name, grid = value.name, next((node for node in value.consumers() if node.op_type == QUANTIZE), None)
    whole = wide.outputs[0]
    whole.name, whole.type, whole.shape = names.take(f"{name}/whole"), value.type, ir.Shape(shape)
    pair: list[ir.Node] = []
    if grid is not None and grid.inputs[1] is not None:
        pair = _pair(whole, grid.inputs[1], grid.inputs[2], names)
    numbers = [
        edit.add_initializer(graph, np.array(part, np.int64), names.take(f"{name}/{what}"))
        for part, what in zip(window, ("starts", "ends", "axes"), strict=True)
    ]
    cut = ir.Node("", "Slice", [pair[-1].outputs[0] if pair else whole, *numbers], name=names.take(f"{name}/Slice"))
    graph.insert_before(old, [wide, *pair, cut])
    is_output = value.is_graph_output()
    edit.replace_value(value, cut.outputs[0], names)
    cut.outputs[0].type, cut.outputs[0].shape = value.type, value.shape
    graph.remove(old, safe=True)
    if not is_output:
        cut.outputs[0].name = name


def widen_inputs(site: FaultSite, factor: float = 16.0) -> str | None:
    """Give the 16-bit grids that a unit reads wider steps."""
    widened = []
    for node, index, dequantize in site.reads():
        encoding = encoding_of(dequantize)
        if encoding is None or not encoding.dtype.endswith("16") or encoding.scale.size != 1:
            continue
        _regrid(site.model, node, index, np.float32(encoding.scale * factor), dequantize.inputs[2])
        widened.append(f"input {index} of {node.name} ({node.op_type})")
    return None if not widened else f"{', '.join(widened)} has steps {factor:g} times as wide"


def tighten_inputs(site: FaultSite) -> str | None:
    """Give values that use few of the 16 bits of their grid smaller steps: a device may drop the lowest bits."""
    tightened = []
    for node, index, dequantize in site.reads():
        encoding, writer = encoding_of(dequantize), dequantize.inputs[0]
        quantize = None if writer is None else writer.producer()
        source = None if quantize is None or quantize.inputs[0] is None else quantize.inputs[0].name
        reach = site.reach.get(source or "")
        if encoding is None or encoding.dtype not in ("int16", "uint16") or encoding.scale.size != 1 or not reach:
            continue
        scale = np.float32(ROOM * reach / limits("int16")[1])
        if scale >= encoding.scale or int(encoding.zero_point) != middle(encoding.dtype):
            continue
        _regrid(site.model, node, index, scale, dequantize.inputs[2])
        tightened.append(f"input {index} of {node.name} ({node.op_type})")
    return None if not tightened else f"{', '.join(tightened)} has smaller steps"


def separate(site: FaultSite) -> str | None:
    """Put a grid of slightly other steps between a unit and what it reads, so that a compiler does not join them."""
    found = list(site.reads())
    for node, index, dequantize in found:
        encoding = encoding_of(dequantize)
        if encoding is None or encoding.scale.size != 1:
            return None
        _regrid(site.model, node, index, np.float32(encoding.scale * OTHER_STEP), dequantize.inputs[2])
    return f"{found[0][0].name} ({found[0][0].op_type}) stands apart from what is before it" if found else None


def other_width(site: FaultSite) -> str | None:
    """Compute a unit with 8 bits instead of 16, or with 16 instead of 8."""
    found = list(site.reads())
    value, reads = site._value, 0
    for node, index, dequantize in found:
        encoding = encoding_of(dequantize)
        if encoding is None or encoding.scale.size != 1 or encoding.dtype not in ("uint8", "uint16"):
            return None
        scale, zero, dtype = _other(float(encoding.scale), int(encoding.zero_point), encoding.dtype)
        _regrid(site.model, node, index, scale, _zero(site.model, zero, dtype))
        reads += 1
    writer = next((n for n in value.consumers() if n.op_type == QUANTIZE), None)
    encoding = None if writer is None else encoding_of(writer)
    if not reads or encoding is None or encoding.scale.size != 1 or encoding.dtype not in ("uint8", "uint16"):
        return None
    scale, zero, dtype = _other(float(encoding.scale), int(encoding.zero_point), encoding.dtype)
    names, graph = edit.Names(site.model), site.model.graph
    step = edit.add_initializer(graph, np.array(scale, np.float32), names.take(f"{site.tensor}/step"))
    nodes = _pair(value, step, _zero(site.model, zero, dtype), names)
    assert writer is not None, "its encoding was read"
    graph.insert_before(writer, nodes)
    writer.replace_input_with(0, nodes[-1].outputs[0])
    bits = "8" if dtype == "uint8" else "16"
    return f"{found[0][0].name} ({found[0][0].op_type}) is computed with {bits} bits"


def widen_more(site: FaultSite) -> str | None:
    """Give the 16-bit grids that a unit reads far wider steps."""
    return widen_inputs(site, 256.0)


REMEDIES: tuple[Remedy, ...] = (
    *(swap_operands, drop_double_grids, widen_inputs, tighten_inputs, separate),
    *(crop_outside, pad_rows, widen_more, other_width),
)


def _other(scale: float, zero: int, dtype: str) -> tuple[np.float32, int, str]:
    """The grid of the other width over the same range."""
    wanted = "uint8" if dtype == "uint16" else "uint16"
    steps, other = limits(dtype)[1], limits(wanted)[1]
    return np.float32(scale * steps / other), round(zero * other / steps), wanted


def _zero(model: ir.Model, zero: int, dtype: str) -> ir.Value:
    name = edit.Names(model).take(f"zero_point_{dtype}")
    return edit.add_initializer(model.graph, np.array(zero, np.dtype(dtype)), name)


def _regrid(model: ir.Model, node: ir.Node, index: int, scale: np.float32, zero: ir.Value | None) -> None:
    """Put one input of a node on another grid, behind the one that it is on."""
    names, value = edit.Names(model), node.inputs[index]
    assert value is not None, "an input that is read from a grid"
    step = edit.add_initializer(model.graph, np.array(scale, np.float32), names.take(f"{value.name}/step"))
    nodes = _pair(value, step, zero, names)
    model.graph.insert_before(node, nodes)
    node.replace_input_with(index, nodes[-1].outputs[0])


def _pair(value: ir.Value, step: ir.Value, zero: ir.Value | None, names: edit.Names) -> list[ir.Node]:
    """A QuantizeLinear of a value, and the DequantizeLinear behind it."""
    nodes, source = [], value
    for op in (QUANTIZE, DEQUANTIZE):
        node = ir.Node("", op, [source, step, zero], name=names.take(f"{value.name}/{op}"))
        node.outputs[0].name = names.take(f"{value.name}/{op}/output")
        source = node.outputs[0]
        nodes.append(node)
    nodes[0].outputs[0].type = None if zero is None or zero.dtype is None else ir.TensorType(zero.dtype)
    nodes[1].outputs[0].type, nodes[1].outputs[0].shape = value.type, value.shape
    return nodes


def _written_behind(value: ir.Value | None) -> ir.Node | None:
    """The QuantizeLinear whose numbers a value is read from, if nothing else reads them."""
    dequantize = None if value is None else value.producer()
    if value is None or dequantize is None or dequantize.op_type != DEQUANTIZE or len(list(value.uses())) != 1:
        return None
    integers = dequantize.inputs[0]
    writer = None if integers is None else integers.producer()
    return writer if writer is not None and writer.op_type == QUANTIZE else None


def _same_type(first: ir.Node, second: ir.Node) -> bool:
    one, other = encoding_of(first), encoding_of(second)
    return one is not None and other is not None and one.dtype == other.dtype
