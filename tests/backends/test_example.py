"""The example of a backend in a package of its own: installed beside intact, every command works on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE, DIGITS = ROOT / "examples" / "backend", ROOT / "examples" / "digits_cnn"
MODEL, ROWS, HELD_BACK = DIGITS / "model.onnx", DIGITS / "calibration.npz", DIGITS / "test.npz"
INTACT = ("-c", "from intact.cli.main import main; main()")


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Runs Python where the example is installed, from its own copy of it; gives the finished process."""
    folder = tmp_path_factory.mktemp("acorn")
    shutil.copytree(EXAMPLE, folder / "source")
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "--quiet")
    install = [sys.executable, "-m", "pip", "install", *offline, "--target", folder / "site", folder / "source"]
    subprocess.run(install, check=True, timeout=300)
    paths = [str(folder / "site"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def run(*words, status=0):
        command = [sys.executable, *map(str, words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def built(python, tmp_path_factory):
    """A build for the Acorn: its folder and its manifest."""
    folder = tmp_path_factory.mktemp("built") / "out"
    python(*INTACT, "build", MODEL, "--device", "acorn", "--data", ROWS, "--min-sqnr", "30", "-o", folder)
    return folder, json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def test_a_build_is_compiled_verified_and_reported(built):
    folder, manifest = built
    assert manifest["verdict"] == "passed" and not manifest["placement"]["cpu_nodes"]
    assert {row["form"] for row in manifest["accuracy"]} >= {"quantized", "compiled"}
    assert {a["path"]: a["kind"] for a in manifest["artifacts"]}["model.acorn"] == "deployable model"
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "Acorn NPU (an example)" in report and "acorn_runtime.load" in report


def test_analyze_says_what_is_on_it(python):
    words = ("analyze", MODEL, "--device", "acorn", "--data", ROWS, "--effort", "fast", "--json")
    found = json.loads(python(*INTACT, *words).stdout)
    assert (found["target"], found["npu_percent"], found["method"]) == ("acorn", 100.0, "table")


def test_validate_refuses_what_its_table_does_not_take(python, built):
    code = f"""
import intact
model = intact.load({str(built[0] / "model.qdq.onnx")!r})
target = intact.load_target("acorn")
assert intact.validate(model, target) == (), "what was built is valid"
next(node for node in model.graph if node.op_type == "Relu").op_type = "Tanh"
print([violation.op for violation in intact.validate(model, target, strict=False)])
"""
    # The Conv before the Relu was one node with it: alone it has no grid at its output.
    assert python("-c", code).stdout == "['Conv', 'Tanh']\n"


def test_verify_runs_what_was_built_on_it(python, built):
    done = python(*INTACT, "verify", MODEL, built[0] / "model.acorn", "--data", HELD_BACK, "--json")
    (found,) = json.loads(done.stdout)["models"]
    assert (found["form"], found["runtime"]) == ("compiled", "acorn 1.0, simulated")


def test_debug_compares_it_with_the_cpu_unit_by_unit(python, built):
    done = python(*INTACT, "debug", built[0] / "model.qdq.onnx", "--device", "acorn", "--data", HELD_BACK, "--json")
    found = json.loads(done.stdout)
    assert (found["kind"], found["target"], found["first"]) == ("device", "acorn", None) and found["compared"] > 10


def test_a_matrix_has_it_beside_others(python, tmp_path):
    cells = ("--devices", "cpu,acorn", "--precisions", "uint8", "--workers", "1", "--effort", "fast")
    done = python(*INTACT, "matrix", MODEL, *cells, "--data", ROWS, "-o", tmp_path / "out", "--json")
    found = {cell["device"]: cell for cell in json.loads(done.stdout)["cells"]}
    assert found["acorn"]["status"] == found["cpu"]["status"] == "built"
    assert found["acorn"]["npu_percent"] == 100.0 and found["cpu"]["npu_percent"] is None


def test_its_latency_is_not_measured_here(python, built):
    done = python(*INTACT, "perf", MODEL, built[0] / "model.acorn", "--data", HELD_BACK, status=2)
    assert "there is no Acorn to time it on" in done.stderr


def test_a_library_to_ask_is_not_needed(python, built):
    done = python(*INTACT, "analyze", built[0] / "model.qdq.onnx", "--device", "acorn", "--live", status=5)
    assert "acorn has no library to ask here" in done.stderr
