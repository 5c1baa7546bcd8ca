"""Lifts values that are too small for half precision by powers of two, which linear layers take on and give back.

With w(v) = 2^k(v): what a layer reads and writes may have factors of their own, since those of its weights make up for
it; what is positively homogeneous hands on the factor of its input; what adds has one for all operands. Factors are
powers of two, so that nothing is rounded. An output that is lifted is brought back on two grids of 16 bits, whose steps
may be as small as float32 holds: there the device multiplies integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import field

import numpy as np
import onnx_ir as ir

from intact.model import edit, query
from intact.model.copying import copied
from intact.quantization.float16.keep import LARGEST, LEAST_NORMAL
from intact.records import dataclass
from intact.targets.spec import Target

LINEAR = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
JOINED = frozenset({"Add", "Concat", "Max", "Min", "Sub", "Sum"})
HOMOGENEOUS = frozenset(
    {
        *("Abs", "AveragePool", "DepthToSpace", "Expand", "Flatten", "Gather", "GlobalAveragePool", "GlobalMaxPool"),
        *("Identity", "LeakyRelu", "MaxPool", "Neg", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu"),
        *("Reshape", "Resize", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)
# Where some values are too small, all that are below this are lifted: else weights between them would be too small.
SMALL = 0.5
# Outputs that were not seen may be so many times as large as those that were.
ROOM = 4.0
# The type of the integers that bring outputs back, and the greatest of them.
WIDE, MOST = "uint16", 65535


@dataclass(frozen=True, slots=True)
class Lifted:
    """A model whose small values are lifted, and the exponent of each output that is, with its least and greatest."""

    model: ir.Model
    outputs: Mapping[str, LiftedOutput]
    tensors: int


@dataclass(frozen=True, slots=True)
class LiftedOutput:
    """The exponent of an output's factor, and the ends of its values with it."""

    exponent: int
    low: float
    high: float


@dataclass(slots=True)
class _Groups:
    """Values that have one factor, as trees of which the root stands for all; those in `fixed` have the factor 1."""

    above: dict[ir.Value, ir.Value] = field(default_factory=dict)
    fixed: set[ir.Value] = field(default_factory=set)

    def root(self, value: ir.Value) -> ir.Value:
        while (upper := self.above.get(value, value)) is not value:
            value = upper
        return value

    def tie(self, first: ir.Value, second: ir.Value) -> None:
        one, other = self.root(first), self.root(second)
        self.above[one] = other
        if one in self.fixed:
            self.fixed.add(other)

    def fix(self, value: ir.Value) -> None:
        self.fixed.add(self.root(value))


def takes_back(target: Target) -> bool:
    """True if a target multiplies integers of 16 bits, which outputs are brought back with."""
    spec = target.op("", "Mul")
    arch = target.arch or 0
    return spec is not None and any(
        row.runs == "integer" and row.arch <= arch and all(WIDE in slot.types for slot in (*row.inputs, *row.outputs))
        for row in spec.signatures
    )


def lift(model: ir.Model, ends: Mapping[str, tuple[float, float]], *, outputs_too: bool = True) -> Lifted | None:
    """Lift what is too small by the least and greatest values of tensors; None where nothing can be done about it.

    Without `outputs_too`, outputs keep their values, and so does what shares their factor.
    """
    groups = _groups(model)
    for value in () if outputs_too else model.graph.outputs:
        groups.fix(value)
    exponents = _exponents(model, groups, ends)
    if not any(exponents.values()):
        return None
    factors = {
        value.name or "": exponents[root]
        for value in _floats(model)
        if exponents.get(root := groups.root(value)) and not query.is_constant(value)
    }
    result = copied(model)
    if not _write(result, factors):
        return None
    outputs = {}
    for value in model.graph.outputs:
        name = value.name or ""
        if name in factors:
            low, high = (end * 2.0 ** factors[name] for end in ends[name])
            outputs[name] = LiftedOutput(factors[name], low, high)
    return Lifted(result, outputs, len(factors))


def _floats(model: ir.Model) -> Iterator[ir.Value]:
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    yield from (value for value in values if value.dtype == ir.DataType.FLOAT)


def _read(node: ir.Node) -> list[ir.Value]:
    """The floats that a node reads and that are computed."""
    found = [value for value in node.inputs if value is not None and value.dtype == ir.DataType.FLOAT]
    return [value for value in found if not query.is_constant(value)]


def _groups(model: ir.Model) -> _Groups:
    groups, inside = _Groups(), set(model.graph)
    for value in model.graph.inputs:
        groups.fix(value)
    for value in _floats(model):
        # What a body reads has to stay as it is.
        if any(user not in inside for user in value.consumers()):
            groups.fix(value)
    for node in model.graph:
        read, written = _read(node), [value for value in node.outputs if value.dtype == ir.DataType.FLOAT]
        if _is_linear(node):
            continue
        hands_on = node.op_type in HOMOGENEOUS and read == [node.inputs[0]]
        if node.domain == "" and read and (hands_on or node.op_type in JOINED):
            for value in (*read[1:], *written):
                groups.tie(value, read[0])
        else:
            for value in (*read, *written):
                groups.fix(value)
    return groups


def _is_linear(node: ir.Node) -> bool:
    """True for a layer that multiplies a computed tensor by constant weights, with a constant bias if any."""
    if node.domain != "" or node.op_type not in LINEAR or len(_read(node)) != 1 or _read(node)[0] is not node.inputs[0]:
        return False
    return node.outputs[0].dtype == ir.DataType.FLOAT


