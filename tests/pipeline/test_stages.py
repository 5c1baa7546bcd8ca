"""Builds from end to end: stages, manifest, files; and what happens when something is wrong."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import random
import re
from inspect import getsource as source_of

import jsonschema
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper, parser

from intact import data
from intact.api.build import build
from intact.api.inspect import inspect
from intact.api.quantize import quantize
from intact.api.verify import verify
from intact.backends import compiling, installed
from intact.errors import DataError, ModelError, NotAvailable, OutputError, SettingsError
from intact.events import Log, Silence
from intact.model import io, query
from intact.pipeline import loading, recording, stages, verifying
from intact.pipeline.stages import BuildOptions
from intact.reports import manifest
from intact.settings.config import BuildConfig
from tests.conftest import ROWS
from tests.zoo import ZOO
from tests.zoo import data as drawn
from tests.zoo.net import SeededNet

KEYS = {
    "intact",
    "source",
    "config",
    "environment",
    "calibration",
    "stages",
    "placement",
    "accuracy",
    "artifacts",
    "warnings",
}
HELD_BACK = data.held_back(ROWS)
# A device of somebody who has not come far yet.
UNFINISHED = '[target]\nname = "mine"\nnpu = true\n[later]\nuint8 = "the chip is not made yet"\n'


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def config(path=None, **values):
    if path is not None:
        values.setdefault("quant", {})["load_path"] = str(path)
    return BuildConfig.from_dict(values)


def read_manifest(folder):
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)


def stage(built, name):
    return next(stage for stage in built["stages"] if stage["name"] == name)


class Heard:
    """Collects what a build says."""

    def __init__(self):
        self.notes, self.warnings = [], []

    def stage(self, name, total=None):
        return Silence().stage(name, total)

    def note(self, text):
        self.notes.append(text)

    def warn(self, text):
        self.warnings.append(text)


@dataclasses.dataclass
class Made:
    folder: object
    manifest: dict
    heard: Heard


@pytest.fixture(scope="module")
def cnn(zoo):
    return zoo.model("residual_cnn")


@pytest.fixture(scope="module")
def rows(zoo):
    return zoo.data("residual_cnn")


@pytest.fixture(scope="module")
def made(cnn, rows, tmp_path_factory):
    """A plain build for the CPU."""
    folder, heard = tmp_path_factory.mktemp("made") / "out", Heard()
    stages.build(cnn, config(rows, precision="uint8"), folder, events=heard)
    return Made(folder, read_manifest(folder), heard)


def test_the_list_of_stages_is_the_order_in_which_they_run():
    listed = re.findall(r"^    (?:\w+)? +(\w+\.\w+) ", stages.__doc__, re.MULTILINE)
    code = "".join(map(source_of, (stages.prepare, stages._complete, stages.deploy)))
    called = [name for name in re.findall(r"(\w+\.\w+)\(", code) if name in listed]
    *others, last = listed
    assert len(listed) == 8 and last == "recording.finish"
    assert [name for name in called if name != last] == others


class TestAPlainBuild:
    def test_leaves_the_model_its_portable_form_the_manifest_and_the_report(self, made):
        assert sorted(os.listdir(made.folder)) == ["manifest.json", "model.onnx", "model.qdq.onnx", "report.html"]
        for name in ("model.onnx", "model.qdq.onnx"):
            onnx.checker.check_model(onnx.load(made.folder / name), full_check=True)

    def test_writes_a_manifest_that_its_schema_accepts(self, made):
        assert set(made.manifest) >= KEYS
        jsonschema.validate(made.manifest, manifest.schema())
        assert made.manifest["intact"]["schema"] == 2

    def test_names_the_source_and_every_artifact_by_digest(self, made, cnn):
        source = dict(made.manifest["source"])
        weights = [np.prod(tensor.dims) * 4 for tensor in onnx.load(cnn).graph.initializer if tensor.data_type == 1]
        assert source.pop("weight_bytes") == pytest.approx(sum(weights), rel=0.05)
        assert source == {"path": str(cnn), "sha256": sha256(cnn), "opset": 17, "huggingface": None}
        listed = {artifact["path"]: artifact for artifact in made.manifest["artifacts"]}
        assert set(listed) == {"model.onnx", "model.qdq.onnx"}
        for path, artifact in listed.items():
            assert (artifact["sha256"], artifact["bytes"]) == (
                sha256(made.folder / path),
                (made.folder / path).stat().st_size,
            )

    def test_records_every_stage_in_order_with_the_figures_of_quantization(self, made):
        names = [stage["name"] for stage in made.manifest["stages"]]
        assert [name for name in names if name in ("load", "optimize", "quantize", "rewrite", "compile", "verify")] == [
            "load",
            "optimize",
            "quantize",
            "rewrite",
            "compile",
            "verify",
        ]
        quantize = stage(made.manifest, "quantize")
        assert quantize["status"] == "ran" and quantize["nodes_quantized"] >= 4
        times = [seconds for name, seconds in quantize.items() if name.endswith("_time_seconds")]
        assert {"calibration_time_seconds", "qdq_insertion_time_seconds"} <= set(quantize)
        assert 0 < quantize["calibration_time_seconds"] < sum(times) <= quantize["seconds"] + 0.001

    def test_calibrates_on_all_rows_but_those_held_back(self, made, rows):
        calibration = made.manifest["calibration"]
        assert (calibration["kind"], calibration["samples"]) == ("npz", ROWS - HELD_BACK)
        assert stage(made.manifest, "verify")["samples"] == HELD_BACK

    def test_verifies_the_quantized_and_the_compiled_form(self, made):
        forms = {row["form"] for row in made.manifest["accuracy"]}
        assert {"quantized", "compiled"} <= forms
        assert all(row["sqnr_db"] > 15 and row["cosine"] > 0.95 for row in made.manifest["accuracy"])
        assert {row["output"] for row in made.manifest["accuracy"]} == {"logits"}
        assert all(row["top1_agreement"] is not None for row in made.manifest["accuracy"])

    def test_prints_what_it_resolved_and_stores_the_same(self, made):
        resolved = BuildConfig.from_dict(made.manifest["config"])
        [told] = [note for note in made.heard.notes if note.startswith("settings: ")]
        differing = set(told.removeprefix("settings: ").split())
        assert differing <= set(resolved.line().split()) and f"quant.load_path={resolved.quant.load_path}" in differing
        assert (resolved.precision, resolved.quant.activation_type) == ("uint8", "uint8")
        assert "target cpu" in made.heard.notes

    def test_warnings_are_heard_and_stored_alike(self, made):
        assert made.heard.warnings == made.manifest["warnings"]

    def test_gives_the_same_configuration_and_bytes_from_its_own_manifest(self, made, cnn, tmp_path):
        stages.build(cnn, BuildConfig.from_dict(made.manifest["config"]), tmp_path / "again")
        again = read_manifest(tmp_path / "again")
        assert again["config"] == made.manifest["config"]
        assert again["artifacts"] == made.manifest["artifacts"]
        assert again["calibration"] == made.manifest["calibration"]

    def test_the_portable_model_says_who_wrote_it(self, made):
        assert onnx.load(made.folder / "model.qdq.onnx").producer_name == "intact"

    def test_quantize_and_compile_leave_the_same_quantized_bytes(self, made, cnn, rows, tmp_path):
        settings = config(rows, precision="uint8")
        quantize(cnn, config=settings, output=tmp_path / "q.onnx")
        stages.build(cnn, settings, tmp_path / "c", BuildOptions(verify=False))
        moved = BuildConfig.from_dict({"compile": {"quant": {"load_path": str(rows)}}, "precision": "uint8"})
        stages.build(cnn, moved, tmp_path / "inside", BuildOptions(verify=False))
        digests = {sha256(tmp_path / name) for name in ("q.onnx", "c/model.qdq.onnx", "inside/model.qdq.onnx")}
        assert digests == {sha256(made.folder / "model.qdq.onnx")}

    def test_held_back_rows_do_not_depend_on_where_the_calibration_ends(self, made, cnn, rows, tmp_path):
        quantize(cnn, config=config(rows, quant={"samples": ROWS}), output=tmp_path / "all.onnx")
        assert sha256(tmp_path / "all.onnx") == sha256(made.folder / "model.qdq.onnx")
        quantize(cnn, config=config(rows, quant={"samples": 2}), output=tmp_path / "two.onnx")
        assert sha256(tmp_path / "two.onnx") != sha256(made.folder / "model.qdq.onnx")

    def test_held_back_rows_change_nothing_in_the_quantized_model(self, made, cnn, rows, tmp_path):
        arrays = dict(np.load(rows))
        arrays["image"][-HELD_BACK:] *= 100
        np.savez(tmp_path / "other.npz", **arrays)
        quantize(cnn, config=config(tmp_path / "other.npz"), output=tmp_path / "q.onnx")
        assert sha256(tmp_path / "q.onnx") == sha256(made.folder / "model.qdq.onnx")

    def test_a_quantized_model_is_built_without_quantizing_it_again(self, made, tmp_path):
        stages.build(made.folder / "model.qdq.onnx", config(), tmp_path / "again")
        again = read_manifest(tmp_path / "again")
        skipped = stage(again, "quantize")
        assert skipped["status"] == "skipped" and "already quantized" in skipped["reason"]
        assert again["config"]["quant"] is None and again["calibration"]["kind"] == "none"
        assert {row["form"] for row in again["accuracy"]} >= {"quantized", "compiled"}

    def test_a_precision_that_it_contradicts_is_refused_and_leaves_nothing(self, made, tmp_path):
        with pytest.raises(SettingsError, match="already quantized"):
            stages.build(made.folder / "model.qdq.onnx", config(precision="w8a16"), tmp_path / "out")
        with pytest.raises(SettingsError, match="nothing to do"):
            quantize(made.folder / "model.qdq.onnx", config=config(), output=tmp_path / "out.onnx")
        assert os.listdir(tmp_path) == []

    def test_verify_compares_on_the_rows_that_the_build_held_back(self, made, cnn, rows):
        found = verify(cnn, made.folder / "model.qdq.onnx", data=str(rows))
        built = next(row for row in made.manifest["accuracy"] if row["form"] == "quantized")
        assert found.gates == () and found.accuracy[0].sqnr_db == pytest.approx(built["sqnr_db"])

    @pytest.mark.parametrize(("least", "passed"), [(10.0, True), (200.0, False)])
    def test_verify_has_a_gate(self, made, cnn, rows, least, passed):
        settings = config(min_sqnr=least)
        found = verify(cnn, made.folder / "model.onnx", data=str(rows), config=settings)
        assert [gate.passed for gate in found.gates] == [passed]


class TestData:
    def test_without_any_the_build_is_synthetic_and_says_so_loudly(self, cnn, tmp_path):
        heard = Heard()
        stages.build(cnn, config(quant={"samples": 4}), tmp_path / "out", events=heard)
        written = read_manifest(tmp_path / "out")
        assert written["calibration"]["kind"] == "synthetic" and written["calibration"]["sha256"]
        assert any("synthetic" in text for text in heard.warnings) and heard.warnings == written["warnings"]

    def test_seed_and_distribution_decide_synthetic_inputs(self, cnn, tmp_path):
        for name, quant in {"a": {}, "b": {}, "c": {"seed": 1}, "d": {"distribution": "uniform"}}.items():
            quantize(cnn, config=config(quant={"samples": 4, **quant}), output=tmp_path / f"{name}.onnx")
        digests = [sha256(tmp_path / f"{name}.onnx") for name in "abcd"]
        assert digests[0] == digests[1] and len(set(digests)) == 3

    def test_with_test_data_every_row_calibrates(self, cnn, rows, tmp_path):
        stages.build(cnn, config(rows, test_path=str(rows)), tmp_path / "out")
        written = read_manifest(tmp_path / "out")
        assert written["calibration"]["samples"] == ROWS and stage(written, "verify")["samples"] == ROWS

    def test_fewer_than_eight_rows_are_all_used_and_that_is_said(self, cnn, rows, tmp_path):
        np.savez(tmp_path / "few.npz", image=np.load(rows)["image"][:7])
        stages.build(cnn, config(tmp_path / "few.npz"), tmp_path / "out")
        written = read_manifest(tmp_path / "out")
        assert written["calibration"]["samples"] == 7
        assert any("too few to hold any back" in text for text in written["warnings"])

    @pytest.mark.parametrize(("factor", "said"), [(1.0, False), (8.0, True)])
    def test_held_back_rows_far_outside_the_calibrated_ones_are_said(self, factor, said, cnn, rows, tmp_path):
        np.savez(tmp_path / "test.npz", image=np.load(rows)["image"] * np.float32(factor))
        stages.build(cnn, config(rows, test_path=str(tmp_path / "test.npz")), tmp_path / "out")
        written = read_manifest(tmp_path / "out")
        assert any("far outside the calibration data" in text for text in written["warnings"]) == said
        assert bool(stage(written, "verify")["clipped"]) == said

    def test_that_does_not_fit_is_refused_and_nothing_is_left(self, cnn, tmp_path):
        np.savez(tmp_path / "wrong.npz", z=np.zeros((8, 2), np.float32))
        with pytest.raises(DataError):
            stages.build(cnn, config(tmp_path / "wrong.npz"), tmp_path / "out")
        assert os.listdir(tmp_path) == ["wrong.npz"]


class TestOutput:
    @pytest.mark.parametrize(("where", "step"), [(compiling, "compile"), (verifying, "verify"), (recording, "finish")])
    def test_an_error_at_any_step_leaves_nothing_behind(self, cnn, rows, tmp_path, monkeypatch, where, step):
        def fail(*_, **__):
            raise RuntimeError("in the middle")

        monkeypatch.setattr(where, step, fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            stages.build(cnn, config(rows), tmp_path / "deep/out")
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        assert not (tmp_path / "deep/out").exists()

    def test_an_existing_folder_is_refused_before_any_work_and_stays(self, cnn, rows, tmp_path, monkeypatch):
        (tmp_path / "mine.txt").write_text("mine")
        monkeypatch.setattr(stages, "prepare", lambda *_: pytest.fail("work was done"))
        with pytest.raises(OutputError, match="not empty"):
            stages.build(cnn, config(rows), tmp_path)
        assert os.listdir(tmp_path) == ["mine.txt"]

    def test_overwriting_keeps_foreign_files(self, cnn, rows, tmp_path):
        (tmp_path / "out").mkdir()
        (tmp_path / "out/mine.txt").write_text("mine")
        stages.build(cnn, config(rows), tmp_path / "out", BuildOptions(overwrite=True))
        assert {"mine.txt", "model.onnx"} <= set(os.listdir(tmp_path / "out"))

    def test_a_failed_build_over_an_old_one_keeps_the_old_one(self, cnn, rows, tmp_path, monkeypatch):
        stages.build(cnn, config(rows), tmp_path / "out", BuildOptions(verify=False))
        before = {name: sha256(tmp_path / "out" / name) for name in os.listdir(tmp_path / "out")}
        monkeypatch.setattr(compiling, "compile", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            stages.build(cnn, config(rows), tmp_path / "out", BuildOptions(overwrite=True))
        assert {name: sha256(tmp_path / "out" / name) for name in os.listdir(tmp_path / "out")} == before
        assert os.listdir(tmp_path) == ["out"]

    @pytest.mark.parametrize("content", [b"notes", b"\x00\x01 nonsense", None])
    def test_quantize_never_replaces_a_file_that_intact_did_not_write(self, cnn, rows, tmp_path, content):
        target = tmp_path / "taken.onnx"
        target.write_bytes(cnn.read_bytes() if content is None else content)
        before = sha256(target)
        with pytest.raises(OutputError, match="did not write it"):
            quantize(cnn, config=config(rows), output=target)
        assert sha256(target) == before

    def test_quantize_replaces_its_own_file_and_any_other_with_overwrite(self, cnn, rows, tmp_path):
        target = tmp_path / "q.onnx"
        target.write_text("notes")
        quantize(cnn, config=config(rows), output=target, overwrite=True)
        first = sha256(target)
        quantize(cnn, config=config(rows, precision="int8"), output=target)
        assert sha256(target) != first

    def test_a_gate_that_fails_keeps_the_artifacts(self, cnn, rows, tmp_path):
        built = stages.build(cnn, config(rows, min_sqnr=200), tmp_path / "out")
        assert not built.passed and (tmp_path / "out/model.qdq.onnx").exists()
        (gate,) = read_manifest(tmp_path / "out")["gates"]
        assert (gate["name"], gate["limit"], gate["passed"]) == ("min_sqnr", 200.0, False)

    def test_compiling_checks_no_gate_and_says_so(self, cnn, rows, tmp_path):
        built = stages.build(cnn, config(rows, min_sqnr=0), tmp_path / "out", BuildOptions(verify=False))
        assert built.gates == () and built.accuracy == ()
        assert any("min_sqnr is not checked" in text for text in built.warnings)
        assert stage(read_manifest(tmp_path / "out"), "verify")["status"] == "skipped"


class TestFloatBuilds:
    def test_identical_outputs_are_null_and_pass_every_gate(self, cnn, rows, tmp_path):
        model = onnx.load(cnn)
        model.graph.ClearField("node")
        model.graph.node.append(helper.make_node("Relu", ["image"], ["logits"]))
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("logits", 1, [1, 3, 32, 32]))
        onnx.save(model, tmp_path / "relu.onnx")
        built = stages.build(tmp_path / "relu.onnx", config(rows, precision="fp32", min_sqnr=100), tmp_path / "out")
        (row,) = read_manifest(tmp_path / "out")["accuracy"]
        assert (row["form"], row["sqnr_db"], row["identical"]) == ("compiled", None, True)
        assert built.passed

    def test_fp32_skips_quantization_with_a_reason(self, cnn, rows, tmp_path):
        stages.build(cnn, config(rows, precision="fp32"), tmp_path / "out")
        written = read_manifest(tmp_path / "out")
        assert stage(written, "quantize")["status"] == "skipped" and "fp32" in stage(written, "quantize")["reason"]
        assert "model.qdq.onnx" not in os.listdir(tmp_path / "out")
        assert all(row["identical"] or row["sqnr_db"] > 100 for row in written["accuracy"])


class TestIntegerBoundaries:
    def test_the_deployable_takes_integers_and_the_manifest_tells_their_grid(self, cnn, rows, tmp_path):
        stages.build(cnn, config(rows, compile={"io": "quantized"}), tmp_path / "out")
        written = read_manifest(tmp_path / "out")
        ports = {port["name"]: port for port in written["io"]}
        assert ports["image"]["dtype"] == "uint8" and ports["image"]["scale"] > 0
        deployed = onnx.load(tmp_path / "out/model.onnx")
        assert deployed.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8
        portable = onnx.load(tmp_path / "out/model.qdq.onnx")
        assert portable.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        assert all(row["sqnr_db"] > 15 for row in written["accuracy"])

    def test_what_stays_float_is_said(self, cnn, rows, tmp_path):
        built = stages.build(
            cnn, config(rows, compile={"io": "quantized"}), tmp_path / "out", BuildOptions(verify=False)
        )
        floats = [port["name"] for port in built.io if port["dtype"] == "float"]
        assert all(any(name in text for text in built.warnings) for name in floats)


def qlinear(folder):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (uint8[1,8] x) => (uint8[1,4] y)
    <float s = {0.1}, uint8 z = {128}, int8 wz = {0}> { y = QLinearMatMul(x, s, z, w, s, wz, s, z) }"""
    proto = parser.parse_model(text)
    weight = np.random.default_rng(0).integers(-100, 100, (8, 4)).astype(np.int8)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(proto, folder / "qlinear.onnx")
    return folder / "qlinear.onnx"


