"""`--log-json`: everything on stderr is JSON, one object a line, whatever happens."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from intact.cli import main
from intact.pipeline import stages
from tests.cli import command
from tests.conftest import SavedZoo

Lines = list[dict[str, object]]


@pytest.fixture
def run():
    def lines(*words: object) -> tuple[int, Lines]:
        status, _, err = command.run(*words, "--log-json")
        found = [json.loads(line) for line in err.splitlines()]
        assert all(line["event"] in ("stage", "note", "warning", "error") and line["time"] for line in found)
        return status, found

    return lines


def events(lines: Lines, kind: str) -> Lines:
    return [line for line in lines if line["event"] == kind]


def test_a_command_that_ends_well_tells_its_stages_and_warnings(run, zoo: SavedZoo, tmp_path: Path) -> None:
    status, lines = run("plan", zoo.model("residual_cnn"), "--effort", "fast", "-o", tmp_path / "plan.toml")
    assert status == 0 and not events(lines, "error")
    stages = [(line["name"], line["state"]) for line in events(lines, "stage")]
    assert stages == [("load", "begun"), ("load", "done")]
    assert events(lines, "stage")[1]["seconds"] >= 0
    assert any("settings: " in str(line["text"]) for line in events(lines, "note"))
    status, lines = run("quantize", zoo.model("residual_cnn"), "--effort", "fast", "-q", "-o", tmp_path / "q.onnx")
    assert status == 0 and any("synthetic" in str(line["text"]) for line in events(lines, "warning"))
    assert {line["event"] for line in lines} == {"warning"}, "--quiet leaves warnings and errors"


def test_an_error_comes_in_its_parts(run, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    status, lines = run("inspect", tmp_path / "m.onnx")
    (error,) = events(lines, "error")
    assert (status, error["status"], error["code"]) == (3, 3, "M102")
    assert "is empty" in str(error["message"]) and error["allowed"] and error["fix"]
    assert error["files"] == {"model": str(tmp_path / "m.onnx")}


@pytest.mark.parametrize("words", [("inspect", "--banana"), ("banana",), ("matrix", "m.onnx"), ("encodings", "diff")])
def test_a_mistake_in_usage_is_a_line_too(words: tuple[str, ...], run) -> None:
    status, lines = run(*words)
    assert status == 2 and [line["status"] for line in lines] == [2] and lines[0]["message"]


def test_a_fault_of_ours_and_a_signal_are_lines(run, zoo: SavedZoo, tmp_path: Path, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("ours")

    def interrupted(*_: object) -> None:
        raise main.Interrupted(signal.SIGTERM)

    for how, status in ((fail, 70), (interrupted, 143)):
        monkeypatch.setattr(stages, "prepare", how)
        found, lines = run("quantize", zoo.model("residual_cnn"), "-o", tmp_path / "q.onnx")
        assert found == status and events(lines, "error")[0]["status"] == status


def test_names_stay_ascii(run, tmp_path: Path) -> None:
    _, lines = run("inspect", tmp_path / "\x1b[2J\u202e.onnx")
    assert "\x1b" in str(events(lines, "error")[0]["message"])
    assert "\x1b" not in command.run("inspect", tmp_path / "\x1b.onnx", "--log-json")[2]


def test_without_the_flag_it_is_text(tmp_path: Path) -> None:
    assert command.run("inspect", tmp_path / "m.onnx")[2].startswith("error[")
