"""A pipe or a device in the place of a file is refused at once: reading it might never end."""

from __future__ import annotations

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


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_is_refused(command: str, zoo: SavedZoo, tmp_path: Path) -> None:
    for name in ("pipe", "pipe.toml"):
        os.mkfifo(tmp_path / name)
    places = {"bad": tmp_path / "pipe", "out": tmp_path / "out"}
    words = COMMANDS[command].format(model=zoo.model("residual_cnn"), data=zoo.data("residual_cnn"), **places).split()
    told = subprocess.run([*INTACT, *words], capture_output=True, text=True, timeout=60)
    assert told.returncode in (2, 3), told.stderr
    assert str(tmp_path / "pipe") in told.stderr


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/stdin"])
def test_a_device_is_refused(device: str, tmp_path: Path) -> None:
    words = ["build", device, "--device", "cpu", "-o", str(tmp_path / "out")]
    told = subprocess.run([*INTACT, *words], stdin=subprocess.PIPE, capture_output=True, text=True, timeout=60)
    assert told.returncode == 2 and device in told.stderr
