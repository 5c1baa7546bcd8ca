"""Rules that rewrite ops whose definition changed so that a reader of the old form would get them wrong.

One function for each op, from any older form since opset 7 straight to a form that holds from opset 21 on; `since` says
where one knows older forms too. An op that is not here has only been extended: its old form still says the same.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from intact.errors import ModelError
from intact.model import query
from intact.model.patch import Attribute, Patch
from intact.records import dataclass


@dataclass(frozen=True, slots=True)
class OpsetRule:
    """A node from an opset below `below` has to be rewritten by `apply`, which knows its forms from `since` on."""

    below: int
    apply: Callable[[Patch], None]
    since: int = 7


RULES: dict[str, OpsetRule] = {}

FLOAT32_MAX = float(np.finfo(np.float32).max)


def below(opset: int, *ops: str, since: int = 7) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register a rule for nodes of `ops` in models of an opset below this one."""

    def register(rule: Callable[[Patch], None]) -> Callable[[Patch], None]:
        RULES.update({op: OpsetRule(opset, rule, since) for op in ops})
        return rule

    return register


def cannot_upgrade(patch: Patch, found: str, fix: str) -> ModelError:
    """The error for a node whose old meaning no newer form expresses."""
    node = patch.node
    return ModelError(
        "M122",
        f"{node.name or 'a node'} ({node.op_type}): {found}, which opset {patch.opset} allows but opset 21 cannot say",
        fix=fix,
    )


@below(5, "Reshape", since=1)
def reshape(patch: Patch) -> None:
    """The shape became an input."""
    shape = patch.ints(query.ints(patch.node, "shape"), "shape")
    patch.become("Reshape", [patch.node.inputs[0], shape])


@below(10, "Upsample")
def upsample(patch: Patch) -> None:
    """Upsample(x, scales) = Resize(x, scales) with asymmetric coordinates, rounded down."""
    data, scales = patch.node.inputs[0], query.input_(patch.node, 1)
    mode = query.string(patch.node, "mode", "nearest")
    if scales is None:
        factors = np.array(patch.node.attributes.get_floats("scales", ()), dtype=np.float32)
        scales = patch.constant(factors, "scales")
    patch.become("Resize", [data, None, scales], _asymmetric(mode, "floor"))


@below(13, "Resize")
def resize(patch: Patch) -> None:
    """Resize of opset 10 has asymmetric coordinates; opset 11 wrote an empty tensor where an input is absent."""
    if patch.opset == 10:
        _resize_10(patch)
        return
    if query.string(patch.node, "coordinate_transformation_mode", "half_pixel") == "tf_half_pixel_for_nn":
        _shift_half_pixel(patch)
    patch.set_inputs([value if index == 0 or not _is_empty(value) else None for index, value in _inputs(patch)])


def _resize_10(patch: Patch) -> None:
    data, scales = patch.node.inputs
    mode = query.string(patch.node, "mode", "nearest")
    factors = query.constant(scales)
    if mode == "nearest" and factors is None:
        patch.note("its scales are not constant; it is taken to enlarge, and rounds coordinates down")
    if mode != "nearest" or factors is None or (factors >= 1).all():
        patch.become("Resize", [data, None, scales], _asymmetric(mode, "floor"))
        return
    # ONNX Runtime rounds up along axes that shrink. Axes are independent, so that those may follow in a second step.
    if (factors > 1).any():
        enlarged = patch.constant(np.maximum(factors, 1).astype(np.float32), "enlarge")
        data = patch.add("Resize", [data, None, enlarged], "Resize", _asymmetric(mode, "floor"))
    shrunk = patch.constant(np.minimum(factors, 1).astype(np.float32), "shrink")
    patch.become("Resize", [data, None, shrunk], _asymmetric(mode, "ceil"))


def _asymmetric(mode: str, rounding: str) -> dict[str, str]:
    attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    return attributes | {"nearest_mode": rounding} if mode == "nearest" else attributes


def _shift_half_pixel(patch: Patch) -> None:
    """floor((x + 0.5) / s) is (x + 0.5) / s - 0.5 rounded to the nearest, halves up."""
    nearest = query.string(patch.node, "mode", "nearest") == "nearest"
    if not nearest or query.string(patch.node, "nearest_mode", "round_prefer_floor") != "floor":
        raise cannot_upgrade(
            patch, "its coordinates are tf_half_pixel_for_nn", "export the model with half_pixel coordinates"
        )
    patch.node.attributes.add(ir.AttrString("coordinate_transformation_mode", "half_pixel"))
    patch.node.attributes.add(ir.AttrString("nearest_mode", "round_prefer_ceil"))


def _is_empty(value: ir.Value | None) -> bool:
    array = query.constant(value)
    return array is not None and array.size == 0


def _inputs(patch: Patch) -> list[tuple[int, ir.Value | None]]:
    return list(enumerate(patch.node.inputs))


