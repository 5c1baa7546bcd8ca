"""Tensors that leave their grids on rows that calibration has not seen."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.pipeline import execution
from intact.verification import clipped

# uint8, scale 0.1, zero point 100: the grid holds -10 to 15.5.
MODEL = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[1, 4] x) => (float[1, 4] y)
<float scale = {0.1}, uint8 zero = {100}>
{
  h = Mul (x, x)
  q = QuantizeLinear (h, scale, zero)
  d = DequantizeLinear (q, scale, zero)
  y = Neg (d)
}"""


def found(*rows):
    model = ir.from_onnx_text(MODEL)
    grids = clipped.watched(model)
    feeds = [{"x": np.asarray([row], np.float32)} for row in rows]
    return clipped.clipped(grids, execution.inside(model, list(grids), feeds))


def test_a_model_with_grids_on_its_inputs_alone_is_looked_at_too():
    model = ir.from_onnx_text(MODEL.replace("h = Mul (x, x)", "").replace("QuantizeLinear (h", "QuantizeLinear (x"))
    grids = clipped.watched(model)
    rows = [{"x": np.float32([[100, 0, 0, 0]])}]
    assert [one.tensor for one in clipped.clipped(grids, execution.inside(model, list(grids), rows))] == ["x"]


@pytest.mark.parametrize(
    "rows",
    [
        [[0, 0, 0, 0]],
        [[1, -3, 3, 3.9]],
        pytest.param([[4.05, 4, 4, 3]], id="16.4 loses 0.9 of energies of 900"),
        [[np.nan, np.inf, 1, 1]],
    ],
)
def test_what_a_grid_holds_or_nearly_holds_is_no_finding(rows):
    assert found(*rows) == []


def test_the_loss_over_all_rows_counts_and_the_worst_value_is_named():
    (one,) = found([6, 0, 0, 0], [0, 10, 0, 0], [2, 0, 0, 0])

    lost, signal = (36 - 15.5) ** 2 + (100 - 15.5) ** 2, 36**2 + 100**2 + 4**2
    assert (one.tensor, one.value) == ("h", 100.0)
    assert (one.low, one.high) == pytest.approx((-10.0, 15.5))
    assert one.sqnr_db == pytest.approx(10 * np.log10(signal / lost), abs=1e-3)
    assert str(one).startswith("h reaches 100, its grid holds -10 to 15.5, and what is cut off leaves 1.7 dB")
