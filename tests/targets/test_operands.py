"""What stands at a node, read from QDQ models and from integer operators alike."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.targets.operands import use_of

CLIPPING = frozenset({("", "Relu"), ("", "Clip")})


def parsed(inputs, outputs, body, **constants):
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => ({outputs}) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def read(model, op, clipping=frozenset()):
    return use_of(next(node for node in model.graph if node.op_type == op), clipping)


GRIDS = {"xs": np.float32(0.1), "xz": np.uint8(3), "ys": np.float32(0.2), "yz": np.uint8(9)}


@pytest.mark.parametrize("bias", ["", ", b"])
def test_an_integer_convolution_is_read_as_a_conv_between_grids(bias):
    weight = {"w": np.zeros((2, 3, 1, 1), np.int8), "ws": np.float32([0.5, 0.25]), "wz": np.int8([0, 1])}
    body = f"y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz{bias})"
    model = parsed("uint8[1,3,4,4] x", "uint8[1,2,4,4] y", body, **GRIDS, **weight, b=np.zeros(2, np.int32))
    found = read(model, "QLinearConv")
    data, kernel, *biases = found.inputs
    assert (found.domain, found.op) == ("", "Conv") and [operand.type for operand in biases] == ["int32"] * bool(bias)
    assert (data.name, data.type, data.scale.item(), data.zero_point.item()) == ("x", "uint8", np.float32(0.1), 3)
    assert (kernel.granularity, kernel.axis, kernel.rank, kernel.constant) == ("channel", 0, 4, True)
    assert kernel.scale.tolist() == [0.5, 0.25] and kernel.zero_point.tolist() == [0, 1]
    (output,) = found.outputs
    assert (output.name, output.scale.item(), output.zero_point.item()) == ("y", np.float32(0.2), 9)
    assert all(operand.constant and not operand.on_grid for operand in biases)


def test_an_integer_product_has_its_channels_in_its_columns():
    weight = {"w": np.zeros((3, 2), np.int8), "ws": np.float32([0.5, 0.25]), "wz": np.int8([4, 1])}
    body = "y = QLinearMatMul(x, xs, xz, w, ws, wz, ys, yz)"
    found = read(parsed("uint8[4,3] x", "uint8[4,2] y", body, **GRIDS, **weight), "QLinearMatMul")
    data, kernel = found.inputs
    assert (found.op, data.type, data.zero_point.item()) == ("MatMul", "uint8", 3)
    assert (kernel.name, kernel.type, kernel.axis, kernel.rank) == ("w", "int8", -1, 2)
    assert kernel.scale.tolist() == [0.5, 0.25] and kernel.zero_point.tolist() == [4, 1]
    assert (found.outputs[0].scale.item(), found.outputs[0].zero_point.item()) == (np.float32(0.2), 9)


@pytest.mark.parametrize(
    ("shape", "scale", "axis", "is_one"),
    [
        ([1, 3, 2, 2], [0.5], 0, True),
        ([1, 3, 2, 2], [0.5], -4, True),
        ([2, 3, 2, 1], [0.5], 3, True),
        ([2, 3, 2, 1], [0.5], -1, True),
        ([2, 3, 2, 1], [0.5], 0, False),
        ([1, 3, 2, 2], 0.5, 0, False),
        ([2, 3, 2, 1], [0.5, 0.25], 0, False),
    ],
)
def test_a_list_of_one_scale_is_that_of_an_only_channel_where_its_axis_holds_one(shape, scale, axis, is_one):
    scales, sizes = np.float32(scale), ",".join(map(str, shape))
    body = f"w = DequantizeLinear<axis = {axis}>(q, s, z)  y = Relu(w)"
    grid = {"s": scales, "z": np.zeros(scales.shape, np.int8)}
    (found,) = read(parsed(f"int8[{sizes}] q", f"float[{sizes}] y", body, **grid), "Relu").inputs
    assert found.is_one_channel is is_one


def test_a_weight_of_unknown_shape_is_not_taken_for_one_channel():
    model = parsed(
        "int8[1,3] q", "float[1,3] y", "w = DequantizeLinear<axis = 0>(q, s)  y = Relu(w)", s=np.float32([0.5])
    )
    model.graph.inputs[0].shape = None
    for node in model.graph:
        node.outputs[0].shape = None
    (found,) = read(model, "Relu").inputs
    assert found.is_one_channel is False


def test_an_operator_that_is_not_quantized_has_plain_types():
    found = read(parsed("float[3] x, int64[2] i", "float[2] y", "y = Gather(x, i)"), "Gather")
    assert [operand.type for operand in (*found.inputs, *found.outputs)] == ["float", "index", "float"]
    assert not any(operand.on_grid for operand in (*found.inputs, *found.outputs))


def test_a_qdq_operator_is_read_with_the_grids_around_it():
    body = "d = DequantizeLinear(x, xs, xz)  t = Tanh(d)  y = QuantizeLinear(t, ys, yz)"
    found = read(parsed("uint8[3] x", "uint8[3] y", body, **GRIDS), "Tanh")
    (data,), (output,) = found.inputs, found.outputs
    assert (data.name, data.scale.item(), data.zero_point.item()) == ("x", np.float32(0.1), 3)
    assert (output.name, output.scale.item(), output.zero_point.item()) == ("y", np.float32(0.2), 9)


def clipped(node, zero, scale=0.1, **limits):
    body = f"d = DequantizeLinear(x, xs, xz)  t = Tanh(d)  c = {node}  y = QuantizeLinear(c, s, z)"
    grid = {"s": np.asarray(scale, np.float32), "z": np.full_like(scale, zero, np.uint8)}
    return parsed("uint8[3] x", "uint8[3] y", body, **GRIDS, **grid, **limits)


@pytest.mark.parametrize(
    ("node", "zero", "absorbed"),
    [
        ("Relu(t)", 0, True),
        ("Relu(t)", 1, False),
        ("Clip(t)", 77, True),
        ("Clip(t, low)", 10, True),
        ("Clip(t, low)", 11, False),
        ("Clip(t, , high)", 55, True),
        ("Clip(t, , high)", 54, False),
        ("Clip(t, low, high)", 10, False),
        ("Neg(t)", 0, False),
    ],
)
def test_a_clip_belongs_to_the_node_before_it_where_the_grid_cuts_off_as_much(node, zero, absorbed):
    model = clipped(node, zero, low=np.float32(-1), high=np.float32(20))
    found = read(model, "Tanh", CLIPPING)
    assert [taken.op_type for taken in found.absorbed] == ([node.partition("(")[0]] if absorbed else [])
    assert found.outputs[0].name == ("y" if absorbed else "t") and found.outputs[0].on_grid is absorbed


def test_nothing_is_absorbed_that_the_target_does_not_name():
    assert read(clipped("Relu(t)", 0), "Tanh").absorbed == ()


def test_a_clip_before_scales_of_channels_stays():
    assert read(clipped("Relu(t)", 0, scale=[0.1, 0.2, 0.3]), "Tanh", CLIPPING).absorbed == ()


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("xs, xz", "xs, xz", True),
        ("xs, xz", "ys, xz", False),
        ("xs, xz", "xs, yz", False),
        ("cs, cz", "cs, cz", True),
        ("cs, cz", "cs, co", False),
        ("cs, cz", "xs, xz", False),
    ],
)
def test_two_operands_share_a_grid_if_every_scale_and_zero_point_is_the_same(first, second, same):
    body = f"a = DequantizeLinear(x, {first})  b = DequantizeLinear(w, {second})  y = Add(a, b)"
    channels = {"cs": np.float32([0.1, 0.2]), "cz": np.uint8([1, 2]), "co": np.uint8([1, 3])}
    found = read(parsed("uint8[1,2] x, uint8[1,2] w", "float[1,2] y", body, **GRIDS, **channels), "Add")
    assert found.inputs[0].same_grid(found.inputs[1]) is same


def test_what_is_not_quantized_shares_no_grid():
    found = read(parsed("float[2] x", "float[2] y", "y = Add(x, x)"), "Add")
    assert not found.inputs[0].same_grid(found.inputs[1])
