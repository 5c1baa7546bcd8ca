"""A BatchNormalization that no convolution takes, with channels that differ much, is right on the simulator."""

from __future__ import annotations

import numpy as np
import pytest

import intact
from intact.model import io
from tests.builder import from_text

pytest.importorskip("onnxruntime_qnn", reason="the Hexagon compiler is not installed")


@pytest.mark.parametrize("precision", ["uint8", "w8a16"])
def test_channels_that_differ_keep_their_accuracy(precision, tmp_path):
    random = np.random.default_rng(2)
    sizes = np.logspace(-0.4, 0.4, 16)
    statistics = {
        "gamma": random.uniform(0.5, 1.5, 16),
        "beta": random.standard_normal(16),
        "mean": random.standard_normal(16) * sizes,
        "var": sizes**2,
    }
    model = from_text(
        "(float[1,8,6,6] x) => (float[1,16,6,6] y)",
        "a = Concat<axis = 1>(x, x) s = Mul(a, sizes) y = BatchNormalization(s, gamma, beta, mean, var)",
        weights={name: value.astype(np.float32) for name, value in statistics.items()}
        | {"sizes": sizes.reshape(1, 16, 1, 1).astype(np.float32)},
    )
    io.save(model, tmp_path / "m.onnx")
    rows = random.standard_normal((24, 8, 6, 6)).astype(np.float32)
    built = intact.build(
        tmp_path / "m.onnx", device="qnn", precision=precision, data={"x": rows}, effort="fast", output=tmp_path / "out"
    )
    assert built.verdict == "good", built.verdict_reasons
    forms = {row.form: row.sqnr_db for row in built.accuracy}
    assert forms["compiled"] >= min(forms["quantized"] - 3, 33)
