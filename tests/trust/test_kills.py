"""A command that is killed at any moment leaves the old output or the new one, and the next command tidies up."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from intact import scratch
from intact.api.verify import verify_manifest
from tests.conftest import SavedZoo
from tests.trust.limited import INTACT

MOMENTS = 25
SIGNALS = [signal.SIGKILL, signal.SIGTERM]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="folders are exchanged in one step on Linux alone")


def start(words: list[str], temporary: Path) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "TMPDIR": str(temporary),
        "PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path)),
    }
    return subprocess.Popen(
        [*INTACT, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def finish(words: list[str], temporary: Path) -> None:
    process = start(words, temporary)
    _, told = process.communicate()
    assert process.returncode == 0, told


def check_killed(number: signal.Signals, moments: int, zoo: SavedZoo, folder: Path) -> set[str]:
    """Kill builds over an old one at random moments; return the precisions that were found in their place."""
    temporary, place = folder / "tmp", folder / "place"
    temporary.mkdir()
    place.mkdir()
    model, out = zoo.model("residual_cnn"), place / "out"
    build = ["build", str(model), "--device", "cpu", "-o", str(out), "--overwrite", "--precision"]
    finish([*build, "fp32"], temporary)
    begun = time.monotonic()
    finish([*build, "uint8"], temporary)
    whole, seen, random_ = time.monotonic() - begun, set[str](), random.Random(int(number))
    for moment in range(moments):
        process = start([*build, "uint8" if moment % 2 else "fp32"], temporary)
        time.sleep(random_.uniform(0, 1.05 * whole))
        process.send_signal(number)
        _, told = process.communicate()
        assert process.returncode in (0, -number, 128 + number), told
        assert verify_manifest(out / "manifest.json").damaged == ()
        seen.add("uint8" if (out / "model.qdq.onnx").exists() else "fp32")
    finish(["plan", str(model), "-o", str(place / "plan.toml")], temporary)
    assert sorted(path.name for path in place.iterdir()) == ["out", "plan.toml"]
    assert [path.name for path in temporary.iterdir() if scratch.is_ours(path.name)] == []
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_at_every_moment_the_old_output_or_the_new_one_is_there(
    number: signal.Signals, zoo: SavedZoo, tmp_path: Path
) -> None:
    check_killed(number, MOMENTS, zoo, tmp_path)


def test_a_few_moments(zoo: SavedZoo, tmp_path: Path) -> None:
    check_killed(signal.SIGKILL, 3, zoo, tmp_path)
