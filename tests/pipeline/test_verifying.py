"""Data that does not fit its grids counts only where outputs show it; every layer has its error told."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest

from intact.events import Log
from intact.model import normalize
from intact.numbers.decibels import sqnr_of
from intact.pipeline import deployment, execution, verifying
from intact.quantization.calibration.spread import Spread
from intact.quantization.quantizing import FloatTwin
from intact.settings.config import BuildConfig
from intact.verification import clipped, layer_errors

# int8, scale 0.1: both grids hold -12.8 to 12.7. Softmax gives the same for a score of -13 as for one of -100.
MODEL = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[1, 4] scores) => (float[1, 4] y)
<float scale = {0.1}, int8 zero = {0}>
{
  q = QuantizeLinear (scores, scale, zero)
  d = DequantizeLinear (q, scale, zero)
  y = READER (d)
}"""


@pytest.mark.parametrize(
    ("reader", "row", "doubted"),
    [
        pytest.param("Softmax", [3, 1, -100, -100], False, id="masked scores"),
        pytest.param("Softmax", [3, 1, 100, 50], True, id="scores that matter"),
        pytest.param("Neg", [3, 1, -100, -100], True, id="values that are handed on"),
    ],
)
def test_a_value_that_is_cut_off_is_a_doubt_only_where_outputs_change(reader, row, doubted):
    model = ir.from_onnx_text(MODEL.replace("READER", reader))
    rows = [{"scores": np.float32([row])}]
    grids = clipped.watched(model)
    found = clipped.clipped(grids, execution.inside(model, list(grids), rows))
    assert [one.tensor for one in found] == ["scores"]

    prepared = SimpleNamespace(model=model, inputs=SimpleNamespace(test=rows), config=BuildConfig(), calibrated=True)
    doubts = verifying.clipping_doubts(prepared, deployment.watched(prepared), found)
    assert bool(doubts) == doubted
    assert all("scores reaches" in one for one in doubts)
    log = Log()
    verifying._warn_of_clipped(found, log, shows=doubted)
    assert ("the outputs do not show it" in log.warnings[0]) is not doubted and "scores reaches" in log.warnings[0]


FLOAT = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[8, 16] x) => (float[8, 4] y)
{
  h = MatMul (x, w)
  y = MatMul (h, v)
}"""
# As grids are put in: an output keeps its name behind its grid, and the layer before it gives the name up.
QUANTIZED = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[8, 16] x) => (float[8, 4] y)
<float s = {0.05}, float t = {0.2}, float u = {0.5}, int8 z = {0}>
{
  xq = QuantizeLinear (x, s, z)
  xd = DequantizeLinear (xq, s, z)
  h = MatMul (xd, w)
  hq = QuantizeLinear (h, t, z)
  hd = DequantizeLinear (hq, t, z)
  y_dequantized = MatMul (hd, v)
  yq = QuantizeLinear (y_dequantized, u, z)
  y = DequantizeLinear (yq, u, z)
}"""


def on_grid(values, scale):
    return np.clip(np.rint(values / np.float32(scale)), -128, 127) * np.float32(scale)


def test_the_error_of_a_layer_is_what_it_adds_to_right_inputs_and_what_came_together_before_it():
    rng = np.random.default_rng(3)
    w, v = rng.standard_normal((16, 12)).astype(np.float32), rng.standard_normal((12, 4)).astype(np.float32)
    coarse = {"w": np.round(w, 1), "v": np.round(v, 1)}
    float_model, model = ir.from_onnx_text(FLOAT), ir.from_onnx_text(QUANTIZED)
    for graph, weights in ((float_model.graph, {"w": w, "v": v}), (model.graph, coarse)):
        for value in [value for node in graph for value in node.inputs if value.name in weights]:
            value.const_value = ir.tensor(weights[value.name], name=value.name)
            graph.register_initializer(value)
    normalize.name_nodes(model)
    rows = [{"x": rng.standard_normal((8, 16)).astype(np.float32)} for _ in range(3)]
    twin = FloatTwin(float_model, {"h": Spread(-3.0, 4.0, (1, 0, 5), 0.25)})
    prepared = SimpleNamespace(
        model=model, inputs=SimpleNamespace(test=rows), config=BuildConfig(), twin=twin, calibrated=True
    )
    errors = verifying._look_inside(prepared, deployment.watched(prepared), deployment.VALIDATION_ROWS, Log()).errors

    x = np.stack([row["x"] for row in rows[: layer_errors.ROWS]])
    h, y = x @ w, x @ w @ v
    so_far = on_grid(on_grid(x, 0.05) @ coarse["w"], 0.2)
    expected = {
        "x": (on_grid(x, 0.05), on_grid(x, 0.05), x),
        "h": (on_grid(x @ coarse["w"], 0.2), so_far, h),
        "y": (on_grid(h @ coarse["v"], 0.5), on_grid(so_far @ coarse["v"], 0.5), y),
    }
    assert [error.tensor for error in errors] == ["x", "h", "y"] and errors[0].op == "input"
    for error in errors:
        own, accumulated, right = expected[error.tensor]
        assert error.own_db == pytest.approx(sqnr_of(right, own), abs=0.02)
        assert error.accumulated_db == pytest.approx(sqnr_of(right, accumulated), abs=0.02)
    hidden = errors[1]
    assert (hidden.low, hidden.high) == pytest.approx((-25.6, 25.4))
    assert (hidden.seen_low, hidden.seen_high, hidden.cut_off, hidden.histogram) == (-3.0, 4.0, 0.25, "o0Z")
