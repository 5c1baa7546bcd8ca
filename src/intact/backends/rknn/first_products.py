"""Integer products and turns at the inputs of a model, in the forms that the compiler gives to others by itself.

Rockchip's compiler does not end on products of several rows, nor on a Transpose in other than four dimensions: it
adds and removes the same Reshape for ever (rknn-toolkit2 2.5.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from intact.model import edit, query
from intact.targets.provider_placement import CONVERSIONS

_PRODUCTS = ("Gemm", "MatMul")
_MOVES = ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Identity", *CONVERSIONS)
# The rank of images, in which the compiler computes.
_RANK = 4


def rewrite_first_products(model: ir.Model, names: edit.Names) -> None:
    """Write products with a constant as convolutions of 1 × 1, row by row, and others in four dimensions."""
    for node in [node for node in query.all_nodes(model) if node.op_type in _PRODUCTS and _is_first(node)]:
        if not _is_plain(node):
            continue
        weight = _weight(node)
        if weight is not None:
            _Rewriting(node, names).convolve(weight)
        elif not any(map(query.is_constant, node.inputs)) and len(node.inputs) == 2:
            _Rewriting(node, names).raise_rank()


def rewrite_first_turns(model: ir.Model, names: edit.Names) -> None:
    """Write a Transpose right behind the grid of an input in four dimensions, with the grid behind the Reshape."""
    for node in [node for node in query.all_nodes(model) if node.op_type == "Transpose"]:
        grid = _input_grid(node)
        if grid is not None:
            _Rewriting(node, names).turn(*grid)


def _input_grid(node: ir.Node) -> tuple[ir.Node, ir.Node] | None:
    """The nodes that bring an input to a grid and back, if a node reads that in other than four dimensions."""
    value = node.inputs[0]
    back = None if value is None else value.producer()
    if value is None or back is None or back.op_type != "DequantizeLinear" or back.inputs[0] is None:
        return None
    there, shape = back.inputs[0].producer(), query.static_shape(value)
    if there is None or there.op_type != "QuantizeLinear" or shape is None:
        return None
    if len(shape) == _RANK or len(_long(shape)) > _RANK:
        return None
    x, scale = there.inputs[:2]
    one_grid = query.is_constant(scale) and query.known_constant(scale).ndim == 0
    return (there, back) if x is not None and x.is_graph_input() and one_grid else None


def _long(shape: Sequence[int]) -> list[int]:
    """The axes that have more than one value."""
    return [axis for axis, size in enumerate(shape) if size != 1]


def _is_first(node: ir.Node) -> bool:
    """True if a product of several rows in integers reads an input of the model, moved at most."""
    shape, value = query.static_shape(node.inputs[0]), node.inputs[0]
    in_integers = all(source is not None and source.op_type == "DequantizeLinear" for source in _sources(node))
    if shape is None or query.static_shape(node.outputs[0]) is None or not in_integers:
        return False
    if len(shape) >= _RANK or prod(shape[:-1]) == 1:
        return False
    while value is not None and (source := value.producer()) is not None and source.op_type in _MOVES:
        value = source.inputs[0]
    return value is not None and value.is_graph_input()


def _sources(node: ir.Node) -> list[ir.Node | None]:
    return [None if value is None else value.producer() for value in node.inputs[:2]]


def _is_plain(node: ir.Node) -> bool:
    """True if nothing is transposed or scaled but the weight, and a bias is one number for each column."""
    factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return (
        factors == [1.0, 1.0]
        and node.attributes.get_int("transA", 0) == 0
        and (bias is None or query.static_shape(bias) == query.known_shape(node.outputs[0])[-1:])
    )


def _weight(node: ir.Node) -> ir.Node | None:
    """The DequantizeLinear of a constant matrix with one grid, or one for each column; None for any other weight."""
    found = None if node.inputs[1] is None else node.inputs[1].producer()
    if found is None or found.op_type != "DequantizeLinear" or not all(map(query.is_constant, found.inputs)):
        return None
    columns = 0 if node.attributes.get_int("transB", 0) else 1
    along = found.attributes.get_int("axis", 1) % 2
    per_column = along == columns or query.known_constant(found.inputs[1]).ndim == 0
    return found if per_column and query.rank(found.inputs[0]) == 2 else None


class _Rewriting:
    """A product that gives way to nodes in front of it."""

    def __init__(self, node: ir.Node, names: edit.Names) -> None:
        assert isinstance(node.graph, ir.Graph), f"{node.name} is in a graph"
        self.node, self.graph, self.names = node, node.graph, names

    def convolve(self, weight: ir.Node) -> None:
        """A convolution, with what brings rows to pixels and back."""
        x, _, *bias = self.node.inputs
        levels = query.known_constant(weight.inputs[0])
        kernel = (levels if self.node.attributes.get_int("transB", 0) else levels.T)[:, :, None, None]
        *outer, inner = query.known_shape(x)
        pixels = self._reshaped(x, (prod(outer), inner, 1, 1), "rows")
        filters = self._added(
            "DequantizeLinear", [self._constant(kernel, "kernel"), *weight.inputs[1:]], "weight", axis=0
        )
        self._replace(self._added("Conv", [pixels, filters, *bias], "pixels"))

    def raise_rank(self) -> None:
        """The same product in four dimensions."""
        sides = [
            self._reshaped(value, (*[1] * (_RANK - len(shape)), *shape), word)
            for value, word in zip(self.node.inputs, ("rows", "columns"), strict=True)
            for shape in [query.known_shape(value)]
        ]
        self._replace(self._added("MatMul", sides, "product"))

    def turn(self, there: ir.Node, back: ir.Node) -> None:
        """The same Transpose in four dimensions, behind a grid in as many."""
        shape = query.known_shape(there.inputs[0])
        kept = _long(shape)
        more = _RANK - len(kept)
        usual = tuple(reversed(range(len(shape))))
        turned = [kept.index(axis) + more for axis in query.ints(self.node, "perm", default=usual) if axis in kept]
        order = [*range(more), *turned]
        pixels = self._reshaped(there.inputs[0], (*[1] * more, *(shape[axis] for axis in kept)), "pixels")
        levels = self._added("QuantizeLinear", [pixels, *there.inputs[1:]], "levels")
        zero = query.input_(there, 2)
        levels.dtype = (None if zero is None else zero.dtype) or ir.DataType.UINT8
        values = self._added("DequantizeLinear", [levels, *back.inputs[1:]], "values")
        self._replace(self._added("Transpose", [values], "turned", perm=order))

    def _replace(self, found: ir.Value) -> None:
        result = self.node.outputs[0]
        last = self._reshaped(found, query.known_shape(result), "result")
        edit.describe_as(last, result)
        edit.replace_value(result, last, self.names)
        edit.remove_dead([self.node])

    def _reshaped(self, value: ir.Value | None, shape: tuple[int, ...], word: str) -> ir.Value:
        return self._added("Reshape", [value, self._constant(np.array(shape), f"{word}_shape")], word)

    def _constant(self, array: np.ndarray, word: str) -> ir.Value:
        return edit.add_initializer(
            self.graph, np.ascontiguousarray(array), self.names.take(f"{self.node.name}_{word}")
        )

    def _added(
        self, op: str, inputs: Sequence[ir.Value | None], word: str, **attributes: int | Sequence[int]
    ) -> ir.Value:
        name = self.names.take(f"{self.node.name}_{word}")
        node = ir.Node("", op, inputs, ir.convenience.convert_attributes(attributes), name=name)
        node.outputs[0].name, node.outputs[0].dtype = self.names.take(f"{name}_output"), ir.DataType.FLOAT
        self.graph.insert_before(self.node, node)
        return node.outputs[0]
