"""Layers that read a tensor, as far as dividing its channels and multiplying their weights changes their error."""

from __future__ import annotations

import functools

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.numbers.integer_types import limits
from intact.quantization.improve.linear_layers import Convolution, Linear, MatrixProduct, linear
from intact.records import dataclass
from intact.results import WeightPlan

# Error feedback in rounding leaves about this share of the weights' error in the outputs.
AFTER_FEEDBACK = 0.4


@dataclass(slots=True)
class Reader:
    """A layer that reads a tensor, its weights seen as [groups, outputs, channels, taps of the kernel].

    `reach` are the largest weights as [groups, outputs, channels], `energy` sums of squares as [groups, channels].
    """

    node: ir.Node
    plan: WeightPlan
    view: Linear
    taps: int
    reach: np.ndarray
    energy: np.ndarray

    @classmethod
    def of(cls, node: ir.Node, plan: WeightPlan) -> Reader | None:
        """The reader that a node is of its first input, or None where its channels are not on the usual axis."""
        seen = _seen(node, plan)
        if seen is None:
            return None
        view, grouped = seen
        taps = grouped.shape[3]
        energy = np.einsum("goct,goct->gc", grouped, grouped).astype(np.float64)
        # A maximum along an axis of a few taps takes several times longer.
        reach = functools.reduce(np.maximum, (np.abs(grouped[..., tap]) for tap in range(taps)))
        return cls(node, plan, view, taps, reach.astype(np.float64), energy)

    @property
    def channels(self) -> int:
        """The number of channels of the tensor."""
        return self.energy.size

    @property
    def largest(self) -> np.ndarray:
        """The largest weight of each channel."""
        return np.asarray(self.reach.max(axis=1).reshape(-1))

    def error(self, scales: np.ndarray, noise: float, power: np.ndarray) -> float:
        """Expected squared error of the outputs with weights multiplied by `scales`, relative to the weights' energy.

        `noise` is the mean square that rounding leaves in each divided channel, `power` the mean square of each.
        """
        scales = scales.reshape(self.energy.shape)
        largest = (self.reach * scales[:, None, :]).max(axis=2)
        if self.plan.axis is None:
            largest = np.full_like(largest, largest.max())
        weight_noise = AFTER_FEEDBACK * rounding_noise(self.plan.dtype, largest)
        read = self.taps * (power.reshape(scales.shape) / scales**2).sum(axis=1)
        error = noise * float((self.energy * scales**2).sum()) + float((weight_noise * read[:, None]).sum())
        return error / max(float(self.energy.sum()), 1e-30)

    def multiplied(self, scales: np.ndarray) -> np.ndarray:
        """The weight with each channel multiplied by its scale."""
        columns = np.repeat(scales, self.taps).reshape(len(self.energy), 1, -1)
        return self.view.weight(self.view.matrix(_weight(self.node, self.plan)) * columns)


def rounding_noise(dtype: str, largest: np.ndarray) -> np.ndarray:
    """The mean square that rounding to a symmetric grid as large as `largest` adds."""
    qmin, qmax = limits(dtype)
    return np.asarray((2 * largest / (qmax - qmin)) ** 2 / 12)


def channels_read(node: ir.Node, plan: WeightPlan) -> int | None:
    """The number of channels that a node reads of its first input, or None where it is no `Reader` of it."""
    seen = _seen(node, plan)
    return None if seen is None else seen[1].shape[0] * seen[1].shape[2]


def _seen(node: ir.Node, plan: WeightPlan) -> tuple[Linear, np.ndarray] | None:
    """A layer's linear view, and its weights as [groups, outputs, channels, taps of the kernel]."""
    weight = _weight(node, plan)
    view = linear(node, weight, plan.index)
    if view is None or (isinstance(view, MatrixProduct) and view.input_transposed):
        return None
    taps = int(np.prod(weight.shape[2:])) if isinstance(view, Convolution) else 1
    matrix = view.matrix(weight)
    return view, matrix.reshape(*matrix.shape[:2], -1, taps)


def _weight(node: ir.Node, plan: WeightPlan) -> np.ndarray:
    array = query.constant(node.inputs[plan.index])
    assert array is not None, "planned weights are constants"
    return array
