"""The tail of a product of integers up to the next grid: as one affine map, and as its own kernels compute it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.numbers import integer
from intact.records import dataclass
from intact.rules.quantized import affine, integer_layers
from intact.rules.quantized import grid_relations as grid
from intact.rules.quantized.affine import Affine
from intact.rules.quantized.grid_relations import not_one_grid
from intact.rules.quantized.operand import Operand, dq_operand, input_operand, output_operand, q_operand


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """The nodes that follow a product: its integers (channels, n) go through `run` to the grid `output`."""

    affine: Affine
    output: Operand
    run: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """The result of a product as the node after it reads it: its grid, its rank, and the axis of its channels."""

    value: ir.Value
    grid: Operand
    channels: int
    rank: int
    axis: int


def of_operator(head: Head, last: ir.Node) -> Tail | str:
    """A QLinearAdd or QLinearMul of the product and a constant; text says why it is no such map."""
    is_first = last.inputs[0] is head.value
    k = input_operand(last, 3 if is_first else 0)
    numbers = _constant_operand(k, head)
    if isinstance(numbers, str):
        return numbers
    adds = last.op_type == "QLinearAdd"
    a, b, c = (input_operand(last, 0), input_operand(last, 3), output_operand(last, 6))
    doubt = not_one_grid(output=c) or (integer_layers.added_in_float(c, k) if adds else None)
    map_ = doubt or _constant_map(_real(numbers, k), adds)
    if isinstance(map_, str):
        return map_

    def run(levels: np.ndarray) -> np.ndarray:
        column = numbers[:, None]
        pair = (levels, column) if is_first else (column, levels)
        compute = integer.qlinear_add if adds else integer.qlinear_mul
        grids = [(np.float32(item.step), item.zero_level) for item in (a, b, c)]
        return compute(pair[0], *grids[0], pair[1], *grids[1], *grids[2])

    return Tail(map_, c, run)


def of_requantize(head: Head, last: ir.Node) -> Tail | str:
    """A DQ, on the grid of the product or on another, and a Q."""
    source, output = _source(head), q_operand(last)
    doubt = not_one_grid(source=source)
    if doubt is not None:
        return doubt
    return Tail(_as_read(head, source), output, lambda q: grid.quantize(grid.dequantize(q, source), output))


def of_arithmetic(head: Head, last: ir.Node) -> Tail | str:
    """A DQ, arithmetic with constants, and a Q; text says why the arithmetic is no affine map of each channel."""
    node = last.inputs[0].producer() if last.inputs[0] is not None else None
    assert node is not None, "the pattern has a node before Q"
    source, output, axis = _source(head), q_operand(last), head.axis
    found = not_one_grid(source=source) or affine.of_node(node, head.channels, head.rank, axis)
    if isinstance(found, str):
        return found
    return Tail(
        _as_read(head, source).then(found),
        output,
        lambda q: grid.quantize(affine.run(node, grid.dequantize(q, source), head.rank, axis), output),
    )


def _constant_operand(k: Operand, head: Head) -> np.ndarray | str:
    """The integers of a constant operand, one for each channel."""
    if k.step is None or not (k.zero_point is None or query.is_scalar(k.zero_point)):
        return "the grid of the constant is computed, not constant"
    return affine.per_channel(k.q, query.constant(k.q), head.channels, head.rank, head.axis)


def _constant_map(real: np.ndarray, adds: bool) -> Affine | str:
    if adds:
        return Affine(np.ones(len(real)), real)
    if not (real > 0).all():
        return f"a factor of {real.min():g} cannot go into a scale, which is positive"
    return Affine(real, np.zeros(len(real)))


def _real(numbers: np.ndarray, k: Operand) -> np.ndarray:
    return (numbers.astype(np.int64) - k.zero) * float(np.float32(k.known_step))


def _source(head: Head) -> Operand:
    """The value that the DQ after the product reads."""
    (back,) = query.consumers(head.value)
    return dq_operand(back)


def _as_read(head: Head, source: Operand) -> Affine:
    """The map of a DQ on another grid than the product's; on the same grid it leaves values as they are."""
    factor, shift = source.known_step / head.grid.known_step, (head.grid.zero - source.zero) * source.known_step
    return Affine(np.full(head.channels, factor), np.full(head.channels, shift))
