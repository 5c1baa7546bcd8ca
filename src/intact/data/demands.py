"""Values that an operator demands of an input: those that decide shapes, and those that have to stay in a range.

A shape that is decided by an input is the one that the graph declares; where it declares none, one that changes
nothing will do: a Reshape to one row, an Expand by 1, a Pad by 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from intact.data.meetings import Meeting, meetings_of
from intact.errors import DataError
from intact.model import query
from intact.records import dataclass

Sizes = tuple[int, ...]

_CLASSES = 4


@dataclass(frozen=True, slots=True)
class Fixed:
    """The one value that the graph demands, flat; `node` is the operator that does."""

    values: tuple[float, ...]
    node: str


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers from `low` to `high`."""

    low: float
    high: float


def demand(value: ir.Value) -> Fixed | Interval | None:
    """The values that some reader demands of an input; None where any will do."""
    found = None
    for meeting in meetings_of(value):
        if meeting.slot in _DECIDES.get(meeting.node.op_type, {}):
            return _decided(value, meeting)
        found = found or _interval(value, meeting)
    return found


def _decided(value: ir.Value, meeting: Meeting) -> Fixed:
    node = meeting.node
    values = _DECIDES[node.op_type][meeting.slot](node)
    elements = query.static_shape(value)
    count = None if elements is None else int(np.prod(elements))
    if values is None and count is not None and meeting.slot in _HARMLESS.get(node.op_type, {}):
        values = _HARMLESS[node.op_type][meeting.slot](count)
    if values is None or count != len(values) or meeting.shift:
        raise DataError(
            "D120",
            f"input {value.name} decides a shape or a position in {node.name} ({node.op_type}), so its values cannot "
            "be made up",
            allowed="synthetic inputs for ids, masks and data, and for shapes of a known rank",
            fix="give --data with real values for it",
        )
    return Fixed(tuple(values), f"{node.name} ({node.op_type})")


def _interval(value: ir.Value, meeting: Meeting) -> Fixed | Interval | None:
    assert value.dtype is not None, "inputs have a type"
    match meeting.node.op_type, meeting.slot:
        case "NonMaxSuppression", (3 | 4):
            return Interval(0.0, 1.0)
        case "NonMaxSuppression", 2:
            return Interval(1, 8)
        case "Dropout", 1:
            return Interval(0.0, 0.5)
        case "Dropout", 2:
            # A training step draws random numbers, which no two runs share.
            return Fixed((0,), f"{meeting.node.name} (Dropout)")
        case "BatchNormalization", 4:
            return Interval(0.5, 2.0)
        case (("LSTM" | "GRU" | "RNN"), 4):
            return _lengths(meeting.node, 0)
        case "ReverseSequence", 1:
            return _lengths(meeting.node, query.int_(meeting.node, "time_axis", 0))
        case (("NegativeLogLikelihoodLoss" | "SoftmaxCrossEntropyLoss"), 1):
            return _classes(meeting.node)
        case (("NegativeLogLikelihoodLoss" | "SoftmaxCrossEntropyLoss"), 2):
            return Interval(0.5, 2.0)
        case (("Div" | "Mod"), 1) if value.dtype.is_integer():
            return Interval(1, 8)
    return None


def _classes(node: ir.Node) -> Interval | None:
    """The labels of the classes that a loss has scores for."""
    shape = query.static_shape(node.inputs[0])
    return None if shape is None else Interval(0, shape[1] - 1)


def _lengths(node: ir.Node, axis: int) -> Interval | None:
    shape = query.static_shape(node.inputs[0])
    return None if shape is None else Interval(1, shape[axis])


Decide = Callable[[ir.Node], "list[float] | None"]


def _result(node: ir.Node) -> list[float] | None:
    """The declared shape of the result."""
    shape = query.static_shape(node.outputs[0])
    return None if shape is None else list(shape)


def _pair(node: ir.Node) -> tuple[Sizes, Sizes] | None:
    """The shapes of the first input and of the result, where they are known and of one rank."""
    before, after = query.static_shape(node.inputs[0]), query.static_shape(node.outputs[0])
    return None if before is None or after is None or len(before) != len(after) else (before, after)


def _axes(node: ir.Node, rank: int) -> list[int]:
    return [axis % rank for axis in query.ints(node, "axes", tuple(range(rank)))]


def _sizes(node: ir.Node) -> list[float] | None:
    shape = _result(node)
    return None if shape is None else [shape[axis] for axis in _axes(node, len(shape))]


def _scales(node: ir.Node) -> list[float] | None:
    shapes = _pair(node)
    if shapes is None or 0 in shapes[0]:
        return None
    return [_ratio(shapes[0][axis], shapes[1][axis]) for axis in _axes(node, len(shapes[0]))]


def _ratio(before: int, after: int) -> float:
    """The scale in float32 that makes one size of the other, which is rounded down."""
    scale = np.float32(after / before)
    return float(scale if int(np.float32(before) * scale) == after else np.nextafter(scale, np.float32(np.inf)))


