"""`intact matrix`: every cell in its folder, one table, nothing built twice, and no failure that stops the rest."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from intact.cli.main import app
from intact.errors import NotAvailable, OutputError, SettingsError
from intact.pipeline import presets
from intact.runtime import engines
from intact.search.matrix import cells as matrix
from intact.settings.config import BuildConfig


def config(zoo, **more: object) -> BuildConfig:
    quant = {"load_path": str(zoo.data("residual_cnn")), "effort": "fast"}
    return BuildConfig.from_dict({"quant": quant, **more})


def digests(folder: Path) -> dict[str, str]:
    models = sorted(folder.glob("*/model*"))
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in models}


@pytest.fixture(scope="module")
def built(zoo, tmp_path_factory):
    """A matrix of three cells, of which one cannot be built."""
    output = tmp_path_factory.mktemp("matrix") / "out"
    cells = matrix.cells(["cpu"], ["uint8", "int8"], config(zoo, min_sqnr=1.0))
    broken = matrix.cells(["cpu"], ["w8a8"], config(zoo, dims={"nothing": 1}))
    return (
        output,
        [*cells, *broken],
        matrix.run(zoo.model("residual_cnn"), [*cells, *broken], output, matrix.Where(workers=2)),
    )


def test_each_cell_is_a_build_in_its_own_folder(built):
    output, _, outcomes = built
    assert [outcome.status for outcome in outcomes] == ["built", "built", "failed"]
    for outcome in outcomes[:2]:
        manifest = json.loads((output / outcome.folder / "manifest.json").read_text())
        assert manifest["config"]["precision"] == outcome.precision
        compiled = [row["sqnr_db"] for row in manifest["accuracy"] if row["form"] == "compiled"]
        assert outcome.sqnr_db == min(compiled) and outcome.bytes and outcome.gates[0].passed


def test_a_cell_that_fails_says_why_and_does_not_stop_the_rest(built):
    output, _, outcomes = built
    assert outcomes[2].error is not None and outcomes[2].error.startswith("error[S131]: ")
    assert not (output / outcomes[2].folder).exists()


def test_the_table_is_written_for_programs_and_for_people(built):
    output, _, outcomes = built
    table = json.loads((output / "matrix.json").read_text())
    assert [cell["folder"] for cell in table["cells"]] == [outcome.folder for outcome in outcomes]
    page = (output / "matrix.html").read_text()
    assert "2 of 3 cells built" in page and "error[S131]" in page and 'href="cpu-uint8/report.html"' in page
    assert not re.search(r"(src|href)=\"(https?:)?//", page)


def test_a_finished_cell_is_kept_and_others_are_built(zoo, built):
    output, cells, outcomes = built
    before = {path: path.stat().st_mtime_ns for path in output.glob("*/model.onnx")}
    (output / "cpu-int8" / "model.onnx").write_bytes(b"cut short")
    again = matrix.run(zoo.model("residual_cnn"), cells[:2], output, matrix.Where(workers=2))
    assert [outcome.kept for outcome in again] == [True, False]
    assert again[0].sqnr_db == outcomes[0].sqnr_db and again[1].sqnr_db == outcomes[1].sqnr_db
    kept = output / "cpu-uint8" / "model.onnx"
    assert kept.stat().st_mtime_ns == before[kept]


def test_other_settings_or_another_model_build_a_cell_again(zoo, built, tmp_path):
    output, _, _ = built
    other = matrix.cells(["cpu"], ["uint8"], config(zoo, min_sqnr=2.0))
    assert not matrix.run(zoo.model("residual_cnn"), other, output, matrix.Where(workers=1))[0].kept


def test_one_worker_and_two_give_the_same_bytes(zoo, tmp_path):
    cells = matrix.cells(["cpu"], ["uint8", "int8"], config(zoo))
    found = []
    for workers in (1, 2):
        matrix.run(zoo.model("residual_cnn"), cells, tmp_path / str(workers), matrix.Where(workers=workers, threads=1))
        found.append(digests(tmp_path / str(workers)))
    assert found[0] == found[1] and len(found[0]) == 4


def test_a_gate_that_fails_fails_the_cell_and_the_command(zoo, tmp_path):
    arguments = [
        "matrix",
        str(zoo.model("residual_cnn")),
        "--devices",
        "cpu",
        "--precisions",
        "uint8",
        "--effort",
        "fast",
    ]
    told = CliRunner().invoke(
        app, [*arguments, "--data", str(zoo.data("residual_cnn")), "--min-sqnr", "300", "-o", str(tmp_path / "out")]
    )
    assert told.exit_code == 1 and " failed " in told.stdout and "min_sqnr 300" in told.stdout


@pytest.mark.parametrize(
    ("device", "settings"),
    [
        ("cpu", {"device": "cpu"}),
        ("qnn", {"device": "qnn"}),
        ("qnn:v75", {"device": "qnn", "arch": "v75"}),
        ("qnn@2.6.0", {"device": "qnn", "toolchain": "2.6.0"}),
        ("qnn@2.6.0:SM8650", {"device": "qnn", "toolchain": "2.6.0", "soc": "SM8650"}),
        ("qnn:SM8650", {"device": "qnn", "soc": "SM8650"}),
    ],
)
def test_a_device_may_name_its_architecture_or_chip(device, settings):
    found = matrix.cells([device], ["uint8"], BuildConfig())[0].config.compile
    assert {key: value for key, value in found.to_dict().items() if key in settings} == settings


def test_what_cannot_be_asked_for_is_refused_before_anything_is_built(zoo, tmp_path):
    with pytest.raises(SettingsError, match="at least one device"):
        matrix.cells([], ["uint8"], BuildConfig())
    with pytest.raises(SettingsError, match="twice"):
        matrix.cells(["cpu", "cpu"], ["uint8"], BuildConfig())
    with pytest.raises(SettingsError, match="unknown device 'npu'"):
        matrix.cells(["npu"], ["uint8"], BuildConfig())
    (tmp_path / "mine.txt").write_text("not yours")
    cells = matrix.cells(["cpu"], ["uint8"], config(zoo))
    with pytest.raises(OutputError, match="holds no matrix"):
        matrix.run(zoo.model("residual_cnn"), cells, tmp_path)
    with pytest.raises(SettingsError, match="no backend of this name"):
        matrix.run(zoo.model("residual_cnn"), cells, tmp_path / "out", matrix.Where(cluster="moon"))


def test_a_cluster_that_is_not_installed_says_what_to_install(zoo, tmp_path, monkeypatch):
    monkeypatch.setitem(engines.PACKAGES, "dask", "no_such_package.at_all")
    cells = matrix.cells(["cpu"], ["uint8"], config(zoo))
    with pytest.raises(NotAvailable, match=r"no_such_package is not installed[\s\S]*intact\[cluster\]"):
        matrix.run(zoo.model("residual_cnn"), cells, tmp_path / "out", matrix.Where(cluster="dask"))


def test_any_backend_of_joblib_can_build(zoo, tmp_path):
    cells = matrix.cells(["cpu"], ["uint8"], config(zoo))
    outcome = matrix.run(zoo.model("residual_cnn"), cells, tmp_path / "out", matrix.Where(cluster="threading"))[0]
    assert outcome.status == "built"


@pytest.mark.qnn
def test_a_precision_that_the_architecture_lacks_is_no_other_one_under_its_name(zoo, tmp_path):
    cells = matrix.cells(["qnn:v68"], ["w8a16", "int16"], config(zoo))
    eight, sixteen = matrix.run(zoo.model("residual_cnn"), cells, tmp_path / "out", matrix.Where(workers=1))
    assert eight.status == "built" and sixteen.status == "failed" and not (tmp_path / "out" / sixteen.folder).exists()
    assert "error[T116]: qnn/v68 takes no int16 weights" in sixteen.error and "from v73 on" in sixteen.error
    assert "source: backends/qnn/table.toml [op.Conv]" in sixteen.error
    manifest = json.loads((tmp_path / "out" / eight.folder / "manifest.json").read_text())
    types = next(stage["types"] for stage in manifest["stages"] if stage["name"] == "quantize")
    assert {group["weights"] for group in types} == {"int8", None} and {g["activations"] for g in types} == {"uint16"}


def test_a_setting_that_means_nothing_at_one_precision_fails_no_cell_of_it():
    config = BuildConfig.from_dict({"quant": {"effort": "fast", "samples": 8}})
    found = {cell.precision: cell for cell in matrix.cells(["cpu"], ["uint8", "fp16", "fp32", "w8"], config)}
    assert {name: cell.idle for name, cell in found.items()} == {
        "uint8": (), "fp16": ("effort",), "fp32": ("effort",), "w8": ()
    }  # fmt: skip
    resolved = {name: presets.resolve(cell.config) for name, cell in found.items()}
    assert resolved["uint8"].quantization.effort == "fast" and resolved["fp16"].quantization.samples == 8
