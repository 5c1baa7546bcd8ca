"""What was measured, as a file of JSON that a run goes on with where it stopped."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Run:
    """One quantization: a tool, a model, a number of samples; `error` holds the tool's own words where it failed."""

    model: str
    tool: str
    samples: int
    repeat: int
    seconds: float
    processor_seconds: float
    peak_bytes: int | None
    others: float | None
    error: str
    sha256: str
    model_bytes: int

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What tells this run from others."""
        return self.model, self.tool, self.samples, self.repeat


@dataclass(frozen=True, slots=True)
class Judged:
    """The figures of one quantized model, or errors, on the CPU and on the simulator of each device that was asked."""

    model: str
    tool: str
    sha256: str
    cpu: dict[str, Any]
    simulated: dict[str, dict[str, Any]]


@dataclass(slots=True)
class Results:
    """All that is known: of the machine, the tools, the models, and each measurement."""

    machine: dict[str, Any] = field(default_factory=dict)
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)

    def of(self, model: str, tool: str, samples: int) -> list[Run]:
        """The runs of one tool on one model."""
        return [run for run in self.runs if (run.model, run.tool, run.samples) == (model, tool, samples)]

    def verdict(self, model: str, tool: str) -> Judged | None:
        """The figures of a quantized model, if there are any."""
        return next((found for found in self.judged if (found.model, found.tool) == (model, tool)), None)

    def forget(self, labels: set[str]) -> None:
        """Drop what was measured with tools that have changed since."""
        self.runs = [run for run in self.runs if run.tool not in labels]
        self.judged = [found for found in self.judged if found.tool not in labels]


def read(path: Path) -> Results:
    """The results of a file, or none where it is not there yet."""
    if not path.exists():
        return Results()
    found = json.loads(path.read_text(encoding="utf-8"))
    runs, judged = [Run(**run) for run in found["runs"]], [Judged(**one) for one in found["judged"]]
    return Results(found["machine"], found["tools"], found["models"], runs, judged)


def write(path: Path, results: Results) -> None:
    """Write the results, whole or not at all, in an order that does not depend on that of the runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = asdict(results)
    content["runs"].sort(key=lambda run: (run["model"], run["tool"], run["samples"], run["repeat"]))
    content["judged"].sort(key=lambda one: (one["model"], one["tool"]))
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(part, path)
