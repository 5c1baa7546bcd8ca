"""A plan in the graph: names, types and shapes of what is inserted, and the opset that defines its types."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.model import query
from intact.quantization.calibration.resolve import resolve
from intact.quantization.insert import insert
from intact.quantization.planning.planner import plan
from intact.results import Range
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.quantization.models import model, node

F = np.float32


def net():
    weights = {"w": np.linspace(-1, 1, 24).astype(F).reshape(4, 6), "b": np.ones(6, F)}
    return model("float[2,4] x", "float[2,6] y", "y = Gemm(x, w, b)", **weights)


def inserted(graph=None, **settings):
    graph = net() if graph is None else graph
    names = ["x", *(value.name for each in graph.graph for value in each.outputs)]
    found = plan(
        graph, load_target("cpu"), QuantConfig.from_dict(settings), None, {name: Range(-2, 2) for name in names}
    )
    result = insert(graph, found, resolve(graph, found, {}))
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    return result


def test_tensors_are_named_after_what_they_hold():
    """Who reads the graph tells integers from the floats behind them by their names."""
    result = inserted()
    gemm = node(result, "y")
    assert [value.name for value in gemm.inputs] == ["x_dequantized", "w_dequantized", "b_dequantized"]
    assert [value.producer().inputs[0].name for value in gemm.inputs] == ["x_quantized", "w_quantized", "b_quantized"]
    assert {(each.op_type, each.name) for each in result.graph if each.name.startswith("x_")} == {
        ("QuantizeLinear", "x_QuantizeLinear"),
        ("DequantizeLinear", "x_DequantizeLinear"),
    }


def test_types_and_shapes_of_what_is_inserted_are_known():
    result = inserted(activation_type="uint8", weight_type="int8")
    gemm = node(result, "y")
    integers = [value.producer().inputs[0] for value in gemm.inputs]
    assert [value.dtype.name for value in integers] == ["UINT8", "INT8", "INT32"]
    assert [query.static_shape(value) for value in integers] == [(2, 4), (4, 6), (6,)]
    assert [value.dtype.name for value in gemm.inputs] == ["FLOAT"] * 3
    assert [query.static_shape(value) for value in gemm.inputs] == [(2, 4), (4, 6), (6,)]


def test_constants_are_the_integers_that_were_resolved_and_floats_are_gone():
    result = inserted(weight_type="int8", per_channel=False)
    gemm = node(result, "y")
    weight = gemm.inputs[1].producer()
    w = np.linspace(-1, 1, 24).reshape(4, 6)
    np.testing.assert_array_equal(query.constant(weight.inputs[0]), np.rint(w * 127))
    np.testing.assert_allclose(query.constant(weight.inputs[1]), 1 / 127, rtol=1e-6)
    assert not {"w", "b"} & set(result.graph.initializers)


@pytest.mark.parametrize(("weight", "opset"), [("int8", 21), ("int4", 21), ("int2", 25)])
def test_the_opset_is_the_one_that_defines_the_types_in_use(weight, opset):
    assert inserted(activation_type="uint16", weight_type=weight).opset_imports[""] == opset


def test_the_model_that_is_given_stays_as_it_is():
    graph = net()
    before = ir.to_proto(graph).SerializeToString()
    inserted(graph)
    assert ir.to_proto(graph).SerializeToString() == before


def test_readers_in_float_of_what_nobody_quantized_computed_read_the_float():
    weights = {"w": np.linspace(-1, 1, 16).astype(F).reshape(4, 4), "b": np.ones(4, F)}
    result = inserted(model("float[2,4] x", "float[2,4] y, float[2,4] z", "y = Gemm(x, w, b) z = Sin(x)", **weights))
    assert node(result, "y").inputs[0].name == "x_dequantized"
    assert node(result, "z").inputs[0].name == "x"
