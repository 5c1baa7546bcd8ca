"""A backend is known in its own folder only: the rest of the program goes by the protocol."""

from __future__ import annotations

import ast
import re
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest
from onnx import helper

import intact
from intact.backends import base, installed
from intact.backends.probing import library_of
from intact.errors import NotAvailable, SettingsError
from intact.settings import devices
from intact.targets import offer, registry
from intact.targets.registry import load_target
from intact.targets.table import parse_head
from tests.test_structure import strings

ROOT = Path(intact.__file__).parent
NAMES = set(devices.shipped())
# Strings that are a backend's name, where that is right.
ALLOWED = {
    "settings/devices.py": "the device that intact itself computes on, which is the default",
    "runtime/ort_cpu.py": "where ONNX Runtime puts the memory of an array: not a backend",
    "api/probe.py": "the default of a flag",
}
# Texts that name a backend among other words, as an example of what a user may write.
EXAMPLES = {"cli/debug.py", "cli/matrix.py", "cli/options.py", "cli/probe.py", "cli/toolchain.py", "settings/config.py"}
# The name of the host is a common word.
MENTIONED = re.compile(rf"\b({'|'.join(sorted(NAMES - {devices.HOST}))})\b", re.IGNORECASE)


def outside() -> list[Path]:
    """Every file that is not in a backend's own folder."""
    return [path for path in sorted(ROOT.rglob("*.py")) if not set(path.relative_to(ROOT).parts[1:2]) & NAMES]


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", outside(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_backend_is_named_or_imported_outside_its_folder(path):
    where = path.relative_to(ROOT).as_posix()
    named = sorted(NAMES.intersection(strings(path)))
    assert bool(named) == (where in ALLOWED), f"{where} names {named}: ask the backend, or its table"
    mentioned = [text for text in strings(path) if text not in NAMES and MENTIONED.search(text)]
    assert bool(mentioned) == (where in EXAMPLES), f"{where} speaks of a backend in {mentioned}: ask tables instead"
    folders = [f"intact.backends.{name}" for name in NAMES]
    assert [name for name in imported(path) if any(f"{name}.".startswith(f"{folder}.") for folder in folders)] == []


def test_both_are_looked_for_in_the_whole_program(tmp_path):
    assert len(outside()) > 250 and {path.parent.name for path in outside()} >= {"pipeline", "reports", "backends"}
    (tmp_path / "a.py").write_text('if target.backend == "qnn":\n    from intact.backends.qnn import client\n')
    assert strings(tmp_path / "a.py") == ["qnn"] and imported(tmp_path / "a.py") == {"intact.backends.qnn.client"}
    assert MENTIONED.search("QNN does not take it") and not MENTIONED.search("the CPU takes it")


@pytest.mark.parametrize("name", devices.shipped())
def test_every_backend_that_ships_has_the_protocol_and_a_table_beside_it(name):
    found = installed.find(name)
    assert base.Backend in type(found).mro() and found.title and installed.title(name) == found.title
    assert found.table == ROOT / "backends" / name / "table.toml" and found.table.is_file()
    assert not found.packages or name in (found.install or "")
    head = parse_head(*offer.source_of(name)).target
    assert (head.untimed, head.estimates) == (found.untimed, found.estimates)


def test_what_backends_say_of_themselves():
    assert installed.names()[:4] == ["cpu", "dml", "openvino", "qnn"]
    assert installed.simulated() == ["qnn", "rknn"] and installed.timed() == ["cpu", "openvino"]
    assert {library_of(name).package for name in ("qnn", "openvino")} == {"onnxruntime-qnn", "openvino"}
    assert registry.running_float() == ["cpu", "openvino", "rknn"]
    with pytest.raises(SettingsError, match=r"no library to ask(.|\n)*openvino, qnn"):
        library_of("cpu")


@pytest.mark.parametrize(("file", "suffix"), [("model.blob", ".blob"), ("model.onnx", None), ("model.zip", None)])
def test_a_file_leads_to_the_backend_that_deploys_it(file, suffix):
    found = installed.of_file(Path(file))
    assert (None if found is None else found.suffix) == suffix


@pytest.mark.parametrize(("source", "maker"), [("QNN", "qnn"), ("QNNExecutionProvider", "qnn"), (None, "qnn")])
def test_a_compiled_model_leads_to_the_backend_that_made_it(source, maker):
    assert installed.maker_of(context(source)) == maker


def test_a_compiled_model_of_somebody_else_is_refused_by_name():
    with pytest.raises(NotAvailable, match="no backend runs what VitisAI compiled"):
        installed.maker_of(context("VitisAI"))


def context(source):
    from onnx_ir import serde

    said = {} if source is None else {"source": source}
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **said)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", 1, [1])], [helper.make_tensor_value_info("y", 1, [1])]
    )
    return serde.deserialize_model(helper.make_model(graph))


def test_a_backend_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(NotAvailable, match=r"cannot compile for mine(.|\n)*cpu, dml, openvino, qnn"):
        installed.find("mine")
    assert installed.title("mine") == "mine" and "onnxruntime-qnn" not in installed.versions("mine")


def test_half_a_backend_is_refused_with_what_it_lacks(monkeypatch):
    half = SimpleNamespace(
        name="half", value="half", load=lambda: SimpleNamespace(title="", table=Path(), compile=None)
    )
    monkeypatch.setattr(devices, "_points", lambda group: iter([half] if group == devices.BACKEND_GROUP else []))
    with pytest.raises(NotAvailable, match=r"has no check, estimates, install.*run.*untimed"):
        installed.find("half")


def test_a_package_that_does_not_load_is_named(monkeypatch):
    point = EntryPoint("lost", "a_module_that_is_not_there:BACKEND", devices.BACKEND_GROUP)
    monkeypatch.setattr(devices, "_points", lambda group: iter([point] if group == devices.BACKEND_GROUP else []))
    with pytest.raises(NotAvailable, match="lost: the package that adds it does not load: ModuleNotFoundError"):
        installed.find("lost")
    with pytest.raises(NotAvailable, match="a_module_that_is_not_there"):
        load_target("lost")


def test_what_a_backend_needs_not_say():
    class Least(base.Backend):
        title, table = "least", Path("table.toml")

        def compile(self, model, device, folder, on_cpu): ...

        def load(self, path, device): ...

        def run(self, path, samples, device): ...

    least = Least()
    assert installed._whole("least", least) is least
    least.check({"any": "option"})
    assert least.origin(Path("m.onnx")) == Path("m.onnx") and least.untimed and least.simulator is None
    assert least.timer({}) is None and least.snippet({}, whole=True) is None and not least.made(context("QNN"))
    with pytest.raises(NotAvailable, match="least has no library to ask here"):
        least.place(context(None), base.Device("least", timeout=1))
