"""Relu and Clip vanish where the grid behind them does their work, to the bit, and nowhere else."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.matching import rewriter
from intact.rules.discovery import rules_of
from intact.rules.quantized import clipping, families
from intact.runtime import ort_cpu
from intact.targets.registry import load_target

RULES = rules_of(clipping)

# Every half step of the grid and what is between, far beyond both ends.
X = np.concatenate([np.arange(-900, 900) / 2, np.linspace(-500, 500, 4001)]).astype(np.float32)


def clipped(call: str, dtype: str, scale: float, zero_point: int, *, more: str = "", output: str = "y") -> ir.Model:
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float[N] x) => ({dtype}[N] {output})
    <float s = {{{scale}}}, {dtype} z = {{{zero_point}}} {more}> {{ c = {call}  {output} = QuantizeLinear(c, s, z) }}"""
    model = ir.from_onnx_text(text)
    model.graph[-1].outputs[0].dtype = ir.DataType[dtype.upper()]
    return model


def rewritten(model):
    return rewriter.apply(model.clone(), RULES)


def ops(model):
    return [node.op_type for node in model.graph]


FIRES = [
    ("Relu(x)", "uint8", 0.5, 0, ""),
    ("Relu(x)", "int8", 0.5, -128, ""),
    ("Relu(x)", "uint16", 0.01, 0, ""),
    ("Clip(x, a, b)", "uint8", 0.5, 0, ", float a = {0.0}, float b = {127.5}"),
    ("Clip(x, a, b)", "uint8", 0.5, 0, ", float a = {0.0}, float b = {127.4}"),
    ("Clip(x, a, b)", "uint8", 0.5, 4, ", float a = {-2.0}, float b = {500.0}"),
    ("Clip(x, a)", "int8", 0.5, 0, ", float a = {-64.0}"),
    ("Clip(x, , b)", "int8", 0.5, 0, ", float b = {63.5}"),
]
REFUSES = [
    ("Relu(x)", "uint8", 0.5, 1, "", "0.0 is level 1 of the grid, whose least is 0"),
    ("Relu(x)", "int8", 0.5, 0, "", "0.0 is level 0 of the grid, whose least is -128"),
    ("Clip(x, a, b)", "uint8", 0.5, 0, ", float a = {0.0}, float b = {127.0}", "127.0 is level 254 of the grid"),
    ("Clip(x, a, b)", "uint8", 0.5, 4, ", float a = {-1.5}, float b = {500.0}", "-1.5 is level 1 of the grid"),
    ("Clip(x, a)", "int8", 0.5, 0, ", float a = {-63.5}", "-63.5 is level -127"),
]


@pytest.mark.parametrize(("call", "dtype", "scale", "zero_point", "more"), FIRES)
def test_a_clip_that_the_grid_repeats_is_absorbed_to_the_bit(call, dtype, scale, zero_point, more):
    model = clipped(call, dtype, scale, zero_point, more=more)
    result = rewritten(model)
    assert ops(result.model) == ["QuantizeLinear"]
    assert [application.exactness for application in result.applications] == ["exact"]
    assert np.array_equal(ort_cpu.run(model, {"x": X})["y"], ort_cpu.run(result.model, {"x": X})["y"])


@pytest.mark.parametrize(("call", "dtype", "scale", "zero_point", "more", "reason"), REFUSES)
def test_a_clip_one_step_inside_the_grid_stays_and_says_why(call, dtype, scale, zero_point, more, reason):
    result = rewritten(clipped(call, dtype, scale, zero_point, more=more))
    assert ops(result.model) == [call[:4].rstrip("("), "QuantizeLinear"]
    assert any(reason in refusal.reason for refusal in result.refusals)


@given(
    st.sampled_from(["uint8", "int8"]),
    st.floats(-3, 0.5, width=32),
    st.floats(0.0625, 3),
    st.floats(0.001, 0.05),
    st.integers(0, 255),
)
def test_whatever_the_rule_decides_the_integers_stay(dtype, low, width, scale, level):
    zero_point = level if dtype == "uint8" else level - 128
    limits = f", float a = {{{low}}}, float b = {{{low + width}}}"
    model = clipped("Clip(x, a, b)", dtype, scale, zero_point, more=limits)
    before = ort_cpu.run(model, {"x": X / 50})["y"]
    assert np.array_equal(before, ort_cpu.run(rewritten(model).model, {"x": X / 50})["y"])


def test_limits_that_are_computed_are_left_alone():
    model = clipped("Clip(x, t)", "uint8", 0.5, 0, more=", float a = {0.0}")
    start = ir.node("Abs", [model.graph.initializers["a"]])
    start.outputs[0].name = "t"
    model.graph.insert_before(model.graph[0], start)
    model.graph[1].replace_input_with(1, start.outputs[0])
    result = rewritten(model)
    assert "Clip" in ops(result.model)
    assert any("computed, not constant" in refusal.reason for refusal in result.refusals)


def test_per_channel_grids_are_checked_channel_by_channel():
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2,N] x) => (uint8[2,N] y)
    <float[2] s = {0.5, 0.25}, uint8[2] z = {0, %d}> { c = Relu(x)  y = QuantizeLinear<axis = 0>(c, s, z) }"""
    for zero_point, expected in ((0, ["QuantizeLinear"]), (1, ["Relu", "QuantizeLinear"])):
        model = ir.from_onnx_text(text % zero_point)
        model.graph[-1].outputs[0].dtype = ir.DataType.UINT8
        result = rewritten(model)
        assert ops(result.model) == expected
        x = {"x": np.stack([X, X])}
        assert np.array_equal(ort_cpu.run(model, x)["y"], ort_cpu.run(result.model, x)["y"])


def test_a_relu_that_something_else_reads_stays_for_it():
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[N] x) => (uint8[N] y, float[N] e)
    <float s = {0.5}, uint8 z = {0}> { c = Relu(x)  y = QuantizeLinear(c, s, z)  e = Erf(c) }"""
    model = ir.from_onnx_text(text)
    model.graph[1].outputs[0].dtype = ir.DataType.UINT8
    result = rewritten(model)
    before, after = ort_cpu.run(model, {"x": X}), ort_cpu.run(result.model, {"x": X})
    assert all(np.array_equal(before[name], after[name]) for name in ("y", "e"))


def test_rewriting_twice_changes_nothing():
    once = rewritten(clipped("Relu(x)", "uint8", 0.5, 0))
    assert rewritten(once.model).applications == ()


@pytest.mark.parametrize("call", ["Relu(d)", "Clip(d, a)"])
@pytest.mark.parametrize(("dtype", "is_kept"), [("uint16", True), ("uint8", False)])
def test_it_stays_behind_a_grid_where_a_target_requantizes_wrongly(call, dtype, is_kept):
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float[N] x) => ({dtype}[N] y)
    <float s = {{0.5}}, {dtype} z = {{0}}, {dtype} m = {{100}}, float a = {{0.0}}> {{
      q = QuantizeLinear(x, s, m)
      d = DequantizeLinear(q, s, m)
      c = {call}
      y = QuantizeLinear(c, s, z) }}"""
    model = ir.from_onnx_text(text)
    model.graph[-1].outputs[0].dtype = ir.DataType[dtype.upper()]
    rules = families.rules_for(load_target("qnn"))
    assert (call[:4] in ops(rewriter.apply(model.clone(), rules).model)) == is_kept
    assert call[:4] not in ops(rewritten(model).model)
