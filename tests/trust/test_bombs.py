"""A small model that asks for gigabytes, or never ends, is refused in seconds and in little memory."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import intact
from intact.errors import ModelError
from intact.model import footprint, io, normalize
from intact.pipeline import trial
from intact.rules.float import constant_folding
from tests.conftest import SavedZoo
from tests.trust import bombs, limited
from tests.zoo import ZOO

GIGABYTE = 10**9
SECONDS = 10.0

ALL = {**bombs.SIZES, **bombs.COMPUTED, **bombs.ENDLESS, "functions": bombs.functions}
COMMANDS = {
    "build": "build {bomb} --device cpu -o {out}",
    "quantize": "quantize {bomb} -o {out}.onnx",
    "plan": "plan {bomb} -o {out}.toml",
    "verify": "verify {bomb} {bomb}",
    "verify as a candidate": "verify {model} {bomb}",
    "analyze": "analyze {bomb} --device qnn",
    "perf": "perf {bomb}",
    "lint --fix": "lint {bomb} --fix -o {out}.onnx",
}
QUICK = [("quantize", "computed Expand"), ("verify", "endless Loop"), ("build", "growing Loop")]

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="limits of processes are those of Linux")


def saved(name: str, folder: Path) -> Path:
    onnx.save(ALL[name](), folder / "bomb.onnx")
    return folder / "bomb.onnx"


def assert_refused(command: str, bomb: str, zoo: SavedZoo, folder: Path) -> None:
    places = {"bomb": saved(bomb, folder), "model": zoo.model("residual_cnn"), "out": folder / "out"}
    end = limited.run(COMMANDS[command].format(**places).split())
    assert end.status == 3, end.err
    assert "bomb.onnx: " in end.err and "allowed: " in end.err and "fix: " in end.err
    assert end.peak_bytes < GIGABYTE and end.seconds < SECONDS
    assert not (folder / "out").exists()


@on_linux
@pytest.mark.parametrize(("command", "bomb"), QUICK)
def test_a_bomb_is_refused_by_a_command(command: str, bomb: str, zoo: SavedZoo, tmp_path: Path) -> None:
    assert_refused(command, bomb, zoo, tmp_path)


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("bomb", ALL)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_bomb_is_refused_by_every_command(command: str, bomb: str, zoo: SavedZoo, tmp_path: Path) -> None:
    assert_refused(command, bomb, zoo, tmp_path)


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("bomb", ALL)
@pytest.mark.parametrize("command", ["lint", "inspect"])
def test_what_runs_nothing_is_not_harmed(command: str, bomb: str, tmp_path: Path) -> None:
    end = limited.run([command, saved(bomb, tmp_path)])
    assert end.status in (0, 3), end.err
    assert end.peak_bytes < GIGABYTE and end.seconds < SECONDS


@pytest.mark.parametrize("name", bombs.SIZES)
def test_sizes_are_worked_out_before_anything_runs(name: str, tmp_path: Path) -> None:
    found = footprint.of(io.load(saved(name, tmp_path)))
    assert found.is_known
    with pytest.raises(ModelError, match="GiB of them in the result of") as error:
        footprint.check(found)
    assert error.value.code == "M134" and error.value.allowed and error.value.fix


@pytest.mark.parametrize("name", bombs.SIZES)
def test_a_file_that_claims_small_shapes_is_not_believed(name: str, tmp_path: Path) -> None:
    made = ALL[name]()
    names = [output for node in made.graph.node for output in node.output][:-1]
    made.graph.value_info.extend(helper.make_tensor_value_info(one, TensorProto.FLOAT, [1]) for one in names)
    onnx.save(made, tmp_path / "bomb.onnx")
    with pytest.raises(ModelError, match="GiB"):
        footprint.check(footprint.of(io.load(tmp_path / "bomb.onnx")))


def test_a_file_whose_functions_cannot_be_written_out_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ALL["Expand"]()
    made.graph.value_info.append(helper.make_tensor_value_info("big", TensorProto.FLOAT, [1]))
    onnx.save(made, tmp_path / "bomb.onnx")

    def refuse(model: ir.Model) -> ir.Model:
        raise ModelError("M150", "no")

    monkeypatch.setattr(normalize, "inline_functions", refuse)
    assert not footprint.of(io.load(tmp_path / "bomb.onnx")).is_known


@pytest.mark.parametrize("name", [*bombs.COMPUTED, *bombs.ENDLESS])
def test_what_depends_on_values_has_to_be_tried_out(name: str, tmp_path: Path) -> None:
    assert not footprint.of(io.load(saved(name, tmp_path))).is_known


@pytest.mark.parametrize("name", ZOO)
def test_ordinary_models_are_known_beforehand(name: str, zoo: SavedZoo, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not tried out, which would take time."""
    monkeypatch.setattr(trial, "_try_out", lambda *order: pytest.fail("it was tried out"))
    path = zoo.model(name)
    trial.refuse_bombs(path, io.load(path))


def test_a_loop_that_ends_is_taken(tmp_path: Path) -> None:
    onnx.save(bombs.loop(limit=3), tmp_path / "m.onnx")
    trial.refuse_bombs(tmp_path / "m.onnx", io.load(tmp_path / "m.onnx"))


def test_whoever_trusts_a_model_may_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved("Expand", tmp_path)
    monkeypatch.setenv(footprint.TRUST, "1")
    trial.refuse_bombs(path, io.load(path))


@pytest.mark.parametrize("name", [*bombs.SIZES, *bombs.COMPUTED])
def test_folding_keeps_to_its_budget(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = normalize.normalize(io.load(saved(name, tmp_path)))
    plain = constant_folding.ort_cpu.run

    def run(constants: ir.Model, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = footprint.of(constants)
        assert found.is_known and sum(found.sizes.values()) <= 1 << 28
        return plain(constants, feeds)

    monkeypatch.setattr(constant_folding.ort_cpu, "run", run)
    constant_folding.fold(model)
    large = {"ConstantOfShape", "Range", "Expand", "Tile"}
    assert any(node.op_type in large for node in model.graph) or name not in {*bombs.COMPUTED, *large}


def test_sizes_that_constants_tell_are_folded_still(tmp_path: Path) -> None:
    """The size of the second is the result of the first, which shape inference does not follow."""
    made = bombs._computed(lambda size: bombs.node("ConstantOfShape", size, "big"), zero=(1.5,))
    onnx.save(made, tmp_path / "m.onnx")
    model = normalize.normalize(io.load(tmp_path / "m.onnx"))
    constant_folding.fold(model)
    assert [node.op_type for node in model.graph] == ["Add"]


def test_functions_within_measure_are_taken(tmp_path: Path) -> None:
    onnx.save(bombs.functions(depth=10), tmp_path / "m.onnx")
    assert intact.load(tmp_path / "m.onnx")
    onnx.save(bombs.functions(depth=300, calls=40), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="call each other so often") as error:
        intact.load(tmp_path / "m.onnx")
    assert error.value.code == "M124"
