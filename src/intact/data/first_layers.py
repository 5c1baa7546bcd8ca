"""The scale of values that the first layers of a model were made for, and the check that data have it.

A grid that the input is put on tells it, or constants that normalize the input; where neither is there, a `gauge` may
tell. Limits are factors that no sound data reach: a model that was fed 0 to 1 and gets 0 to 255, or the other way
round, is off by 57 to 510.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from intact.data.dataset import Dataset
from intact.data.gauges import gauge, gauge_doubts
from intact.data.input_profile import Extent
from intact.data.symptom import Symptom
from intact.model import query
from intact.numbers.integer_types import limits
from intact.records import dataclass

# Of rows that leave the grid of the input by more than this share of its width, more than half make a symptom.
BEYOND_GRID = 0.5
# A grid this many times as wide as the widest row has lost four bits of it.
GRID_WIDER_BY = 16.0
# Normalized values are some units wide; a factor of this between their width and the constants is no chance.
NORMALIZED_BY = 32.0
# What bytes are divided by to become numbers up to 1 or 2.
BYTE_DIVISORS = (127.0, 256.0)

_ELEMENTWISE = {"Add", "Sub", "Mul", "Div"}
_KEEPS_VALUES = {"Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze"}


def doubts(value: ir.Value, model: ir.Model, rows: Dataset) -> Iterator[Symptom]:
    """Find symptoms in the first layers of the model, fed with these rows of one of its data inputs."""
    extent = rows.profile.extents[value.name or ""]
    yield from _grid_doubts(value, extent, rows.source.where)
    yield from _normalization_doubts(value, extent, rows.source.where)
    found = gauge(value)
    if found is None:
        yield from _pixel_doubts(value, extent, rows.source.where)
    else:
        yield from gauge_doubts(value, found, model, rows)


def _grid_doubts(value: ir.Value, extent: Extent, where: str) -> Iterator[Symptom]:
    """Compare rows with the range of the QuantizeLinear that takes the input."""
    grid = _grid(value)
    if grid is None:
        return
    low, high = grid
    if reaches_beyond(extent, low, high, BEYOND_GRID):
        what = "most rows are cut off"
    elif extent.high > extent.low and (high - low) > GRID_WIDER_BY * extent.widths.max():
        what = "rows fill next to nothing of it"
    else:
        return
    yield Symptom(
        "saturation",
        value.name or "",
        f"{where}: input {value.name} holds {extent}, but the model puts it on a grid of {low:.4g} to {high:.4g}, so "
        f"that {what}; prepare the rows as the inputs were prepared that the model was quantized with",
        doubtful=True,
    )


def reaches_beyond(extent: Extent, low: float, high: float, share: float) -> bool:
    """True if more than half of the rows leave low … high by more than this share of its width."""
    slack = share * (high - low)
    return bool(np.mean((extent.lows < low - slack) | (extent.highs > high + slack)) > 0.5)


def _grid(value: ir.Value) -> tuple[float, float] | None:
    """The range of the one grid that an input is put on first of all, or None."""
    node = query.only_consumer(value)
    while node is not None and node.op_type in _KEEPS_VALUES:
        node = query.only_consumer(node.outputs[0])
    if node is None or node.op_type != "QuantizeLinear":
        return None
    scale, point = query.scalar(node.inputs[1]), query.constant(query.input_(node, 2))
    if scale is None or point is None or point.size != 1 or point.dtype.kind not in "iu":
        return None
    (least, greatest), zero = limits(point.dtype.name), int(point.item())
    return (least - zero) * scale, (greatest - zero) * scale


@dataclass(frozen=True, slots=True)
class InputAffine:
    """`factor * x + offset`, element by element."""

    factor: np.ndarray
    offset: np.ndarray

    def then(self, node: ir.Node, slot: int) -> InputAffine | None:
        """This, followed by arithmetic with a constant; None for anything else."""
        constant = query.constant(node.inputs[1 - slot])
        if constant is None or constant.dtype.kind != "f" or (node.op_type == "Div" and slot == 1):
            return None
        c = constant.astype(np.float64)
        match node.op_type:
            case "Add":
                return InputAffine(self.factor, self.offset + c)
            case "Sub":
                sign = 1.0 if slot == 0 else -1.0
                return InputAffine(sign * self.factor, sign * (self.offset - c))
            case "Mul":
                return InputAffine(self.factor * c, self.offset * c)
            case _:
                return InputAffine(self.factor / c, self.offset / c) if (c != 0).all() else None


def _normalization_doubts(value: ir.Value, extent: Extent, where: str) -> Iterator[Symptom]:
    """Compare rows with the constants that are subtracted from the input and divide it."""
    found = _affine(value)
    widths = extent.widths[extent.widths > 0]
    if not widths.size or not (found.factor != 0).all():
        return
    scale, centre = 1 / np.abs(found.factor), np.abs(found.offset / found.factor)
    if (found.offset != 0).all() and (found.factor != 1).all():
        too_wide = widths.min() > NORMALIZED_BY * max(scale.max(), centre.max())
        too_narrow = NORMALIZED_BY * widths.max() < min(scale.min(), centre.min())
        what = f"subtracts {centre.mean():.4g} from it and divides by {scale.mean():.4g}"
    else:
        too_wide = False
        of_bytes = (found.offset == 0).all() and BYTE_DIVISORS[0] <= scale.min() <= scale.max() <= BYTE_DIVISORS[1]
        too_narrow = of_bytes and extent.low >= 0 and extent.high <= 1
        what = f"divides it by {scale.mean():.4g}"
    if too_wide or too_narrow:
        wanted = "a far narrower range, such as 0 to 1" if too_wide else "a far wider range, such as 0 to 255"
        message = f"{where}: input {value.name} holds {extent}, but the model {what}: it was made for {wanted}"
        yield Symptom("scale", value.name or "", f"{message}; scale the rows as for training", doubtful=True)


def _affine(value: ir.Value) -> InputAffine:
    """The arithmetic with constants that an input goes through before anything else."""
    found = InputAffine(np.ones(()), np.zeros(()))
    while (node := query.only_consumer(value)) is not None:
        is_plain = found.factor.size == found.offset.size == 1
        if node.op_type in _ELEMENTWISE:
            following = found.then(node, node.inputs.index(value))
        else:
            following = found if node.op_type in _KEEPS_VALUES and is_plain else None
        if following is None:
            break
        found, value = following, node.outputs[0]
    return found


def _pixel_doubts(value: ir.Value, extent: Extent, where: str) -> Iterator[Symptom]:
    """Bytes that go into the first convolution as they are: few models were trained so, but some were."""
    affine, node = _affine(value), query.only_consumer(value)
    is_plain = not affine.offset.any() and bool((affine.factor == 1).all())
    convolves = node is not None and node.op_type == "Conv" and query.int_(node, "group", 1) == 1
    if (
        convolves
        and is_plain
        and query.is_float(value)
        and extent.whole
        and extent.low >= 0
        and 127 < extent.high < 256
    ):
        yield Symptom(
            "scale",
            value.name or "",
            f"{where}: input {value.name} holds whole numbers of {extent}, as pixels are that nobody scaled; unless "
            "the model was trained on those, scale the rows as for training",
            doubtful=False,
        )
