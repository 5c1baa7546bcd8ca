"""Pools with one window, which is larger than the image."""

from __future__ import annotations

import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, Rule
from intact.model import query


class PoolWholeImage(Rule):
    """AveragePool(x) = GlobalAveragePool(x) where its one window ends beyond the image, up to the order of the sum.

    What is beyond does not count, not even where pads do. Networks are written so that take images of any size up to
    that of the window.
    """

    exactness = BOUNDED
    creates = (("", "GlobalAveragePool"),)

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return op.AveragePool(x, _name="pool")

    def check(self, x: ir.Value, pool: ir.Node) -> str | None:
        sizes = (query.static_shape(x) or ())[2:]
        kernel = query.ints(pool, "kernel_shape")
        if not sizes or len(kernel) != len(sizes) or set((query.static_shape(pool.outputs[0]) or (0, 0, 0))[2:]) != {1}:
            return "it has several windows, or a shape is unknown"
        if any(window < size for window, size in zip(kernel, sizes, strict=True)) or kernel == sizes:
            return f"windows of {list(kernel)} do not end beyond {list(sizes)} numbers"
        pads, dilations = query.ints(pool, "pads"), query.ints(pool, "dilations")
        padded = any(pads) or query.string(pool, "auto_pad", "NOTSET") != "NOTSET" or {*dilations, 1} != {1}
        return "it has pads, or skips numbers" if padded else None

    def rewrite(self, op: Builder, x: ir.Value) -> ir.Value:
        return op.GlobalAveragePool(x)
