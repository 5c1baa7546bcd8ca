"""No command opens an internet socket or leaves anything behind, in this process or a child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import intact
from intact.cli import main
from tests.conftest import SavedZoo
from tests.trust import no_internet

WATCHED = (sys.executable, no_internet.__file__, sys.executable)
INTACT = ("-c", "from intact.cli.main import main; main()")

needs_watch = pytest.mark.skipif(not no_internet.supported(), reason="sockets are watched with seccomp, on Linux")


def environment(folder: Path) -> dict[str, str]:
    """Ours, without the settings that are under test, and with a temporary folder that is watched."""
    inherited = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    return {**inherited, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path))}


@pytest.mark.parametrize("start", ["import intact", "import intact.model.io", "import intact.runtime.worker"])
def test_telemetry_is_off_before_onnx_runtime_is_imported(start: str, tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", f"{start}, os, sys; print(os.environ.get('ORT_DISABLE_TELEMETRY'))"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == "1"


@needs_watch
def test_the_watch_ends_a_grandchild_that_opens_a_socket() -> None:
    grandchild = "import socket; socket.socket(socket.AF_INET)"
    child = f"import subprocess, sys; print(subprocess.run([sys.executable, '-c', {grandchild!r}]).returncode)"
    told = subprocess.run([*WATCHED, "-c", child], capture_output=True, text=True, check=True)
    assert int(told.stdout) == -signal.SIGSYS


COMMANDS = [
    "build {model} --device cpu --precision uint8 --data {data} -o {out}",
    "build {model} --device qnn -o {out}",
    "build {model} --device openvino -o {out}",
    "build {model} --precision auto --min-sqnr 20 --data {data} -o {out}",
    "build {model} --cluster local --resume --precision uint8 --data {data} -o {out}",
    "compile {model} --device cpu -o {out}",
    "matrix {model} --devices cpu --precisions fp32,uint8 -o {out}",
    "quantize {model} --precision uint8 --data {data} -o {out}.onnx",
    "plan {model} --precision uint8 -o {out}.toml",
    "rewrite {quantized} --device cpu -o {out}.onnx",
    "convert {quantized} --to qlinear -o {out}.onnx",
    "verify {model} {quantized} --data {data}",
    "perf {model} --runs 3",
    "debug {model} {quantized} --data {data}",
    "analyze {model} --device qnn",
    "inspect {model}",
    "lint {quantized}",
    "lint {quantized} --fix -o {out}.onnx",
    "probe --device openvino --op Relu -o {out}.json",
    "explain M101",
    "schema",
    "doctor",
    "targets",
    "toolchain list",
    "init -o {out}.toml",
    "report {built} -o {out}.html",
    "encodings export {quantized} -o {out}.json",
    "encodings diff {quantized} {quantized}",
]
EVERY_DAY = {"build {model} --device cpu", "quantize", "perf", "schema", "verify", "matrix"}
NEEDS_THE_NETWORK = {"export"}
"""It fetches a model of Hugging Face, which is what it is for; so does `toolchain install`, with pip, for packages."""


def case(command: str) -> object:
    marks = [
        mark for name in ("qnn", "openvino") if f"--device {name}" in command for mark in [getattr(pytest.mark, name)]
    ]
    marks = [] if command.startswith("analyze") else marks
    quick = command.startswith(tuple(EVERY_DAY))
    return pytest.param(command, marks=[*marks, *([] if quick else [pytest.mark.slow])], id=command)


def test_every_command_is_watched() -> None:
    named = {command.split()[0] for command in COMMANDS}
    assert named | NEEDS_THE_NETWORK == set(typer.main.get_command(main.app).commands)


@pytest.fixture(scope="module")
def quantized(zoo: SavedZoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quantized") / "q.onnx"
    intact.quantize(zoo.model("residual_cnn"), precision="uint8", effort="fast", output=path)
    return path


@pytest.fixture(scope="module")
def built(zoo: SavedZoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "out"
    intact.build(zoo.model("residual_cnn"), device="cpu", precision="uint8", effort="fast", output=folder)
    return folder


@needs_watch
@pytest.mark.parametrize("command", [case(command) for command in COMMANDS])
def test_a_command_opens_no_internet_socket_and_leaves_no_file(
    command: str, zoo: SavedZoo, quantized: Path, built: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    given = {"model": zoo.model("residual_cnn"), "data": zoo.data("residual_cnn"), "quantized": quantized}
    given["built"] = built
    words = [word.format(**given, out=tmp_path / "out") for word in command.split()]
    told = subprocess.run([*WATCHED, *INTACT, *words], env=environment(temporary), capture_output=True, text=True)
    # Findings, and models that part ways, are results too.
    assert told.returncode in ((0, 1) if words[0] in ("lint", "debug") else (0,)), told.stderr
    assert "internal error" not in told.stderr
    assert list(temporary.iterdir()) == []
