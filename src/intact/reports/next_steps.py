"""The step after a build: what the verdict asks for, with the command where there is one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from intact.results import DEPLOYABLE

Record = Mapping[str, Any]


class NextStep(NamedTuple):
    """Words, and a command to copy; the command may be empty."""

    words: str
    command: str = ""


def next_steps(manifest: Record) -> list[NextStep]:
    """List the steps that follow a build of this verdict, in order; none where no verdict was reached."""
    deployed = [item["path"] for item in manifest["artifacts"] if item["kind"] == DEPLOYABLE]
    word = manifest.get("verdict")
    if word in ("good", "passed"):
        return [NextStep(f"Next: deploy {deployed[0]}, as below")] if deployed else []
    if word == "unverified":
        return [NextStep("Next: compare it with the original on the device itself", _verify(manifest, deployed))]
    if word in ("suspect", "failed", "broken"):
        return [NextStep("Next: find the place where it goes wrong", _debug(manifest))]
    return []


def _verify(manifest: Record, deployed: list[str]) -> str:
    return shlex.join(["intact", "verify", manifest["source"]["path"], *deployed, *_data(manifest)]) if deployed else ""


def _debug(manifest: Record) -> str:
    """Compare the quantized model with the original, or with what the device makes of it where that is what loses."""
    portable = [item["path"] for item in manifest["artifacts"] if item["path"].endswith(".qdq.onnx")][:1]
    if portable and _is_lost_by_device(manifest):
        return shlex.join(["intact", "debug", *portable, *_device(manifest), *_data(manifest)])
    return shlex.join(["intact", "debug", manifest["source"]["path"], *portable, *_data(manifest)])


def _is_lost_by_device(manifest: Record) -> bool:
    """True if the build itself looked for the place where the device and the CPU part ways."""
    return any(stage["name"] == "debug" and stage["status"] == "ran" for stage in manifest["stages"])


def _device(manifest: Record) -> list[str]:
    config = manifest["config"]["compile"]
    chip = ["--soc", config["soc"]] if config["soc"] else ["--arch", config["arch"]] if config["arch"] else []
    return ["--device", config["device"], *chip]


def _data(manifest: Record) -> list[str]:
    config = manifest["config"]
    quant = config["quant"] or config["compile"]["quant"] or {}
    path = config["test_path"] or quant.get("load_path")
    return [] if path is None else ["--data", path]
