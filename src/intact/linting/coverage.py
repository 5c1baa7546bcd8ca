"""Q and DQ nodes that are missing, do nothing, or do at run time what belongs into the file."""

from __future__ import annotations

import onnx_ir as ir

from intact.linting import nearby
from intact.linting.check import Check, Severity
from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import EXACT, Rule
from intact.model import edit, query
from intact.numbers import integer
from intact.results import Application

_LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_TWO_OPERANDS = ("Add", "Concat", "Div", "Mul", "Sub")
# Operators that hand one tensor on: the first move it or cut it off and need no grid of their own, the others do.
_RESHAPING = ("Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
_MOVING = ("Clip", "MaxPool", "Min", "Relu", *_RESHAPING)
_BENDING = ("AveragePool", "Elu", "Erf", "Gelu", "GlobalAveragePool", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish")
_PASSING = (*_MOVING, *_BENDING, "Selu", "Sigmoid", "Softplus", "Tanh")


class MissingEncoding(Check):
    """A float tensor stands between two quantized operators, or goes into one.

    Both operators read quantized inputs, but the tensor that goes from one to the other has no QuantizeLinear and
    DequantizeLinear; or the weight and the result of an operator are quantized, and its input is not. A CPU computes
    the operator in float; an NPU has no encoding for the tensor, and either refuses the operator or leaves it to the
    CPU.

    Fix: quantize the tensor, for example by quantizing the float model again with intact.
    """

    code = "Q115"
    severity = Severity.WARNING
    remedy = "put a QuantizeLinear and a DequantizeLinear on the tensor, or quantize the float model again"

    def fault(self, node: ir.Node) -> str | None:
        if node.op_type not in _LINEAR + _TWO_OPERANDS or not any(map(nearby.dequantizer, node.inputs)):
            return None
        if node.op_type in _LINEAR and _is_float_between(node):
            return f"reads {node.inputs[0].name!r} in float, although its weight and its result are quantized"  # type: ignore[union-attr]
        # The bias of a linear operator is no activation.
        for value in node.inputs[: 2 if node.op_type in _LINEAR else None]:
            source = _source(value)
            if source is not None and any(map(_is_activation, source.inputs)):
                assert value is not None, "a source is that of a value"
                return f"reads {value.name!r}, which comes from {source.name} ({source.op_type}) without a grid"
        return None


class DeadQuantization(Check, Rule):
    """Q(DQ(x, s, z), s, z) = x: a QuantizeLinear or DequantizeLinear does nothing, or nothing uses it.

    Requantizing to the same grid changes no integer, and a node whose output nothing reads does no work. They cost
    time on simple runtimes and hide patterns from optimizers.

    Fix: `--fix` removes them.
    """

    code = "Q116"
    severity = Severity.INFO
    remedy = "--fix removes it"
    exactness = EXACT

    def fault(self, node: ir.Node) -> str | None:
        if is_dead(node):
            return "nothing uses its result"
        source = nearby.dequantizer(node.inputs[0]) if node.op_type == "QuantizeLinear" else None
        if source is None or not _same_grid(source, node):
            return None
        return f"it returns to the grid that {source.name} came from"

    def pattern(self, op: Patterns, x: Var, s: Var, t: Var, y: Var | None = None, z: Var | None = None) -> Roots:
        return op.QuantizeLinear(op.DequantizeLinear(x, s, y, _shared=True, _name="first"), t, z, _name="second")

    def check(self, first: ir.Node, second: ir.Node) -> str | None:
        return None if _same_grid(first, second) else "the two grids differ"

    def rewrite(self, op: Builder, x: ir.Value) -> ir.Value:
        return x


class FloatStoredWeight(Check, Rule):
    """Q(w, s, z) = w' for a constant w: a weight is stored as float and quantized again in every session.

    The file is four times (for 4-bit weights eight times) as large as it has to be, and compilers that want integer
    constants do not recognise the weight.

    Fix: `--fix` stores the integers.
    """

    code = "Q117"
    severity = Severity.WARNING
    remedy = "--fix stores the integers in place of the floats"
    exactness = EXACT

    def fault(self, node: ir.Node) -> str | None:
        if node.op_type != "QuantizeLinear" or node.domain != "" or _doubt(node) is not None:
            return None
        return f"it quantizes the constant {node.inputs[0].name!r}"  # type: ignore[union-attr]

    def pattern(self, op: Patterns, x: Var, s: Var, z: Var | None = None) -> Roots:
        return op.QuantizeLinear(op.constant(x), s, z, _name="node")

    def check(self, node: ir.Node) -> str | None:
        return _doubt(node)

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        x, scale, zero = (query.constant(value) for value in node.inputs)
        at = nearby.axis(node)
        assert x is not None and scale is not None and zero is not None and at is not None, "the check saw them"
        integers = integer.quantize_linear(x, scale, zero, axis=at, block_size=nearby.block_size(node))
        return op.constant(ir.tensor(integers, dtype=node.inputs[2].dtype), "integers")  # type: ignore[union-attr]


def remove_dead(model: ir.Model) -> tuple[Application, ...]:
    """Remove every QuantizeLinear and DequantizeLinear that nothing uses, in place."""
    dead = [node for node in query.all_nodes(model) if is_dead(node)]
    edit.remove_dead(reversed(dead))
    return tuple(Application("remove_dead_quantization", node.name or "", EXACT.value) for node in dead)


def is_dead(node: ir.Node) -> bool:
    """True if the node is a Q or DQ whose result goes nowhere, or to dead DQ nodes only."""
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or node.outputs[0].is_graph_output():
        return False
    return all(is_dead(user) for user in query.consumers(node.outputs[0]))


def _is_float_between(node: ir.Node) -> bool:
    """True if the weight and the result of a linear operator are quantized, and what it multiplies is not."""
    data, weight = node.inputs[:2]
    if nearby.dequantizer(weight) is None or not any(nearby.quantizers_of(node.outputs[0])):
        return False
    return not query.is_constant(data) and not _is_on_grid(data) and _source(data) is None


def _is_on_grid(value: ir.Value | None) -> bool:
    """True if the value is dequantized, or was before it was moved."""
    while value is not None and nearby.dequantizer(value) is None:
        node = value.producer()
        value = node.inputs[0] if node is not None and node.op_type in _MOVING else None
    return value is not None


def _is_activation(value: ir.Value | None) -> bool:
    """True if the value is dequantized and computed: weights alone may be on a grid, beside float activations."""
    node = nearby.dequantizer(value)
    return node is not None and not query.is_constant(node.inputs[0])


def _source(value: ir.Value | None) -> ir.Node | None:
    """The operator that a float tensor comes from, seen through operators that pass it on."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type in _PASSING and node.inputs[0] is not None:
        if nearby.dequantizer(node.inputs[0]) is not None:
            return None if node.op_type in _MOVING else node
        node = node.inputs[0].producer()
    if node is None or node.op_type not in _LINEAR + _TWO_OPERANDS:
        return None
    return node


def _same_grid(first: ir.Node, second: ir.Node) -> bool:
    """True if a QuantizeLinear undoes a DequantizeLinear: type, scale, zero point and axis are the same."""
    before, after = first.inputs[0], second.outputs[0]
    if before is None or before.dtype is None or before.dtype != after.dtype:
        return False
    if not query.same_constant(first.inputs[1], second.inputs[1]):
        return False
    zeros = nearby.zero_point(first), nearby.zero_point(second)
    if zeros[0] is None or zeros[1] is None or (zeros[0].reshape(-1) != zeros[1].reshape(-1)).any():
        return False
    scales = nearby.scale(first)
    if scales is None or not (scales > 0).all():
        return False
    one = scales.size == 1
    return one or (nearby.axis(first), nearby.block_size(first)) == (nearby.axis(second), nearby.block_size(second))


def _doubt(node: ir.Node) -> str | None:
    """Refuse a quantized constant whose integers cannot be worked out here."""
    data, scale = query.constant(node.inputs[0]), query.constant(node.inputs[1])
    zero = query.input_(node, 2)
    if data is None or scale is None or data.dtype != scale.dtype or data.dtype.name != "float32":
        return "the weight or its scale is not a float32 constant"
    if zero is None or query.constant(zero) is None or zero.dtype is None or not zero.dtype.is_integer():
        return "the zero point, and with it the type, is not an integer constant"
    if not (scale > 0).all() or nearby.axis(node) is None:
        return "the scale is not positive"
    return None
