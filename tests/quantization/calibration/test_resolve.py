"""Grids and integers that a plan comes to: weights, biases in steps of their sums, ranges, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from intact.errors import ModelError
from intact.quantization.calibration.resolve import Resolved, check_constants, resolve
from intact.quantization.calibration.sketch import Sketch
from intact.quantization.planning.planner import plan
from intact.results import QuantPlan, Range
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.quantization.models import model

F = np.float32
X_SCALE = F(2 / 255)


def layer(w, b, op="Conv", **attributes):
    """One layer with a weight and a bias, from 3 channels."""
    shape = "1,3,1,1" if op == "Conv" else "1,3"
    given = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    return model(
        f"float[{shape}] x", "float[N] y", f"y = {op}<{given}>(x, w, b)" if given else f"y = {op}(x, w, b)", w=w, b=b
    )


def resolved(graph, device="cpu", types=None, seen=None, **settings) -> tuple[QuantPlan, Resolved]:
    """Grids of a model whose ranges are known beforehand: 2 wide for its input, 16 for all others."""
    ranges = {value.name: Range(-8.0, 8.0) for node in graph.graph for value in node.outputs} | {"x": Range(-1.0, 1.0)}
    found = plan(graph, load_target(device), QuantConfig.from_dict(settings), types, ranges)
    return found, resolve(graph, found, seen or {})


def weight_of(w, b=None, **settings):
    """The encoding of the weight of a convolution, its integers, and the same of its bias."""
    _, found = resolved(layer(F(w), F(np.zeros(len(w)) if b is None else b)), **settings)
    return (*found.constants["y", 1], *found.constants["y", 2])


CHANNELS = F([[0.5, -1.27, 1], [0, 0, 0], [0, 0.635, 0.1], [-0.254, 0, -0.1], [0, 0, 0.0127]])[:, :, None, None]


def test_a_channel_of_zeros_takes_the_scale_of_its_neighbours_and_no_other_does():
    """A channel is empty only if its least and its greatest value are 0: those that merely touch 0 keep their own."""
    encoding, integers, *_ = weight_of(CHANNELS, weight_type="int8")
    np.testing.assert_allclose(encoding.scale, [0.01, 0.01, 0.005, 0.002, 0.0001], rtol=1e-6)
    assert encoding.axis == 0 and encoding.dtype == "int8" and not encoding.zero_point.any()
    levels = np.rint(CHANNELS.astype(np.float64) / encoding.scale.reshape(-1, 1, 1, 1))
    np.testing.assert_array_equal(integers, levels)


def test_one_scale_for_the_whole_weight_is_that_of_its_largest_value():
    encoding, integers, *_ = weight_of(CHANNELS, weight_type="int8", per_channel=False)
    assert encoding.axis is None
    np.testing.assert_allclose(encoding.scale, 0.01, rtol=1e-6)
    np.testing.assert_array_equal(integers, np.rint(CHANNELS / 0.01))


def test_a_weight_of_zeros_only_has_zeros_on_a_grid_with_a_step():
    encoding, integers, *_ = weight_of(np.zeros((2, 3, 1, 1)))
    assert (encoding.scale > 0).all() and not integers.any()


def test_a_bias_is_in_steps_of_input_and_weight():
    encoding, _, bias, steps = weight_of(CHANNELS, [1, -2, 0.5, 0.25, 0.1])
    np.testing.assert_allclose(bias.scale, X_SCALE * encoding.scale, rtol=1e-6)
    assert bias.dtype == "int32" and bias.axis == 0 and not bias.zero_point.any()
    np.testing.assert_array_equal(steps, np.rint([1, -2, 0.5, 0.25, 0.1] / bias.scale.astype(np.float64)))


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_scale_grows_until_its_bias_takes_half_of_int32_and_no_further(per_channel, sign):
    """2^30 steps of x_scale · w_scale for the sum that the bias is added to; the other channel keeps its scale."""
    w = F([[1.27, 0, 0], [0, 1.27, 0]])[:, :, None, None] * F(1e-3)
    encoding, _, bias, steps = weight_of(w, [sign * 3e4, 0.5], per_channel=per_channel, weight_type="int8")
    raised = 3e4 / (2**30 * float(X_SCALE))
    assert raised > 100 * 1e-5
    np.testing.assert_allclose(encoding.scale, [raised, 1e-5] if per_channel else raised, rtol=1e-6)
    assert abs(int(steps[0])) == pytest.approx(2**30, rel=1e-6)
    np.testing.assert_allclose(steps * bias.scale.astype(np.float64), [sign * 3e4, 0.5], atol=bias.scale.max())


def test_a_bias_with_room_leaves_the_scale_as_it_is():
    alone, *_ = weight_of(CHANNELS)
    beside, *_ = weight_of(CHANNELS, np.full(5, 100.0))
    np.testing.assert_array_equal(alone.scale, beside.scale)


@pytest.mark.parametrize(("shape", "axis"), [((1,), 0), ((4,), 0), ((1, 4), 0), ((1, 1), 0)])
def test_a_bias_for_all_channels_becomes_one_for_each(shape, axis):
    w = np.linspace(-1, 1, 12).astype(F).reshape(3, 4)
    given = np.linspace(0.5, 2, int(np.prod(shape))).astype(F).reshape(shape)
    _, found = resolved(layer(w, given, "Gemm"))
    bias, steps = found.constants["y", 2]
    assert bias.axis == axis and bias.scale.shape == (4,)
    np.testing.assert_array_equal(steps, np.rint(np.broadcast_to(given.reshape(-1), 4) / bias.scale.astype(np.float64)))


def test_a_bias_beside_one_scale_keeps_its_shape():
    w = np.linspace(-1, 1, 12).astype(F).reshape(3, 4)
    _, found = resolved(layer(w, F([1, 2, 3, 4]), "Gemm"), per_channel=False)
    bias, steps = found.constants["y", 2]
    assert bias.axis is None and bias.scale.shape == ()
    np.testing.assert_array_equal(steps, np.rint([1, 2, 3, 4] / bias.scale.astype(np.float64)))


def test_a_bias_behind_a_second_grid_is_in_steps_of_that_one():
    """`c` writes 8 bits and `d` reads 16 of them: the sums of `d` are in the steps of what it reads."""
    body = "c = Conv(x, w)  d = Conv(c, v, b)"
    weights = {"w": F([[[[1]]], [[[2]]]]), "v": F([[[[1]], [[2]]]]), "b": F([0.3])}
    graph = model("float[1,1,4,4] x", "float[1,1,4,4] d", body, **weights)
    seen = Sketch()
    seen.add(F([-4, 4]))
    found, result = resolved(graph, "qnn", {"d": "uint16"}, {"c": seen}, method="minmax")
    assert found.conversions["c:uint16"].readers == (("d", 0),)
    narrow, wide = result.tensors["c"], result.tensors["c:uint16"]
    np.testing.assert_allclose([narrow.scale, wide.scale], [16 / 255, 8 / 65535], rtol=1e-6)
    weight, _ = result.constants["d", 1]
    bias, steps = result.constants["d", 2]
    np.testing.assert_allclose(bias.scale, wide.scale * weight.scale, rtol=1e-6)
    np.testing.assert_array_equal(steps, np.rint(0.3 / bias.scale.astype(np.float64)))


@pytest.mark.parametrize("bad", [[np.nan], [np.inf], [-np.inf], [np.nan, np.inf, -np.inf]])
@pytest.mark.parametrize("where", ["w", "b"])
def test_numbers_that_are_none_are_refused_by_their_count(bad, where):
    arrays = {"w": np.ones((5, 3, 1, 1), F), "b": np.ones(5, F)}
    arrays[where].reshape(-1)[: len(bad)] = bad
    graph = layer(**arrays)
    found = plan(graph, load_target("cpu"), QuantConfig())
    for refuse in (lambda: check_constants(graph, found), lambda: resolved(graph)):
        with pytest.raises(ModelError, match=f"{where}: {len(bad)} of its values are NaN or infinite") as caught:
            refuse()
        assert caught.value.code == "M140"


@pytest.mark.parametrize("low", [-1e-3, -0.5])
def test_a_grid_is_widened_up_to_the_least_scale_that_a_device_computes_with(low):
    """16 bits over 2e-3 have steps of 3e-8, and the device wants 3e-6 before a Softmax; 1 / 65535 is enough."""
    graph = model(
        "float[1,3] x",
        "float[1,4] y",
        "c = MatMul(x, w)  s = Softmax(c)  y = MatMul(s, v)",
        w=np.ones((3, 4), F),
        v=np.eye(4, dtype=F),
    )
    ranges = {"x": Range(-1.0, 1.0), "c": Range(low, -low), "y": Range(-1.0, 1.0)}
    found = plan(graph, load_target("qnn"), QuantConfig(activation_type="uint16"), None, ranges)
    assert found.grids[found.tensors["c"]].least_scale == 3e-6
    grid = resolve(graph, found, {}).tensors["c"]
    np.testing.assert_allclose(grid.scale, max(3e-6, -2 * low / 65535), rtol=1e-6)
    assert abs(int(grid.zero_point) - 32768) <= 1 and grid.dtype == "uint16"


@pytest.mark.parametrize(("values", "same"), [([0.0, 0.0], True), ([0.0, 1e-3], False)])
def test_a_tensor_of_zeros_takes_the_finest_grid_beside_it_and_no_other_does(values, same):
    """Any scale holds zeros; one of 1 beside 3e-5 makes a Hexagon NPU lose the finer operand of a sum."""
    graph = model("float[1,3] x", "float[1,3] y", "z = Mul(x, w)  y = Add(x, z)", w=np.zeros((3,), F))
    ranges = {"x": Range(-1.0, 1.0), "y": Range(-4.0, 4.0)}
    found = plan(graph, load_target("qnn"), QuantConfig(activation_type="uint16"), None, ranges)
    seen = Sketch()
    seen.add(F(values))
    grids = resolve(graph, found, dict.fromkeys(found.observed, seen)).tensors
    assert "z" in found.observed
    assert grids["z"].same_grid(grids["x"]) is same
    assert float(grids["z"].scale) == pytest.approx(2 / 65535) if same else float(grids["z"].scale) < 1e-7