@below(13, "Softmax", "LogSoftmax", "Hardmax")
def softmax(patch: Patch) -> None:
    """Softmax over all dimensions from `axis` on = Reshape(Softmax(Flatten(x, axis), -1), Shape(x))."""
    node, data = patch.node, patch.node.inputs[0]
    axis, shape = query.int_(node, "axis", 1), query.static_shape(data)
    rank = query.rank(data)
    if axis < 0 and rank is not None:
        axis += rank
    if axis in (-1, (rank or 0) - 1) or (shape is not None and all(size == 1 for size in shape[axis + 1 :])):
        node.attributes.add(ir.AttrInt64("axis", axis))
        return
    assert data is not None, "Softmax has an input"
    flat = patch.add("Flatten", [data], "Flatten", {"axis": axis}, data.dtype)
    soft = patch.add(node.op_type, [flat], node.op_type, {"axis": -1}, data.dtype)
    target = patch.add("Shape", [data], "Shape") if shape is None else patch.ints(shape, "shape")
    patch.become("Reshape", [soft, target])


@below(11, "Clip")
def clip(patch: Patch) -> None:
    """The bounds became inputs; the bounds of float32 itself are what an absent input means."""
    data = patch.node.inputs[0]
    assert data is not None, "Clip has an input"
    low = query.float_(patch.node, "min", -FLOAT32_MAX)
    high = query.float_(patch.node, "max", FLOAT32_MAX)
    bounds = [
        None if low <= -FLOAT32_MAX else patch.like(data, low, "min"),
        None if high >= FLOAT32_MAX else patch.like(data, high, "max"),
    ]
    patch.become("Clip", [data, *bounds])


@below(11, "Pad")
def pad(patch: Patch) -> None:
    """The pads and the value became inputs."""
    node, data = patch.node, patch.node.inputs[0]
    assert data is not None, "Pad has an input"
    inputs = [data, patch.ints(query.ints(node, "pads"), "pads")]
    value = query.float_(node, "value", 0.0)
    if value != 0.0:
        inputs.append(patch.like(data, value, "value"))
    patch.become("Pad", inputs, {"mode": query.string(node, "mode", "constant")})


@below(10, "Slice")
def slice_(patch: Patch) -> None:
    """The starts, ends and axes became inputs."""
    node = patch.node
    starts = query.ints(node, "starts")
    axes = query.ints(node, "axes", tuple(range(len(starts))))
    bounds = [("starts", starts), ("ends", query.ints(node, "ends")), ("axes", axes)]
    patch.become("Slice", [node.inputs[0], *(patch.ints(numbers, name) for name, numbers in bounds)])


@below(10, "TopK")
def top_k(patch: Patch) -> None:
    """The number to keep became an input."""
    node = patch.node
    count = patch.ints([query.int_(node, "k", 1)], "k")
    patch.become("TopK", [node.inputs[0], count], {"axis": query.int_(node, "axis", -1)})


@below(13, "Unsqueeze")
def unsqueeze(patch: Patch) -> None:
    """The axes became an input, also where there are none."""
    axes = query.ints(patch.node, "axes")
    patch.become("Unsqueeze", [patch.node.inputs[0], patch.ints(axes, "axes")])


@below(13, "Squeeze", "ReduceSum")
def axes_of_shapes(patch: Patch) -> None:
    """The axes became an input."""
    _axes_to_input(patch)


@below(
    18,
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
)
def axes_of_reductions(patch: Patch) -> None:
    """The axes became an input."""
    _axes_to_input(patch)


def _axes_to_input(patch: Patch) -> None:
    axes = query.ints(patch.node, "axes")
    patch.node.attributes.pop("axes", None)
    if axes:
        patch.set_inputs([patch.node.inputs[0], patch.ints(axes, "axes")])


@below(18, "Split")
def split(patch: Patch) -> None:
    """The lengths became an input; without them the number of parts has to be said."""
    node = patch.node
    lengths = query.ints(node, "split")
    given = query.input_(node, 1)
    axis = {"axis": query.int_(node, "axis", 0)}
    if lengths:
        patch.become("Split", [node.inputs[0], patch.ints(lengths, "split")], axis)
    elif given is None:
        patch.become("Split", [node.inputs[0]], axis | {"num_outputs": len(node.outputs)})


@below(14, "BatchNormalization")
def batch_normalization(patch: Patch) -> None:
    """`spatial` = 0 is spelled out as (x - mean) / sqrt(var + epsilon) * scale + b; training has no newer form."""
    node = patch.node
    if any(output.name for output in node.outputs[1:]):
        # Until opset 14, having these outputs is what puts the op in training mode, whether they are used or not.
        raise cannot_upgrade(patch, "it is in training mode", "export the model for inference (eval mode)")
    node.resize_outputs(1)
    if query.int_(node, "spatial", 1):
        node.attributes.pop("spatial", None)
        return
    data, scale, shift, mean, variance = node.inputs
    assert variance is not None, "BatchNormalization has a variance"
    epsilon = patch.like(variance, query.float_(node, "epsilon", 1e-5), "epsilon")
    deviation = patch.add("Sqrt", [patch.add("Add", [variance, epsilon], "Add")], "Sqrt")
    centred = patch.add("Sub", [data, mean], "Sub")
    scaled = patch.add("Mul", [patch.add("Div", [centred, deviation], "Div"), scale], "Mul")
    patch.become("Add", [scaled, shift])


