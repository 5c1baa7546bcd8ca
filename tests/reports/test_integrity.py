"""A manifest tells which files of its build are still what was built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import intact
from intact.api.verify import verify_manifest
from intact.cli import main
from intact.errors import SettingsError
from tests.conftest import SavedZoo


@pytest.fixture
def built(zoo: SavedZoo, tmp_path: Path) -> Path:
    intact.build(zoo.model("residual_cnn"), device="cpu", precision="fp32", output=tmp_path / "out")
    return tmp_path / "out"


def states(folder: Path) -> dict[str, str]:
    return {file.path: file.state for file in verify_manifest(folder / "manifest.json").files}


def status(*words: object) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["intact", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main.main()
    return end.value.code or 0


def test_a_build_that_nobody_touched_is_the_same(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(states(built).values()) == {"same"}
    assert status("verify", built / "manifest.json") == 0
    assert "same: model.onnx" in capsys.readouterr().out


def test_one_byte_more_is_a_change(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(built / "model.onnx", "ab") as file:
        file.write(b"x")
    assert states(built)["model.onnx"] == "changed"
    assert status("verify", built / "manifest.json") == 1
    assert "error[G112]" in capsys.readouterr().err


def test_a_file_that_is_gone_is_missing(built: Path) -> None:
    (built / "model.onnx").unlink()
    assert states(built)["model.onnx"] == "missing"


@pytest.mark.parametrize("path", ["/etc/hostname", "../secret", "link"])
def test_a_manifest_does_not_lead_outside(path: str, built: Path) -> None:
    (built.parent / "secret").write_text("secret")
    (built / "link").symlink_to(built.parent / "secret")
    values = json.loads((built / "manifest.json").read_text())
    values["artifacts"][0]["path"] = path
    (built / "manifest.json").write_text(json.dumps(values))
    assert states(built)[path] == "outside"


def test_versions_that_changed_are_told(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = json.loads((built / "manifest.json").read_text())
    values["environment"] |= {"onnxruntime": "1.0.0", "no-such-package": "3"}
    (built / "manifest.json").write_text(json.dumps(values))
    drift = {item.package: (item.then, item.now is None) for item in verify_manifest(built / "manifest.json").drift}
    assert drift == {"onnxruntime": ("1.0.0", False), "no-such-package": ("3", True)}
    assert status("verify", built / "manifest.json") == 0
    assert "onnxruntime was 1.0.0" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{}", "[]", "", "[" * 100_000, '{"artifacts": []}'])
def test_what_is_no_manifest_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(SettingsError, match=r"manifest\.json: is not a manifest"):
        verify_manifest(tmp_path / "manifest.json")
