"""Which nodes and tensors are quantized, and to which types: the target's table, the settings, the overrides."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.errors import SettingsError, TargetError
from intact.quantization import quantizing
from intact.quantization.improve import migrate
from intact.quantization.planning.planner import plan
from intact.results import Range
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from intact.targets.validate import validate
from tests.quantization.models import model, quantized, read, rows, written

F = np.float32
FEEDS = rows({"x": (1, 3, 6, 6)})


def weight(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def net():
    body = "c = Conv(x, w, b)  r = LeakyRelu(c)  s = Sigmoid(r)  m = Mul(r, s)  d = Conv(m, v)  y = Relu(d)"
    weights = {"w": weight(4, 3, 1, 1), "b": weight(4), "v": weight(5, 4, 1, 1)}
    return model("float[1,3,6,6] x", "float[1,5,6,6] y", body, **weights)


def planned(**settings):
    return quantizing.plan(net(), load_target("cpu"), QuantConfig.from_dict(settings))


EVERY = {"c", "r", "s", "m", "d", "y"}


@pytest.mark.parametrize(
    ("settings", "nodes"),
    [
        ({}, EVERY),
        ({"op_types": ["Conv"]}, {"c", "d"}),
        ({"exclude_op_types": ["Sigmoid", "Mul"]}, {"c", "d", "y"}),  # r would round for nobody
        ({"nodes": ["d"]}, {"d"}),
        ({"nodes": ["c", "r"]}, {"c", "r"}),
        ({"exclude_nodes": ["d"]}, {"c"}),
        ({"op_types": ["Conv"], "exclude_nodes": ["c"]}, {"d"}),
    ],
)
def test_nodes_are_included_and_excluded_by_type_and_by_name(settings, nodes):
    assert set(planned(**settings).nodes) == nodes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nodes": ["cc"]}, "no node 'cc'"),
        ({"exclude_nodes": ["Conv"]}, "no node 'Conv'"),
        ({"op_types": ["Convv"]}, "no operator 'Convv'; did you mean Conv"),
        ({"exclude_op_types": ["Gemm"]}, "no operator 'Gemm'"),
        ({"overrides": {"zz": {}}}, "no tensor 'zz'"),
    ],
)
def test_a_name_that_the_model_does_not_have_is_an_error(settings, message):
    with pytest.raises(SettingsError, match=message):
        planned(**settings)


def test_nothing_to_quantize_is_an_error_of_the_target():
    with pytest.raises(TargetError, match="cpu takes no node of this model at uint8 activations"):
        planned(nodes=["r"])


def test_an_operator_not_worth_it_by_itself_is_left_alone_where_its_input_is_float():
    float_model = model(
        "float[1,3,6,6] x", "float[1,4,6,6] y", "r = LeakyRelu(x)  y = Conv(r, w)", w=weight(4, 3, 1, 1)
    )
    assert set(quantizing.plan(float_model, load_target("cpu"), QuantConfig()).nodes) == {"y"}


@pytest.mark.parametrize(
    ("settings", "activation", "weights"),
    [
        ({}, "uint8", "int8"),
        ({"activation_type": "int8"}, "int8", "int8"),
        ({"activation_type": "uint16"}, "uint16", "int8"),
        ({"activation_type": "uint16", "weight_type": "int16"}, "uint16", "int16"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "qnn"])
def test_types_are_those_of_the_settings_on_every_device(settings, activation, weights, device):
    result = quantized(net(), FEEDS, device, **settings).model
    assert (read(result, "c", 0).dtype, read(result, "c", 1).dtype) == (activation, weights)
    assert (read(result, "c", 2).dtype, written(result, "m").dtype) == ("int32", activation)


def test_a_weight_type_that_the_target_does_not_take_there_is_the_nearest_that_it_takes():
    body = "n = LayerNormalization(x, g, b)  y = MatMul(n, w)"
    weights = {"g": weight(8), "b": weight(8), "w": weight(8, 4)}
    float_model = model("float[1,4,8] x", "float[1,4,4] y", body, **weights)
    result = quantized(float_model, rows({"x": (1, 4, 8)}), "qnn").model
    assert read(result, "n", 1).dtype == "uint8" and read(result, "y", 1).dtype == "int8"


def test_sixteen_bit_weights_come_with_the_architecture_that_has_them():
    quant = QuantConfig(activation_type="uint16", weight_type="int16")
    new = quantizing.plan(net(), load_target("qnn", arch="v73"), quant)
    assert {plan.dtype for plan in new.weights} == {"int16"}
    with pytest.raises(TargetError, match=r"int16 weights beside uint16 activations from v73 on"):
        quantizing.plan(net(), load_target("qnn", arch="v68"), quant)


@pytest.mark.parametrize("wanted", ["uint16", "int16"])
@pytest.mark.parametrize(
    ("node", "constants"),
    [("l = Log(m)", {}), pytest.param("l = PRelu(m, p)", {"p": weight(4, 1, 1)}, id="a slope for each channel")],
)
def test_what_an_npu_takes_in_eight_bits_only_has_them_between_wider_ones(node, constants, wanted):
    body = f"m = Conv(x, w)  {node}  y = Conv(l, v)"
    float_model = model(
        "float[1,3,6,6] x", "float[1,5,6,6] y", body, w=weight(4, 3, 1, 1), v=weight(5, 4, 1, 1), **constants
    )
    plan = quantizing.plan(float_model, load_target("qnn"), QuantConfig(activation_type=wanted))
    assert (plan.nodes["m"], plan.nodes["l"], plan.nodes["y"]) == (wanted, "uint8", wanted)


class TestOverrides:
    def test_a_range(self):
        found = read(quantized(net(), FEEDS, overrides={"x": {"low": -1.0, "high": 1.55}}).model, "c", 0)
        assert (found.scale, found.zero_point) == (F(0.01), 100)

    def test_symmetry(self):
        found = read(quantized(net(), FEEDS, overrides={"x": {"symmetric": True}}).model, "c", 0)
        assert found.zero_point == 128

    def test_a_method(self):
        feeds = [{"x": feed["x"] ** 9} for feed in FEEDS]
        plain = read(quantized(net(), feeds).model, "c", 0)
        clipped = read(quantized(net(), feeds, overrides={"x": {"method": "entropy"}}).model, "c", 0)
        assert clipped.scale < 0.9 * plain.scale

    def test_a_weight_per_tensor(self):
        result = quantized(net(), FEEDS, overrides={"w": {"per_channel": False}}).model
        assert read(result, "c", 1).axis is None and read(result, "d", 1).axis == 0
        assert read(result, "c", 2).scale == read(result, "c", 0).scale * read(result, "c", 1).scale

    @pytest.mark.parametrize(("asked", "axis"), [({}, None), ({"per_channel": True}, 0)])
    def test_a_scale_a_channel_where_the_table_names_one_for_all_first(self, asked, axis):
        """On qnn 16-bit weights have one scale for all channels, unless somebody wants one for each."""
        given = {"w": {"dtype": "int16", **asked}}
        config = QuantConfig(activation_type="uint16", per_channel=True, overrides=given)
        found = {weight.tensor: weight for weight in quantizing.plan(net(), load_target("qnn"), config).weights}
        assert (found["w"].dtype, found["w"].axis) == ("int16", axis)

    def test_the_type_of_a_weight(self):
        result = quantized(net(), FEEDS, overrides={"w": {"dtype": "uint8", "symmetric": False}}).model
        assert read(result, "c", 1).dtype == "uint8" and read(result, "d", 1).dtype == "int8"

    @pytest.mark.parametrize(
        ("tensor", "override", "message"),
        [
            ("w", {"dtype": "int16"}, "w: int16 is not a type that cpu takes there"),
            ("m", {"dtype": "int4"}, "m: int4 is not a type that cpu takes there"),
            ("m", {"dtype": "uint16"}, "m: uint16 is not a type that cpu takes there"),
            ("m", {"per_channel": True}, "m: per_channel has no effect on an activation"),
            ("w", {"low": -1.0, "high": 1.0}, "w: high, low has no effect on a weight"),
            ("w", {"method": "mse"}, "w: method has no effect on a weight"),
            ("b", {"symmetric": True}, "b: its override has no effect"),
        ],
    )
    def test_that_cannot_be_obeyed_is_an_error(self, tensor, override, message):
        with pytest.raises(SettingsError, match=message):
            quantized(net(), FEEDS, overrides={tensor: override})

    def test_of_two_tensors_on_one_grid_must_agree(self):
        body = "c = Conv(x, w)  t = Transpose(c)  y = Reshape(t, s)"
        float_model = model("float[1,3,6,6] x", "float[36,4] y", body, w=weight(4, 3, 1, 1), s=np.int64([36, 4]))
        one = {"low": -1.0, "high": 1.0}
        with pytest.raises(SettingsError, match="share one grid"):
            quantized(float_model, FEEDS, overrides={"c": one, "t": {"low": -2.0, "high": 2.0}})
        result = quantized(float_model, FEEDS, overrides={"t": one}).model
        assert written(result, "c").same(written(result, "t"))
        assert written(result, "c").scale == F(2 / 255)

    def test_a_tensor_that_nothing_quantizes_is_an_error(self):
        with pytest.raises(SettingsError, match="x: its override has no effect"):
            quantized(net(), FEEDS, nodes=["d"], overrides={"x": {"low": 0.0, "high": 1.0}})


def test_a_grid_that_the_device_insists_on_is_not_given_up_for_a_shared_one():
    """Values of the other input reach far beyond 1: one grid for both would take the Softmax its own range."""
    body = "s = Softmax(x)  t = Transpose<perm=[0,1,2]>(s)  r = LeakyRelu(y)  z = Concat<axis=1>(t, r)"
    float_model = model("float[1,4,16] x, float[1,4,16] y", "float[1,8,16] z", body)
    feeds = rows({"x": (1, 4, 16), "y": (1, 4, 16)})
    result = quantized(float_model, feeds, "qnn").model
    softmax, moved, joined = (written(result, name) for name in ("s", "t", "z"))
    assert validate(result, load_target("qnn"), strict=False) == ()
    assert {(float(grid.scale), int(grid.zero_point)) for grid in (softmax, moved)} == {(1 / 256, 0)}
    reach = max(float(feed["y"].max()) for feed in feeds)
    assert reach > 2 and (255 - int(joined.zero_point)) * float(joined.scale) == pytest.approx(reach, rel=0.01)


def test_grids_that_the_device_does_not_insist_on_are_shared():
    body = "s = Sigmoid(x)  r = LeakyRelu(y)  z = Concat<axis=1>(s, r)"
    float_model = model("float[1,4,16] x, float[1,4,16] y", "float[1,8,16] z", body)
    result = quantized(float_model, rows({"x": (1, 4, 16), "y": (1, 4, 16)}), "qnn").model
    assert len({float(written(result, name).scale) for name in ("s", "r", "z")}) == 1


def test_grids_that_the_device_insists_on_are_shared_where_they_are_the_same():
    body = "s = Softmax(x)  t = Softmax(y)  z = Concat<axis=1>(s, t)"
    float_model = model("float[1,4,16] x, float[1,4,16] y", "float[1,8,16] z", body)
    result = quantized(float_model, rows({"x": (1, 4, 16), "y": (1, 4, 16)}), "qnn").model
    assert {float(written(result, name).scale) for name in ("s", "t", "z")} == {1 / 256}


@pytest.mark.parametrize(
    ("body", "shape", "settings", "symmetric"),
    [
        ("y = Conv(x, w)", (4, 3, 1, 1), {}, False),
        ("y = Conv(x, w)", (4, 3, 1, 1), {"per_channel": False}, True),
        ("y = ConvTranspose(x, w)", (3, 4, 1, 1), {}, True),
    ],
)
def test_weights_have_zero_points_where_rewriting_takes_them_out_for_the_device(body, shape, settings, symmetric):
    float_model = model("float[1,3,6,6] x", "float[1,4,6,6] y", body, w=weight(*shape))
    config = QuantConfig.from_dict({"weight_symmetric": False, **settings})
    assert [plan.symmetric for plan in quantizing.plan(float_model, load_target("qnn"), config).weights] == [symmetric]


@pytest.mark.parametrize(("shape", "output", "axis"), [((8, 4), "4,4", 1), ((8,), "4", None)])
def test_a_vector_has_no_channels(shape, output, axis):
    float_model = model("float[4,8] x", f"float[{output}] y", "y = MatMul(x, w)", w=weight(*shape))
    (plan,) = quantizing.plan(float_model, load_target("qnn"), QuantConfig()).weights
    assert plan.axis == axis


@pytest.mark.parametrize(("group", "scales"), [(1, (2,)), (2, ()), (4, ())])
def test_a_transposed_convolution_in_groups_has_one_scale_for_its_weight(group, scales):
    """A channel of its weight is one of each group, and the bias has a number for every one of them."""
    weights = {"w": weight(4, 2, 3, 3), "b": weight(2 * group)}
    body = f"y = ConvTranspose<group={group}>(x, w, b)"
    result = quantized(model("float[1,4,5,5] x", "y", body, **weights), rows({"x": (1, 4, 5, 5)}), "qnn").model
    (node,) = (node for node in result.graph if node.op_type == "ConvTranspose")
    found = [value.producer().inputs[1].const_value.numpy().shape for value in node.inputs[1:]]
    assert found == [scales, scales] and node.inputs[2].producer().inputs[0].shape == ir.Shape([2 * group])


def test_nothing_is_clipped_before_a_normalization():
    body = "c = MatMul(x, w)  n = LayerNormalization(c, g, b)  y = MatMul(n, v)"
    weights = {"w": weight(8, 8), "g": weight(8), "b": weight(8), "v": weight(8, 4)}
    float_model = model("float[1,4,8] x", "float[1,4,4] y", body, **weights)
    plan = quantizing.plan(float_model, load_target("qnn"), QuantConfig(method="entropy"))
    assert {name: plan.grids[plan.tensors[name]].method for name in ("x", "c", "n")} == {
        "x": "entropy",
        "c": "minmax",
        "n": "entropy",
    }


@pytest.mark.parametrize("body", ["s = Softmax(c)  t = Sigmoid(c)", "t = Sigmoid(c)  s = Softmax(c)"])
@pytest.mark.parametrize(("activation", "least"), [("uint16", 3e-6), ("uint8", 0.0)])
def test_the_least_scale_of_a_tensor_is_the_largest_that_a_reader_wants(body, activation, least):
    """A Softmax of 16 bits wants one, whichever of the readers comes first; nothing else does."""
    weights = {"w": weight(8, 8), "v": weight(8, 4)}
    float_model = model(
        "float[4,8] x", "float[4,4] y", f"c = MatMul(x, w)  {body}  m = Mul(s, t)  y = MatMul(m, v)", **weights
    )
    found = plan(float_model, load_target("qnn"), QuantConfig(activation_type=activation))
    scales = {name: found.grids[found.tensors[name]].least_scale for name in ("x", "c", "s", "t", "m")}
    assert scales == {"x": 0.0, "c": least, "s": 0.0, "t": 0.0, "m": 0.0}


@pytest.mark.parametrize(
    ("op", "activation", "kept"),
    [("Tanh", "uint16", True), ("Sigmoid", "uint16", True), ("Tanh", "uint8", False), ("LeakyRelu", "uint16", False)],
)
def test_a_clip_keeps_the_grid_before_it_where_the_device_insists_on_that(op, activation, kept):
    """A Tanh of 16 bits on a grid from 0 up comes out at 0.6 dB: the provider puts its own grid there."""
    body = f"c = MatMul(x, w)  t = {op}(c)  r = Relu(t)  y = MatMul(r, v)"
    float_model = model("float[4,8] x", "float[4,4] y", body, w=weight(8, 8), v=weight(8, 4))
    found = plan(float_model, load_target("qnn"), QuantConfig(activation_type=activation))
    assert ("t" in found.tensors) == kept


def test_a_range_that_is_known_is_that_of_a_grid_of_one_tensor_only():
    body = "a = Conv(x, v)  b = Conv(x, w)  j = Concat<axis=1>(a, b)  y = Conv(j, u)"
    weights = {"v": weight(2, 3, 1, 1), "w": weight(2, 3, 1, 1), "u": weight(2, 4, 1, 1)}
    float_model = model("float[1,3,6,6] x", "float[1,2,6,6] y", body, **weights)
    known = {"x": Range(-1.0, 2.0), "a": Range(-3.0, 3.0)}
    found = plan(float_model, load_target("cpu"), QuantConfig(), ranges=known)
    assert {name: found.grids[found.tensors[name]].range for name in ("x", "a", "b", "y")} == {
        "x": Range(-1.0, 2.0),
        "a": None,
        "b": None,
        "y": None,
    }


@pytest.mark.parametrize(
    ("operator", "settings", "method"),
    [
        ("LpNormalization(c)", {"activation_type": "uint16"}, "auto"),  # which clips nothing of 16 bits, and has room
        ("LpNormalization(c)", {"activation_type": "uint16", "method": "mse"}, "minmax"),
        ("LpNormalization(c)", {}, "minmax"),
        ("LayerNormalization(c, g, b)", {"activation_type": "uint16"}, "auto"),
        ("LayerNormalization(c, g, b)", {}, "minmax"),
    ],
)
def test_what_a_normalization_reads_is_never_clipped_and_has_room_in_16_bits(operator, settings, method):
    weights = {"w": weight(4, 4), "v": weight(4, 4), "g": weight(4), "b": weight(4)}
    given = model("float[2,4] x", "float[2,4] y", f"c = MatMul(x, w)  n = {operator}  y = MatMul(n, v)", **weights)
    found = plan(given, load_target("qnn"), QuantConfig.from_dict(settings))
    assert found.grids[found.tensors["c"]].method == method


def test_grids_have_the_headroom_that_the_settings_ask_for():
    found = planned(headroom=3.0)
    assert {grid.headroom for grid in found.grids.values()} == {3.0}


def test_no_channels_are_evened_out_where_room_is_asked_for(monkeypatch):
    monkeypatch.setattr(migrate, "Migration", lambda *_, **__: pytest.fail("channels lose their room"))
    config = QuantConfig(headroom=1.0, activation_type="uint16")
    assert quantizing.quantize(net(), load_target("qnn"), config, FEEDS).plan.nodes


ATTENTION = "s = MatMul(q, k)  d = Mul(s, f)  m = Add(d, b)  p = Softmax(m)  y = MatMul(p, v)"


@pytest.mark.parametrize(
    ("settings", "method", "room"),
    [
        ({}, "minmax", 0.0625),
        ({"method": "mse"}, "mse", 0.0),
        ({"activation_type": "uint16"}, "auto", 0.0),
    ],
)
def test_scores_of_attention_are_not_clipped_and_have_room_above_in_8_bits(settings, method, room):
    """One score that is cut off changes every weight of its row."""
    inputs = "float[1,4,8] q, float[1,8,4] k, float[1,4,8] v, float[1,1,4] b"
    given = model(inputs, "float[1,4,8] y", ATTENTION, f=F([0.5]))
    found = plan(given, load_target("qnn"), QuantConfig.from_dict(settings))
    for score in ("s", "d", "m"):
        grid = found.grids[found.tensors[score]]
        assert (grid.method, grid.room_above) == (method, room)
    others = [found.grids[found.tensors[tensor]] for tensor in ("q", "v", "y")]
    assert {(grid.method, grid.room_above) for grid in others} == {(settings.get("method", "auto"), 0.0)}


def test_a_softmax_that_is_the_result_leaves_the_range_of_its_scores_free():
    given = model("float[1,8] x", "float[1,4] y", "s = MatMul(x, w)  y = Softmax(s)", w=weight(8, 4))
    found = plan(given, load_target("qnn"), QuantConfig())
    assert found.grids[found.tensors["s"]].method == "auto"


@pytest.mark.parametrize(
    ("last", "is_result"), [("y = MatMul(x, w)", True), ("y = LayerNormalization(x, g, b)", False)]
)
def test_results_may_have_room_but_for_those_of_normalizations(last, is_result):
    weights = {"w": weight(4, 4), "g": weight(4), "b": weight(4)}
    names = [name for name in weights if f" {name}" in last]
    given = model("float[2,4] x", "float[2,4] y", last, **{name: weights[name] for name in names})
    found = plan(given, load_target("qnn"), QuantConfig())
    assert [found.grids[found.tensors[tensor]].is_result for tensor in ("x", "y")] == [False, is_result]


def test_a_normalization_that_alone_has_16_bits_leaves_no_room():
    weights = {"w": weight(4, 4), "v": weight(4, 4), "g": weight(4), "b": weight(4)}
    body = "c = MatMul(x, w)  n = LayerNormalization(c, g, b)  y = MatMul(n, v)"
    given = model("float[2,4] x", "float[2,4] y", body, **weights)
    found = plan(given, load_target("qnn"), QuantConfig(), {"c": "uint16", "n": "uint16"})
    grid = found.grids[found.tensors["c"]]
    assert (grid.dtype, grid.method) == ("uint16", "minmax")
