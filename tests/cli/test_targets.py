"""Targets on the command line: a table of one's own, strict and lenient builds, the placement gate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import intact
from intact.backends import installed
from intact.errors import NotAvailable
from intact.model import io
from intact.targets.registry import load_target
from tests.cli import command
from tests.targets.test_registry import TABLE
from tests.targets.test_validate import two_products

EXAMPLE = Path(__file__).parents[2] / "examples/digits_cnn/model.onnx"


@pytest.fixture
def run(tmp_path):
    """Runs a command on two products, of which V68 takes one; gives its status, stdout and stderr."""
    io.save(two_products(), tmp_path / "model.onnx")
    return lambda name, *flags: command.run(name, tmp_path / "model.onnx", *flags)


def test_analyze_takes_a_table_of_ones_own(run, tmp_path):
    (tmp_path / "mine.toml").write_text(TABLE.replace("op.Add", "op.MatMul") + '[precisions]\nuint8 = "seen"\n')
    status, out, _ = run("analyze", "--device", tmp_path / "mine.toml", "--json")
    found = json.loads(out)
    assert (status, found["target"]) == (1, "mine")
    assert [node["name"] for node in found["npu_nodes"]] == ["n"]


def test_analyze_shows_every_device_beside_the_others(run):
    """A device whose toolchain cannot read the model at all, as its 16 bits here, is left out."""
    _, out, err = run("analyze", "--device", "all")
    head, *rows = out.splitlines()
    assert head.split()[:3] == ["target", "compute", "nodes"]
    assert [row.split()[0] for row in rows[:4]] == ["cpu", "dml", "openvino", "qnn/v73"]
    assert "rknn is left out: " in err and "opset 19" in err


def test_analyze_of_every_device_gives_each_the_precision_that_is_usual_there():
    _, out, err = command.run("analyze", EXAMPLE, "--device", "all")
    rows = out.splitlines()[1:]
    assert [row.split()[0] for row in rows[:5]] == ["cpu", "dml", "openvino", "qnn/v73", "rknn/rk3588"]
    assert "left out" not in err


@pytest.mark.qnn
@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        ((), 4, "[T103] m (MatMul)"),
        (("--no-strict",), 0, "1 of 2 compute nodes stay on the CPU"),
        (("--no-strict", "--require-npu", "50"), 0, "[T103] m (MatMul)"),
        (("--no-strict", "--require-npu", "100"), 1, "m (MatMul): [T103]"),
    ],
)
def test_a_build_says_what_stays_on_the_cpu(run, tmp_path, flags, status, said):
    found, _, err = run("build", "--device", "qnn", "--arch", "v68", *flags, "-o", tmp_path / "out")
    assert found == status and said in err
    assert (tmp_path / "out/model.onnx").exists() == (status != 4)


def test_targets_lists_chips_by_part_number_and_by_the_name_they_are_sold_as():
    _, out, _ = command.run("targets")
    assert "SM8650 (Snapdragon 8 Gen 3)" in out and "SC8380XP (Snapdragon X Elite)" in out and "v73 [default]" in out
    assert load_target("qnn", soc="snapdragon 8 gen 3").soc.name == "SM8650"


def test_targets_says_what_is_missing(monkeypatch):
    def refuse(name):
        raise NotAvailable("E120", "not installed", fix=f"pip install 'intact[{name}]'")

    monkeypatch.setattr(installed, "versions", refuse)
    assert {one.name: one.missing for one in intact.list_targets()}["qnn"] == "pip install 'intact[qnn]'"


@pytest.mark.parametrize("columns", [80, 50])
def test_targets_are_listed_within_the_terminal_and_no_chip_on_two_lines(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = command.run("targets")
    lines = out.splitlines()
    assert max(map(len, lines)) <= columns
    assert any("SC8380XP (Snapdragon X Elite)" in line for line in lines)
    assert "\N{NO-BREAK SPACE}" not in out
