"""Weights between DQ and Q with zero points that an NPU does not take: who takes them out, and into which type."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from intact.matching import rewriter
from intact.rules.proof import exactness
from intact.rules.quantized import symmetric
from tests.builder import Net
from tests.rules.proof.harness import Case, fired, integers, prove, refused

U8, I8, F32 = np.uint8, np.int8, np.float32
RNG = np.random.default_rng(0)
X = integers(RNG, U8, (2, 4, 5))
BITS = {
    np.uint8: (8, "INT8"),
    np.int8: (8, "INT8"),
    np.uint16: (16, "INT16"),
    np.int16: (16, "INT16"),
    ml_dtypes.uint4: (4, "INT4"),
    ml_dtypes.int4: (4, "INT4"),
}


def layer(weight, zeros, **attributes):
    """A convolution of `weight`, each channel of which has its zero point."""
    net = Net()
    kernel = net.dequantize(weight, np.full(zeros.shape, 0.01), zeros, axis=0)
    return net.model({"x": X}, net.op("Conv", net.dequantize("x", 0.02, U8(3)), kernel, **attributes))


WIDE = np.tile(U8([[255, 0, 128], [7, 200, 31]]), (1, 4, 1)).reshape(2, 4, 3)
ENDS = U8([0, 255])


@pytest.mark.parametrize("dtype", BITS)
def test_zero_points_are_taken_out_into_the_signed_type_of_as_many_bits(dtype):
    bits, signed = BITS[dtype]
    least = 0 if "uint" in np.dtype(dtype).name else -(2 ** (bits - 1))
    middle = least + 2 ** (bits - 1)
    numbers = np.tile(np.array([[[middle - 2, middle, middle + 2]], [[middle, middle + 1, middle + 3]]]), (1, 4, 1))
    model = layer(numbers.astype(dtype), np.array([middle, middle + 1]).astype(dtype))
    done = rewriter.apply(model.clone(), [symmetric.AbsorbDequantized()])
    (node,) = [node for node in done.model.graph if node.op_type == "DequantizeLinear" and node.inputs[0].name != "x"]
    weight, zeros = (node.inputs[index].const_value for index in (0, 2))
    assert weight.dtype == zeros.dtype == ir.DataType[signed] and not zeros.numpy().astype(int).any()
    expected = numbers - np.array([middle, middle + 1]).reshape(2, 1, 1)
    np.testing.assert_array_equal(weight.numpy().astype(int), expected)


@pytest.mark.parametrize(
    ("zeros", "reason"),
    [
        (U8([128, 128]), "the weight is symmetric"),
        (U8([7]), "the target takes this zero point"),
        (ENDS, "w - zero_point reaches from -255 to 255: a bit too many"),
    ],
)
def test_what_need_not_or_cannot_be_taken_out_stays(zeros, reason):
    found = rewriter.apply(layer(WIDE, zeros), [symmetric.AbsorbDequantized()])
    assert reason in [item.reason for item in found.refusals] and not found.applications


def test_weights_in_blocks_stay():
    net, zeros = Net(), np.arange(8).reshape(4, 2).astype(U8)
    kernel = net.dequantize(np.full((8, 2), 9, U8), np.full((4, 2), 0.01), zeros, axis=0, block_size=2)
    model = net.model({"x": np.zeros((1, 8), U8)}, net.op("MatMul", net.dequantize("x", 0.02, U8(3)), kernel))
    assert "quantized in blocks" in refused(symmetric.AbsorbDequantized(), model)


def test_a_target_that_takes_any_zero_point_keeps_them():
    rule = symmetric.DuplicateDequantizedInput("any")
    assert refused(rule, layer(WIDE, ENDS)) == "the target takes this zero point"


@pytest.mark.parametrize("group", [1, 2])
def test_copies_have_quantizers_of_their_own_and_groups_their_own_copies(group):
    weight = WIDE if group == 1 else np.concatenate([WIDE, WIDE])[:, :2]
    model = layer(weight, np.resize(ENDS, len(weight)), group=group)
    left = fired(symmetric.DuplicateDequantizedInput(), model)
    assert ("Concat" in left, "Gather" in left) == (group == 1, group > 1)
    assert left.count("DequantizeLinear") == (5 if group == 1 else 3)
    assert prove(symmetric.DuplicateDequantizedInput(), Case("copies", model, [{"x": X}], step=1e-3)) > 0


def kept():
    return {"weight": integers(RNG, U8, (2, 4, 300)), "zeros": U8([100, 130])}


@pytest.mark.parametrize("bias", [None, np.int32([2000, -3000])])
def test_a_layer_is_requantized_with_its_bias(bias):
    net_input = integers(RNG, U8, (2, 4, 400))
    net = Net()
    given = kept()
    kernel = net.dequantize(given["weight"], F32([0.01, 0.02]), given["zeros"], axis=0)
    added = None if bias is None else net.dequantize(bias, F32([0.0002, 0.0004]), np.int32([0, 0]), axis=0)
    model = net.model({"x": net_input}, net.op("Conv", net.dequantize("x", 0.02, U8(3)), kernel, added))
    assert prove(symmetric.RequantizeWeight(), Case("bias", model, [{"x": net_input}])) > 0


def test_a_bias_that_is_computed_keeps_a_weight_from_being_requantized():
    net, given = Net(), kept()
    kernel = net.dequantize(given["weight"], F32([0.01, 0.02]), given["zeros"], axis=0)
    y = net.op("Conv", net.dequantize("x", 0.02, U8(3)), kernel, net.op("Abs", "b"))
    model = net.model({"x": np.zeros((1, 4, 400), U8), "b": np.zeros(2, F32)}, y)
    assert refused(symmetric.RequantizeWeight(), model) == "the bias is computed, not constant"


def test_layers_that_lose_too_much_are_left_alone_by_their_names():
    model = layer(kept()["weight"][:, :, :3], kept()["zeros"])
    (name,) = (node.name for node in model.graph if node.op_type == "Conv")

    def without(layers):
        (rule,) = exactness.except_at([symmetric.RequantizeWeight()], layers)
        return rule

    assert "Conv" in fired(without({"another": "not this"}), model)
    assert refused(without({name: "too much"}), model) == "too much"