def _exponents(model: ir.Model, groups: _Groups, ends: Mapping[str, tuple[float, float]]) -> dict[ir.Value, int]:
    """The exponent of each group that is lifted: its greatest value comes to lie between 1 and 2."""
    reach: dict[ir.Value, float] = {}
    for value in _floats(model):
        low, high = ends.get(value.name or "", (0.0, 0.0))
        root = groups.root(value)
        reach[root] = max(reach.get(root, 0.0), -low, high)
    return {
        root: -math.floor(math.log2(most))
        for root, most in reach.items()
        if 0 < most < SMALL and root not in groups.fixed
    }


def _write(model: ir.Model, factors: Mapping[str, int]) -> bool:
    """Multiply constants so that values have their factors; False where a constant would leave half precision."""
    names = edit.Names(model)
    for node in model.graph:
        after = factors.get(node.outputs[0].name or "", 0)
        before = next((factors.get(value.name or "", 0) for value in _read(node)), 0)
        for index, value in enumerate(node.inputs):
            array = None if value is None or value.dtype != ir.DataType.FLOAT else query.constant(value)
            exponent = _exponent_of(node, index, before, after)
            if value is None or array is None or not exponent:
                continue
            scaled = np.ldexp(array, exponent)
            reach = float(np.abs(scaled).max(initial=0.0))
            if reach > LARGEST or 0 < reach < LEAST_NORMAL:
                return False
            constant = edit.add_initializer(model.graph, scaled, names.take(f"{value.name}_lifted"))
            node.replace_input_with(index, constant)
    edit.prune(model)
    return True


def _exponent_of(node: ir.Node, index: int, before: int, after: int) -> int:
    """The exponent of a constant's factor: of weights the result's less the input's, of what is added the result's."""
    if _is_linear(node):
        return after - before if index == 1 else after
    return after if node.domain == "" and node.op_type in JOINED else 0


def bring_back(model: ir.Model, outputs: Mapping[str, LiftedOutput]) -> None:
    """Divide outputs by their factors, in place: on a grid of 16 bits, times a constant, onto one with small steps."""
    names = edit.Names(model)
    for index, value in enumerate(model.graph.outputs):
        lifted = outputs.get(value.name or "")
        if lifted is not None:
            model.graph.outputs[index] = _brought_back(model.graph, names, value, lifted)
    edit.prune(model)


def _brought_back(graph: ir.Graph, names: edit.Names, value: ir.Value, lifted: LiftedOutput) -> ir.Value:
    name = value.name or ""
    step, zero = _grid(lifted)
    factor = 2.0**-lifted.exponent
    numbers = {
        "step": np.float32(step),
        "zero_point": np.uint16(zero),
        "small_step": np.float32(step * factor),
        "factor": np.array([MOST], np.uint16),
        "factor_step": np.float32(factor / MOST),
        "no_zero_point": np.uint16(0),
    }
    made = {
        what: edit.add_initializer(graph, np.asarray(number), names.take(f"{name}_{what}"))
        for what, number in numbers.items()
    }
    value.name = names.take(f"{name}_lifted")
    tail, source = _Tail(graph, names, value), _before_cast(value)
    assert source.dtype is not None, "outputs of a normalised model have types"
    half = edit.add_initializer(graph, np.asarray(step, source.dtype.numpy()), names.take(f"{name}_half_step"))
    written = tail.add("QuantizeLinear", source, half, made["zero_point"])
    first = tail.add("DequantizeLinear", written, made["step"], made["zero_point"])
    constant = tail.add("DequantizeLinear", made["factor"], made["factor_step"], made["no_zero_point"])
    small = tail.add("QuantizeLinear", tail.add("Mul", first, constant), made["small_step"], made["zero_point"])
    last = tail.add("DequantizeLinear", small, made["small_step"], made["zero_point"])
    last.name = name
    return last


def _grid(lifted: LiftedOutput) -> tuple[float, int]:
    """The step and the zero point of a grid that holds more than was seen; the step is a power of two, as half has."""
    low, high = min(0.0, ROOM * lifted.low), max(0.0, ROOM * lifted.high)
    step = 2.0 ** math.ceil(math.log2((high - low) / (MOST - 1)))
    return step, math.ceil(-low / step)


def _before_cast(value: ir.Value) -> ir.Value:
    """The value in half precision of which an output is the Cast; the output where it is none."""
    producer = value.producer()
    source = producer.inputs[0] if producer is not None and producer.op_type == "Cast" else None
    return source if source is not None and source.dtype == ir.DataType.FLOAT16 else value


@dataclass(frozen=True, slots=True)
class _Tail:
    """Nodes behind an output."""

    graph: ir.Graph
    names: edit.Names
    like: ir.Value

    def add(self, op: str, *inputs: ir.Value) -> ir.Value:
        """The result of an operator; of a constant with its own shape, else like the output."""
        node = ir.Node("", op, list(inputs), name=self.names.take(f"{self.like.name}/{op}"))
        value = node.outputs[0]
        value.name = self.names.take(f"{self.like.name}/{op}/result")
        kind = ir.DataType.UINT16 if op == "QuantizeLinear" else ir.DataType.FLOAT
        value.type = ir.TensorType(kind)
        value.shape = inputs[0].shape if query.is_constant(inputs[0]) else self.like.shape
        self.graph.append(node)
        return value
