"""An input is never an output: every command refuses to write where something lies that it reads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import intact
from intact.cli import main
from intact.errors import OutputError
from tests.conftest import SavedZoo
from tests.zoo import ZOO


@pytest.fixture(scope="module")
def quantized(zoo: SavedZoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quantized") / "q.onnx"
    intact.quantize(zoo.model("residual_cnn"), precision="uint8", effort="fast", output=path)
    return path


@pytest.fixture
def folder(quantized: Path, zoo: SavedZoo, tmp_path: Path) -> Path:
    """A folder with a model, which intact wrote itself, and everything that a call may read beside it."""
    place = tmp_path / "v"
    place.mkdir()
    shutil.copy(quantized, place / "q.onnx")
    shutil.copy(zoo.model("residual_cnn"), place / "model.onnx")
    shutil.copy(zoo.data("residual_cnn"), place / "rows.npz")
    return place


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


COMMANDS: dict[str, Callable[[Path], object]] = {
    "build": lambda v: intact.build(v / "model.onnx", device="cpu", precision="fp32", output=v, overwrite=True),
    "auto": lambda v: intact.build(v / "model.onnx", precision="auto", min_sqnr=10, output=v, overwrite=True),
    "compile": lambda v: intact.compile(v / "model.onnx", device="cpu", output=v, overwrite=True),
    "build from an outer folder": lambda v: intact.build(v / "model.onnx", output=v.parent, overwrite=True),
    "build with its data": lambda v: intact.build(
        shutil.copy(v / "model.onnx", v.parent / "m.onnx"), data=v / "rows.npz", output=v, overwrite=True
    ),
    "quantize": lambda v: intact.quantize(v / "model.onnx", output=v / "model.onnx", overwrite=True),
    "quantize over its data": lambda v: intact.quantize(
        v / "model.onnx", data=v / "rows.npz", output=v / "rows.npz", overwrite=True
    ),
    "rewrite": lambda v: intact.rewrite(v / "q.onnx", device="cpu", output=v / "q.onnx"),
    "rewrite through a folder": lambda v: intact.rewrite(v / "q.onnx", device="cpu", output=v / "../v/q.onnx"),
    "convert": lambda v: intact.convert(v / "q.onnx", to="qlinear", output=v / "q.onnx", overwrite=True),
    "plan": lambda v: intact.plan(v / "model.onnx", output=v / "model.onnx", overwrite=True),
    "encodings": lambda v: intact.encodings(v / "q.onnx", output=v / "q.onnx", overwrite=True),
    "lint": lambda v: intact.lint(v / "q.onnx", output=v / "q.onnx", overwrite=True),
    "debug": lambda v: intact.debug(v / "model.onnx", v / "q.onnx", output=v, overwrite=True),
    "export": lambda v: intact.export(str(v), output=v / "q.onnx", overwrite=True),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_leaves_its_input_alone(name: str, folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(OutputError, match="is an input") as error:
        COMMANDS[name](folder)
    assert error.value.code == "O107"
    assert contents(folder) == before


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symlink", "hard link"])
def test_another_name_of_the_input_is_the_input(link: Callable[[Path, Path], None], folder: Path) -> None:
    link(folder / "q.onnx", folder / "other.onnx")
    with pytest.raises(OutputError, match="is an input"):
        intact.rewrite(folder / "q.onnx", device="cpu", output=folder / "other.onnx", overwrite=True)


def test_weights_outside_are_inputs_too(tmp_path: Path) -> None:
    big = ZOO["residual_cnn"]()
    onnx.save(big, tmp_path / "model.onnx", save_as_external_data=True, location="out.onnx.data", size_threshold=0)
    weights = (tmp_path / "out.onnx.data").read_bytes()
    with pytest.raises(OutputError, match=r"out\.onnx\.data is an input"):
        intact.quantize(tmp_path / "model.onnx", output=tmp_path / "out.onnx", overwrite=True)
    assert (tmp_path / "out.onnx.data").read_bytes() == weights


def test_a_settings_file_is_an_input_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = folder / "settings.json"
    settings.write_text(json.dumps({"precision": "uint8"}))
    words = ["plan", folder / "model.onnx", "--config", settings, "-o", settings, "--overwrite"]
    monkeypatch.setattr("sys.argv", ["intact", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 2
    assert "settings.json is an input" in capsys.readouterr().err
    assert json.loads(settings.read_text()) == {"precision": "uint8"}


def test_a_folder_of_an_earlier_build_is_replaced_as_before(folder: Path, tmp_path: Path) -> None:
    rows = np.load(folder / "rows.npz")
    out = tmp_path / "out"
    for _ in range(2):
        intact.build(folder / "model.onnx", device="cpu", precision="fp32", data=dict(rows), output=out, overwrite=True)
    assert (out / "manifest.json").is_file()
