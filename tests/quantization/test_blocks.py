"""Weights in blocks: the arithmetic, the form that the Hexagon compiler fuses, and what stays per channel."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from intact.backends.live import place_live
from intact.errors import SettingsError
from intact.model import normalize, shapes
from intact.quantization import blocks, quantizing
from intact.rules.quantized import families
from intact.runtime import ort_cpu
from intact.settings.config import QuantConfig
from intact.targets.registry import known_archs, load_target
from intact.targets.validate import validate
from tests.quantization.models import model as built

TWO_LAYERS = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[1,4,64] x) => (float[1,4,8] y) {
  m = MatMul(x, w)
  a = Relu(m)
  y = MatMul(a, v)
}
"""
MATRICES = hnp.arrays(np.float64, (16, 3), elements=st.floats(-4, 4, width=32))


def two_layers(middle=32):
    """A product with 64 inputs and one with `middle`."""
    random = np.random.default_rng(0)
    built = ir.from_proto(onnx.parser.parse_model(TWO_LAYERS))
    values = {value.name: value for node in built.graph for value in node.inputs}
    for name, shape in (("w", (64, middle)), ("v", (middle, 8))):
        # The first rows decide the scale of a channel, which is then too coarse for the others.
        array = random.standard_normal(shape) * np.where(np.arange(shape[0]) < 8, 1.0, 0.1)[:, None]
        values[name].const_value = ir.tensor(array.astype(np.float32), name=name)
        built.graph.register_initializer(values[name])
    for node in built.graph:
        node.name = node.outputs[0].name
    return normalize.normalize(built)


def rows(count=6):
    random = np.random.default_rng(1)
    return [{"x": random.standard_normal((1, 4, 64)).astype(np.float32)} for _ in range(count)]


def quantized(model, target, size, **more):
    config = QuantConfig(weight_type="int4", activation_type="uint16", block_size=size, **more)
    return quantizing.quantize(model, target, config, rows())


@given(MATRICES, st.sampled_from([2, 4, 8, 16]), st.sampled_from([0, 1]))
def test_scales_are_whole_multiples_of_their_channels(matrix, size, channel):
    matrix = matrix if channel == 1 else matrix.T
    encoding, integers = blocks.encode(matrix, channel, size)
    steps, multiples = blocks.factors(encoding)
    assert multiples.min() >= 1 and (multiples.max(axis=encoding.axis) == 16).all()
    assert steps.shape == (3,) and integers.shape == matrix.shape and np.abs(integers + 0.5).max() <= 7.5
    spread = multiples * np.expand_dims(steps, encoding.axis)
    assert np.array_equal(spread.astype(np.float32), encoding.scale)


@given(MATRICES, st.sampled_from([2, 4, 8, 16]))
def test_blocks_lose_no_more_than_half_a_step_of_the_channel(matrix, size):
    encoding, integers = blocks.encode(matrix, 1, size)
    real = integers * np.repeat(encoding.scale.astype(np.float64), size, axis=0)
    whole = np.abs(matrix).max(axis=0) / 7
    channel = np.clip(np.rint(matrix / np.where(whole > 0, whole, 1)), -8, 7) * whole
    # A float32 scale is off by up to 2^-24 of itself, and so is every value that it stands for: triangle inequality.
    rounding = np.linalg.norm(matrix) * 2.0**-23 + 1e-6
    assert np.linalg.norm(real - matrix) <= np.linalg.norm(channel - matrix) + rounding


def test_a_model_in_blocks_runs_and_is_more_accurate_than_per_channel():
    model, target = two_layers(), load_target("qnn")
    reference = [ort_cpu.Session(model).run(row)["y"] for row in rows()]
    errors = {}
    for size in (0, 8):
        session = ort_cpu.Session(quantized(model, target, size, effort="fast").model)
        errors[size] = sum(
            float(((session.run(r)["y"] - y) ** 2).sum()) for r, y in zip(rows(), reference, strict=True)
        )
    assert errors[8] < errors[0] / 2


def test_feedback_leaves_less_error_in_the_products_of_weights_in_blocks():
    random = np.random.default_rng(3)
    mixing = random.standard_normal((64, 64)) / 8 + np.eye(64)
    weights = random.standard_normal((64, 8)).astype(np.float32)
    net = built("float[1,16,64] x", "float[1,16,8] y", "y = MatMul(x, w)", w=weights)
    feeds = [{"x": (random.standard_normal((1, 16, 64)) @ mixing).astype(np.float32)} for _ in range(24)]
    errors = {}
    for effort in ("fast", "normal"):
        config = QuantConfig(weight_type="int4", activation_type="uint16", block_size=16, effort=effort)
        session = ort_cpu.Session(quantizing.quantize(net, load_target("qnn"), config, feeds[:16]).model)
        pairs = [(ort_cpu.run(net, feed)["y"], session.run(feed)["y"]) for feed in feeds[16:]]
        errors[effort] = sum(float(((a - b) ** 2).sum()) for a, b in pairs)
    assert errors["normal"] < 0.8 * errors["fast"]


@pytest.mark.qnn
@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("arch", known_archs("qnn"))
def test_table_and_library_take_the_form(arch, size):
    target = load_target("qnn", arch=arch)
    result = quantized(two_layers(), target, size)
    assert result.notes[-1] == f"blocks of {size}: 2 of 2 int4 weights"
    model = families.rewrite(result.model, target).model
    shapes.infer_shapes(model)
    assert validate(model, target) == ()
    live = place_live(model, target, timeout=300)
    assert live.cpu_nodes == () and live.partitions == 1


@pytest.mark.qnn
@pytest.mark.parametrize("spoil", ["zero points", "signed"])
def test_another_form_is_refused_by_table_and_library(spoil):
    target = load_target("qnn")
    model = quantized(two_layers(), target, 32).model
    weight = next(node for node in model.graph if "block_size" in node.attributes)
    if spoil == "signed":
        scales = weight.inputs[1].producer().inputs[0]
        scales.const_value = ir.tensor(scales.const_value.numpy().astype(np.int8), name=scales.name)
        scales.dtype = ir.DataType.INT8
    else:
        weight.resize_inputs(2)
    shapes.infer_shapes(model)
    (violation,) = validate(model, target, strict=False)
    assert violation.code == "T114" and "block" in violation.requirement
    assert {node.name for node in place_live(model, target, timeout=300).cpu_nodes} == {violation.node}


def test_what_does_not_divide_stays_per_channel_and_the_build_says_so():
    result = quantized(two_layers(middle=24), load_target("qnn"), 32)
    assert result.notes[-1].startswith("blocks of 32: 1 of 2 int4 weights")
    assert "y (MatMul): 24 inputs are not a multiple of 32" in result.notes[-1]


def test_a_target_without_blocks_is_a_warning():
    target = load_target("cpu")
    spec = target.ops["", "MatMul"]
    rest = tuple(row for row in spec.signatures if row.inputs[1].granularity != "block")
    without = replace(target, ops={**target.ops, ("", "MatMul"): replace(spec, signatures=rest)})
    result = quantized(two_layers(), without, 32)
    assert any("blocks of 32: 0 of 2" in warning and "cpu takes no blocks" in warning for warning in result.warnings)


@pytest.mark.parametrize("more", [{"weight_type": "int8"}, {"per_channel": False}])
def test_blocks_are_for_four_bits_per_channel(more):
    config = QuantConfig(**{"weight_type": "int4", "activation_type": "uint16", "block_size": 32, **more})
    with pytest.raises(SettingsError, match="--block-size 32"):
        quantizing.quantize(two_layers(), load_target("qnn"), config, rows())
