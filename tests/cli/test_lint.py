"""`intact lint` and `intact explain`, from outside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from intact.model import io
from intact.runtime import ort_cpu
from tests.cli import command
from tests.conftest import SavedZoo
from tests.linting.wrong import CASES, SOUND, feeds


def intact(*arguments: object, status: int = 0) -> str:
    found, out, err = command.run(*arguments)
    assert found == status, err + out
    return out + err


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    io.save(CASES["a Gemm bias at four times its scale"][1](), tmp_path / "wrong.onnx")
    return tmp_path / "wrong.onnx"


def test_findings_are_printed_and_the_status_says_so(wrong: Path) -> None:
    text = intact("lint", wrong, status=1)
    assert "error[Q105]" in text and "fix: " in text and "1 finding" in text


def test_json_has_the_findings(wrong: Path) -> None:
    (finding,) = json.loads(intact("lint", wrong, "--json", status=1))["findings"]
    assert finding["code"] == "Q105" and finding["severity"] == "error" and finding["op"] == "Gemm"
    assert finding["node"] and finding["message"] and finding["fix"] and finding["fixable"] and not finding["fixed"]


def test_a_sound_model_has_status_0(tmp_path: Path) -> None:
    io.save(SOUND["a Gemm bias at its scale"](), tmp_path / "sound.onnx")
    assert json.loads(intact("lint", tmp_path / "sound.onnx", "--json"))["findings"] == []


@pytest.mark.parametrize(("severity", "status"), [("error", 0), ("warning", 1), ("info", 1)])
def test_the_severity_decides_about_the_status(tmp_path: Path, severity: str, status: int) -> None:
    io.save(CASES["Softmax at 1/255"][1](), tmp_path / "softmax.onnx")
    intact("lint", tmp_path / "softmax.onnx", "--severity", severity, status=status)


def test_fix_writes_a_model_that_is_right(wrong: Path, tmp_path: Path) -> None:
    result = json.loads(intact("lint", wrong, "--fix", "-o", tmp_path / "fixed.onnx", "--json"))
    assert [finding["fixed"] for finding in result["findings"]] == [True] and result["rewrites"]
    assert json.loads(intact("lint", tmp_path / "fixed.onnx", "--json"))["findings"] == []
    row = feeds(io.load(wrong))[0]
    expected = ort_cpu.Session(wrong).run(row)
    got = ort_cpu.Session(tmp_path / "fixed.onnx", optimize=True).run(row)
    for name in expected:
        np.testing.assert_array_equal(got[name], expected[name])


@pytest.mark.parametrize("made", ["t = Cast <to = 1> (d)", "t = Reshape (r, none)"], ids=["cast", "reshaped"])
def test_a_scale_that_is_made_of_constants_is_constant(made: str, tmp_path: Path) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[3, 16] x) => (float[3, 16] y)
        <float s = {{0.1}}, uint8 z = {{0}}, double d = {{0.0039215686}}, float[1] r = {{0.0039215686}},
         int64[0] none = {{}}> {{
            {made} q = QuantizeLinear (x, s, z) e = DequantizeLinear (q, s, z) m = Softmax (e)
            p = QuantizeLinear (m, t, z) y = DequantizeLinear (p, t, z)
        }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "made.onnx")
    (finding,) = json.loads(intact("lint", tmp_path / "made.onnx", "--json", status=1))["findings"]
    assert finding["code"] == "Q108"


@pytest.mark.parametrize("arguments", [["--fix"], ["-o", "fixed.onnx"], ["--severity", "awful"]])
def test_wrong_usage_has_status_2(wrong: Path, arguments: list[str]) -> None:
    assert "error[S18" in intact("lint", wrong, *arguments, status=2)


def test_the_given_model_is_not_overwritten(wrong: Path) -> None:
    before = wrong.read_bytes()
    assert "error[O107]" in intact("lint", wrong, "--fix", "-o", wrong, status=2)
    assert wrong.read_bytes() == before


def test_explain_prints_the_text_of_a_code() -> None:
    text = intact("explain", "Q103")
    assert text.startswith("Q103 (error)\n") and "Fix: " in text


def test_explain_offers_near_codes() -> None:
    assert "did you mean" in intact("explain", "Q1033", status=2)


def test_explain_wants_one_code_or_all() -> None:
    assert "error[S183]" in intact("explain", status=2)


def test_build_repairs_a_model_that_came_quantized(wrong: Path, tmp_path: Path) -> None:
    intact("build", wrong, "--device", "cpu", "-o", tmp_path / "out")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    assert any("Q105" in warning for warning in manifest["warnings"])
    assert any(item["rule"] == "gemm_bias_grid" for item in manifest["rewrites"])
    compiled = [row for row in manifest["accuracy"] if row["form"] == "compiled"]
    assert compiled and all(row["identical"] for row in compiled)


@pytest.mark.parametrize("name", ["residual_cnn", "vit"])
def test_what_intact_quantizes_has_no_findings(zoo: SavedZoo, name: str, tmp_path: Path) -> None:
    intact("quantize", zoo.model(name), "--data", zoo.data(name), "-o", tmp_path / "q.onnx")
    assert json.loads(intact("lint", tmp_path / "q.onnx", "--json"))["findings"] == []
    assert onnx.load(tmp_path / "q.onnx").graph.node
