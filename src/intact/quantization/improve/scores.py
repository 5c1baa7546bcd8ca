"""Evens out the channels of queries and keys: each channel of the one is divided by what the other is multiplied by.

q · k = (q / s) · (s · k) for any scale s per channel and head, folded into the weights of both projections. It costs
their weights nothing where these have a scale per channel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.quantization.improve.channel_ranges import HALVES, Channels
from intact.quantization.improve.editor import Editor
from intact.quantization.improve.fold import Fold, find_fold
from intact.records import dataclass
from intact.results import QuantPlan

# Exponents of the reach of the first operand's channels, and of the second's.
_EXPONENTS = list(itertools.product((0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.25, 0.5, 0.75, 1.0)))
# How many times less error must be expected on samples that the scales do not come from.
_WORTH_IT = 1.2


@dataclass(slots=True)
class ScoreProduct:
    """A product of two computed tensors, and what divides the channels that it sums over."""

    node: ir.Node
    folds: tuple[Fold, Fold]
    first: Channels
    second: Channels

    @classmethod
    def of(cls, node: ir.Node, plan: QuantPlan) -> ScoreProduct | None:
        """The product that a node is, if both operands can be divided and have grids to themselves."""
        if node.op_type != "MatMul" or node.domain or node.name not in plan.nodes:
            return None
        left, right = node.inputs
        shapes = query.static_shape(left), query.static_shape(right)
        if left is None or right is None or shapes[0] is None or shapes[1] is None or len(shapes[0]) < 3:
            return None
        heads, rank = shapes[0][1:-2], len(shapes[0])
        if len(shapes[1]) != rank or shapes[1][1:-2] != heads:
            return None
        labels = np.arange(int(np.prod(heads)) * shapes[0][-1]).reshape(1, *heads, 1, shapes[0][-1])
        first = find_fold(left, labels, [node])
        second = find_fold(right, labels.swapaxes(-1, -2), [node])
        if first is None or second is None or _shares_grids(first, plan) or _shares_grids(second, plan):
            return None
        types = [
            plan.grids[plan.tensors[plan.entry(v.name or "", node.name or "", i)]].dtype
            for i, v in ((0, left), (1, right))
        ]
        axes = tuple(range(1, rank - 2))
        return cls(node, (first, second), Channels((*axes, rank - 1), types[0]), Channels((*axes, rank - 2), types[1]))

    def watched(self) -> Iterator[tuple[str, Channels]]:
        """Both operands."""
        for value, seen in zip(self.node.inputs, (self.first, self.second), strict=True):
            assert value is not None and value.name, "operands have names"
            yield value.name, seen

    def apply(self, editor: Editor) -> str | None:
        """Divide one operand, multiply the other, if the gain is worth it."""
        if not (self.first.was_seen and self.second.was_seen):
            return None
        errors = [self._error(pair) for pair in _EXPONENTS]
        least = int(np.argmin(errors))
        if self._error((0.0, 0.0)) < _WORTH_IT * errors[least]:
            return None
        scales = self._scales(_EXPONENTS[least])
        editor.divide(self.folds[0], scales)
        editor.divide(self.folds[1], 1 / scales)
        return self.node.outputs[0].name

    def _error(self, exponents: tuple[float, float]) -> float:
        """Expected squared error of the product with scales from one half of the samples on the other half."""
        total = 0.0
        for half in HALVES:
            scales = self._scales(exponents, 1 - half)
            total += self.first.noise(scales, half) * float((self.second.power * scales**2).sum())
            total += self.second.noise(1 / scales, half) * float((self.first.power / scales**2).sum())
        return total

    def _scales(self, exponents: tuple[float, float], half: int | None = None) -> np.ndarray:
        """Scales that leave both operands equally large."""
        first, second = self.first.reach(half), self.second.reach(half)
        scales = first ** exponents[0] / second ** exponents[1]
        return np.asarray(scales * np.sqrt((first / scales).max() / (second * scales).max()))


def _shares_grids(fold: Fold, plan: QuantPlan) -> bool:
    """True if a grid also holds values that are not divided: their range would have to hold what grows."""
    return any((labels < 0).any() and value.name in plan.tensors for value, labels in fold.divided)
