"""A build with an input made constant: the deployed model does not take it, the original is fed it."""

from __future__ import annotations

import json
import sys

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import intact
from intact.cli.main import main
from intact.errors import DataError
from tests.builder import from_text

RNG = np.random.default_rng(0)
WEIGHTS = {"w": RNG.standard_normal((16, 8)).astype(np.float32), "v": RNG.standard_normal((16, 8)).astype(np.float32)}


def save(folder):
    """A model that multiplies by one of two matrices, as its input `rate` says."""
    text = """c = Equal(rate, k)
              y = If (c) <then_branch = t () => (float[4,8] p) { p = MatMul(x, w) },
                          else_branch = e () => (float[4,8] q) { q = MatMul(x, v) }>"""
    signature = "(float[4,16] x, int64 rate) => (float[4,8] y)"
    model = from_text(signature, text, weights={**WEIGHTS, "k": np.array(16000)})
    ir.save(model, folder / "m.onnx")
    rows = RNG.standard_normal((12, 4, 16)).astype(np.float32)
    np.savez(folder / "rows.npz", x=rows)
    return rows


@pytest.mark.parametrize(("rate", "matrix"), [(16000, "w"), (8000, "v")])
def test_the_value_decides_and_verification_feeds_it_to_the_original(rate, matrix, tmp_path):
    rows = save(tmp_path)
    built = intact.build(
        tmp_path / "m.onnx", set={"rate": rate}, data=tmp_path / "rows.npz", precision="uint8", output=tmp_path / "out"
    )
    session = ort.InferenceSession(tmp_path / "out" / "model.onnx")
    assert [port.name for port in session.get_inputs()] == ["x"]
    expected = rows[0] @ WEIGHTS[matrix]
    (found,) = session.run(None, {"x": rows[0]})
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
    assert built.verdict == "good" and min(row.sqnr_db for row in built.accuracy) > 30
    assert built.config["fixed_inputs"] == {"rate": rate}
    assert next(stage for stage in built.stages if stage.name == "load").details["fixed_inputs"] == {"rate": rate}
    assert [item.rule for item in built.rewrites if item.rule == "inline_branch"]


@pytest.fixture
def run(monkeypatch, capfd):
    """Call the command in this process: its status, stdout and stderr."""

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["intact", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
        streams = capfd.readouterr()
        return ended.value.code or 0, streams.out, streams.err

    return call


def test_the_command_says_what_is_constant(run, tmp_path):
    save(tmp_path)
    order = ["build", tmp_path / "m.onnx", "--set", "rate=16000", "--data", tmp_path / "rows.npz"]
    status, out, _ = run(*order, "-o", tmp_path / "out")
    assert status == 0 and "input rate is a constant: 16000" in out
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["config"]["fixed_inputs"] == {"rate": 16000}


@pytest.mark.parametrize(
    ("text", "words"), [("rate=fast", "as JSON"), ("rat=1", "did you mean rate?"), ("rate=1.5", "int64")]
)
def test_a_wrong_flag_is_a_usage_error(text, words, run, tmp_path):
    save(tmp_path)
    status, _, err = run("quantize", tmp_path / "m.onnx", "--set", text, "-o", tmp_path / "q.onnx")
    assert status == 2 and words in err


def test_a_settings_file_fixes_inputs_too(run, tmp_path):
    save(tmp_path)
    (tmp_path / "s.toml").write_text("[fixed_inputs]\nrate = 8000\n")
    order = ["quantize", tmp_path / "m.onnx", "--config", tmp_path / "s.toml", "-o", tmp_path / "q.onnx"]
    assert run(*order, "--data", tmp_path / "rows.npz", "--quiet")[0] == 0
    assert [value.name for value in onnx.load(tmp_path / "q.onnx").graph.input] == ["x"]


def test_data_may_hold_the_input_that_is_set_with_the_same_value(tmp_path):
    rows = save(tmp_path)
    arrays = {"x": rows, "rate": np.full(12, 16000)}
    np.savez(tmp_path / "all.npz", **arrays)
    settings = {"set": {"rate": 16000}, "precision": "uint8", "effort": "fast", "overwrite": True}
    for source in (tmp_path / "all.npz", arrays):
        built = intact.build(tmp_path / "m.onnx", data=source, output=tmp_path / "out", **settings)
        assert built.verdict == "good"


def test_data_that_holds_another_value_of_an_input_that_is_set_is_refused(tmp_path):
    rows = save(tmp_path)
    rates = np.full(12, 16000)
    rates[5] = 8000
    with pytest.raises(DataError, match="rate is 8000 in sample 5, and --set makes it 16000") as refused:
        intact.build(tmp_path / "m.onnx", set={"rate": 16000}, data={"x": rows, "rate": rates}, output=tmp_path / "o")
    assert refused.value.code == "D145" and not (tmp_path / "o").exists()
