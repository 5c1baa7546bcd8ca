"""The census of types: counted from the model, whatever the settings asked for, in every form that models have."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.matching import rewriter
from intact.model.census import census, types_of
from intact.quantization.float16 import convert
from intact.quantization.weight_only import packed_products
from intact.reports.figures import quantized_nodes, types_in_words
from intact.rules.quantized.families import rules_for
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.quantization import models

WEIGHTS = np.linspace(-1, 1, 8 * 4, dtype=np.float32).reshape(8, 4)
FILTERS = np.linspace(-1, 1, 4 * 3 * 9, dtype=np.float32).reshape(4, 3, 3, 3)
CONV = {"inputs": "float[1,3,8,8] x", "outputs": "float[1,4,6,6] y", "body": "h = Conv (x, w)  y = Relu (h)"}


def counted(model: ir.Model) -> list[dict]:
    return [group.to_dict() for group in census(model)]


def two_layers() -> ir.Model:
    """A product, a sum with a constant, a clipping and a second product."""
    body = "h = MatMul (x, w)  b = Add (h, c)  r = Relu (b)  y = MatMul (r, v)"
    constants = {"w": WEIGHTS, "c": np.ones(4, np.float32), "v": WEIGHTS.T.copy()}
    return models.model("float[2,8] x", "float[2,8] y", body, **constants)


@pytest.mark.parametrize(
    ("settings", "activations", "weights"),
    [
        ({}, "uint8", "int8"),
        ({"activation_type": "int8"}, "int8", "int8"),
        ({"activation_type": "uint16"}, "uint16", "int8"),
        ({"activation_type": "uint16", "weight_type": "int16"}, "uint16", "int16"),
    ],
)
def test_nodes_between_grids_count_with_the_types_of_the_grids(settings, activations, weights):
    found = models.quantized(two_layers(), models.rows({"x": (2, 8)}), "qnn", **settings)
    assert counted(found.model) == [
        {"activations": activations, "weights": None, "nodes": 2, "ops": {"Add": 1, "Relu": 1}},
        {"activations": activations, "weights": weights, "nodes": 2, "ops": {"MatMul": 2}},
    ]


def test_the_settings_are_not_asked_where_single_nodes_have_another_type():
    types = {"h": "uint16", "b": "uint16", "r": "uint16", "y": "float"}
    found = models.quantized(two_layers(), models.rows({"x": (2, 8)}), "qnn", types=types)
    assert types_in_words(counted(found.model)) == "2 uint16, 1 uint16 × int8; 1 in float"


def test_a_node_in_float_that_reads_from_a_grid_or_is_read_to_one_is_in_float():
    body = "h = MatMul (x, w)  s = Sigmoid (h)  t = Tanh (s)  y = MatMul (t, v)"
    float_model = models.model("float[2,8] x", "float[2,8] y", body, w=WEIGHTS, v=WEIGHTS.T.copy())
    found = models.quantized(float_model, models.rows({"x": (2, 8)}), "qnn", types={"s": "float", "t": "float"})
    assert {t.node: (t.activations, t.weights) for t in types_of(found.model)} == {
        "h": ("uint8", "int8"),
        "s": ("float", None),
        "t": ("float", None),
        "y": ("uint8", "int8"),
    }


def test_a_relu_without_a_grid_before_it_counts_with_its_convolution():
    found = models.quantized(models.model(**CONV, w=FILTERS), models.rows({"x": (1, 3, 8, 8)}), "qnn")
    assert [(t.op, t.activations, t.weights) for t in types_of(found.model)] == [
        ("Conv", "uint8", "int8"),
        ("Relu", "uint8", None),
    ]


def test_operators_on_integers_count_with_their_own_types():
    found = models.quantized(models.model(**CONV, w=FILTERS), models.rows({"x": (1, 3, 8, 8)}), "cpu")
    rewritten = rewriter.apply(found.model.clone(), rules_for(load_target("cpu", vnni=True))).model
    assert [node.op_type for node in rewritten.graph if node.op_type.startswith("QLinear")] == ["QLinearConv"]
    assert [(t.op, t.activations, t.weights) for t in types_of(rewritten)] == [("QLinearConv", "uint8", "int8")]


def test_packed_weights_count_beside_float_activations():
    config = QuantConfig.from_dict({"activation_type": "float", "weight_type": "int4", "block_size": 32})
    body = "y = MatMul (x, w)"
    wide = np.linspace(-1, 1, 32 * 4, dtype=np.float32).reshape(32, 4)
    packed = packed_products.pack(
        models.model("float[2,32] x", "float[2,4] y", body, w=wide), load_target("cpu"), config
    )
    assert counted(packed.model) == [
        {"activations": "float", "weights": "int4", "nodes": 1, "ops": {"MatMulNBits": 1}},
    ]
    assert quantized_nodes(counted(packed.model)) == 1


def test_half_precision_counts_without_the_casts_around_it():
    config = QuantConfig.from_dict({"activation_type": "float16", "weight_type": "float16"})
    half = convert(two_layers(), config, models.rows({"x": (2, 8)}))
    assert types_in_words(counted(half.model)) == "4 in float16" and quantized_nodes(counted(half.model)) == 0


def test_shapes_and_indices_are_not_numbers_that_are_computed_with():
    body = "s = Shape (x)  d = Gather <axis = 0> (s, i)  u = Unsqueeze (d, i)  h = Tanh (x)  y = Reshape (h, s)"
    plain = models.model("float[2,8] x", "float[2,8] y", body, i=np.array([0], np.int64))
    assert [t.op for t in types_of(plain)] == ["Tanh", "Reshape"]
