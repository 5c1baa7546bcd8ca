"""What quantizing writes into the graph: grids, integers, names; against plain numpy."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.errors import DataError, ModelError
from intact.model import query
from intact.runtime import ort_cpu
from tests.quantization.models import model, quantized, read, rows, written

RNG = np.random.default_rng(3)
F = np.float32


def weight(*shape, scale=1.0):
    return (RNG.standard_normal(shape) * scale).astype(F)


def conv_net():
    body = "c = Conv<pads=[1,1,1,1]>(x, w, b)  r = Relu(c)  d = Conv(r, v)  y = MaxPool<kernel_shape=[2,2]>(d)"
    weights = {"w": weight(4, 3, 3, 3), "b": weight(4), "v": weight(5, 4, 1, 1)}
    return model("float[1,3,6,6] x", "float[1,5,5,5] y", body, **weights), rows({"x": (1, 3, 6, 6)})


def plain_asymmetric(low, high, levels=255):
    low, high = min(low, 0.0), max(high, 0.0)
    scale = F((high - low) / levels)
    return scale, round(-low / float(scale))


@pytest.mark.parametrize("device", ["cpu", "qnn"])
def test_activation_grids_are_the_plain_min_and_max_over_all_rows(device):
    float_model, feeds = conv_net()
    result = quantized(float_model, feeds, device).model
    floats = [ort_cpu.run(float_model, feed, outputs=["x", "r", "d"]) for feed in feeds]
    for tensor, found in (("x", read(result, "c", 0)), ("r", read(result, "d", 0)), ("d", written(result, "d"))):
        seen = np.stack([values[tensor] for values in floats]).astype(np.float64)
        scale, zero_point = plain_asymmetric(seen.min(), seen.max())
        assert (found.dtype, found.zero_point) == ("uint8", zero_point)
        assert found.scale == pytest.approx(scale, rel=1e-6)  # two runs of one model may round sums differently


@pytest.mark.parametrize(
    ("settings", "dtype", "levels"),
    [({"weight_type": "int8"}, "int8", 127), ({"activation_type": "uint16", "weight_type": "int16"}, "int16", 32767)],
)
def test_weights_are_symmetric_per_channel_and_rounded_half_to_even(settings, dtype, levels):
    float_model, feeds = conv_net()
    found = read(quantized(float_model, feeds, **settings).model, "c", 1)
    array = query.constant(float_model.graph.initializers["w"]).astype(np.float64)
    scale = (np.abs(array).max(axis=(1, 2, 3)) / levels).astype(F)
    assert (found.dtype, found.axis) == (dtype, 0)
    assert np.array_equal(found.scale, scale) and not found.zero_point.any()
    assert np.array_equal(found.integers, np.rint(array / scale.astype(np.float64)[:, None, None, None]))


def test_per_tensor_and_asymmetric_weights_where_asked_and_taken():
    float_model, feeds = conv_net()
    found = read(
        quantized(float_model, feeds, weight_type="uint8", per_channel=False, weight_symmetric=False).model, "c", 1
    )
    array = query.constant(float_model.graph.initializers["w"]).astype(np.float64)
    scale, zero_point = plain_asymmetric(array.min(), array.max())
    assert (found.dtype, found.axis, found.scale, found.zero_point) == ("uint8", None, scale, zero_point)
    assert np.abs(found.values() - array).max() <= 0.51 * scale


@pytest.mark.parametrize("symmetric", [False, True])
def test_activations_are_symmetric_where_asked(symmetric):
    float_model, feeds = conv_net()
    found = read(quantized(float_model, feeds, activation_type="int8", activation_symmetric=symmetric).model, "c", 0)
    assert found.dtype == "int8" and (found.zero_point == 0) == symmetric


GEMMS = [
    ("Gemm<transB=1>(x, w, b)", (6, 8), 0),
    ("Gemm<transB=0>(x, w, b)", (8, 6), 1),
    ("Gemm(x, w, b)", (8, 6), 1),
    ("MatMul(x, w)", (8, 6), 1),
]


@pytest.mark.parametrize(("call", "shape", "axis"), GEMMS)
@pytest.mark.parametrize("device", ["cpu", "qnn"])
def test_channels_of_a_weight_are_those_of_the_output(call, shape, axis, device):
    array = weight(*shape) * np.arange(1, shape[axis] + 1, dtype=F).reshape([-1 if i == axis else 1 for i in (0, 1)])
    used = {"w": array, **({"b": weight(6)} if "b" in call else {})}
    float_model = model("float[4,8] x", "float[4,6] y", f"y = {call}", **used)
    found = read(quantized(float_model, rows({"x": (4, 8)}), device).model, "y", 1)
    assert found.axis == axis
    assert np.array_equal(found.scale, (np.abs(array.astype(np.float64)).max(axis=1 - axis) / 127).astype(F))


def biased(**weights):
    body = "y = Conv<pads=[1,1,1,1]>(x, w, b)"
    return model("float[1,3,6,6] x", "float[1,4,6,6] y", body, **weights), rows({"x": (1, 3, 6, 6)})


@pytest.mark.parametrize("device", ["cpu", "qnn"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_a_bias_is_int32_with_the_exact_product_of_both_scales(device, per_channel):
    weights = {"w": weight(4, 3, 3, 3), "b": weight(4)}
    float_model, feeds = biased(**weights)
    result = quantized(float_model, feeds, device, per_channel=per_channel).model
    x, w, b = (read(result, "y", index) for index in range(3))
    assert (b.dtype, b.scale.dtype, b.axis) == ("int32", F, 0 if per_channel else None)
    assert np.array_equal(b.scale, x.scale * w.scale)
    assert np.array_equal(b.integers, np.rint(weights["b"].astype(np.float64) / b.scale.astype(np.float64)))
    assert not b.zero_point.any()


def test_a_channel_of_zeros_keeps_its_bias():
    weights = {"w": weight(4, 3, 3, 3), "b": F([0.5, -0.25, 3.0, 1e-3])}
    weights["w"][1] = 0.0
    float_model, feeds = biased(**weights)
    result = quantized(float_model, feeds).model
    w, b = read(result, "y", 1), read(result, "y", 2)
    assert not w.integers[1].any()
    np.testing.assert_allclose(b.values(), weights["b"], rtol=0, atol=float(b.scale.max()))
    assert w.scale[1] == np.delete(w.scale, 1).max()


def test_a_channel_without_negative_weights_has_a_scale_of_its_own():
    weights = {"w": weight(4, 3, 3, 3), "b": weight(4)}
    weights["w"][1] = np.abs(weights["w"][1]) * F(0.1)
    weights["w"][1, 0, 0, 0] = 0.0
    float_model, feeds = biased(**weights)
    found = read(quantized(float_model, feeds).model, "y", 1)
    assert np.array_equal(found.scale, (np.abs(weights["w"].astype(np.float64)).max(axis=(1, 2, 3)) / 127).astype(F))


def test_a_bias_is_in_steps_of_the_type_that_its_layer_reads():
    body = "m = Conv(x, w)  l = Log(m)  y = Conv(l, v, b)"
    weights = {"w": np.abs(weight(4, 3, 1, 1)), "v": weight(5, 4, 1, 1), "b": weight(5)}
    float_model = model("float[1,3,6,6] x", "float[1,5,6,6] y", body, **weights)
    feeds = [{"x": np.abs(feed["x"]) + F(0.1)} for feed in rows({"x": (1, 3, 6, 6)})]
    result = quantized(float_model, feeds, "qnn", activation_type="uint16").model
    x, w, b = (read(result, "y", index) for index in range(3))
    assert (written(result, "l").dtype, x.dtype) == ("uint8", "uint16") and x.scale < written(result, "l").scale
    assert np.array_equal(b.scale, x.scale * w.scale)


def test_integers_and_what_is_made_of_them_are_named_after_their_tensor():
    float_model, feeds = conv_net()
    found = {(node.op_type, node.outputs[0].name) for node in quantized(float_model, feeds).model.graph}
    assert {("QuantizeLinear", "x_quantized"), ("DequantizeLinear", "x_dequantized")} <= found


def test_a_weight_of_nothing_but_zeros_still_gives_its_bias():
    weights = {"w": np.zeros((4, 3, 3, 3), F), "b": F([1.0, -2.0, 0.0, 0.5])}
    float_model, feeds = biased(**weights)
    found = ort_cpu.run(quantized(float_model, feeds).model, feeds[0])["y"]
    np.testing.assert_allclose(found[0, :, 0, 0], weights["b"], rtol=0, atol=0.02)


@pytest.mark.parametrize("per_channel", [True, False])
def test_a_bias_that_would_overflow_int32_widens_the_scale_of_its_channel(per_channel):
    weights = {"w": weight(4, 3, 3, 3), "b": F([1.0, 1e6, -1.0, -1e7])}
    weights["w"][[1, 3]] *= F(1e-6)
    float_model, feeds = biased(**weights)
    result = quantized(float_model, feeds, per_channel=per_channel).model
    b = read(result, "y", 2)
    assert np.abs(b.integers.astype(np.int64)).max() <= 2**30 + 2**8
    np.testing.assert_allclose(b.values(), weights["b"], rtol=1e-3, atol=0.01)
    assert np.array_equal(b.scale, read(result, "y", 0).scale * read(result, "y", 1).scale)


def test_a_bias_and_a_weight_that_two_layers_share_get_integers_for_each():
    body = "c = Conv(x, w, b)  d = Relu(c)  y = Conv(d, w, b)"
    shared = {"w": weight(3, 3, 1, 1, scale=3), "b": weight(3)}
    float_model = model("float[1,3,4,4] x", "float[1,3,4,4] y", body, **shared)
    result = quantized(float_model, rows({"x": (1, 3, 4, 4)})).model
    for name in ("c", "y"):
        x, w, b = (read(result, name, index) for index in range(3))
        assert np.array_equal(b.scale, x.scale * w.scale)
        np.testing.assert_allclose(b.values(), shared["b"], rtol=0, atol=float(b.scale.max()))
    assert not np.array_equal(read(result, "c", 2).scale, read(result, "y", 2).scale)
    assert len([name for name in result.graph.initializers if name.startswith("w_quantized")]) == 1


@pytest.mark.parametrize("shape", [(6,), (1, 6), (4, 6), (1,), (4, 1), ()])
@pytest.mark.parametrize("per_channel", [True, False])
def test_the_bias_of_a_gemm_broadcasts_as_before(shape, per_channel):
    float_model = model("float[4,8] x", "float[4,6] y", "y = Gemm(x, w, b)", w=weight(8, 6), b=weight(*shape))
    feeds = rows({"x": (4, 8)})
    result = quantized(float_model, feeds, per_channel=per_channel).model
    expected = ort_cpu.run(float_model, feeds[0])["y"]
    np.testing.assert_allclose(ort_cpu.run(result, feeds[0])["y"], expected, rtol=0, atol=0.2)


MOVES = {
    "Reshape": ("Reshape(r, s)", {"s": np.int64([1, 16, 4])}, "float[1,16,4] y"),
    "Transpose": ("Transpose<perm=[0,2,3,1]>(r)", {}, "float[1,4,4,4] y"),
    "MaxPool": ("MaxPool<kernel_shape=[2,2]>(r)", {}, "float[1,4,3,3] y"),
    "Slice": ("Slice(r, a, e)", {"a": np.int64([0, 0, 1, 0]), "e": np.int64([1, 4, 3, 4])}, "float[1,4,2,4] y"),
}


@pytest.mark.parametrize("op", MOVES)
@pytest.mark.parametrize("device", ["cpu", "qnn"])
def test_an_operator_that_moves_values_shares_the_grid_of_its_input(op, device):
    call, constants, output = MOVES[op]
    float_model = model("float[1,3,4,4] x", output, f"r = Conv(x, w)  y = {call}", w=weight(4, 3, 1, 1), **constants)
    result = quantized(float_model, rows({"x": (1, 3, 4, 4)}), device).model
    assert read(result, "y", 0).same(written(result, "r")) and written(result, "y").same(written(result, "r"))


@pytest.mark.parametrize("device", ["cpu", "qnn"])
def test_a_concat_has_one_grid_for_all_that_covers_all_of_them(device):
    body = "a = Conv(x, v)  b = Conv(x, w)  y = Concat<axis=1>(a, k, b)  z = Conv(y, u)"
    constants = {"v": weight(2, 3, 1, 1), "w": weight(2, 3, 1, 1, scale=4), "k": F([[[[-30.0] * 4] * 4]])}
    float_model = model("float[1,3,4,4] x", "float[1,2,4,4] z", body, u=weight(2, 5, 1, 1), **constants)
    feeds = rows({"x": (1, 3, 4, 4)})
    result = quantized(float_model, feeds, device).model
    grids = [*(read(result, "y", index) for index in range(3)), written(result, "y"), written(result, "a")]
    assert all(grid.same(grids[0]) for grid in grids)
    floats = [ort_cpu.run(float_model, feed, outputs=["a", "b"]) for feed in feeds]
    high = max(values[name].max() for values in floats for name in ("a", "b"))
    scale, zero_point = plain_asymmetric(-30.0, float(high))
    # The model is observed with optimizations, which move the last bit of what a convolution gives.
    assert (float(grids[0].scale), int(grids[0].zero_point)) == (pytest.approx(float(scale), rel=1e-6), zero_point)
    assert np.allclose(grids[1].values(), -30.0, atol=float(scale))


def test_a_concat_that_no_integer_kernel_reads_stays_in_float_on_cpu():
    body = "a = Conv(x, v)  b = Conv(x, w)  y = Concat<axis=1>(a, b)"
    constants = {"v": weight(2, 3, 1, 1), "w": weight(2, 3, 1, 1, scale=4)}
    float_model = model("float[1,3,4,4] x", "float[1,4,4,4] y", body, **constants)
    result = quantized(float_model, rows({"x": (1, 3, 4, 4)}), "cpu").model
    assert not written(result, "a").same(written(result, "b"))


FIXED = [("Sigmoid", "uint8", 1 / 256, 0), ("Softmax", "uint8", 1 / 256, 0), ("Sigmoid", "uint16", 1 / 65536, 0)]


@pytest.mark.parametrize(("op", "dtype", "scale", "zero_point"), FIXED)
def test_bounded_outputs_are_on_the_grid_that_the_npu_fixes(op, dtype, scale, zero_point):
    float_model = model("float[4,8] x", "float[4,6] y", f"m = MatMul(x, w)  y = {op}(m)", w=weight(8, 6))
    found = written(quantized(float_model, rows({"x": (4, 8)}), "qnn", activation_type=dtype).model, "y")
    assert (found.dtype, found.scale, found.zero_point) == (dtype, F(scale), zero_point)


def test_a_node_that_is_not_quantized_still_reads_floats():
    body = "c = Conv(x, w)  s = Erf(x)  y = Add(c, s)"
    float_model = model("float[1,3,4,4] x", "float[1,3,4,4] y", body, w=weight(3, 3, 1, 1))
    result = quantized(float_model, rows({"x": (1, 3, 4, 4)})).model
    assert read(result, "c", 0) is not None
    assert read(result, "s", 0) is None and read(result, "y", 1) is None


def test_graph_inputs_and_outputs_keep_names_types_and_shapes():
    body = "c = Conv(x, w)  d = Relu(c)  y = Conv(d, v)"
    weights = {"w": weight(3, 3, 1, 1), "v": weight(2, 3, 1, 1)}
    float_model = model("float[1,3,4,4] x", "float[1,2,4,4] y, float[1,3,4,4] d", body, **weights)
    feeds = rows({"x": (1, 3, 4, 4)})
    result = quantized(float_model, feeds, "qnn").model
    for before, after in zip(
        (*float_model.graph.inputs, *float_model.graph.outputs),
        (*result.graph.inputs, *result.graph.outputs),
        strict=True,
    ):
        assert (before.name, before.dtype, before.shape) == (after.name, after.dtype, after.shape)
    expected, found = ort_cpu.run(float_model, feeds[0]), ort_cpu.run(result, feeds[0])
    for name in ("d", "y"):
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=0.1)


def test_every_tensor_is_quantized_once_and_the_float_model_is_left_alone():
    float_model, feeds = conv_net()
    before = ir.to_proto(float_model).SerializeToString()
    result = quantized(float_model, feeds).model
    sources = [node.inputs[0] for node in result.graph if node.op_type == "QuantizeLinear"]
    assert len(sources) == len(set(sources))
    assert ir.to_proto(float_model).SerializeToString() == before


def test_the_bodies_of_an_if_read_what_the_outer_graph_dequantizes():
    body = """c = Conv(x, w)
    y = If (p) <then_branch = t () => (float[1,3,4,4] a) { a = Neg(c) },
                else_branch = e () => (float[1,3,4,4] b) { b = Abs(c) }>"""
    float_model = model("float[1,3,4,4] x, bool p", "float[1,3,4,4] y", body, w=weight(3, 3, 1, 1))
    feeds = [{**feed, "p": np.bool_(i % 2)} for i, feed in enumerate(rows({"x": (1, 3, 4, 4)}))]
    feeds = [{name: np.asarray(value) for name, value in feed.items()} for feed in feeds]
    result = quantized(float_model, feeds).model
    for feed in feeds[:2]:
        np.testing.assert_allclose(
            ort_cpu.run(result, feed)["y"], ort_cpu.run(float_model, feed)["y"], rtol=0, atol=0.1
        )


def test_a_relu_behind_a_quantized_node_is_rounded_once_only():
    float_model, feeds = conv_net()
    result = quantized(float_model, feeds).model
    assert written(result, "c") is None and written(result, "r") is not None


@pytest.mark.parametrize("name", ["w", "b"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_named(name, bad):
    weights = {"w": weight(4, 3, 3, 3), "b": weight(4)}
    weights[name].reshape(-1)[0] = bad
    float_model, feeds = biased(**weights)
    with pytest.raises((ModelError, DataError), match=rf"^({name}|y): "):
        quantized(float_model, feeds)


def test_values_that_are_not_finite_are_left_out_of_the_range_and_named():
    body = "l = Log(x)  y = Conv(l, w)"
    float_model = model("float[1,3,4,4] x", "float[1,3,4,4] y", body, w=weight(3, 3, 1, 1))
    feeds = [{"x": np.abs(feed["x"])} for feed in rows({"x": (1, 3, 4, 4)})]
    feeds[0]["x"][0, 0, 0, 0] = 0.0
    result = quantized(float_model, feeds)
    assert any(text.startswith("l: 1 NaN or infinite") for text in result.warnings)
    assert np.isfinite(read(result.model, "y", 0).scale)


def test_a_tensor_without_any_finite_value_is_an_error():
    float_model = model("float[2] x", "float[2] y", "l = Sqrt(x)  y = MatMul(l, w)", w=weight(2, 2))
    with pytest.raises(DataError, match="l: the model gave no finite value"):
        quantized(float_model, [{"x": F([-1.0, -2.0])}])


def test_a_model_in_half_precision_is_refused():
    float_model = model("float16[4,8] x", "float16[4,6] y", "y = MatMul(x, w)", w=weight(8, 6).astype(np.float16))
    with pytest.raises(ModelError, match="half precision"):
        quantized(float_model, [{"x": np.ones((4, 8), np.float16)}])
