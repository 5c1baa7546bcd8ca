"""Integers at the boundary: the outermost Q and DQ go, the numbers stay."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from intact.errors import ModelError
from intact.numbers.encoding import encode
from intact.quantization.boundary import IntegerIO, integer_io
from intact.runtime import ort_cpu
from tests.quantization.models import model, quantized, rows

RNG = np.random.default_rng(4)
W, V = (RNG.standard_normal(shape).astype(np.float32) for shape in ((4, 3, 1, 1), (2, 4, 1, 1)))
FEEDS = rows({"x": (1, 3, 4, 4)})


def qdq(
    outputs="float[1,2,4,4] y", body="c = Conv(x, w)  r = Relu(c)  y = Conv(r, v)", inputs="float[1,3,4,4] x", **more
):
    return quantized(model(inputs, outputs, body, w=W, v=V, **more), FEEDS, "qnn").model


def test_integers_in_and_out_give_the_numbers_of_the_float_boundary():
    before = qdq()
    after = integer_io(before)
    onnx.checker.check_model(ir.to_proto(after.model), full_check=True)
    assert [value.dtype for value in (*after.model.graph.inputs, *after.model.graph.outputs)] == [ir.DataType.UINT8] * 2
    for feed in FEEDS:
        integers = ort_cpu.run(after.model, after.quantize(feed))
        assert integers["y"].dtype == np.uint8
        assert np.array_equal(after.dequantize(integers)["y"], ort_cpu.run(before, feed)["y"])


def test_names_stay_and_the_given_model_is_left_alone():
    before = qdq()
    bytes_before = ir.to_proto(before).SerializeToString()
    after = integer_io(before).model
    assert [v.name for v in (*after.graph.inputs, *after.graph.outputs)] == ["x", "y"]
    assert ir.to_proto(before).SerializeToString() == bytes_before
    assert [node.op_type for node in after.graph].count("QuantizeLinear") == 2


def test_ports_tell_type_scale_and_zero_point():
    after = integer_io(qdq())
    x, y = after.ports()
    assert (x["name"], x["direction"], x["dtype"]) == ("x", "input", "uint8")
    assert (y["name"], y["direction"], y["dtype"]) == ("y", "output", "uint8")
    assert x["scale"] == float(after.inputs["x"].scale) and x["zero_point"] == int(after.inputs["x"].zero_point)
    floats = IntegerIO(qdq(), {}, {}).ports()
    assert floats[0] == {"name": "x", "direction": "input", "dtype": "float", "shape": [1, 3, 4, 4]}


def test_an_input_with_another_reader_and_an_output_that_is_float_stay_float():
    before = qdq(
        outputs="float[1,2,4,4] y, float[1,3,4,4] z", body="c = Conv(x, w)  r = Relu(c)  y = Conv(r, v)  z = Erf(x)"
    )
    after = integer_io(before)
    assert (set(after.inputs), set(after.outputs)) == (set(), {"y"})
    assert ort_cpu.run(after.model, FEEDS[0])["z"].dtype == np.float32


def test_an_inner_tensor_that_is_also_an_output_is_handed_over_as_integers():
    before = qdq(outputs="float[1,2,4,4] y, float[1,4,4,4] r")
    after = integer_io(before)
    assert set(after.outputs) == {"y", "r"}
    found = after.dequantize(ort_cpu.run(after.model, after.quantize(FEEDS[0])))
    expected = ort_cpu.run(before, FEEDS[0])
    assert all(np.array_equal(found[name], expected[name]) for name in ("y", "r"))


def test_two_outputs_that_dequantize_one_tensor_keep_both_names():
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[4] x) => (float[4] a, float[4] b)
    <float s = {0.5}, uint8 z = {7}> {
        q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)  b = DequantizeLinear(q, s, z) }"""
    before = ir.from_onnx_text(text)
    before.graph[0].outputs[0].dtype = ir.DataType.UINT8
    after = integer_io(before)
    x = {"x": np.float32([-1, 0, 1, 2])}
    found, expected = after.dequantize(ort_cpu.run(after.model, after.quantize(x))), ort_cpu.run(before, x)
    assert all(np.array_equal(found[name], expected[name]) for name in ("a", "b"))


def test_a_float_model_has_no_integers_to_hand_over():
    with pytest.raises(ModelError, match="no input or output of the graph is quantized"):
        integer_io(model("float[4] x", "float[4] y", "y = Relu(x)"))


@given(hnp.arrays(np.float32, 16, elements={"min_value": -3, "max_value": 3}))
def test_a_round_trip_through_the_boundary_moves_a_value_by_half_a_step(values):
    encoding = encode(-3.0, 3.0, "int8", symmetric=False)
    ports = IntegerIO(ir.Model(ir.Graph([], [], nodes=[]), ir_version=10), {"x": encoding}, {"x": encoding})
    integers = ports.quantize({"x": values})
    assert integers["x"].dtype == np.int8
    assert (np.abs(ports.dequantize(integers)["x"] - values) <= 0.501 * encoding.scale).all()


def test_inputs_that_are_not_on_a_grid_pass_as_they_are():
    ids = np.int64([[1, 2]])
    assert IntegerIO(ir.Model(ir.Graph([], [], nodes=[]), ir_version=10), {}, {}).quantize({"ids": ids})["ids"] is ids
