"""Layers of Rockchip's compiler and the nodes of the model that they were made of."""

from __future__ import annotations

import numpy as np
import pytest

from intact.backends.rknn.log import CompiledLayer
from intact.backends.rknn.placing import NO_HALVES, placement
from intact.model import shapes
from tests.builder import from_text

NAMES = {"c": "conv", "r": "relu", "r_q": "quantize", "r_d": "dequantize", "p": "mean", "t": "sin", "y": "gemm"}
MODEL = from_text(
    "(float[1, 4, 8, 8] x) => (float[1, 4] y)",
    """
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    r = Relu (c)
    r_q = QuantizeLinear (r, s, z)
    r_d = DequantizeLinear (r_q, s, z)
    p = ReduceMean <keepdims = 0> (r_d, axes)
    t = Sin (p)
    y = Gemm (t, m)
    """,
    constants="float s = {0.1}, int8 z = {-3}, int64[2] axes = {2, 3}",
    weights={"w": np.ones((4, 4, 3, 3), np.float32), "m": np.ones((4, 4), np.float32)},
)
for item in MODEL.graph:
    item.name = NAMES[item.name]


def layer(kind, name, place="NPU", cycles=10):
    return CompiledLayer(kind, "INT8", place, name, cycles, 0, cycles, 0)


def placed(*layers):
    return placement(MODEL, layers)


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("conv", "conv"),
        ("r_q_gavg_2conv0", "mean"),
        ("r_gavg_2conv1", "mean"),
        ("gemm#2", "gemm"),
        ("y_mm_tp_rs", "gemm"),
        ("r_q__cvt_int8_float16", "relu"),
        ("unheard_of", None),
        ("", None),
    ],
)
def test_a_layer_is_traced_to_the_node_that_its_name_begins_with(name, node):
    [found] = placed(layer("Conv", name)).layers
    assert found.nodes[:1] == (() if node is None else (node,)) and found.cycles == 10


def test_a_node_whose_layer_is_on_the_cpu_is_there_and_one_without_a_layer_is_part_of_another():
    found = placed(layer("ConvRelu", "conv"), layer("Sin", "sin", "CPU"), layer("Conv", "gemm#2"))
    assert [node.name for node in found.cpu_nodes] == ["sin"]
    assert "relu" in [node.name for node in found.npu_nodes]
    assert found.partitions == 2


def test_a_layer_that_only_brings_a_result_to_its_shape_leaves_the_node_on_the_npu():
    found = placed(layer("Conv", "gemm#2"), layer("Reshape", "y_mm_tp_rs", "CPU", 0))
    assert found.cpu_nodes == () and found.partitions == 1


SUM = from_text(
    "(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)",
    """
    t = Transpose <perm = [0, 1, 3, 2]> (x)
    a = Conv <pads = [1, 1, 1, 1]> (t, w)
    a_q = QuantizeLinear (a, s, z)
    a_d = DequantizeLinear (a_q, s, z)
    b = Conv <pads = [1, 1, 1, 1]> (a_d, w)
    c = Add (a_d, b)
    y = Relu (c)
    """,
    constants="float s = {0.1}, int8 z = {-3}",
    weights={"w": np.ones((4, 4, 3, 3), np.float32)},
)


def test_a_node_without_a_layer_is_part_of_the_last_that_it_reads_from_or_the_first_that_reads_it():
    nodes = {node.op_type if node.op_type != "Conv" else node.outputs[0].name: node.name for node in SUM.graph}
    found = placement(SUM, [layer("Conv", nodes["a"]), layer("ConvAddRelu", nodes["b"])])
    assert [one.nodes for one in found.layers] == [
        (nodes["a"], nodes["Transpose"]),
        (nodes["b"], nodes["Add"], nodes["Relu"]),
    ]


# A convolution of integers whose Relu the grid behind it does, a Gelu by the model in float, and a sum of integers.
GRIDS = from_text(
    "(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)",
    """
    x_q = QuantizeLinear (x, s, z)
    x_d = DequantizeLinear (x_q, s, z)
    c = Conv <pads = [1, 1, 1, 1]> (x_d, w)
    r = Relu (c)
    r_q = QuantizeLinear (r, s, z)
    r_d = DequantizeLinear (r_q, s, z)
    g = Sigmoid (r_d)
    m = Mul (g, r_d)
    m_q = QuantizeLinear (m, s, z)
    m_d = DequantizeLinear (m_q, s, z)
    a = Add (m_d, r_d)
    a_q = QuantizeLinear (a, s, z)
    y = DequantizeLinear (a_q, s, z)
    """,
    constants="float s = {0.1}, int8 z = {-3}",
    weights={"w": np.ones((4, 4, 3, 3), np.float32)},
)
shapes.infer_shapes(GRIDS)


@pytest.mark.parametrize(("halves", "off"), [(True, []), (False, ["g", "m"])])
def test_on_a_chip_without_half_precision_nothing_in_float_is_on_the_npu_whatever_the_compiler_lists(halves, off):
    layers = [layer("ConvRelu", "c"), layer("Sigmoid", "g"), layer("Mul", "m"), layer("Add", "a")]
    found = placement(GRIDS, layers, halves=halves)
    assert [node.name for node in found.cpu_nodes] == off
    assert {"c", "r", "a"} <= {node.name for node in found.npu_nodes}
    assert all(node.reason == NO_HALVES for node in found.cpu_nodes)
