"""The manifest, schema 1: everything about a build, as JSON. Its JSON Schema comes from these classes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from intact.config import BuildConfig
from intact.results import Accuracy, Application, Artifact, Build, Gate, Placement, Stage

SCHEMA = 1


class Part(BaseModel):
    """A part of the manifest; fields that are not listed are refused."""

    model_config = ConfigDict(extra="forbid")


class Tool(Part):
    """The version of intact that wrote the manifest, and the manifest's schema."""

    version: str
    schema_: Literal[1] = Field(1, alias="schema")


class SourceModel(Part):
    """The model as the user gave it."""

    path: str
    sha256: str
    opset: int


class Calibration(Part):
    """What ranges were measured on: kind of data, number of samples, digest of their content."""

    kind: Literal["npz", "callable", "images", "synthetic", "none"]
    samples: int
    sha256: str | None


class StageRecord(BaseModel):
    """A stage as it went; figures of its own stand beside the common ones."""

    model_config = ConfigDict(extra="allow")

    name: str
    status: Literal["ran", "skipped"]
    reason: str
    seconds: float


class Port(Part):
    """A graph input or output of the deployable model; scale and zero point where it is on a grid."""

    name: str
    direction: Literal["input", "output"]
    dtype: str
    scale: float | None = None
    zero_point: int | None = None


class Manifest(Part):
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
    io: list[Port]
    accuracy: list[Accuracy]
    gates: list[Gate]
    artifacts: list[Artifact]
    warnings: list[str]


def to_manifest(build: Build, created: str, version: str) -> dict[str, Any]:
    """`build` as the plain values of its manifest."""
    values = {
        "intact": {"version": version, "schema": SCHEMA},
        "created": created,
        "source": {"path": build.source_path, "sha256": build.source_sha256, "opset": build.source_opset},
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
        "io": [dict(port) for port in build.io],
        "accuracy": [dataclasses.asdict(row) for row in build.accuracy],
        "gates": [dataclasses.asdict(gate) for gate in build.gates],
        "artifacts": [dataclasses.asdict(artifact) for artifact in build.artifacts],
        "warnings": list(build.warnings),
    }
    return Manifest.model_validate(values).model_dump(mode="json", by_alias=True)


def write(manifest: dict[str, Any], folder: Path) -> Path:
    """Write `manifest.json` into a folder."""
    path = folder / "manifest.json"
    path.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


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
