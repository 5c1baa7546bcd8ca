"""SpaceToDepth and DepthToSpace from the Reshape, Transpose and Reshape that exporters leave."""

from __future__ import annotations

import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Output, Patterns, Roots, Var
from intact.matching.rewriter import EXACT, Rule
from intact.model import query


class FuseSpaceToDepth(Rule):
    """Reshape(Transpose(Reshape(x, N C H/b b W/b b), 0 3 5 1 2 4), N C·b² H/b W/b) = SpaceToDepth(x, b)."""

    exactness = EXACT
    creates = (("", "SpaceToDepth"),)

    def pattern(self, op: Patterns, x: Var, inner: Var, outer: Var) -> Roots:
        return _shuffle(op, x, inner, outer, (0, 3, 5, 1, 2, 4))

    def check(self, x: ir.Value, first: ir.Node, root: ir.Node) -> str | None:
        shapes = _shapes(x, first, root)
        if shapes is None:
            return "a shape is unknown, or not of rank 4, 6 and 4"
        (n, c, h, w), inside, after = shapes
        b = inside[3]
        fits = inside == (n, c, h // b, b, w // b, b) and after == (n, c * b * b, h // b, w // b)
        return None if fits and b > 1 else f"{list(inside)} does not cut {[n, c, h, w]} into blocks"

    def rewrite(self, op: Builder, x: ir.Value, first: ir.Node) -> ir.Value:
        return op.SpaceToDepth(x, blocksize=query.known_shape(first.outputs[0])[3])


class FuseDepthToSpace(Rule):
    """Reshape(Transpose(Reshape(x, N b b C/b² H W), 0 3 4 1 5 2), N C/b² H·b W·b) = DepthToSpace(x, b, DCR).

    With N C/b² b b H W and 0 1 4 2 5 3 it is DepthToSpace(x, b, CRD), which torch calls PixelShuffle.
    """

    exactness = EXACT
    creates = (("", "DepthToSpace"),)

    def pattern(self, op: Patterns, x: Var, inner: Var, outer: Var) -> Roots:
        depth_first = _shuffle(op, x, inner, outer, (0, 3, 4, 1, 5, 2))
        return op.any_of(depth_first, _shuffle(op, x, inner, outer, (0, 1, 4, 2, 5, 3)))

    def check(self, x: ir.Value, first: ir.Node, transpose: ir.Node, root: ir.Node) -> str | None:
        shapes = _shapes(x, first, root)
        if shapes is None:
            return "a shape is unknown, or not of rank 4, 6 and 4"
        (n, c, h, w), inside, after = shapes
        b, depth = inside[2], c // inside[2] ** 2
        blocks = (b, b, depth) if _mode(transpose) == "DCR" else (depth, b, b)
        fits = inside == (n, *blocks, h, w) and after == (n, depth, h * b, w * b)
        return None if fits and b > 1 else f"{list(inside)} does not spread {[n, c, h, w]} into blocks"

    def rewrite(self, op: Builder, x: ir.Value, first: ir.Node, transpose: ir.Node) -> ir.Value:
        size = query.known_shape(first.outputs[0])[2]
        return op.DepthToSpace(x, blocksize=size, mode=_mode(transpose))


def _shuffle(op: Patterns, x: Var, inner: Var, outer: Var, perm: tuple[int, ...]) -> Output:
    first = op.Reshape(x, inner, _name="first")
    return op.Reshape(op.Transpose(first, _attrs={"perm": perm}, _name="transpose"), outer, _name="root")


def _mode(transpose: ir.Node) -> str:
    return "DCR" if query.ints(transpose, "perm")[1] == 3 else "CRD"


def _shapes(x: ir.Value, first: ir.Node, root: ir.Node) -> tuple[tuple[int, ...], ...] | None:
    found = [query.static_shape(value) for value in (x, first.outputs[0], root.outputs[0])]
    if [None if shape is None else len(shape) for shape in found] != [4, 6, 4]:
        return None
    return tuple(shape for shape in found if shape is not None)
