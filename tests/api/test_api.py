"""The public API: one typed function a command, the same ones that the command line calls."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import intact
from intact.errors import SettingsError
from intact.settings.keywords import Keywords
from intact.settings.places import PLACES

COMMANDS = (
    *("analyze", "build", "compile", "convert", "debug", "doctor", "encodings", "explain", "export", "init"),
    *("inspect", "lint", "matrix", "perf", "plan", "probe", "quantize", "report", "rewrite", "schema", "verify"),
)
FUNCTIONS = (
    *COMMANDS,
    *("install_toolchain", "list_toolchains", "remove_toolchain"),
    "list_targets",
    "load",
    "save",
    "load_target",
    "validate",
)
SIGNATURES = Path(__file__).with_name("signatures.txt")
CLI = sorted((Path(intact.__file__).parent / "cli").glob("*.py"))
# What the command line may use besides the API: itself, errors and values to show, and how numbers look.
# The floor that all stand on, and the API.
SHOWN = (
    *("intact.cli", "intact.api", "intact.errors", "intact.scratch", "intact.results", "intact.settings"),
    *("intact.reports.figures", "intact.reports.stage_words"),
)


def signatures() -> str:
    """Every public function with its parameters, as Python shows them."""
    return "".join(f"{name}{inspect.signature(getattr(intact, name))}\n" for name in sorted(FUNCTIONS))


def test_signatures_are_those_of_the_checked_in_list():
    """A change here is a change of the public API: write it down in the changelog, and this list anew."""
    assert signatures() == SIGNATURES.read_text(encoding="utf-8")


def test_every_public_function_is_callable_before_and_after_a_build(zoo, tmp_path):
    assert all(callable(getattr(intact, name)) for name in FUNCTIONS)
    built = intact.build(
        str(zoo.model("residual_cnn")), effort="fast", data=str(zoo.data("residual_cnn")), output=str(tmp_path / "out")
    )
    assert built.verdict == "good" and (tmp_path / "out/manifest.json").is_file()
    assert all(callable(getattr(intact, name)) for name in FUNCTIONS), "a room of the same name took its place"


def test_every_public_name_is_a_function_above_or_a_type():
    others = set(intact.__all__) - set(FUNCTIONS) - {"__version__"}
    assert all(isinstance(getattr(intact, name), type) for name in others) and set(FUNCTIONS) <= set(intact.__all__)


def test_the_types_that_are_shown_are_those_that_run():
    """A type checker reads the imports that are for it, and a program the homes that names are loaded from."""
    tree = ast.parse(Path(intact.__file__).read_text(encoding="utf-8"))
    (shown,) = (node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    found = {name.name: node.module for node in shown.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert found == intact._HOMES


@pytest.mark.parametrize("held", ["arrays", "array", "function"])
def test_inputs_may_be_held_in_memory(held, zoo, tmp_path):
    arrays = dict(np.load(zoo.data("residual_cnn")))
    data = {"arrays": arrays, "array": arrays["image"], "function": lambda: arrays}[held]
    kind = "callable" if held == "function" else "arrays"
    model = str(zoo.model("residual_cnn"))
    built = intact.build(model, effort="fast", data=data, output=tmp_path / "out")
    assert built.calibration_kind == kind
    from_file = intact.build(model, effort="fast", data=zoo.data("residual_cnn"), output=tmp_path / "file")
    assert [a.sha256 for a in built.artifacts] == [a.sha256 for a in from_file.artifacts]


def test_keywords_lie_over_a_configuration(zoo, tmp_path):
    config = intact.BuildConfig.from_dict({"precision": "uint8", "quant": {"method": "mse", "effort": "fast"}})
    written = intact.quantize(
        zoo.model("residual_cnn"), config=config, method="minmax", data=zoo.data("residual_cnn"), output=tmp_path / "q"
    )
    quant = written.config.quantization
    assert quant is not None and (quant.method, quant.effort) == ("minmax", "fast")
    assert (tmp_path / "q").is_file() and written.nodes_quantized > 0


def test_a_keyword_that_is_no_setting_is_refused(tmp_path):
    with pytest.raises(TypeError, match="'presicion'"):
        intact.build("m.onnx", presicion="uint8", output=tmp_path)
    with pytest.raises(SettingsError, match="banana"):
        intact.build("m.onnx", precision="banana", output=tmp_path)


def test_every_keyword_has_a_place_and_every_place_a_keyword():
    assert set(PLACES) - set(Keywords.__annotations__) == {"weight_symmetry"}  # a second flag for one setting
    assert set(Keywords.__annotations__) <= set(PLACES)


@pytest.mark.parametrize("path", CLI, ids=lambda path: path.name)
def test_the_command_line_calls_nothing_but_the_api(path):
    imported = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    types = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    for_types = {id(inner) for node in types for inner in ast.walk(node)}
    for node in (node for node in ast.walk(tree) if id(node) not in for_types):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported.append(node.module or "")
    ours = [name for name in imported if name.split(".")[0] == "intact"]
    assert [name for name in ours if not name.startswith(SHOWN)] == []


def test_a_strict_type_checker_accepts_a_call_with_settings_left_out(tmp_path):
    (tmp_path / "use.py").write_text(
        """
import intact
import numpy as np

built = intact.build("m.onnx", device="qnn", precision="uint8", data={"x": np.zeros((8, 3))}, output="out")
word: str = built.verdict
intact.BuildConfig(precision="uint8", compile=intact.CompileConfig(device="qnn"))
intact.QuantConfig(method="mse")
found = intact.debug("m.onnx", "q.onnx", data="x.npz")
place: str = "nowhere" if found.first is None else f"{found.first.node} in {found.layers[0].op}"
share: float = intact.analyze("q.onnx", device="qnn")[0].npu_percent
count: int = intact.inspect("m.onnx").operators["Conv"]
fired: int = sum(rule["count"] for rule in intact.rewrite("q.onnx", output="r.onnx").rules)
""",
        encoding="utf-8",
    )
    # The types asked about are ours and pydantic's: reading those of numpy and onnx-ir costs four times as long.
    others = "numpy.*,onnx_ir.*,onnx.*,onnxruntime.*,rich.*,typer.*,click.*,jinja2.*,joblib.*,PIL.*,torch.*"
    settings = f"[mypy]\nstrict = true\n[mypy-{others}]\nfollow_imports = skip\n"
    (tmp_path / "mypy.ini").write_text(settings, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", str(tmp_path / "cache")]
    package = str(Path(intact.__file__).parents[1])
    done = subprocess.run(
        [*command, "--follow-imports", "silent", "use.py"],
        cwd=tmp_path,
        env={"MYPYPATH": package, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
