"""`intact encodings` and `--encodings`, from outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli import command
from tests.conftest import SavedZoo

NAME = "depthwise_cnn"
# With VNNI assumed, weights are int8 as the encodings say, whatever processor this is.
PLAIN = ("--precision", "uint8", "--effort", "fast", "--no-rescue", "--assume-vnni")


def intact(*arguments: object, status: int = 0) -> str:
    found, out, err = command.run(*arguments)
    assert found == status, err + out
    return out if status == 0 or out else err


@pytest.fixture(scope="module")
def quantized(zoo: SavedZoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quantized") / "q.onnx"
    intact("quantize", zoo.model(NAME), "--data", zoo.data(NAME), *PLAIN, "-o", path)
    return path


@pytest.mark.parametrize("form", ["aimet", "ort"])
def test_exported_encodings_give_the_same_file_without_data(
    zoo: SavedZoo, quantized: Path, tmp_path: Path, form: str
) -> None:
    result = json.loads(intact("encodings", "export", quantized, "--format", form, "-o", tmp_path / "e.json", "--json"))
    assert result["tensors"] > 10 and result["format"] == form
    intact("quantize", zoo.model(NAME), "--encodings", tmp_path / "e.json", *PLAIN, "-o", tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == quantized.read_bytes()
    assert intact("encodings", "diff", quantized, tmp_path / "e.json").strip() == "the same"


def test_a_difference_is_shown_and_the_status_says_so(quantized: Path, tmp_path: Path) -> None:
    intact("encodings", "export", quantized, "-o", tmp_path / "e.json")
    content = json.loads((tmp_path / "e.json").read_text())
    entry = content["activation_encodings"][0]
    entry["scale"] = [entry["scale"][0] * 2]
    (tmp_path / "e.json").write_text(json.dumps(content))
    text = intact("encodings", "diff", quantized, tmp_path / "e.json", status=1)
    assert f"{entry['name']}: scale by a factor of 2" in text and "1 tensor differs" in text
    (found,) = json.loads(intact("encodings", "diff", quantized, tmp_path / "e.json", "--json", status=1))[
        "differences"
    ]
    assert found["tensor"] == entry["name"] and found["scale_ratio"] == pytest.approx(2)


def test_missing_encodings_are_an_error_or_calibrated(zoo: SavedZoo, quantized: Path, tmp_path: Path) -> None:
    intact("encodings", "export", quantized, "-o", tmp_path / "e.json")
    content = json.loads((tmp_path / "e.json").read_text())
    name = content["param_encodings"].pop()["name"]
    (tmp_path / "e.json").write_text(json.dumps(content))
    arguments = ("quantize", zoo.model(NAME), "--encodings", tmp_path / "e.json", *PLAIN, "-o", tmp_path / "q.onnx")
    text = intact(*arguments, status=2)
    assert "error[S165]" in text and name in text and "--calibrate-missing" in text
    result = json.loads(intact(*arguments, "--calibrate-missing", "--data", zoo.data(NAME), "--json"))
    assert any(name in warning and "calibrated" in warning for warning in result["warnings"])
    assert (tmp_path / "q.onnx").read_bytes() == quantized.read_bytes()


def test_a_file_that_is_there_is_not_replaced(quantized: Path, tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text("mine")
    assert "error[O104]" in intact("encodings", "export", quantized, "-o", tmp_path / "e.json", status=2)
    assert (tmp_path / "e.json").read_text() == "mine"
    intact("encodings", "export", quantized, "-o", tmp_path / "e.json", "--overwrite")


def test_an_unknown_format_is_a_usage_error(quantized: Path, tmp_path: Path) -> None:
    text = intact("encodings", "export", quantized, "--format", "tflite", "-o", tmp_path / "e.json", status=2)
    assert "error[S162]" in text and "aimet" in text
    assert not (tmp_path / "e.json").exists()


def test_a_float_model_has_nothing_to_export(zoo: SavedZoo, tmp_path: Path) -> None:
    assert "error[M191]" in intact("encodings", "export", zoo.model(NAME), "-o", tmp_path / "e.json", status=3)
