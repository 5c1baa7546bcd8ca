"""Products of activations and a weight on integers, whatever operator computes them: operands, axes, zero points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Self

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import AnyOf, OpKey, Patterns, Var
from intact.model import query
from intact.records import dataclass
from intact.rules.quantized import integer_layers
from intact.rules.quantized.operand import INT8, MICROSOFT, UINT8, Operand, type_name
from intact.rules.quantized.saturation import SaturationRule
from intact.targets.spec import Forms

CONVOLUTIONS: tuple[OpKey, ...] = (("", "QLinearConv"), ("", "ConvInteger"))
MATRICES: tuple[OpKey, ...] = (
    ("", "QLinearMatMul"),
    ("", "MatMulInteger"),
    (MICROSOFT, "QGemm"),
    (MICROSOFT, "MatMulIntegerToFloat"),
)

# Which inputs are the integers, the scale (if any) and the zero point of the activations, and of the weight.
_PLACES: Mapping[str, tuple[tuple[int, int | None, int], tuple[int, int | None, int]]] = {
    "QLinearConv": ((0, 1, 2), (3, 4, 5)),
    "ConvInteger": ((0, None, 2), (1, None, 3)),
    "QLinearMatMul": ((0, 1, 2), (3, 4, 5)),
    "MatMulInteger": ((0, None, 2), (1, None, 3)),
    "QGemm": ((0, 1, 2), (3, 4, 5)),
    "MatMulIntegerToFloat": ((0, 2, 4), (1, 3, 5)),
}


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A product on integers: Σ (x - x_zero_point)·(w - w_zero_point) along `x_axis` of x and `w_axis` of w."""

    node: ir.Node
    x: Operand
    w: Operand
    x_axis: int
    w_axis: int
    group: int = 1

    @property
    def is_depthwise(self) -> bool:
        """True if each output channel of a convolution sees one input channel only."""
        shape = query.static_shape(self.w.q)
        return self.group > 1 and shape is not None and shape[1] == 1

    @property
    def multiplications(self) -> int | None:
        """The number of products of numbers that are summed up, if shapes are known."""
        output, weight = query.static_shape(self.node.outputs[0]), query.static_shape(self.w.q)
        if output is None or weight is None:
            return None
        return math.prod(output) * (math.prod(weight[1:]) if "Conv" in self.node.op_type else weight[self.w_axis])

    def with_weight(
        self, op: Builder, weight: np.ndarray, x: ir.Value | None = None, *, unsigned: bool = False
    ) -> ir.Value:
        """The same operator with an int8 weight of zero point 0, and perhaps other activations.

        An `unsigned` weight has the same numbers around zero point 128.
        """
        (data, _, _), (integers, _, zero) = _PLACES[self.node.op_type]
        inputs = list(self.node.inputs)
        inputs[data] = inputs[data] if x is None else x
        middle = 128 if unsigned else 0
        dtype = np.uint8 if unsigned else np.int8
        inputs[integers] = op.constant((weight + middle).astype(dtype), "weight")
        inputs[zero] = self._one_zero_point(op, np.array(middle, dtype))
        return op.like(self.node, *inputs)

    def weight_places(self, integers: ir.Value, zero_point: ir.Value) -> dict[int, ir.Value | None]:
        """These integers of a weight and their zero point, by the input of the operator that reads each."""
        place, _, zero = _PLACES[self.node.op_type][1]
        return {place: integers, zero: zero_point}

    def _one_zero_point(self, op: Builder, middle: np.ndarray) -> ir.Value | None:
        """Zero points that are all the same, in the shape that they had; ConvInteger has no kernel for several."""
        zeros = query.known_constant(self.w.zero_point)
        if self.w.scale is None:
            return op.constant(middle, "weight_zero_point") if middle else None
        return op.constant(np.full(zeros.shape, middle), "weight_zero_point")


