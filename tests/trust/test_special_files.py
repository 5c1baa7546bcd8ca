"""A pipe or a device in the place of a file is refused at once: reading it might never end."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SavedZoo

INTACT = (sys.executable, "-c", "from intact.cli.main import main; main()")

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")

COMMANDS = {
    "build": "build {bad} --device cpu -o {out}",
    "compile": "compile {bad} --device cpu -o {out}",
    "quantize": "quantize {bad} -o {out}.onnx",
    "plan": "plan {bad} -o {out}.toml",
    "verify": "verify {model} {bad}",
    "perf": "perf {bad}",
    "inspect": "inspect {bad}",
    "lint": "lint {bad}",
    "data": "build {model} --device cpu --data {bad} -o {out}",
    "labels": "build {model} --device cpu --data {data} --labels {bad} -o {out}",
    "settings": "build {model} --config {bad}.toml -o {out}",
    "plan file": "quantize {model} --plan {bad}.toml -o {out}.onnx",
    "encodings": "quantize {model} --encodings {bad} -o {out}.onnx",
    "table": "analyze {model} --device {bad}.toml",
}


# One command after another, each with its status and what it said: one that hangs ends the list.
ONE_BY_ONE = """
import json, sys
from tests.cli import command
for words in json.load(sys.stdin):
    status, _, said = command.run(*words)
    print(json.dumps([status, said]), flush=True)
"""
SECONDS = 300


@pytest.fixture(scope="module")
def told(zoo: SavedZoo, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[int, str]]]:
    """A pipe, and the status and the error of every command that came to an end with it, in a process of their own."""
    folder = tmp_path_factory.mktemp("pipes")
    for name in ("pipe", "pipe.toml"):
        os.mkfifo(folder / name)
    places = {"bad": folder / "pipe", "model": zoo.model("residual_cnn"), "data": zoo.data("residual_cnn")}
    words = [text.format(out=folder / f"out{n}", **places).split() for n, text in enumerate(COMMANDS.values())]
    path = os.pathsep.join(filter(os.path.isabs, sys.path))
    environment = {**os.environ, "PYTHONPATH": path}
    with open(folder / "told.txt", "w+", encoding="utf-8") as answers:
        # The answers that are missing tell of one that hung.
        with contextlib.suppress(subprocess.TimeoutExpired):
            command = [sys.executable, "-c", ONE_BY_ONE]
            subprocess.run(
                command, input=json.dumps(words), stdout=answers, text=True, timeout=SECONDS, env=environment
            )
        answers.seek(0)
        return folder / "pipe", dict(zip(COMMANDS, map(json.loads, answers), strict=False))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_is_refused(command: str, told: tuple[Path, dict[str, tuple[int, str]]]) -> None:
    pipe, answers = told
    assert command in answers, f"{command} or one before it did not come to an end"
    status, said = answers[command]
    assert status in (2, 3), said
    assert str(pipe) in said


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/stdin"])
def test_a_device_is_refused(device: str, tmp_path: Path) -> None:
    words = ["build", device, "--device", "cpu", "-o", str(tmp_path / "out")]
    told = subprocess.run([*INTACT, *words], stdin=subprocess.PIPE, capture_output=True, text=True, timeout=60)
    assert told.returncode == 2 and device in told.stderr
