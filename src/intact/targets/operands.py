"""Reads what stands at the inputs and outputs of a node, in the words of a target's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.numbers.integer_types import limits as bounds
from intact.numbers.integer_types import middle
from intact.records import dataclass
from intact.targets.spec import UNKNOWN

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
# Operators that compute nothing on a device: they hold constants, or move numbers between grids.
FREE = frozenset({"Constant", QUANTIZE, DEQUANTIZE})
# Said of scales that are no constants: a device plans with numbers that it knows.
COMPUTED = "computed"

# Where a QLinear operator keeps the data, scale and zero point of each operand of the float operator; -1 is absent.
_QLINEAR: Mapping[str, tuple[str, tuple[tuple[int, int, int], ...], tuple[int, int]]] = {
    "QLinearConv": ("Conv", ((0, 1, 2), (3, 4, 5), (8, -1, -1)), (6, 7)),
    "QLinearMatMul": ("MatMul", ((0, 1, 2), (3, 4, 5)), (6, 7)),
}

_FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16}
_INTEGERS = {ir.DataType.INT64, ir.DataType.INT32, ir.DataType.UINT32, ir.DataType.UINT64}


@dataclass(frozen=True, slots=True, eq=False)
class NodeOperand:
    """One input or output of a node: its type, and its grid where it has one."""

    name: str
    type: str
    constant: bool = False
    granularity: str = "tensor"
    axis: int | None = None
    rank: int | None = None
    scale: np.ndarray | None = None
    zero_point: np.ndarray | None = None
    is_one_channel: bool = False
    """True if the scale, a vector of one, is that of an only channel."""

    @property
    def symmetric(self) -> bool:
        """True if every zero point is the middle of the type."""
        return self.zero_point is None or bool((self.zero_point == middle(self.type)).all())

    @property
    def on_grid(self) -> bool:
        """True for integers with a scale."""
        return self.scale is not None

    def same_grid(self, other: NodeOperand) -> bool:
        """True if both have the same type, scale and zero point; operands without a grid share none."""
        if self.scale is None or other.scale is None or self.zero_point is None or other.zero_point is None:
            return False
        return (
            self.type == other.type
            and np.array_equal(self.scale.reshape(-1), other.scale.reshape(-1))
            and np.array_equal(self.zero_point.reshape(-1), other.zero_point.reshape(-1))
        )

    def __str__(self) -> str:
        words = [self.type, *(["constant"] if self.constant else [])]
        words += ["symmetric"] if self.on_grid and self.symmetric else []
        words += [self.granularity] if self.granularity != "tensor" else []
        return " ".join(words)


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """A node as a target sees it: the operator, its operands (None where absent), and what belongs to it.

    `absorbed` are clipping nodes behind it that the grid of its output makes redundant.
    """

    node: ir.Node
    domain: str
    op: str
    inputs: tuple[NodeOperand | None, ...]
    outputs: tuple[NodeOperand, ...]
    absorbed: tuple[ir.Node, ...] = ()


def use_of(node: ir.Node, clipping: frozenset[tuple[str, str]] = frozenset()) -> Use:
    """The operands of `node`; operators in `clipping` are part of their producer where its grid does their work."""
    if node.domain == "" and node.op_type in _QLINEAR:
        return _integer_use(node)
    inputs = tuple(None if value is None else _input(value) for value in node.inputs)
    outputs, absorbed = [], []
    for value in node.outputs:
        operand, taken = _output(value, clipping)
        outputs.append(operand)
        absorbed += taken
    return Use(node, node.domain, node.op_type, inputs, tuple(outputs), tuple(absorbed))


def _integer_use(node: ir.Node) -> Use:
    op, places, (scale, zero_point) = _QLINEAR[node.op_type]
    inputs = [_stored(node, *place) for place in places if query.input_(node, place[0]) is not None]
    output = _on_grid(node.outputs[0], _at(node, scale), _at(node, zero_point), None, 0)
    return Use(node, "", op, tuple(inputs), (output,))


def _stored(node: ir.Node, data: int, scale: int, zero_point: int) -> NodeOperand:
    value = query.input_(node, data)
    assert value is not None, "only present inputs are read"
    # The channels of a QLinear weight are those that its scales are given for: of the filters, or of the columns.
    axis = 0 if node.op_type == "QLinearConv" else -1
    if scale < 0:
        return NodeOperand(_name(value), "int32", query.is_constant(value), rank=query.rank(value))
    return _on_grid(value, _at(node, scale), _at(node, zero_point), axis, 0)


def _at(node: ir.Node, index: int) -> ir.Value | None:
    return query.input_(node, index) if index >= 0 else None


def _input(value: ir.Value) -> NodeOperand:
    producer = value.producer()
    if producer is not None and producer.op_type == DEQUANTIZE:
        stored = producer.inputs[0]
        assert stored is not None, "a DequantizeLinear has an input"
        axis, block = query.int_(producer, "axis", 1), query.int_(producer, "block_size", 0)
        return _on_grid(stored, query.input_(producer, 1), query.input_(producer, 2), axis, block)
    return NodeOperand(_name(value), _plain_type(value), query.is_constant(value), rank=query.rank(value))


def _output(value: ir.Value, clipping: frozenset[tuple[str, str]]) -> tuple[NodeOperand, list[ir.Node]]:
    reader = query.only_consumer(value)
    if reader is not None and (reader.domain, reader.op_type) in clipping:
        behind = query.only_consumer(reader.outputs[0])
        if behind is not None and behind.op_type == QUANTIZE:
            grid = _quantized(behind)
            if _within(grid, *_limits(reader)):
                return grid, [reader]
    if reader is not None and reader.op_type == QUANTIZE:
        return _quantized(reader), []
    return NodeOperand(_name(value), _plain_type(value)), []


def _quantized(node: ir.Node) -> NodeOperand:
    axis, block = query.int_(node, "axis", 1), query.int_(node, "block_size", 0)
    return _on_grid(node.outputs[0], query.input_(node, 1), query.input_(node, 2), axis, block)


def _on_grid(
    value: ir.Value, scale: ir.Value | None, zero_point: ir.Value | None, axis: int | None, block: int
) -> NodeOperand:
    dtype = value.dtype or (zero_point.dtype if zero_point is not None else None)
    kind = UNKNOWN if dtype is None else dtype.name.lower()
    steps = query.constant(scale)
    granularity = "block" if block else _granularity(steps)
    return NodeOperand(
        _name(value),
        kind,
        query.is_constant(value),
        granularity,
        axis if granularity != "tensor" else None,
        query.rank(value),
        # Where a scale is computed its numbers are not known, and matter to nobody here.
        steps if steps is not None else np.ones(1, np.float32),
        _zero_points(zero_point, steps),
        _is_one_channel(value, steps, axis),
    )


def _granularity(steps: np.ndarray | None) -> str:
    """The word for what has one scale; scales that are computed may be anything."""
    return COMPUTED if steps is None else "channel" if steps.size > 1 else "tensor"


def _is_one_channel(value: ir.Value, steps: np.ndarray | None, axis: int | None) -> bool:
    shape = query.static_shape(value)
    if steps is None or steps.ndim != 1 or steps.size != 1 or axis is None or shape is None:
        return False
    return -len(shape) <= axis < len(shape) and shape[axis] == 1


def _zero_points(value: ir.Value | None, steps: np.ndarray | None) -> np.ndarray:
    points = query.constant(value)
    if points is None:
        return np.zeros(1 if steps is None else steps.shape, np.int64)
    return points.astype(np.int64)


def _limits(node: ir.Node) -> tuple[float, float]:
    """The limits of a clipping node: it cuts off below the first number and above the second."""
    if node.op_type == "Relu":
        return 0.0, np.inf
    low, high = (query.scalar(query.input_(node, index)) for index in (1, 2))
    return -np.inf if low is None else low, np.inf if high is None else high


def _within(grid: NodeOperand, low: float, high: float) -> bool:
    """True if the grid holds no number outside the limits, to within a thousandth of a step."""
    if grid.scale is None or grid.zero_point is None or grid.scale.size != 1 or grid.type == UNKNOWN:
        return False
    step, zero = float(grid.scale.reshape(())), int(grid.zero_point.reshape(()))
    least, greatest = bounds(grid.type)
    slack = step / 1000
    return (least - zero) * step >= low - slack and (greatest - zero) * step <= high + slack


def _plain_type(value: ir.Value) -> str:
    if value.dtype is None:
        return UNKNOWN
    if value.dtype in _FLOATS:
        return "float"
    if value.dtype in _INTEGERS:
        return "index"
    return value.dtype.name.lower()


def _name(value: ir.Value) -> str:
    return value.name or "?"


def describe(operands: Sequence[NodeOperand | None]) -> str:
    """The operands in the words of a table."""
    return ", ".join("-" if operand is None else str(operand) for operand in operands)