class DistinctRule(SaturationRule):
    """A rule for weights whose zero points differ by channel, where the target has no kernel for them."""

    def __init__(
        self, saturates: bool = False, taken: frozenset[str] = frozenset(), portable_up_to: tuple[int, ...] = ()
    ) -> None:
        super().__init__(saturates)
        self.taken = taken
        self.portable_up_to = portable_up_to

    def for_target(self, forms: Forms) -> Self:
        return type(self)(forms.saturates, forms.takes_distinct, forms.portable_up_to)

    def has_kernel(self, found: Product) -> str | None:
        """Refuse zero points that may stay: the operator takes them as fast as others, and is large enough for that."""
        if found.node.op_type not in self.taken or self._is_small(found):
            return None
        return f"the target has a kernel for {found.node.op_type} with zero points that differ by channel"

    def _is_small(self, found: Product) -> bool:
        """True if the form for every runtime costs a convolution too little to see."""
        spatial, count = (query.rank(found.w.q) or 0) - 2, found.multiplications
        limits = dict(enumerate(self.portable_up_to, start=1))
        return count is not None and count <= limits.get(spatial, 0)


def product(node: ir.Node) -> Product:
    """The operands and axes of an integer operator of `CONVOLUTIONS` or `MATRICES`."""
    channel_axis = 0 if (node.domain, node.op_type) in CONVOLUTIONS else -1
    x_axis, w_axis, group = (1, 1, query.int_(node, "group", 1)) if channel_axis == 0 else (-1, -2, 1)
    if node.op_type == "QGemm":
        channel_axis = integer_layers.gemm_axis(node)
        x_axis, w_axis = 0 if query.int_(node, "transA", 0) else 1, 1 - channel_axis
    x, w = (_operand(node, place, channel_axis) for place in _PLACES[node.op_type])
    return Product(node, x, w, x_axis, w_axis, group)


def _operand(node: ir.Node, place: tuple[int, int | None, int], axis: int) -> Operand:
    q, zero_point = query.input_(node, place[0]), query.input_(node, place[2])
    assert q is not None, f"{node.op_type} has an input {place[0]}"
    scale = None if place[1] is None else query.input_(node, place[1])
    return Operand(q, scale, zero_point, q.dtype or (None if zero_point is None else zero_point.dtype), axis)


def matches(op: Patterns, keys: Iterable[OpKey]) -> AnyOf:
    """Any operator of these types, whatever its inputs; it binds to `node`."""
    inputs = op.each(Var("inputs", optional=True))
    types: dict[str, list[str]] = {}
    for domain, op_type in keys:
        types.setdefault(domain, []).append(op_type)
    return op.any_of(*(op.node(found, inputs, _domain=domain, _name="node") for domain, found in types.items()))


def not_constant(found: Product) -> str | None:
    """Refuse a weight that is not known minus its zero points, or not of 8 bits."""
    if found.w.zero_point is None:
        return "the weight has no zero point"
    if not query.is_constant(found.w.zero_point):
        return "the zero points of the weight are computed, not constant"
    if not query.is_constant(found.w.q):
        return "the weight is computed, not constant"
    if found.w.dtype not in (UINT8, INT8):
        return f"the weight is {type_name(found.w.dtype)}, not of 8 bits"
    return None


def not_distinct(found: Product) -> str | None:
    """Refuse a weight about whose zero points there is nothing to do, or which is computed."""
    reason = not_constant(found)
    if reason is None and _all_equal(found.w.zeros()):
        return "the weight has the same zero point in every channel"
    return reason


def _all_equal(numbers: np.ndarray) -> bool:
    return bool((numbers == numbers[0]).all())


def centred(found: Product) -> np.ndarray:
    """w - zero_point of a constant weight; zero points that have the rank of the weight broadcast as they are."""
    zeros, integers = query.constant(found.w.zero_point), query.constant(found.w.q)
    assert zeros is not None and integers is not None, "the weight is checked to be constant first"
    if zeros.ndim == integers.ndim:
        return np.asarray(integers.astype(np.int64) - zeros.astype(np.int64))
    return found.w.centred()
