"""Hugging Face models as ONNX files: exported by torch in a child process, then run and compared with torch."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from intact.errors import ModelError
from intact.exporting import origin
from intact.model import io
from intact.numbers.decibels import sqnr_of
from intact.results import Origin
from intact.runtime import hub, ort_cpu, process
from intact.settings.config import ExportConfig

# Rounding in another order costs far less than this; an export that computes something else costs more.
LEAST_SQNR = 60.0


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
    with tempfile.TemporaryDirectory(prefix="intact-export-") as folder:
        bare, answers = Path(folder, "model.onnx"), Path(folder, "answers.npz")
        request = {
            "repository": asdict(repository),
            "settings": (settings or ExportConfig()).to_dict(),
            "image_size": image_size,
            "output": str(bare),
            "answers": str(answers),
        }
        found = process.call("intact.exporting.export_job:export", request, timeout=timeout).result
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


def _part(arrays: Mapping[str, Any], prefix: str) -> dict[str, np.ndarray]:
    return {key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix)}
