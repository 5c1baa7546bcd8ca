"""Tables are found, read when asked for, and refuse what they do not know."""

from __future__ import annotations

import subprocess
import sys

import pytest

from intact.errors import SettingsError
from intact.settings.config import CompileConfig
from intact.targets.registry import known_archs, known_backends, known_socs, load_target
from intact.targets.spec import Slot

TABLE = """
[target]
name = "mine"
npu = true

[op.Add]
take = [{ in = ["uint8", "..."], out = ["uint8"] }]
source = "documented: a datasheet"
"""


def test_backends_that_ship():
    assert {"cpu", "dml", "openvino", "qnn"} <= set(known_backends())


@pytest.mark.parametrize("backend", known_backends())
def test_every_operator_cites_a_source(backend):
    for spec in load_target(backend).ops.values():
        assert spec.signatures, spec.op
        sources = {signature.source for signature in spec.signatures} | {rule.get("source") for rule in spec.require}
        assert all(source.startswith(("documented: ", "probed: ")) for source in sources - {None}), spec.op
        assert not any("assumed" in source for source in sources - {None}), spec.op


def test_a_table_of_the_users_own(tmp_path):
    (tmp_path / "mine.toml").write_text(TABLE)
    target = load_target(str(tmp_path / "mine.toml"))
    assert target.backend == "mine" and str(target.op("", "Add").signatures[0]) == "(uint8, …) → uint8"


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("qmm", {}, "qnn"),
        ("qnn", {"arch": "v74"}, "v73"),
        ("qnn", {"soc": "SM8551"}, "SM8550"),
        ("qnn", {"soc": "SM8550", "arch": "v68"}, "v73"),
        ("/nowhere/table.toml", {}, "/nowhere/table.toml"),
    ],
)
def test_what_is_unknown_is_refused_with_what_is_known(name, settings, said):
    with pytest.raises(SettingsError) as caught:
        load_target(name, **settings)
    assert said in str(caught.value)


def test_a_chip_decides_the_architecture():
    assert {soc.name: load_target("qnn", soc=soc.name).arch for soc in known_socs("qnn")} == {
        soc.name: soc.arch for soc in known_socs("qnn")
    }
    assert known_archs("cpu") == [] and load_target("qnn", soc="sm8650").arch == 75


def test_one_backend_never_reads_anothers_table():
    code = (
        "from intact.targets import registry; registry.load_target('cpu'); "
        "assert registry._installed.cache_info().currsize == 1"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("text", ["uint8", "int8 constant symmetric channel", "int4 constant symmetric channel only"])
def test_a_slot_reads_as_it_is_written(text):
    assert str(Slot.parse(text)) == text


@pytest.mark.parametrize("text", ["uint9", "uint8 sometimes"])
def test_an_unknown_word_of_a_slot_is_refused(text):
    with pytest.raises(SettingsError, match=text.split()[-1]):
        Slot.parse(text)


def test_a_table_that_was_edited_is_read_again(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TABLE)
    assert load_target(str(path)).op("", "Mul") is None
    path.write_text(TABLE.replace("op.Add", "op.Mul"))
    edited = load_target(str(path))
    assert edited.op("", "Mul") is not None and edited.op("", "Add") is None


def test_an_installed_package_adds_a_target(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text(TABLE.replace('"mine"', '"chip"'))
    (tmp_path / "chip_target.py").write_text(
        "from pathlib import Path\nTABLE = Path(__file__).with_name('mine.toml')\n"
    )
    (tmp_path / "chip-1.dist-info").mkdir()
    (tmp_path / "chip-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: chip\nVersion: 1\n")
    (tmp_path / "chip-1.dist-info" / "entry_points.txt").write_text("[intact.targets]\nchip = chip_target:TABLE\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "chip" in known_backends()
    assert load_target("chip").name == "chip" and load_target("chip").table == str(tmp_path / "mine.toml")
    assert CompileConfig(device="chip").device == "chip"


@pytest.mark.parametrize("device", ["qmm", "chip", "table.json"])
def test_settings_refuse_a_device_that_is_neither_known_nor_a_table(device):
    with pytest.raises(SettingsError, match=r"unknown device .*qnn"):
        CompileConfig.from_dict({"device": device})


def test_nothing_of_one_architecture_is_seen_by_another():
    """The operators are read once for all architectures; what each takes of them is not remembered."""
    targets = {arch: load_target("qnn", arch=arch) for arch in (73, 68, 73, 81)}
    spec = targets[68].op("", "MatMul")
    assert all(target.op("", "MatMul") is spec for target in targets.values())
    counts = {arch: len(target.signatures(spec)) for arch, target in targets.items()}
    assert counts[68] < counts[73] == counts[81]
    assert {arch: load_target("qnn", arch=arch).soc.arch for arch in targets} == {arch: arch for arch in targets}
