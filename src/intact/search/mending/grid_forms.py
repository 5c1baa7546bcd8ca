"""Other forms of a unit by the grids around it: wider or smaller steps, another width, or a grid more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from intact.model import edit, query
from intact.model.node_encodings import encoding_of
from intact.numbers.encoding import Encoding
from intact.numbers.integer_types import limits, middle
from intact.records import dataclass
from intact.search.mending.fault_site import FaultSite, grid_pair
from intact.targets.operands import DEQUANTIZE, QUANTIZE

OTHER = {"uint8": "uint16", "uint16": "uint8"}
WIDE = ("int16", "uint16")
# Layers whose bias is added to their products.
BIASED = frozenset({"Conv", "ConvTranspose", "Gemm"})
# A grid of so much other steps is another one for a compiler, and nearly the same for the numbers.
OTHER_STEP = 1.0 + 2.0**-7
# Values that were not seen may be so many times as large as those that were.
ROOM = 4.0
# Where finer steps are for accuracy alone, values may be so many times as large as those of the few rows seen here.
SOME_ROOM = 1.25
# Values that fill so much of their grid gain little by one of their own.
MOST_FILLED = 0.75
# The greatest number of the upper half of 16 bits.
UPPER = 255
# The part of a product's range that what is left of an operand's 8 upper bits can fill.
REST_OF_A_PRODUCT = 1.0 / 32


def widen_inputs(site: FaultSite, factor: float = 16.0) -> str | None:
    """Give the 16-bit grids that a unit reads wider steps."""
    found = _regrid_reads(site, lambda old, _: _scaled(old, factor) if old.dtype in WIDE else None)
    return f"{', '.join(found)} has steps {factor:g} times as wide" if found else None


def widen_more(site: FaultSite) -> str | None:
    """Give the 16-bit grids that a unit reads far wider steps."""
    return widen_inputs(site, 256.0)


def tighten_inputs(site: FaultSite) -> str | None:
    """Give values that use few of the 16 bits of their grid smaller steps: a device may drop the lowest bits."""
    most = {name: ROOM * max(-low, high) for name, (low, high) in site.seen.items() if high > low}

    def choose(old: Encoding, source: str) -> Encoding | None:
        if old.dtype not in WIDE or source not in most or int(old.zero_point) != middle(old.dtype):
            return None
        factor = most[source] / (float(old.scale) * limits("int16")[1])
        return _scaled(old, factor) if factor < 1 else None

    found = _regrid_reads(site, choose)
    held = ", ".join(f"{source} up to {value:.4g}" for source, value in most.items())
    return f"{', '.join(found)} has smaller steps, which hold {held}" if found else None


def fit_operand(site: FaultSite) -> str | None:
    """Give 16 computed bits that a product is made with a grid of their own: a device may drop the lower half of them.

    What shares its grid with other values, as parts of one tensor do, has fewer bits to lose.
    """
    node = next((n for n in site.nodes if n.op_type == "MatMul" and n.outputs[0].name == site.tensor), None)

    def choose(old: Encoding, source: str) -> Encoding | None:
        low, high = (SOME_ROOM * end for end in site.seen.get(source, (0.0, 0.0)))
        steps = limits(old.dtype)[1] - limits(old.dtype)[0]
        if old.dtype != "uint16" or not 0 < high - low < MOST_FILLED * float(old.scale) * steps:
            return None
        # Its upper half is a grid as well, so that dropping the lower one moves no zero.
        zero_point = round(-low / (high - low) * UPPER) * (UPPER + 2)
        return replace(old, scale=np.asarray((high - low) / steps, np.float32), zero_point=np.asarray(zero_point))

    found = _regrid_reads(site, choose, lambda reader, index: reader is node and index == 1)
    return f"{', '.join(found)} has a grid of its own, which holds more than was seen" if found else None


def separate(site: FaultSite) -> str | None:
    """Put a grid of slightly other steps between a unit and what it reads, so that a compiler does not join them."""
    found = _regrid_reads(site, lambda old, _: _scaled(old, OTHER_STEP))
    return f"{', '.join(found)} stands apart from what is before it" if found else None


def other_width(site: FaultSite) -> str | None:
    """Compute a unit with 8 bits instead of 16, or with 16 instead of 8."""
    value = site.value
    writer = next((n for n in value.consumers() if n.op_type == QUANTIZE), None)
    written = None if writer is None else encoding_of(writer)
    if writer is None or written is None or written.scale.size != 1 or written.dtype not in OTHER:
        return None
    before = _read_before(site, OTHER[written.dtype])
    found = _regrid_reads(site, lambda old, _: _other(old) if old.dtype == written.dtype else None)
    if not found and not before:
        return None
    # What only moves numbers writes the grid that it reads.
    moved = [wide for old, wide in before if old.same_grid(written) and _covers(wide, old)]
    pair = grid_pair(site.model, value, moved[0] if moved and not found else _other(written))
    site.model.graph.insert_before(writer, pair)
    writer.replace_input_with(0, pair[-1].outputs[0])
    node = site.nodes[0]
    return f"{node.name} ({node.op_type}) is computed with {8 if OTHER[written.dtype] == 'uint8' else 16} bits"


def _read_before(site: FaultSite, wide: str) -> list[tuple[Encoding, Encoding]]:
    """Read what was on a grid of 16 bits right before its own from there; return these grids, the own ones first."""
    changed = []
    for node, index, dequantize in list(site.reads()) if wide in WIDE else ():
        written = dequantize.inputs[0]
        quantize = None if written is None else written.producer()
        source = None if quantize is None else quantize.inputs[0]
        before = None if source is None else source.producer()
        if source is None or before is None or before.op_type != DEQUANTIZE:
            continue
        own, encoding = encoding_of(dequantize), encoding_of(before)
        if own is not None and encoding is not None and encoding.dtype == wide and encoding.scale.size == 1:
            _keep_bias(site, node, index, float(encoding.scale.max() / own.scale.max()))
            node.replace_input_with(index, source)
            changed.append((own, encoding))
    return changed


def _covers(wide: Encoding, narrow: Encoding) -> bool:
    """True if a grid reaches as far as another one, but for a step of its own."""
    (low, high), (least, most) = wide.ends(), narrow.ends()
    return bool(low <= least + wide.scale and high >= most - wide.scale)


def _keep_bias(site: FaultSite, node: ir.Node, index: int, factor: float) -> None:
    """Give a bias the steps of its products where those of an input become so many times as wide.

    A device takes the integers of a bias as multiples of such steps, whatever its grid says.
    """
    read = node.inputs[2].producer() if index < 2 and len(node.inputs) > 2 and node.inputs[2] is not None else None
    if read is None or node.op_type not in BIASED or read.op_type != DEQUANTIZE:
        return
    integers, encoding = query.constant(read.inputs[0]), encoding_of(read)
    if integers is None or encoding is None or encoding.dtype != "int32":
        return
    rescaled = np.rint(integers / np.float64(factor))
    if np.abs(rescaled).max(initial=0) > limits("int32")[1]:
        return
    names, graph, name = edit.Names(site.model), site.model.graph, f"{site.tensor}/bias"
    constants = [rescaled.astype(np.int32), (encoding.scale * np.float64(factor)).astype(np.float32)]
    values = [
        edit.add_initializer(graph, one, names.take(name + end))
        for one, end in zip(constants, ("", "/step"), strict=True)
    ]
    other = ir.Node(
        "", DEQUANTIZE, [*values, *read.inputs[2:]], read.attributes.values(), name=names.take(f"{name}/{DEQUANTIZE}")
    )
    result, old = other.outputs[0], read.outputs[0]
    result.name, result.type, result.shape = names.take(f"{name}/values"), old.type, old.shape
    graph.insert_before(node, other)
    node.replace_input_with(2, result)


def finer(model: ir.Model) -> ir.Model:
    """A copy with 16 bits for all activations of 8, over the same ranges: as if they were not rounded, but clipped."""
    result = model.clone()
    names = edit.Names(result)
    for quantize in [node for node in result.graph if node.op_type == QUANTIZE]:
        grid = encoding_of(quantize)
        if grid is None or grid.dtype not in OTHER or grid.dtype in WIDE or grid.scale.size != 1:
            continue
        wide, written = _other(grid), quantize.outputs[0]
        numbers = (wide.scale.reshape(()), wide.zero_point.reshape(()).astype(np.dtype(wide.dtype)))
        constants = [edit.add_initializer(result.graph, n, names.take(f"{written.name}/finer")) for n in numbers]
        written.type = ir.TensorType(ir.DataType.UINT16)
        for node in (quantize, *(user for user in written.consumers() if user.op_type == DEQUANTIZE)):
            node.replace_input_with(1, constants[0])
            node.replace_input_with(2, constants[1])
    return result


def split_operand(site: FaultSite) -> str | None:
    """Multiply by 16 computed bits as by two operands of 8: a device may drop the lower half of a second operand."""
    node = next((n for n in site.nodes if n.op_type == "MatMul" and n.outputs[0].name == site.tensor), None)
    second = None if node is None else node.inputs[1]
    read = next((d for n, index, d in site.reads() if n is node and index == 1), None)
    writer = None if node is None else next((n for n in node.outputs[0].consumers() if n.op_type == QUANTIZE), None)
    grid, result = (None if one is None else encoding_of(one) for one in (read, writer))
    if node is None or second is None or grid is None or result is None:
        return None
    if grid.dtype != "uint16" or grid.scale.size != 1 or result.dtype != "uint16" or result.scale.size != 1:
        return None
    coarse = _other(grid)
    # What is left differs from the coarse grid by half a step of it; by a whole one where its ends are other ones.
    left = replace(grid, scale=np.asarray(coarse.scale / middle("uint16")), zero_point=np.asarray(middle("uint16")))
    draft = _NodesBefore(site, node)
    upper = draft.on(second, coarse)
    rest = draft.on(draft.add("Sub", second, draft.on(upper, grid)), left, _other(left))
    products = [
        draft.on(draft.add("MatMul", node.inputs[0], upper, like=node.outputs[0]), result),
        draft.on(draft.add("MatMul", node.inputs[0], rest, like=node.outputs[0]), _scaled(result, REST_OF_A_PRODUCT)),
    ]
    for index, value in enumerate(products):
        node.replace_input_with(index, value)
    node.op_type = "Add"
    return f"{node.name} (MatMul) multiplies by 16 bits in two halves of 8"


@dataclass(frozen=True, slots=True)
class _NodesBefore:
    """Nodes that are put in front of one."""

    site: FaultSite
    before: ir.Node

    def add(self, op: str, *inputs: ir.Value | None, like: ir.Value | None = None) -> ir.Value:
        """A node of an operator, and its result, of the type and shape of another value."""
        names, like = edit.Names(self.site.model), like or inputs[0]
        node = ir.Node("", op, list(inputs), name=names.take(f"{self.before.name}/{op}"))
        value = node.outputs[0]
        value.name = names.take(f"{self.site.tensor}/{op}")
        value.type, value.shape = (None, None) if like is None else (like.type, like.shape)
        self.site.model.graph.insert_before(self.before, node)
        return value

    def on(self, value: ir.Value, *grids: Encoding) -> ir.Value:
        """A value on one grid after the other."""
        for grid in grids:
            pair = grid_pair(self.site.model, value, grid)
            self.site.model.graph.insert_before(self.before, pair)
            value = pair[-1].outputs[0]
        return value


def _regrid_reads(
    site: FaultSite,
    choose: Callable[[Encoding, str], Encoding | None],
    concerns: Callable[[ir.Node, int], bool] = lambda node, index: True,
) -> list[str]:
    """Put what the unit reads on other grids, behind those that it is on; return the inputs that got one."""
    changed = []
    for node, index, dequantize in [read for read in site.reads() if concerns(*read[:2])]:
        encoding, written = encoding_of(dequantize), dequantize.inputs[0]
        quantize = None if written is None else written.producer()
        source = None if quantize is None else quantize.inputs[0]
        is_plain = encoding is not None and encoding.scale.size == 1
        other = choose(encoding, source.name or "") if encoding and is_plain and source is not None else None
        value = node.inputs[index]
        if encoding is not None and other is not None and value is not None:
            pair = grid_pair(site.model, value, other)
            site.model.graph.insert_before(node, pair)
            _keep_bias(site, node, index, float(other.scale.max() / encoding.scale.max()))
            node.replace_input_with(index, pair[-1].outputs[0])
            changed.append(f"input {index} of {node.name} ({node.op_type})")
    return changed


def _scaled(old: Encoding, factor: float) -> Encoding:
    return replace(old, scale=np.asarray(old.scale * np.float32(factor), np.float32))


def _other(old: Encoding) -> Encoding:
    """The grid of the other width over the same range."""
    factor = limits(old.dtype)[1] / limits(OTHER[old.dtype])[1]
    return replace(_scaled(old, factor), dtype=OTHER[old.dtype], zero_point=np.rint(old.zero_point / factor))
