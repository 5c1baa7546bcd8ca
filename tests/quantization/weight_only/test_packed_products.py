"""Weights in few bits beside float activations, against plain numpy in float64."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.errors import ModelError, SettingsError, TargetError
from intact.model import query
from intact.pipeline import presets
from intact.quantization.weight_only import packed_products
from intact.runtime import ort_cpu
from intact.settings.config import BuildConfig, QuantConfig
from intact.targets.registry import load_target
from tests.quantization.models import model, rows

RNG = np.random.default_rng(5)
TYPES = ["int2", "int4", "uint4", "int8", "uint8"]


def weight(*shape):
    return (RNG.standard_normal(shape) * np.exp(RNG.standard_normal(shape))).astype(np.float32)


def pack(graph, device="cpu", **settings):
    values = {"activation_type": "float", "weight_type": "int4", "block_size": 32, **settings}
    return packed_products.pack(graph, load_target(device), QuantConfig.from_dict(values))


def unpacked(node: ir.Node) -> np.ndarray:
    """The matrix [inputs, outputs] that a MatMulNBits stands for, in float64, from its definition alone."""
    inputs, outputs, bits, size = (query.int_(node, name, 0) for name in ("K", "N", "bits", "block_size"))
    together, blocks = 8 // bits, -(-inputs // size)

    def levels(stored: np.ndarray) -> np.ndarray:
        spread = stored.astype(np.int64)[..., None] >> (bits * np.arange(together)) & (2**bits - 1)
        return spread.reshape(*stored.shape[:-1], -1)

    scales = query.constant(node.inputs[2]).astype(np.float64).reshape(outputs, blocks, 1)
    given = query.constant(query.input_(node, 3))
    middle = np.full((outputs, blocks), 2 ** (bits - 1))
    zeros = middle if given is None else levels(given.reshape(outputs, -1))[:, :blocks]
    values = (levels(query.constant(node.inputs[1])) - zeros[..., None]) * scales
    return values.reshape(outputs, -1)[:, :inputs].T


@pytest.mark.parametrize(
    ("dtype", "symmetric", "size", "inputs"), list(itertools.product(TYPES, [True, False], [16, 32, 128], [64, 72]))
)
def test_products_are_those_of_the_unpacked_weight(dtype, symmetric, size, inputs):
    w = weight(inputs, 10)
    graph, feeds = model(f"float[3,{inputs}] x", "float[3,10] y", "y = MatMul(x, w)", w=w), rows({"x": (3, inputs)})
    packed = pack(graph, weight_type=dtype, weight_symmetric=symmetric, block_size=size).model
    (node,) = packed.graph
    matrix = unpacked(node)
    for feed, optimize in itertools.product(feeds, (False, True)):
        expected = feed["x"].astype(np.float64) @ matrix
        found = ort_cpu.run(packed, feed, optimize=optimize)["y"]
        np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 * np.abs(expected).max())
    step = np.repeat(query.constant(node.inputs[2]).reshape(10, -1), size, axis=1)[:, :inputs].T
    if query.int_(node, "bits", 0) == 8:  # what is coarser may cut the largest values off
        assert (np.abs(matrix - w) <= step * (0.5 + 1e-6)).all()


PRODUCTS = [
    ("y = MatMul(x, w)", {"w": weight(64, 8)}, lambda x, m, p: x @ m),
    ("y = Gemm(x, w)", {"w": weight(64, 8)}, lambda x, m, p: x @ m),
    ("y = Gemm(x, w, b)", {"w": weight(64, 8), "b": weight(8)}, lambda x, m, p: x @ m + p["b"]),
    ("y = Gemm(x, w, b)", {"w": weight(64, 8), "b": weight(1, 8)}, lambda x, m, p: x @ m + p["b"]),
    ("y = Gemm(x, w, b)", {"w": weight(64, 8), "b": weight(1)}, lambda x, m, p: x @ m + p["b"]),
    ("y = Gemm<transB = 1>(x, w, b)", {"w": weight(8, 64), "b": weight(8)}, lambda x, m, p: x @ m + p["b"]),
    (
        "y = Gemm<alpha = 0.5, beta = -2.0>(x, w, b)",
        {"w": weight(64, 8), "b": weight(8)},
        lambda x, m, p: x @ m - 2.0 * p["b"],  # alpha is in the packed weight
    ),
]


@pytest.mark.parametrize(("body", "weights", "reference"), PRODUCTS)
def test_every_form_of_a_product_is_packed(body, weights, reference):
    graph, feeds = model("float[3,64] x", "float[3,8] y", body, **weights), rows({"x": (3, 64)})
    packed = pack(graph, weight_type="int8").model
    (node,) = packed.graph
    assert (node.op_type, node.name, node.outputs[0].name) == ("MatMulNBits", "y", "y")
    found, original = ort_cpu.run(packed, feeds[0])["y"], ort_cpu.run(graph, feeds[0])["y"]
    expected = reference(feeds[0]["x"].astype(np.float64), unpacked(node), weights)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 * np.abs(expected).max())
    assert np.abs(found - original).max() < 0.03 * np.abs(original).max()


@pytest.mark.parametrize("level", [0, 1, 4])
def test_the_accuracy_level_is_written_where_it_is_set(level):
    graph = model("float[3,64] x", "float[3,8] y", "y = MatMul(x, w)", w=weight(64, 8))
    (node,) = pack(graph, accuracy_level=level).model.graph
    assert node.attributes.get_int("accuracy_level", 0) == level and ("accuracy_level" in node.attributes) == bool(
        level
    )


@given(st.integers(0, 2**32 - 1), st.sampled_from(["int4", "uint4", "int2"]), st.booleans())
def test_refined_scales_lose_no_more_than_plain_ones(seed, dtype, symmetric):
    matrix = np.random.default_rng(seed).standard_normal((4, 32)) ** 3

    def error(refine):
        found = packed_products.encode(matrix, dtype, 16, symmetric=symmetric, refine=refine)
        real = (found.levels - found.zero_points[..., None]) * found.scales[..., None].astype(np.float64)
        return ((real.reshape(4, 32) - matrix) ** 2).sum()

    assert error(True) <= error(False)


@given(st.lists(st.integers(0, 15), min_size=1, max_size=9))
def test_two_levels_share_a_byte_the_first_in_its_low_half(levels):
    packed = packed_products.pack_bits(np.array(levels), 4)
    unfolded = [half for byte in packed.tolist() for half in (byte & 15, byte >> 4)]
    assert unfolded[: len(levels)] == levels and sum(unfolded[len(levels) :]) == 0


@pytest.mark.parametrize("inputs", [64, 72])
def test_rounding_with_feedback_leaves_less_error_in_products(inputs):
    config = QuantConfig.from_dict({"activation_type": "float", "weight_type": "int4", "block_size": 16})

    def errors():
        """The squared error on rows of its own, with and without feedback, for a layer whose inputs go together."""
        mixing = RNG.standard_normal((inputs, inputs)) / np.sqrt(inputs)
        feeds = [{"x": (RNG.standard_normal((40, inputs)) @ mixing).astype(np.float32)} for _ in range(12)]
        graph = model(f"float[40,{inputs}] x", "float[40,10] y", "y = MatMul(x, w)", w=weight(inputs, 10))
        for seen in (feeds[:8], None):
            (node,) = packed_products.pack(graph, load_target("cpu"), config, seen).model.graph
            difference = unpacked(node) - query.constant(graph.graph.initializers["w"])
            yield sum(np.square(feed["x"].astype(np.float64) @ difference).sum() for feed in feeds[8:])

    ratios = [np.divide(*errors()) for _ in range(6)]
    assert np.mean(ratios) < 0.8 and max(ratios) < 1


def test_a_weight_of_two_layers_is_packed_once():
    graph = model("float[3,16] x", "float[3,16] y", "a = MatMul(x, w)  y = MatMul(a, w)", w=weight(16, 16))
    result = pack(graph, block_size=16)
    first, second = result.model.graph
    assert first.inputs[1] is second.inputs[1] and result.nodes == ("a", "y")
    assert result.notes[0].startswith("1 weights packed to int4 in blocks of 16")


def test_the_note_says_how_much_smaller_the_weights_are():
    result = pack(model("float[3,1024] x", "float[3,512] y", "y = MatMul(x, w)", w=weight(1024, 512)))
    # 4 bits and a scale of 32 bits for every 32 values: 5 bits instead of 32.
    assert result.notes == ("1 weights packed to int4 in blocks of 32: 2.10 MB to 0.33 MB, 6.4 times smaller",)


REFUSED = [
    ("y = MatMul(x, x)", {}, "its second operand is computed"),
    ("y = MatMul(w, x)", {"w": weight(4, 4)}, "its second operand is computed"),
    ("y = MatMul(x, w)", {"w": weight(1, 4, 4)}, "its second operand is not a matrix"),
    ("y = Gemm<transA = 1>(x, w)", {"w": weight(4, 4)}, "its activations are transposed"),
    ("y = Gemm(x, w, b)", {"w": weight(4, 4), "b": weight(4, 1)}, "its bias is not one number for each output"),
    ("y = Gemm(x, w, x)", {"w": weight(4, 4)}, "its bias is not one number for each output"),
]


@pytest.mark.parametrize(("body", "weights", "reason"), REFUSED)
def test_what_is_not_packed_has_a_reason(body, weights, reason):
    rank = "float[1,4,4] y" if "1, 4, 4" in str([w.shape for w in weights.values()]) else "float[4,4] y"
    graph = model("float[4,4] x", f"float[4,4] z, {rank}", f"z = MatMul(x, v)  {body}", v=weight(4, 4), **weights)
    result = pack(graph)
    assert result.nodes == ("z",) and f"1 of 2 MatMul and Gemm stay in float: y: {reason}" in result.notes[1]
    with pytest.raises(TargetError, match="no MatMul or Gemm of the model has a weight to pack"):
        pack(graph, exclude_nodes=["z"])


def test_a_weight_that_is_not_finite_is_named():
    with pytest.raises(ModelError, match="w: some of its values are NaN"):
        pack(model("float[3,4] x", "float[3,2] y", "y = MatMul(x, w)", w=np.full((4, 2), np.nan, np.float32)))


@pytest.mark.parametrize(
    ("device", "settings", "message"),
    [
        ("cpu", {"block_size": 0}, "--block-size 0: cpu has no such blocks"),
        ("cpu", {"block_size": 24}, "16, 32, 64, 128, 256"),
        ("cpu", {"weight_type": "int16"}, "cpu takes no int16 weights beside float activations"),
        ("qnn", {}, "qnn/v73 takes no int4 weights beside float activations"),
        ("cpu", {"exclude_nodes": ["n"]}, "no node 'n'"),
    ],
)
def test_settings_that_the_target_has_no_use_for_are_errors(device, settings, message):
    graph = model("float[3,64] x", "float[3,8] y", "y = MatMul(x, w)", w=weight(64, 8))
    with pytest.raises(SettingsError, match=message):
        pack(graph, device, **settings)


@pytest.mark.parametrize(
    ("precision", "instead"), [("w4", "--precision w4a16 --block-size 32"), ("w8", "--precision w8a16")]
)
def test_on_an_npu_the_error_names_the_precision_to_use(precision, instead):
    config = BuildConfig.from_dict({"precision": precision, "compile": {"device": "qnn"}})
    with pytest.raises(SettingsError, match=f"{precision} makes no sense on qnn") as caught:
        presets.resolve(config)
    assert instead in caught.value.fix


def test_a_packed_model_is_taken_as_it_is():
    from intact.model.detect import detect

    graph = model("float[3,64] x", "float[3,8] y", "y = MatMul(x, w)", w=weight(64, 8))
    found = detect(pack(graph).model)
    assert presets.resolve(BuildConfig.from_dict({"precision": "w4"}), quantized=found).quantization is None


@pytest.mark.parametrize("dtype", ["int4", "uint8"])
def test_rows_that_are_encoded_apart_are_those_that_are_encoded_together(dtype, monkeypatch):
    matrix = weight(13, 72)
    settings = {"dtype": dtype, "size": 32, "symmetric": False, "refine": False}
    together = packed_products.encode(matrix, **settings)
    monkeypatch.setattr(packed_products, "_AT_ONCE", 5 * 72)
    apart = packed_products.encode(matrix, **settings)
    for name in ("levels", "scales", "zero_points"):
        np.testing.assert_array_equal(getattr(together, name), getattr(apart, name))
