"""No command opens an internet socket or leaves anything behind, in this process or a child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SavedZoo
from tests.trust import no_internet

WATCHED = (sys.executable, no_internet.__file__, sys.executable)
INTACT = ("-c", "from intact.cli.main import main; main()")
FEW = ("--samples", "4")

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


@needs_watch
@pytest.mark.parametrize(
    "command",
    [
        ("build", "{model}", "--device", "cpu", "--precision", "uint8", "--data", "{data}", "-o", "{out}"),
        pytest.param(("build", "{model}", "--device", "qnn", *FEW, "-o", "{out}"), marks=pytest.mark.qnn),
        pytest.param(("build", "{model}", "--device", "openvino", *FEW, "-o", "{out}"), marks=pytest.mark.openvino),
        ("quantize", "{model}", "--precision", "uint8", "--data", "{data}", "-o", "{out}.onnx"),
        ("plan", "{model}", "--precision", "uint8", "-o", "{out}.toml"),
        ("perf", "{model}", "--runs", "3"),
        ("analyze", "{model}", "--device", "qnn"),
        ("inspect", "{model}"),
        ("schema",),
    ],
    ids=lambda command: command[0],
)
def test_a_command_opens_no_internet_socket_and_leaves_no_file(
    command: tuple[str, ...], zoo: SavedZoo, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    given = {"model": zoo.model("residual_cnn"), "data": zoo.data("residual_cnn"), "out": tmp_path / "out"}
    words = [word.format(**given) for word in command]
    told = subprocess.run([*WATCHED, *INTACT, *words], env=environment(temporary), capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert list(temporary.iterdir()) == []
