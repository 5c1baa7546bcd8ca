"""The manifest: a build written down, and its published schema."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import jsonschema
import pytest
from pydantic import ValidationError

from intact.reports import manifest
from intact.results import DEPLOYABLE, Accuracy, Application, Artifact, Build, Gate, PlacedNode, Placement, Stage
from intact.settings.config import BuildConfig, QuantConfig

BUILD = Build(
    source_path="m.onnx",
    source_sha256="ab" * 32,
    source_opset=17,
    config=BuildConfig(precision="uint8", quant=QuantConfig(overrides={"x": {"low": 0, "high": 1}})).to_dict(),
    environment={"python": "3.12", "intact": "0.1"},
    calibration_kind="npz",
    calibration_samples=18,
    calibration_sha256="cd" * 32,
    stages=(
        Stage("quantize", "ran", "", 0.123456, {"nodes_quantized": 4, "calibration_time_seconds": 0.1}),
        Stage("verify", "skipped", "compile does not verify"),
    ),
    rewrites=(Application("AbsorbRelu", "relu", "exact"),),
    placement=Placement((PlacedNode("conv", "Conv"),), (PlacedNode("erf", "Erf", "no such kernel"),), 1),
    io=({"name": "x", "direction": "input", "dtype": "uint8", "scale": 0.5, "zero_point": 3},),
    accuracy=(Accuracy("quantized", "cpu", "y", None, True, 1.0, 0.0, 0.0),),
    gates=(Gate("min_sqnr", 30.0, None, True, "every output is identical to the original's"),),
    artifacts=(Artifact("model.onnx", "deployable model", 12, "ef" * 32),),
    warnings=("no --data",),
)


def values(**changes):
    return manifest.to_manifest(dataclasses.replace(BUILD, **changes), "2030-01-01T00:00:00+00:00", "0.1")


def test_a_manifest_has_the_keys_and_values_of_schema_2():
    written = values(verdict="suspect", verdict_reasons=("it is doubtful",))
    assert written["intact"] == {"version": "0.1", "schema": 2}
    assert (written["verdict"], written["verdict_reasons"], written["status"]) == (
        "suspect",
        ["it is doubtful"],
        "passed",
    )
    assert written["source"] == {
        "path": "m.onnx",
        "sha256": "ab" * 32,
        "opset": 17,
        "weight_bytes": None,
        "huggingface": None,
    }
    assert written["calibration"] == {"kind": "npz", "samples": 18, "sha256": "cd" * 32}
    assert written["config"] == BUILD.config
    assert written["placement"]["npu_nodes"] == [{"name": "conv", "op": "Conv", "reason": ""}]
    assert written["placement"]["cpu_nodes"] == [{"name": "erf", "op": "Erf", "reason": "no such kernel"}]
    assert written["placement"]["partitions"] == 1
    assert written["artifacts"] == [
        {"path": "model.onnx", "kind": "deployable model", "bytes": 12, "sha256": "ef" * 32}
    ]
    assert written["warnings"] == ["no --data"]


@pytest.mark.parametrize(
    ("verdict", "status"), [("good", "passed"), ("unverified", "passed"), ("failed", "failed"), ("broken", "failed")]
)
def test_the_status_follows_the_verdict(verdict, status):
    assert values(verdict=verdict)["status"] == status


def test_figures_of_a_stage_stand_beside_its_time():
    ran, skipped = values()["stages"]
    assert ran == {
        "name": "quantize",
        "status": "ran",
        "reason": "",
        "seconds": 0.1235,
        "nodes_quantized": 4,
        "calibration_time_seconds": 0.1,
    }
    assert (skipped["status"], skipped["reason"]) == ("skipped", "compile does not verify")


def test_identical_outputs_are_null_in_decibels():
    (row,) = values()["accuracy"]
    assert (row["sqnr_db"], row["identical"]) == (None, True)


def test_a_manifest_is_valid_by_its_published_schema_and_pure_json(tmp_path):
    path = manifest.write(values(), tmp_path)
    read = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    validator = jsonschema.Draft202012Validator(manifest.schema())
    validator.check_schema(manifest.schema())
    validator.validate(read)
    assert read == values()


def deployed(folder, content=b"the model", kind=DEPLOYABLE):
    """A folder with a model of this content, beside the manifest of a build of b"the model"."""
    digest = hashlib.sha256(b"the model").hexdigest()
    manifest.write(values(artifacts=(Artifact("model.onnx", kind, 9, digest),)), folder)
    path = folder / "model.onnx"
    path.write_bytes(content)
    return path


def test_a_deployed_model_has_the_manifest_beside_it(tmp_path):
    found = manifest.of_deployed(deployed(tmp_path))
    assert found == json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "changes", [{"content": b"another"}, {"kind": manifest.MADE_FROM}], ids=["changed since", "not deployable"]
)
def test_a_model_that_the_manifest_does_not_vouch_for_has_none(tmp_path, changes):
    assert manifest.of_deployed(deployed(tmp_path, **changes)) is None


@pytest.mark.parametrize("beside", [None, "{}", "not JSON"])
def test_a_model_without_a_manifest_of_ours_has_none(tmp_path, beside):
    path = deployed(tmp_path)
    if beside is None:
        (tmp_path / "manifest.json").unlink()
    else:
        (tmp_path / "manifest.json").write_text(beside, encoding="utf-8")
    assert manifest.of_deployed(path) is None


@pytest.mark.parametrize("key", ["source", "config", "stages", "artifacts"])
def test_the_schema_refuses_a_manifest_without_a_part_or_with_another(key):
    broken = values()
    del broken[key]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, manifest.schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values() | {"extra": 1}, manifest.schema())


def test_a_build_that_does_not_fit_the_schema_is_not_written():
    with pytest.raises(ValidationError):
        values(calibration_kind="guessed")


def test_the_schema_of_settings_accepts_every_default():
    jsonschema.validate(BuildConfig().to_dict(), BuildConfig.model_json_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"presision": "uint8"}, BuildConfig.model_json_schema())
