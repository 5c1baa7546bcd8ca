"""The precisions that every device has: integers of 8 bits, half precision, and float as it is."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from intact.api.build import build
from intact.model import io
from tests.builder import from_text

WEIGHTS = {
    "w": np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32),
    "b": np.zeros(8, np.float32),
}


@pytest.fixture
def given(tmp_path):
    model = from_text("(float[1,3,8,8] x) => (float[1,8,6,6] y)", "c = Conv(x, w, b)  y = Relu(c)", weights=WEIGHTS)
    io.save(model, tmp_path / "given.onnx")
    return tmp_path / "given.onnx"


COMBINATIONS = [
    pytest.param(device, precision, marks=[pytest.mark.qnn] if device == "qnn" else [])
    for device, precision in itertools.product(("cpu", "dml", "qnn"), ("uint8", "int8", "fp16", "fp32"))
]


@pytest.mark.parametrize(("device", "precision"), COMBINATIONS)
def test_a_model_is_built(given, device, precision, tmp_path):
    built = build(given, output=tmp_path / "out", device=device, precision=precision)
    assert built.verdict == ("unverified" if device == "dml" else "good")


@pytest.mark.qnn
def test_an_npu_computes_float_in_half_precision_and_the_build_says_so(given, tmp_path):
    built = build(given, output=tmp_path / "out", device="qnn", precision="fp32")
    record = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    (quantize,) = (stage for stage in record["stages"] if stage["name"] == "quantize")
    assert "keeps the model in float, which qnn/v73 computes in half precision" in quantize["reason"]
    assert any("half precision is compiled for" in warning for warning in built.warnings)
    (row,) = (row for row in built.accuracy if row.form == "compiled")
    # Half precision has 11 bits: about 66 dB, never the 130 of float32.
    assert 50 < row.sqnr_db < 90
