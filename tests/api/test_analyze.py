"""Analyzing needs no data: where no inputs can be made up, types still tell where nodes would run."""

from __future__ import annotations

import numpy as np
import pytest

import intact
from intact.errors import DataError, ModelError
from intact.events import Silence
from intact.model import io
from tests.builder import from_text

WEIGHTS = {
    "w": np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32),
    "b": np.zeros(4, np.float32),
    "two": np.full((1, 4, 6, 6), 2, np.int64),
    "table": np.ones((2, 4, 6, 6), np.float32),
}
CASES = {
    "an input that decides a shape of any rank": ("int64[rank] n", "y = Reshape(r, n)"),
    "values that the model stops at": ("float[1] n", "i = Cast<to = 7>(n) j = Add(i, two) y = GatherElements(r, j)"),
}


@pytest.fixture(params=CASES)
def unfed(request, tmp_path):
    given, last = CASES[request.param]
    body = f"c = Conv(x, w, b) r = Relu(c) {last}"
    io.save(from_text(f"(float[1,3,8,8] x, {given}) => (y)", body, weights=WEIGHTS), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


class Told(Silence):
    """Keeps the warnings."""

    def __init__(self):
        self.warnings = []

    def warn(self, text):
        self.warnings.append(text)


@pytest.mark.parametrize("precision", ["uint8", "w8a16", "fp16"])
def test_a_model_whose_inputs_cannot_be_made_up_is_analyzed(unfed, precision):
    told = Told()
    (found,) = intact.analyze(unfed, device="qnn", precision=precision, events=told)
    assert "Conv" in {node.op for node in found.npu_nodes}
    assert any("ranges are assumed, not measured" in warning for warning in told.warnings)


def test_data_that_were_given_and_do_not_fit_are_an_error(unfed, tmp_path):
    np.savez(tmp_path / "rows.npz", x=np.zeros((4, 1, 3, 8, 8), np.float32))
    with pytest.raises((DataError, ModelError)):
        intact.analyze(unfed, device="qnn", data=tmp_path / "rows.npz")