@below(12, "Dropout")
def dropout(patch: Patch) -> None:
    """The ratio became an input; the mask, all zeros in inference until opset 12, is spelled out where it is used."""
    node, data = patch.node, patch.node.inputs[0]
    assert data is not None, "Dropout has an input"
    ratio = patch.constant(np.array(query.float_(node, "ratio", 0.5), dtype=np.float32), "ratio")
    used = len(node.outputs) > 1 and not query.is_unused(node.outputs[1])
    if used:
        _spell_out_mask(patch, data)
        return
    node.resize_outputs(1)
    patch.become("Dropout", [data, ratio])


def _spell_out_mask(patch: Patch, data: ir.Value) -> None:
    """Dropout that returns its mask = Identity, and zeros of the same shape."""
    zeros = patch.add("ConstantOfShape", [patch.add("Shape", [data], "Shape")], "zeros")
    if patch.opset < 10:
        mask = patch.add("CastLike", [zeros, data], "mask")
    else:
        mask = patch.add("Cast", [zeros], "mask", {"to": int(ir.DataType.BOOL)})
    patch.move_output(1, mask)
    patch.become("Identity", [data])


@below(11, "Scatter")
def scatter(patch: Patch) -> None:
    """Scatter was renamed."""
    patch.become("ScatterElements", patch.node.inputs, {"axis": query.int_(patch.node, "axis", 0)})


@below(16, "RoiAlign")
def roi_align(patch: Patch) -> None:
    """Until opset 16 there was no shift of half a pixel."""
    patch.node.attributes.add(ir.AttrString("coordinate_transformation_mode", "output_half_pixel"))


@below(20, "GridSample")
def grid_sample(patch: Patch) -> None:
    """The modes were renamed."""
    renamed = {"bilinear": "linear", "bicubic": "cubic"}
    mode = query.string(patch.node, "mode", "bilinear")
    patch.node.attributes.add(ir.AttrString("mode", renamed.get(mode, mode)))


@below(20, "DFT")
def dft(patch: Patch) -> None:
    """The axis became an input."""
    node = patch.node
    axis = patch.constant(np.array(query.int_(node, "axis", 1), dtype=np.int64), "axis")
    node.attributes.pop("axis", None)
    patch.set_inputs([node.inputs[0], query.input_(node, 1), axis])


@below(21, "GroupNormalization")
def group_normalization(patch: Patch) -> None:
    """The scale and the bias, one for each group, became one for each channel."""
    node = patch.node
    groups = query.int_(node, "num_groups", 0)
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    channels = shape[1] if shape is not None and len(shape) > 1 else None
    if not isinstance(channels, int) or groups < 1:
        raise cannot_upgrade(
            patch,
            "its number of channels is unknown",
            "give the model static shapes (--dim), or export it for opset 21",
        )
    patch.set_inputs([node.inputs[0], *(_per_channel(patch, index, groups, channels) for index in (1, 2))])


def _per_channel(patch: Patch, index: int, groups: int, channels: int) -> ir.Value | None:
    """Each of `groups` numbers repeated for the channels of its group; what is per channel already stays."""
    value = patch.node.inputs[index]
    if groups == channels or query.static_shape(value) == (channels,):
        return value
    suffix = ("", "scale", "bias")[index]
    array = query.constant(value)
    if array is not None:
        return patch.constant(np.repeat(array, channels // groups), suffix)
    column = patch.add("Unsqueeze", [value, patch.ints([1], f"{suffix}_axis")], f"{suffix}_column")
    spread = patch.add(
        "Expand", [column, patch.ints([groups, channels // groups], f"{suffix}_size")], f"{suffix}_spread"
    )
    return patch.add("Reshape", [spread, patch.ints([-1], f"{suffix}_flat")], suffix)


@below(9, "Scan")
def scan(patch: Patch) -> None:
    """Scan of opset 8 runs over each sequence of a batch: Scan over the batch of Scan over the sequence."""
    node = patch.node
    if query.input_(node, 0) is not None:
        raise cannot_upgrade(patch, "its sequences have lengths of their own", "export the model for opset 9 or newer")
    batches, inner = node.inputs[1:], node.attributes["body"].as_graph()
    items = [ir.Value(name=patch.take("item"), type=given.type) for given in inner.inputs]
    each = ir.node("Scan", items, _scan_9(node), num_outputs=len(node.outputs), name=patch.take("sequence"))
    for output in each.outputs:
        output.name = patch.take("result")
    body = ir.Graph(items, each.outputs, nodes=[each], name=patch.take("batch"))
    patch.become("Scan", batches, {"body": body, "num_scan_inputs": len(batches)})


def _scan_9(node: ir.Node) -> dict[str, Attribute]:
    """The attributes of a Scan over one sequence; the directions were renamed."""
    body, count = node.attributes["body"].as_graph(), query.int_(node, "num_scan_inputs", 0)
    directions = query.ints(node, "directions", (0,) * count)
    return {"body": body, "num_scan_inputs": count, "scan_input_directions": directions}
