"""Every type of weights beside every type of activations: the model is valid, loads, and computes what it says."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest

from intact.errors import SettingsError, TargetError
from intact.quantization import quantizing
from intact.rules.quantized import families
from intact.runtime import ort_cpu
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.kernels import exact
from tests.quantization.models import model, quantized, read, rows

RNG = np.random.default_rng(7)
W, G = (RNG.standard_normal(shape).astype(np.float32) * 0.2 for shape in ((8, 3, 3, 3), (64, 10)))
FEEDS = rows({"x": (1, 3, 8, 8)})
WEIGHTS = ["uint8", "int8", "uint16", "int16", "int4", "uint4"]
GRANULARITIES = {"tensor": {"per_channel": False}, "channel": {}, "block": {"block_size": 32}}
# int8 kernels want int8 weights; ONNX Runtime has no form for uint8 ones beside them.
SUBSTITUTED = {("int8", "uint8"): "int8"}


def net() -> ir.Model:
    body = "c = Conv<pads = [1, 1, 1, 1]>(x, w)  r = Relu(c)  f = Reshape(r, s)  y = MatMul(f, g)"
    return model("float[1,3,8,8] x", "float[1,8,10] y", body, w=W, g=G, s=np.array([1, 8, 64]))


def sqnr(found, expected):
    noise = sum(float(((a - b) ** 2).sum()) for a, b in zip(found, expected, strict=True))
    return 10 * np.log10(sum(float((b**2).sum()) for b in expected) / noise)


def cases(weights, activations):
    """Every combination that has a meaning: blocks are for symmetric weights of 4 bits and fewer."""
    for activation, weight, symmetric, grain in itertools.product(activations, weights, (True, False), GRANULARITIES):
        if grain != "block" or (symmetric and weight in ("int4", "uint4", "int2")):
            yield activation, weight, symmetric, grain


def check(activation, weight, symmetric, grain):
    graph = net()
    settings = {"activation_type": activation, "weight_type": weight, "weight_symmetric": symmetric}
    result = quantized(graph, FEEDS, **settings, **GRANULARITIES[grain])
    assert read(result.model, "c", 1).dtype == SUBSTITUTED.get((activation, weight), weight)
    rewritten = families.rewrite(result.model, load_target("cpu")).model
    expected = [ort_cpu.run(graph, feed)["y"] for feed in FEEDS]
    found = []
    for form, optimize in itertools.product((result.model, rewritten), (False, True)):
        session = ort_cpu.Session(exact(form), optimize=optimize)
        found.append(sqnr([session.run(feed)["y"] for feed in FEEDS], expected))
    assert max(found) - min(found) < 0.5 and min(found) > 0
    stored = read(result.model, "c", 1)
    step = stored.scale if stored.axis is None else stored.scale[:, None, None, None]
    # Two bits have no room for the largest value and its negative.
    assert (np.abs(stored.values() - W) <= step * (1.0 if weight == "int2" else 0.5) * (1 + 1e-5)).all()


@pytest.mark.parametrize(
    ("activation", "weight", "symmetric", "grain"), list(cases(WEIGHTS, ["uint8", "int8", "uint16", "int16"]))
)
def test_a_type_of_weights_works_beside_every_type_of_activations(activation, weight, symmetric, grain):
    check(activation, weight, symmetric, grain)


@pytest.mark.parametrize(("activation", "weight", "symmetric", "grain"), list(cases(["int2"], ["uint16", "int16"])))
def test_two_bits_come_with_the_opset_that_defines_them(activation, weight, symmetric, grain):
    check(activation, weight, symmetric, grain)
    assert quantized(net(), FEEDS, activation_type="uint16", weight_type="int2").model.opset_imports[""] == 25
    assert quantized(net(), FEEDS, activation_type="uint16", weight_type="int4").model.opset_imports[""] == 21


@pytest.mark.parametrize(
    ("device", "activation", "weight"), [("cpu", "uint8", "int2"), ("qnn", "uint8", "uint4"), ("qnn", "uint16", "int2")]
)
def test_fewer_bits_than_a_target_takes_are_refused_before_anything_runs(device, activation, weight):
    with pytest.raises(SettingsError, match=f"takes no {weight} weights beside {activation} activations") as caught:
        quantized(net(), iter(()), device, activation_type=activation, weight_type=weight)
    assert "int8" in caught.value.allowed


def test_a_precision_that_no_layer_can_have_is_refused_with_the_architecture_that_has_it():
    with pytest.raises(TargetError, match="qnn/v68 takes no int16 weights beside uint16 activations") as caught:
        wide_on("v68", net())
    error = caught.value
    assert (error.code, error.status) == ("T116", 4)
    assert "c (Conv) would have int8 weights" in error.message
    assert "int8 weights" in error.allowed and "int16 weights beside uint16 activations from v73 on" in error.allowed
    assert "backends/qnn/table.toml [op.Conv]" in error.source and "--arch v73" in error.fix
    assert {w.dtype for w in wide_on("v73", net()).plan.weights if w.node == "c"} == {"int16"}


def test_more_bits_than_a_target_takes_of_some_layers_are_noted():
    deep = np.random.default_rng(0).standard_normal((3, 4, 1, 1, 1)).astype(np.float32)
    body = "h = Conv (x, w)  r = Reshape (h, s)  y = Conv (r, v)"
    shape = np.array([1, 3, 4, 4, 1], np.int64)
    constants = {"w": deep[..., 0].copy().reshape(3, 4, 1, 1), "s": shape, "v": deep[:, :3].copy()}
    found = wide_on("v73", model("float[1,4,4,4] x", "float[1,3,4,4,1] y", body, **constants), {"x": (1, 4, 4, 4)})
    assert {w.node: w.dtype for w in found.plan.weights} == {"h": "int16", "y": "int8"}
    assert found.notes == ("weights that the target does not take as int16: y (int8)",)


def test_types_of_single_nodes_are_what_is_asked_for_there():
    found = wide_on("v68", net(), activation_type="uint8", weight_type="int8", types={"c": "uint16", "y": "uint16"})
    assert {found.plan.nodes[name] for name in ("c", "y")} == {"uint16"}


def wide_on(arch, float_model, shapes=None, **settings):
    wide = {"activation_type": "uint16", "weight_type": "int16", "effort": "fast", **settings}
    feeds = FEEDS if shapes is None else rows(shapes)
    return quantizing.quantize(float_model, load_target("qnn", arch=arch), QuantConfig.from_dict(wide), feeds)
