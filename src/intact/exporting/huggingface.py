"""Hugging Face models as ONNX files: exported by torch in a child process, then run and compared with torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np

from intact import scratch
from intact.errors import ModelError
from intact.exporting import origin
from intact.json_types import JsonObject
from intact.model import io
from intact.numbers.decibels import sqnr_of
from intact.results import Origin
from intact.runtime import hub, ort_cpu, process
from intact.settings.config import ExportConfig

# Rounding in another order costs far less than this; an export that computes something else costs more.
LEAST_SQNR = 60.0


class ExportOrder(TypedDict):
    """An order to export: the repository by name and revision, the settings, and the files to write."""

    repository: tuple[str, str | None]
    settings: JsonObject
    image_size: tuple[int, int] | None
    output: str
    answers: str


class ExportedModel(TypedDict):
    """The answer to it: what `Origin` holds beside name and distance, and the number of samples to compare on."""

    task: str
    task_is_known: bool
    architecture: str
    commit: str | None
    config_sha256: str
    versions: dict[str, str]
    samples: int
    images: dict[str, list[float]] | None


def export(
    name: str,
    output: Path,
    settings: ExportConfig | None = None,
    *,
    image_size: tuple[int, int] | None = None,
    timeout: float = 1800.0,
) -> Origin:
    """Write the Hugging Face model `name` (a folder, an id of the hub, or id@revision) as ONNX to `output`.

    It computes what torch computes on the same inputs, to at least 60 dB, or there is an error that names the output.
    """
    hub.require("torch", "transformers", "onnxscript")
    repository = hub.resolved(name)
    with scratch.folder("export") as folder:
        bare, answers = Path(folder, "model.onnx"), Path(folder, "answers.npz")
        order: ExportOrder = {
            "repository": (repository.name, repository.revision),
            "settings": (settings or ExportConfig()).to_dict(),
            "image_size": image_size,
            "output": str(bare),
            "answers": str(answers),
        }
        found = process.call("intact.exporting.export_job:export", order, timeout=timeout).result
        least = _compare(bare, answers, found.pop("samples"), name)
        result = Origin(name=name, sqnr_db=least, **found)
        io.save(origin.marked(io.load(bare), result), output)
    return result


def _compare(model: Path, answers: Path, samples: int, name: str) -> float | None:
    """The least SQNR in dB of the exported model against torch, None if they are identical."""
    session = ort_cpu.Session(model)
    distances: dict[str, float] = {}
    with np.load(answers, allow_pickle=False) as arrays:
        for number in range(samples):
            found = session.run(_part(arrays, f"{number}/in/"))
            for output, right in _part(arrays, f"{number}/out/").items():
                distances[output] = min(distances.get(output, math.inf), sqnr_of(right, found[output]))
    worst = min(distances, key=distances.__getitem__)
    if distances[worst] < LEAST_SQNR:
        raise ModelError(
            "M189",
            f"{name}: the exported model is not what torch computes: output {worst} is {distances[worst]:.1f} dB apart",
            allowed=f"at least {LEAST_SQNR:.0f} dB SQNR",
            fix="another version of torch or transformers may export it right; or export it with code of your own",
        )
    return None if math.isinf(distances[worst]) else round(distances[worst], 2)


def _part(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix)}
