"""The manifest, schema 2: everything about a build, as JSON. Its JSON Schema comes from these classes.

Schema 1 had no verdict; such manifests are still read, so that older builds are verified as before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from intact.results import (
    DEPLOYABLE,
    Accuracy,
    Application,
    Artifact,
    Build,
    Cost,
    CostEstimate,
    Gate,
    LayerError,
    MappedLayer,
    Origin,
    Placement,
    Search,
    Stage,
    TaskAccuracy,
    Word,
)
from intact.settings.config import BuildConfig

SCHEMA: Literal[2] = 2

# The kind of an artifact that the device does not need, but other tools and other compilations do.
MADE_FROM = "what the deployable model was made from"


class ManifestPart(BaseModel):
    """A part of the manifest; fields that are not listed are refused."""

    model_config = ConfigDict(extra="forbid")


class Tool(ManifestPart):
    """The version of intact that wrote the manifest, and the manifest's schema."""

    version: str
    schema_: Literal[1, 2] = Field(SCHEMA, alias="schema")


class SourceModel(ManifestPart):
    """The model as the user gave it."""

    path: str
    sha256: str
    opset: int
    weight_bytes: int | None = Field(None, description="Size of its weights; None in manifests of earlier versions.")
    huggingface: Origin | None = Field(None, description="Where the model came from, if it was exported here.")


class Calibration(ManifestPart):
    """The data that ranges were measured on: its kind, the number of samples, a digest of their content."""

    kind: Literal["npz", "arrays", "callable", "images", "text", "synthetic", "none"]
    samples: int
    sha256: str | None


class StageRecord(BaseModel):
    """A stage as it went; figures of its own stand beside the common ones."""

    model_config = ConfigDict(extra="allow")

    name: str
    status: Literal["ran", "skipped"]
    reason: str
    seconds: float


class ManifestPort(ManifestPart):
    """A graph input or output of the deployable model; scale and zero point where it is on a grid."""

    name: str
    direction: Literal["input", "output"]
    dtype: str
    shape: list[int | str | None] | None = None
    scale: float | None = None
    zero_point: int | None = None


class Manifest(ManifestPart):
    """A build, written down."""

    intact: Tool
    created: str
    source: SourceModel
    config: BuildConfig
    environment: dict[str, str]
    calibration: Calibration
    stages: list[StageRecord]
    rewrites: list[Application]
    placement: Placement
    layers: list[MappedLayer] = Field([], description="The nodes of the deployed model that compute, in order.")
    cost: Cost | None = Field(None, description="The compiler's own estimate, where it gives one; nothing is measured.")
    estimate: CostEstimate | None = Field(None, description="Cost by the rule of the target's table, where it has one.")
    errors: list[LayerError] = Field([], description="The error of every tensor on a grid, in the order of the model.")
    io: list[ManifestPort]
    accuracy: list[Accuracy]
    task_accuracy: list[TaskAccuracy] = []
    verdict: Word | None = Field(
        None,
        description="good: nothing is wrong; passed: neither is a gate; unverified: nothing was compared, or not what "
        "is deployed; suspect: doubtful; failed: a gate does not hold or was not checked; broken: wrong. "
        "None in manifests of schema 1.",
    )
    verdict_reasons: list[str] = Field([], description="What led to the verdict, the worst first.")
    status: Literal["passed", "failed"] = Field(
        description="failed: the verdict is failed or broken, so do not deploy this."
    )
    gates: list[Gate]
    artifacts: list[Artifact]
    search: Search | None = Field(None, description="How mixed precision was chosen, where it was.")
    warnings: list[str]


def to_manifest(build: Build, created: str, version: str) -> dict[str, Any]:
    """`build` as the plain values of its manifest."""
    values = {
        "intact": {"version": version, "schema": SCHEMA},
        "created": created,
        "source": {
            "path": build.source_path,
            "sha256": build.source_sha256,
            "opset": build.source_opset,
            "weight_bytes": build.source_weight_bytes,
            "huggingface": None if build.origin is None else dataclasses.asdict(build.origin),
        },
        "config": build.config,
        "environment": dict(build.environment),
        "calibration": {
            "kind": build.calibration_kind,
            "samples": build.calibration_samples,
            "sha256": build.calibration_sha256,
        },
        "stages": [_stage(stage) for stage in build.stages],
        "rewrites": [dataclasses.asdict(application) for application in build.rewrites],
        "placement": dataclasses.asdict(build.placement),
        "layers": [dataclasses.asdict(layer) for layer in build.layers],
        "cost": None if build.cost is None else dataclasses.asdict(build.cost),
        "estimate": None if build.estimate is None else dataclasses.asdict(build.estimate),
        "errors": [dataclasses.asdict(error) for error in build.errors],
        "io": [dict(port) for port in build.io],
        "accuracy": [dataclasses.asdict(row) for row in build.accuracy],
        "task_accuracy": [dataclasses.asdict(row) for row in build.task_accuracy],
        "verdict": build.verdict,
        "verdict_reasons": list(build.verdict_reasons),
        "status": "passed" if build.passed else "failed",
        "gates": [dataclasses.asdict(gate) for gate in build.gates],
        "artifacts": [dataclasses.asdict(artifact) for artifact in build.artifacts],
        "search": None if build.search is None else dataclasses.asdict(build.search),
        "warnings": list(build.warnings),
    }
    return Manifest.model_validate(values).model_dump(mode="json", by_alias=True)


def write(manifest: dict[str, Any], folder: Path) -> Path:
    """Write `manifest.json` into a folder."""
    path = folder / "manifest.json"
    path.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def of_deployed(path: Path) -> dict[str, Any] | None:
    """The manifest of the build that `path` is the deployable model of: it lies beside it and has its digest."""
    beside = path.parent / "manifest.json"
    if not path.is_file() or not beside.is_file():
        return None
    try:
        found = Manifest.model_validate_json(beside.read_bytes())
    except ValueError:
        return None  # another program's manifest.json, which is common in folders of models
    digests = {item.path: item.sha256 for item in found.artifacts if item.kind == DEPLOYABLE}
    if digests.get(path.name) != hashlib.sha256(path.read_bytes()).hexdigest():
        return None
    return found.model_dump(mode="json", by_alias=True)


def schema() -> dict[str, Any]:
    """The JSON Schema of the manifest."""
    return Manifest.model_json_schema(by_alias=True)


def _stage(stage: Stage) -> dict[str, Any]:
    common = {
        "name": stage.name,
        "status": stage.status,
        "reason": stage.reason,
        "seconds": round(stage.seconds, 4),
    }
    return {**common, **stage.details}
