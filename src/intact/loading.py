"""A model file in the form that stages take, compared with the file as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from intact import data, execution
from intact.errors import ModelError
from intact.events import Events, Log, Silence
from intact.execution import Outputs
from intact.export import origin
from intact.graph import io, normalize, upgrade
from intact.quantize import detect
from intact.results import Origin
from intact.vendor import cpu
from intact.verify.compare import compare

# Rounding in another order may move float32 results this little; an upgrade that changes the function moves them more.
LEAST_UPGRADE_SQNR = 60.0
UPGRADE_ROWS = 2


@dataclass(frozen=True, slots=True)
class Source:
    """A model as it was given, and the same function in the form that stages take."""

    path: Path
    sha256: str
    opset: int
    model: ir.Model
    quantized: detect.Quantized | None
    origin: Origin | None = None


def load(path: Path, *, dims: Mapping[str, int] | None = None, events: Events | None = None) -> Source:
    """The model at `path`, upgraded and normalised, and compared with the file as it is."""
    return load_logged(path, dims, Log(events or Silence()))


def load_logged(path: Path, dims: Mapping[str, int] | None, log: Log) -> Source:
    with loaded(path, dims, log) as source:
        return source


@contextmanager
def loaded(path: Path, dims: Mapping[str, int] | None, log: Log) -> Iterator[Source]:
    """The model at `path`; what the block does with it counts only if the upgrade, checked meanwhile, was right."""
    with ThreadPoolExecutor(1) as aside:
        with log.stage("load") as (_, details):
            digest = aside.submit(io.sha256_of, path)
            given = io.load(path)
            upgraded = upgrade.upgrade(given)
            model = normalize.normalize(upgraded.model, dims=dims)
            log.warn(*upgraded.notes)
            details.update(opset_from=upgraded.from_opset, opset_to=upgraded.to_opset)
            found = origin.of_model(given)
            log.warn(*(() if found is None else origin.warnings(found)))
            opset = given.opset_imports.get("", 0)
            source = Source(path, digest.result(), opset, model, detect.detect(model), found)
        differs = upgraded.from_opset != upgraded.to_opset
        check = aside.submit(_check_upgrade, path, given, model) if differs else None
        try:
            yield source
        finally:
            if check is not None:
                details["upgrade_sqnr_db"] = check.result()


def _check_upgrade(path: Path, given: ir.Model, model: ir.Model) -> float | None:
    """The least SQNR in dB between the file as given and the upgraded model, None if they are identical."""
    rows = list(data.load(model, None, samples=UPGRADE_ROWS).calibration)
    threads = max(1, cpu.threads() // 2)

    def run(form: ir.Model | Path, content: ir.Model) -> list[Outputs]:
        session = execution.session(form, content=content, threads=threads)
        return [session.run(row) for row in rows]

    with ThreadPoolExecutor(2) as pool:
        before, after = pool.map(run, (path, model), (given, model))
    accuracy = compare("upgraded", "onnxruntime", before, after)
    noisy = [row.sqnr_db for row in accuracy if row.sqnr_db is not None]
    least = min(noisy, default=None)
    if least is not None and least < LEAST_UPGRADE_SQNR:
        raise ModelError(
            "M152",
            f"{path}: after the upgrade to a newer opset the outputs differ ({least:.1f} dB SQNR)",
            allowed=f"at least {LEAST_UPGRADE_SQNR:.0f} dB",
            fix="export the model again with opset 21 or later",
        )
    return least