def _repeats(node: ir.Node) -> list[float] | None:
    shapes = _pair(node)
    if shapes is None or any(not before or after % before for before, after in zip(*shapes, strict=True)):
        return None
    return [after // before for before, after in zip(*shapes, strict=True)]


def _region(node: ir.Node) -> list[float] | None:
    """The whole image, as Resize crops it."""
    shape = query.static_shape(node.inputs[0])
    count = 0 if shape is None else len(_axes(node, len(shape)))
    return None if shape is None else [0.0] * count + [1.0] * count


def _pads(node: ir.Node) -> list[float] | None:
    shapes = _pair(node)
    if shapes is None or len(node.inputs) > 3:
        return None
    return [0.0] * len(shapes[0]) + [after - before for before, after in zip(*shapes, strict=True)]


def _along_axis(node: ir.Node) -> list[float] | None:
    shape = _result(node)
    return None if not shape else [shape[query.int_(node, "axis", -1)]]


def _depth(node: ir.Node) -> list[float] | None:
    """The classes of a OneHot; where no shape tells, any number will do."""
    return _along_axis(node) or [float(_CLASSES)]


def _grid(node: ir.Node) -> list[float] | None:
    """The images of a grid [N, H, W, 2] or [N, D, H, W, 3]; they may have any number of channels."""
    shape = _result(node)
    return None if shape is None else [shape[0], 1.0, *shape[1:-1]]


def _parts(node: ir.Node) -> list[float] | None:
    shapes = [query.static_shape(output) for output in node.outputs]
    axis = query.int_(node, "axis", 0)
    return None if None in shapes else [shape[axis] for shape in shapes if shape is not None]


def _range_end(node: ir.Node) -> list[float] | None:
    return _result(node) if len(_result(node) or ()) == 1 else None


def _slice(node: ir.Node) -> tuple[list[int], Sizes, Sizes] | None:
    """The axes that are cut, and the shapes before and after; None where steps are constants, or axes computed."""
    shapes = _pair(node)
    axes = query.input_(node, 3)
    if shapes is None or query.is_constant(query.input_(node, 4)):
        return None
    starts = query.static_shape(node.inputs[1])
    given = None if axes is None else query.constant(axes)
    if starts is None or (given is None and axes is not None and not axes.is_graph_input()):
        return None
    chosen = list(range(starts[0])) if given is None else [int(axis) % len(shapes[0]) for axis in given]
    return chosen, *shapes


def _slice_starts(node: ir.Node) -> list[float] | None:
    found = _slice(node)
    ends = query.constant(query.input_(node, 2))
    if found is None:
        return None
    axes, before, after = found
    if ends is None:
        return [0.0] * len(axes)
    return [min(int(end) % (before[a] + 1), before[a]) - after[a] for a, end in zip(axes, ends, strict=True)]


def _slice_ends(node: ir.Node) -> list[float] | None:
    found = _slice(node)
    starts = query.constant(node.inputs[1])
    if found is None:
        return None
    axes, _, after = found
    first = [0] * len(axes) if starts is None else [int(start) for start in starts]
    return [start + after[axis] for axis, start in zip(axes, first, strict=True)]


def _slice_axes(node: ir.Node) -> list[float] | None:
    found = _slice(node)
    return None if found is None else list(map(float, found[0]))


def _slice_steps(node: ir.Node) -> list[float] | None:
    found = _slice(node)
    return None if found is None else [1.0] * len(found[0])


# For each operator, the slots whose values decide shapes or positions, and what they are for the declared result.
_DECIDES: dict[str, dict[int, Decide]] = {
    "AffineGrid": {1: _grid},
    "CenterCropPad": {1: _sizes},
    "ConstantOfShape": {0: _result},
    "Expand": {1: _result},
    "MaxUnpool": {2: _result},
    "OneHot": {1: _depth},
    "Pad": {1: _pads},
    "Range": {0: lambda node: [0.0], 1: _range_end, 2: lambda node: [1.0]},
    "Reshape": {1: _result},
    "Resize": {1: _region, 2: _scales, 3: _sizes},
    "Slice": {1: _slice_starts, 2: _slice_ends, 3: _slice_axes, 4: _slice_steps},
    "Split": {1: _parts},
    "Tile": {1: _repeats},
    "TopK": {1: _along_axis},
    "Upsample": {1: _scales},
}

# For an input of an operator, by its place: this many values with which it runs, whatever its other inputs are.
_HARMLESS: dict[str, dict[int, Callable[[int], list[float]]]] = {
    "ConstantOfShape": {0: lambda count: [2.0] * count},
    "Expand": {1: lambda count: [1.0] * count},
    "Pad": {1: lambda count: [0.0] * count},
    "Range": {1: lambda count: [float(_CLASSES)] * count},
    "Reshape": {1: lambda count: [1.0] * (count - 1) + [-1.0]},
    "Resize": {2: lambda count: [1.0] * count},
    "Slice": {1: lambda count: [0.0] * count, 2: lambda count: [float(1 << 30)] * count},
    "Tile": {1: lambda count: [1.0] * count},
    "TopK": {1: lambda count: [1.0] * count},
    "Upsample": {1: lambda count: [1.0] * count},
}