def blocks(folder):
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[1,32] x) => (float[1,4] y)
    { y = com.microsoft.MatMulNBits<K = 32, N = 4, bits = 4, block_size = 32>(x, w, s) }"""
    proto = parser.parse_model(text)
    rng = np.random.default_rng(0)
    proto.graph.initializer.append(numpy_helper.from_array(rng.integers(0, 255, (4, 1, 16)).astype(np.uint8), "w"))
    proto.graph.initializer.append(numpy_helper.from_array(rng.random(4).astype(np.float32), "s"))
    onnx.save(proto, folder / "blocks.onnx")
    return folder / "blocks.onnx"


@pytest.mark.parametrize("make", [qlinear, blocks])
def test_models_that_came_quantized_in_other_forms_build_too(make, tmp_path):
    path = make(tmp_path)
    stages.build(path, config(), tmp_path / "out")
    skipped = stage(read_manifest(tmp_path / "out"), "quantize")
    assert skipped["status"] == "skipped" and "already quantized" in skipped["reason"]
    with pytest.raises(SettingsError, match="already quantized"):
        stages.build(path, config(precision="int16"), tmp_path / "other")


class TestWhatIsNotThere:
    def test_a_missing_extra_is_refused_before_any_work(self, cnn, rows, tmp_path, monkeypatch):
        monkeypatch.setattr(installed.find("qnn"), "packages", ("a-package-that-does-not-exist",))
        monkeypatch.setattr(stages, "prepare", lambda *_: pytest.fail("work was done"))
        with pytest.raises(NotAvailable, match=r"not installed(.|\n)*intact\[qnn\]") as caught:
            stages.build(cnn, config(rows, compile={"device": "qnn"}), tmp_path / "out")
        assert caught.value.status == 5 and os.listdir(tmp_path) == []

    @pytest.mark.parametrize("run", [build, quantize])
    def test_what_is_not_built_yet_is_refused_before_any_work(self, cnn, tmp_path, monkeypatch, run):
        (tmp_path / "mine.toml").write_text(UNFINISHED, encoding="utf-8")
        monkeypatch.setattr(loading, "start_loading", lambda *_: pytest.fail("work was done"))
        device = {"device": str(tmp_path / "mine.toml")}
        with pytest.raises(NotAvailable, match="the chip is not made yet") as caught:
            run(cnn, config=config(precision="uint8", compile=device), output=tmp_path / "out")
        assert caught.value.status == 5

    def test_a_model_file_that_is_not_there_or_not_a_model(self, tmp_path):
        with pytest.raises(SettingsError):
            stages.build(tmp_path / "absent.onnx", config(), tmp_path / "out")
        (tmp_path / "junk.onnx").write_bytes(b"\x00\x01 nonsense")
        with pytest.raises(ModelError):
            stages.build(tmp_path / "junk.onnx", config(), tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_free_dimensions_are_fixed_by_name(cnn, rows, tmp_path):
    model = onnx.load(cnn)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, tmp_path / "free.onnx")
    stages.build(tmp_path / "free.onnx", config(rows, dims={"batch": 1}), tmp_path / "out")
    assert [d.dim_value for d in onnx.load(tmp_path / "out/model.onnx").graph.input[0].type.tensor_type.shape.dim] == [
        1,
        3,
        32,
        32,
    ]


def test_an_upgraded_model_is_compared_with_the_file_and_the_figure_kept(made):
    load = stage(made.manifest, "load")
    assert load["opset_from"] == 17 and load["opset_to"] >= 21
    assert load["upgrade_sqnr_db"] is None or load["upgrade_sqnr_db"] > 60


@pytest.mark.parametrize(("body", "runs"), [("y = Relu(x)", 0), ("m = ReduceMean <axes = [1]> (x) y = Add(x, m)", 1)])
def test_forms_that_are_the_same_by_definition_are_not_run_to_compare_them(body, runs, tmp_path, monkeypatch):
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[1, 4] x) => (float[1, 4] y) {{ {body} }}'
    onnx.save(parser.parse_model(text), tmp_path / "model.onnx")
    compared = []
    monkeypatch.setattr(loading, "_distance", lambda *given: compared.append(given))
    log = Log()
    loading.load(tmp_path / "model.onnx", BuildConfig(), log)
    assert len(compared) == runs and log.stages[0].details["upgrade_sqnr_db"] is None


def test_ties_that_newer_kernels_round_in_other_ways_are_told_and_no_error(tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,16,16] x) => (float[1,4,8,8] y)
        <float s = {0.0173}, uint8 z = {128}> {
            q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
            p = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (d)
            r = QuantizeLinear(p, s, z) y = DequantizeLinear(r, s, z)
        }"""
    onnx.save(parser.parse_model(text), tmp_path / "tied.onnx")
    log = Log()
    assert loading.load(tmp_path / "tied.onnx", BuildConfig(), log).quantized is not None
    assert ["round ties in other ways" in warning for warning in log.warnings] == [True]
    assert 20 < log.stages[0].details["upgrade_sqnr_db"] < 60


