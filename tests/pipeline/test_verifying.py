"""Data that does not fit its grids counts against a model only where the outputs show it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest

from intact.pipeline import execution, verifying
from intact.settings.config import BuildConfig
from intact.verification import clipped

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

    prepared = SimpleNamespace(model=model, inputs=SimpleNamespace(test=rows), config=BuildConfig())
    doubts = verifying.clipping_doubts(prepared, found)
    assert bool(doubts) == doubted
    assert all("scores reaches" in one for one in doubts)
