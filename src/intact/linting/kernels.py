"""Integer kernels that ONNX Runtime fuses into although they do not take what the operator does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from intact.linting import nearby
from intact.linting.check import Finding, Isolated, Severity, fence
from intact.matching.builder import Builder
from intact.model import normalize, query
from intact.numbers.integer_types import INT32_MAX

MICROSOFT = "com.microsoft"
_WHERE = "QLinearWhere"
# Above this, float32 rounds whole numbers to multiples of 8.
_EIGHTS_IN_FLOAT32 = 2**26
# What QLinearGlobalAveragePool takes for x_scale / (y_scale · elements).
_LEAST_MEAN, _MOST_MEAN = 2.0**-32, 256.0


class WhereZeroPoint(Isolated):
    """A Where chooses between integers whose zero point is not constant.

    QLinearWhere works out tables when the session is made, from zero points that are not there yet: where one is an
    input of the graph, an initializer that an input may override, or computed from either. ONNX Runtime fuses
    DequantizeLinear → Where → QuantizeLinear into it without looking at that.

    Measured (ONNX Runtime 1.31.1): the process dies of a segmentation fault when the session is made.

    Fix: make the zero points initializers that are no inputs. `--fix` keeps the node out of the fusion, and takes a
    QLinearWhere apart; it then computes in float.
    """

    code = "Q121"
    severity = Severity.ERROR
    ops = ("Where", _WHERE)
    domains = ("", MICROSOFT)
    remedy = "--fix keeps the node out of the integer kernel: an input passes a Min that changes nothing"

    def fault(self, node: ir.Node) -> str | None:
        for zero_point in _zero_points(node):
            if _may_vary(zero_point):
                return f"the zero point {zero_point.name!r} of what it chooses from is not constant"
        return None

    def kills(self, model: ir.Model) -> Iterator[Finding]:
        """The kernels of the model with which no session can be made, whatever its optimizations are."""
        return (finding for finding in self.find(model) if finding.op == _WHERE)

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        if node.op_type != _WHERE:
            return super().rewrite(op, node)
        condition, first, second, grid = node.inputs[0], node.inputs[1:4], node.inputs[4:7], node.inputs[7:9]
        real = op.DequantizeLinear(*first)
        real.dtype = ir.DataType.FLOAT
        return op.QuantizeLinear(op.Where(condition, fence(op, real), op.DequantizeLinear(*second)), *grid)


def _zero_points(node: ir.Node) -> list[ir.Value]:
    """The zero points of the two operands of a Where that is a kernel, or that becomes one."""
    if node.op_type == _WHERE:
        found = [query.input_(node, 3), query.input_(node, 6)]
    elif _becomes_kernel(node, node.inputs[1:]):
        found = [query.input_(source, 2) for source in map(nearby.dequantizer, node.inputs[1:]) if source is not None]
    else:
        found = []
    return [value for value in found if value is not None]


def _may_vary(value: ir.Value) -> bool:
    """True if the value depends on an input of the graph; what does not is folded before anything is fused."""
    seen, left = set(), [value]
    while left:
        current = left.pop()
        producer = current.producer()
        if normalize.OVERRIDABLE in current.meta or (producer is None and not query.is_constant(current)):
            return True
        if producer is not None and producer not in seen:
            seen.add(producer)
            left += [item for item in producer.inputs if item is not None]
    return False


class KernelOverflow(Isolated):
    """The scales around an operator are so far apart that its integer kernel overflows.

    QLinearAdd, QLinearMul and QLinearAveragePool turn their result, in steps of the output, into an int32 before they
    cut it off at the ends of 8 bits; QLinearAdd adds zero points in float32 as well, which rounds 2²⁶ steps to eights.
    QLinearGlobalAveragePool takes x_scale / (y_scale · elements) from 2⁻³² up to 256 only. Scales that far apart come
    from tensors that are practically zero.

    Measured (ONNX Runtime 1.31.1): beyond int32 results turn around, 255 steps off; an Add with x_scale / y_scale of
    10⁶ is 2 steps off; GlobalAveragePool stops with "parameter out of computation range".

    Fix: give the output a range that its inputs can have. `--fix` keeps the node out of the fusion; it then computes
    in float.
    """

    code = "Q122"
    severity = Severity.ERROR
    ops = ("Add", "AveragePool", "GlobalAveragePool", "Mul")
    remedy = "--fix keeps the node out of the integer kernel: an input passes a Min that changes nothing"

    def fault(self, node: ir.Node) -> str | None:
        if not _becomes_kernel(node, node.inputs):
            return None
        for reader in nearby.readers_of_8_bits(node):
            step = query.scalar(query.input_(reader, 1))
            fault = None if step is None or not step > 0 else _overflow(node, float(step))
            if fault is not None:
                return fault
        return None


def _overflow(node: ir.Node, step: float) -> str | None:
    """Describe how the kernel for the node fails where its output has steps of this size."""
    if node.op_type == "GlobalAveragePool":
        return _out_of_proportion(node, step)
    extents = [_extent(value) for value in node.inputs]
    if any(extent is None for extent in extents):
        return None
    known = [extent for extent in extents if extent is not None]
    steps = (math.prod(known) if node.op_type == "Mul" else sum(known)) / step
    most = _EIGHTS_IN_FLOAT32 if node.op_type == "Add" else INT32_MAX
    return None if steps <= most else f"its results reach {steps:.6g} steps of its output, the kernel holds {most}"


def _out_of_proportion(node: ir.Node, step: float) -> str | None:
    source, shape = nearby.dequantizer(node.inputs[0]), query.static_shape(node.inputs[0])
    scale = None if source is None else query.scalar(query.input_(source, 1))
    if scale is None or not math.isfinite(scale) or shape is None or not math.prod(shape[2:]):
        return None
    ratio = float(scale) / (step * math.prod(shape[2:]))
    if _LEAST_MEAN <= ratio < _MOST_MEAN:
        return None
    return f"x_scale / (y_scale · elements) is {ratio:.6g}, the kernel takes 2^-32 up to {_MOST_MEAN:g}"


def _extent(value: ir.Value | None) -> float | None:
    """The largest magnitude that a dequantized value can have, or None where its grid is not known."""
    source = nearby.dequantizer(value)
    scale = None if source is None else query.scalar(query.input_(source, 1))
    if source is None or scale is None or not math.isfinite(scale):
        return None
    return nearby.reach(source) * float(scale)


def _becomes_kernel(node: ir.Node, operands: Iterable[ir.Value | None]) -> bool:
    """True if ONNX Runtime makes an integer kernel of the node: 8 bits go in everywhere, and come out."""
    return all(map(nearby.reads_8_bits, operands)) and any(nearby.readers_of_8_bits(node))


WHERE = WhereZeroPoint()