def test_a_quantized_weight_that_is_made_of_constants_is_constant(tmp_path):
    text = """<ir_version: 10, opset_import: ["" : 21]> g (uint8[1,1,4,4] x) => (uint8[1,2,4,4] y)
        <float s = {0.1}, uint8 z = {8}, int8[2] w = {100, -100}, int8[2] wz = {-3, 5}, int64[4] t = {2, 1, 1, 1}> {
            v = Reshape(w, t) y = QLinearConv(x, s, z, v, s, wz, s, z)
        }"""
    onnx.save(parser.parse_model(text), tmp_path / "made.onnx")
    (node,) = loading.load(tmp_path / "made.onnx", BuildConfig(), Log()).model.graph
    assert query.is_constant(node.inputs[3])


def test_an_upgrade_that_no_synthetic_input_fits_is_not_checked_and_that_is_told(tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, N] x) => (float[1, N] y) <int64[2] t = {1, 7}> {
        a = Reshape(x, t) m = ReduceMean <axes = [1]> (a) y = Add(a, m)
    }"""
    onnx.save(parser.parse_model(text), tmp_path / "seven.onnx")
    log = Log()
    loading.load(tmp_path / "seven.onnx", BuildConfig(), log)
    assert ["was not checked: ORT stopped while running" in warning for warning in log.warnings] == [True]
    assert log.stages[0].details["upgrade_sqnr_db"] is None
    loading.load(tmp_path / "seven.onnx", BuildConfig(dims={"N": 7}), log := Log())
    assert not log.warnings


@pytest.mark.parametrize(
    "act",
    [
        lambda path: loading.load(path, BuildConfig(), Log()),
        lambda path: stages.prepare(path, BuildConfig.from_dict({"quant": {"load_path": "gone.npz"}}), Log()),
    ],
    ids=["alone", "beside another error"],
)
def test_an_upgrade_that_changes_the_numbers_is_an_error(cnn, monkeypatch, act):
    _upgrade_wrongly(monkeypatch, 1.1)
    with pytest.raises(ModelError, match="after the upgrade to a newer opset the outputs differ"):
        act(cnn)


INTEGERS = "q = QuantizeLinear(x, s, z) r = QLinearConv(q, s, z, w, t, v, s, z) y = DequantizeLinear(r, s, z)"
POOLED = (
    "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) p = AveragePool<kernel_shape = [2, 2]>(d) y = Mul(p, s)"
)


@pytest.mark.parametrize(("body", "factor"), [(INTEGERS, 1.1), (POOLED, 1.1), (POOLED, 0.9)])
def test_a_wrong_upgrade_of_a_quantized_model_is_an_error_too(body, factor, tmp_path, monkeypatch):
    """Where no pool is, whose ties may go either way, nothing excuses a difference; rounding left out, it does not."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1,1,4,4] x) => (float[1,1,a,b] y)
        <float s = {{0.02}}, uint8 z = {{128}}, float t = {{0.5}}, int8[1,1,1,1] w = {{2}}, int8 v = {{0}}>
        {{ {body} }}"""
    onnx.save(parser.parse_model(text), tmp_path / "model.onnx")
    loading.load(tmp_path / "model.onnx", BuildConfig(), Log())
    _upgrade_wrongly(monkeypatch, factor)
    with pytest.raises(ModelError, match="after the upgrade to a newer opset the outputs differ"):
        loading.load(tmp_path / "model.onnx", BuildConfig(), Log())


def _upgrade_wrongly(monkeypatch, factor):
    """Let upgrades change the first initializer by a factor."""
    upgrade = loading.upgrade.upgrade

    def wrong(model):
        result = upgrade(model)
        name, value = next(iter(result.model.graph.initializers.items()))
        changed = (value.const_value.numpy() * factor).astype(value.const_value.numpy().dtype)
        value.const_value = ir.tensor(changed, name=name)
        return result

    monkeypatch.setattr(loading.upgrade, "upgrade", wrong)


def test_inspecting_tells_what_is_in_a_model(cnn, made):
    facts = inspect(cnn)
    assert facts.operators["Conv"] == 6 and facts.quantized is None
    assert facts.inputs == [{"name": "image", "dtype": "float", "shape": [1, 3, 32, 32]}]
    assert "already quantized" in inspect(made.folder / "model.qdq.onnx").quantized


def test_the_opset_9_face_detector_builds_for_the_cpu(ultraface, tmp_path):
    images = np.load(ultraface.parent / "images_240x320_u8.npz")["images"]
    np.savez(tmp_path / "faces.npz", input=(images.astype(np.float32) - 127) / 128)
    stages.build(ultraface, config(tmp_path / "faces.npz", precision="uint8"), tmp_path / "out")
    written = read_manifest(tmp_path / "out")
    assert written["source"]["opset"] == 9
    assert min(row["sqnr_db"] for row in written["accuracy"]) > 35
    jsonschema.validate(written, manifest.schema())


CPU_MATRIX = list(itertools.product(ZOO, ["uint8", "int8", "int16", "w8a16", "fp32"]))
SAMPLE = random.Random(2).sample(CPU_MATRIX, 6)


def build_for_cpu(zoo, name, precision, folder):
    stages.build(zoo.model(name), config(zoo.data(name), precision=precision), folder)
    written = read_manifest(folder)
    jsonschema.validate(written, manifest.schema())
    assert all(row["identical"] or row["cosine"] > 0.9 for row in written["accuracy"])
    assert io.load(folder / "model.onnx") is not None


@pytest.mark.parametrize(("name", "precision"), SAMPLE)
def test_a_sample_of_the_zoo_builds_for_the_cpu(zoo, name, precision, tmp_path):
    build_for_cpu(zoo, name, precision, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision"), CPU_MATRIX)
def test_the_zoo_builds_for_the_cpu(zoo, name, precision, tmp_path):
    build_for_cpu(zoo, name, precision, tmp_path / "out")


@pytest.fixture(scope="module")
def built(cnn, rows, tmp_path_factory):
    """A plain build for the NPU."""
    folder = tmp_path_factory.mktemp("npu") / "out"
    stages.build(cnn, config(rows, precision="uint8", compile={"device": "qnn"}), folder)
    return Made(folder, read_manifest(folder), Heard())


@pytest.mark.qnn
class TestTheNpu:
    """Builds with the vendor's compiler and simulator, in child processes as the product runs them."""

    def test_a_cnn_goes_whole_to_the_npu_and_is_verified_on_the_simulator(self, built):
        placement = built.manifest["placement"]
        assert (placement["partitions"], placement["cpu_nodes"]) == (1, [])
        assert {"Conv", "Gemm", "Add"} <= {node["op"] for node in placement["npu_nodes"]}
        context = onnx.load(built.folder / "model.onnx", load_external_data=False)
        assert [node.op_type for node in context.graph.node] == ["EPContext"]
        rows = {row["form"]: row for row in built.manifest["accuracy"]}
        assert "simulator of v73" in rows["compiled"]["runtime"] and rows["compiled"]["cosine"] > 0.95
        assert abs(rows["compiled"]["sqnr_db"] - rows["quantized"]["sqnr_db"]) < 6

    def test_the_manifest_is_valid_and_names_chip_binary_and_toolchain(self, built):
        jsonschema.validate(built.manifest, manifest.schema())
        assert built.manifest["config"]["compile"]["arch"] == "v73"
        assert "onnxruntime-qnn" in built.manifest["environment"]
        kinds = {artifact["path"]: artifact["kind"] for artifact in built.manifest["artifacts"]}
        assert kinds["model_qnn.bin"] == "binary of the model"
        for artifact in built.manifest["artifacts"]:
            assert sha256(built.folder / artifact["path"]) == artifact["sha256"]

    def test_the_compiled_model_verifies_again_from_its_file(self, built, zoo):
        found = verify(zoo.model("residual_cnn"), built.folder / "model.onnx", data=str(zoo.data("residual_cnn")))
        expected = next(row for row in built.manifest["accuracy"] if row["form"] == "compiled")
        (row,) = found.accuracy
        assert row.form == "compiled" and row.sqnr_db == pytest.approx(expected["sqnr_db"])

    def test_integers_at_the_boundary_give_the_same_numbers(self, built, zoo, tmp_path):
        """Also where floats would come from 16 bits: whoever reads integers counts on those that were asked for."""
        written, rows = {}, tmp_path / "rows.npz"
        np.savez(rows, **drawn(ZOO["residual_cnn"](), 64, seed=1))
        for ports in ("float", "quantized"):
            compiled = {"device": "qnn", "soc": "SM8550", "io": ports}
            quant = {"rescue": ports == "quantized"}
            chosen = {"precision": "uint8", "test_path": str(rows), "compile": compiled, "quant": quant}
            settings = config(zoo.data("residual_cnn"), **chosen)
            stages.build(zoo.model("residual_cnn"), settings, tmp_path / ports)
            written[ports] = read_manifest(tmp_path / ports)
        assert {port["dtype"] for port in written["quantized"]["io"]} == {"uint8"}
        of_floats, of_integers = (
            {group["activations"] for group in stage(each, "quantize")["types"]}
            for each in (built.manifest, written["quantized"])
        )
        assert (of_floats, of_integers) == ({"uint8", "uint16"}, {"uint8"})
        first, second = (
            next(row for row in each["accuracy"] if row["form"] == "compiled") for each in written.values()
        )
        assert first["sqnr_db"] == pytest.approx(second["sqnr_db"], abs=0.5)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ZOO)
    @pytest.mark.parametrize("precision", ["uint8", "int8", "w8a16", "int16"])
    def test_the_zoo_builds_for_the_npu(self, zoo, name, precision, tmp_path):
        settings = config(zoo.data(name), precision=precision, compile={"device": "qnn"})
        stages.build(zoo.model(name), settings, tmp_path / "out")
        written = read_manifest(tmp_path / "out")
        jsonschema.validate(written, manifest.schema())
        assert any(node.op_type == "EPContext" for node in onnx.load(tmp_path / "out/model.onnx").graph.node)
        assert any(row["form"] == "compiled" for row in written["accuracy"])

    @pytest.mark.slow
    def test_the_opset_9_face_detector_goes_whole_to_the_npu(self, ultraface, tmp_path):
        images = np.load(ultraface.parent / "images_240x320_u8.npz")["images"]
        np.savez(tmp_path / "faces.npz", input=(images.astype(np.float32) - 127) / 128)
        settings = config(tmp_path / "faces.npz", precision="uint8", compile={"device": "qnn", "arch": "v73"})
        stages.build(ultraface, settings, tmp_path / "out")
        written = read_manifest(tmp_path / "out")
        assert written["placement"]["partitions"] == 1
        assert min(row["sqnr_db"] for row in written["accuracy"]) > 35

    def test_a_relu_beside_negative_values_in_a_concat_leaves_no_conversion_on_the_cpu(self, tmp_path):
        rng = np.random.default_rng(0)
        text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,8,8] x) => (float[1,16,8,8] y)
        { a = Conv(x, w)  r = Relu(a)  b = Conv(x, v)  y = Concat<axis = 1>(r, b) }"""
        proto = parser.parse_model(text)
        for name in ("w", "v"):
            weight = rng.standard_normal((8, 8, 1, 1)).astype(np.float32)
            proto.graph.initializer.append(numpy_helper.from_array(weight, name))
        onnx.save(proto, tmp_path / "concat.onnx")
        built = stages.build(tmp_path / "concat.onnx", config(compile={"device": "qnn"}), tmp_path / "out")
        assert built.placement.cpu_nodes == () and built.placement.partitions == 1
        assert all(row.sqnr_db > 25 for row in built.accuracy)


def test_a_pool_that_onnx_runtime_fuses_wrongly_stays_right(tmp_path):
    net = SeededNet("pooled", 0)
    x = net.op("Conv", net.input("x", (1, 3, 8, 8)), net.normal((4, 3, 3, 3), 0.3), pads=[1] * 4)
    beyond = {"ceil_mode": 1, "count_include_pad": 1, "kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}
    net.output(net.op("Relu", net.op("AveragePool", x, **beyond)), "y", (1, 4, 5, 5))
    onnx.save(net.checked(), tmp_path / "pooled.onnx")
    np.savez(tmp_path / "rows.npz", x=np.random.default_rng(0).normal(size=(16, 3, 8, 8)).astype(np.float32))
    built = stages.build(tmp_path / "pooled.onnx", config(tmp_path / "rows.npz"), tmp_path / "out")
    found = {row.form: row.sqnr_db for row in built.accuracy}
    assert found["compiled"] == pytest.approx(found["quantized"], abs=1)
