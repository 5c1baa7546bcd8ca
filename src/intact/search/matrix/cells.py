"""One model for many devices at many precisions: a build for each pair, in parallel, and one table to choose from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import joblib

from intact import scratch
from intact.backends.installed import versions
from intact.errors import IntactError, NotAvailable, OutputError
from intact.events import Events, Log, Silence
from intact.pipeline import input_files, loading, preparation, presets
from intact.pipeline.stages import BuildOptions
from intact.records import dataclass
from intact.reports import matrix_page, publish
from intact.reports.manifest import MADE_FROM
from intact.results import Build, Gate, Word
from intact.runtime import cluster, ort_cpu
from intact.search.builds import build_any
from intact.settings import contradictions, devices
from intact.settings.config import BuildConfig, merge
from intact.targets.provider_placement import compute_nodes

RECORD = "cell.json"
TABLE = "matrix.json"
PAGE = "matrix.html"

Status = Literal["built", "gate failed", "broken", "failed"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One build of the matrix: `folder` is its place in the output; `idle` are settings that mean nothing in it."""

    device: str
    precision: str
    config: BuildConfig
    idle: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        return f"{self.device.replace(':', '-')}-{self.precision}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a cell; figures are those of the deployed form, None where there are none."""

    device: str
    precision: str
    folder: str
    status: Status
    kept: bool
    seconds: float
    sqnr_db: float | None = None
    identical: bool = False
    npu_percent: float | None = None
    partitions: int | None = None
    bytes: int | None = None
    gates: tuple[Gate, ...] = ()
    error: str | None = None
    verdict: Word | None = None
    verdict_reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CellJob:
    """A cell as a worker gets it: everything that it needs, and nothing of this process."""

    cell: Cell
    source: Path
    output: Path
    key: str
    threads: int


def cells(chips: Sequence[str], precisions: Sequence[str], config: BuildConfig) -> list[Cell]:
    """A cell for each device and precision; a device is `cpu`, `qnn`, `qnn:v75`, `qnn:SM8650` or `qnn@2.6.0:v75`."""
    found = [_cell(d, p, config) for d in chips for p in precisions]
    contradictions.check_cells([cell.folder for cell in found])
    return found


def _cell(device: str, precision: str, config: BuildConfig) -> Cell:
    chosen = {"precision": precision, "compile": devices.in_words(device)}
    common, idle = presets.meant(config, precision)
    complete = BuildConfig.from_dict(merge(common.model_dump(mode="json", exclude_unset=True), chosen))
    return Cell(device, precision, complete, idle)


@dataclass(frozen=True, slots=True)
class Where:
    """The place that cells are built in: a `cluster`, as `runtime.cluster` names them, whose workers see the output.

    Without it, work is done by `workers` processes of this machine, each with `threads` threads.
    """

    workers: int | None = None
    threads: int | None = None
    cluster: str | None = None


def run(
    source: Path, wanted: Sequence[Cell], output: Path, where: Where | None = None, events: Events | None = None
) -> list[Outcome]:
    """Build every cell into its folder of `output`, and write the table as matrix.json and matrix.html.

    A cell that is there already, from the same model, data and settings, is kept. A cell that fails does not stop the
    others.
    """
    log, where = Log(events or Silence()), where or Where()
    workers = min(where.workers or _cores(), len(wanted))
    threads = where.threads or max(1, _cores() // workers)
    _check_output(output)
    input_files.protect(output, wanted[0].config, source)
    for precision, idle in {cell.precision: cell.idle for cell in wanted}.items():
        if idle:
            left = "is" if len(idle) == 1 else "are"
            log.events.note(f"{precision}: {', '.join(idle)} would have no effect, and {left} left out")
    with cluster.used(where.cluster, output, log.events) as elsewhere:
        keys = _keys(source, wanted, log)
        output.mkdir(parents=True, exist_ok=True)
        work = [
            CellJob(cell, source.resolve(), output.resolve(), key, threads)
            for cell, key in zip(wanted, keys, strict=True)
        ]
        kept = {item.cell.folder: found for item in work if (found := _kept(item)) is not None}
        for folder in kept:
            log.events.note(f"{folder}: kept, it was built from the same model, data and settings")
        todo = [item for item in work if item.cell.folder not in kept]
        done = _built_here(todo, workers, threads) if elsewhere is None else _built_there(todo, elsewhere, threads)
        built = _gathered(done, len(todo), log)
    outcomes = [kept.get(cell.folder) or built[cell.folder] for cell in wanted]
    _write(source, outcomes, output)
    return outcomes


def _built_here(todo: Sequence[CellJob], workers: int, threads: int) -> Iterator[Outcome]:
    # joblib runs one job in this very process, where neither threads nor crashes can be kept apart: one worker is two
    # that get one cell at a time.
    limits = {"n_jobs": max(workers, 2), "pre_dispatch": workers, "batch_size": 1}
    with joblib.parallel_config(backend="loky", inner_max_num_threads=threads):
        pool = joblib.Parallel(return_as="generator_unordered", **limits)
        yield from pool(joblib.delayed(build_cell)(item) for item in todo)


def _built_there(todo: Sequence[CellJob], elsewhere: cluster.Cluster, threads: int) -> Iterator[Outcome]:
    return (outcome for _, outcome in elsewhere.as_done(build_cell, todo, threads=threads))


def _gathered(done: Iterator[Outcome], count: int, log: Log) -> dict[str, Outcome]:
    if not count:
        return {}
    found: dict[str, Outcome] = {}
    with log.stage("matrix", count) as (advance, _):
        for outcome in done:
            found[outcome.folder] = outcome
            log.events.note(f"{outcome.folder}: {outcome.status}, {outcome.seconds:.1f} s")
            advance()
    return found


def build_cell(work: CellJob) -> Outcome:
    """Build one cell in whatever process this is; an error of the user's becomes part of the outcome."""
    ort_cpu.use_threads(work.threads)
    start = time.perf_counter()
    cell, folder = work.cell, work.output / work.cell.folder
    try:
        built = build_any(work.source, cell.config, folder, BuildOptions(overwrite=True))
    except IntactError as error:
        return _failed(work, f"error[{error.code}]: {error.text()}", time.perf_counter() - start)
    # Not even a bug of ours in one cell may cost the user the others.
    except Exception as error:
        return _failed(work, f"internal error: {type(error).__name__}: {error}", time.perf_counter() - start)
    outcome = _outcome(cell, built, time.perf_counter() - start)
    record = {"key": work.key, "outcome": asdict(outcome)}
    scratch.write_text(folder / RECORD, json.dumps(record, indent=2) + "\n")
    return outcome


def _failed(work: CellJob, error: str, seconds: float) -> Outcome:
    cell, folder = work.cell, work.output / work.cell.folder
    if (folder / RECORD).exists():
        shutil.rmtree(folder)  # what an earlier matrix with other settings left there would pass for this cell
    return Outcome(cell.device, cell.precision, cell.folder, "failed", False, seconds, error=error)


def _outcome(cell: Cell, built: Build, seconds: float) -> Outcome:
    deployed = [row for row in built.accuracy if row.form == "compiled"]
    noisy = [row.sqnr_db for row in deployed if row.sqnr_db is not None]
    on, off = (len(compute_nodes(nodes)) for nodes in (built.placement.npu_nodes, built.placement.cpu_nodes))
    has_npu = presets.available(cell.config).npu and built.placement.has_npu
    return Outcome(
        cell.device,
        cell.precision,
        cell.folder,
        "built" if built.passed else "broken" if built.verdict == "broken" else "gate failed",
        False,
        seconds,
        sqnr_db=min(noisy, default=None),
        identical=bool(deployed) and not noisy,
        npu_percent=100 * on / (on + off) if has_npu and on + off else None,
        partitions=built.placement.partitions if has_npu else None,
        bytes=sum(a.bytes for a in built.artifacts if a.kind not in ("portable quantized model", MADE_FROM)),
        gates=built.gates,
        verdict=built.verdict,
        verdict_reasons=built.verdict_reasons,
    )


def _keys(source: Path, wanted: Sequence[Cell], log: Log) -> list[str]:
    """For each cell a digest of all that decides its bytes: the model, the data, the settings, the versions."""
    given = loading.load(source, wanted[0].config, Log())
    inputs = preparation.inputs_for(given.model, wanted[0].config, log)
    rows = (given.sha256, inputs.calibration.sha256, inputs.test.sha256)
    return [
        hashlib.sha256(json.dumps([*rows, cell.config.to_dict(), _versions(cell)], sort_keys=True).encode()).hexdigest()
        for cell in wanted
    ]


def _versions(cell: Cell) -> dict[str, str]:
    try:
        return versions(cell.config.compile.device, cell.config.compile.toolchain)
    except NotAvailable as error:
        return {"missing": error.message}  # its build will say so too


def _kept(work: CellJob) -> Outcome | None:
    """The outcome of a cell that is there already, if it was built from the same things and is still whole."""
    folder = work.output / work.cell.folder
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        whole = all((folder / a["path"]).stat().st_size == a["bytes"] for a in manifest["artifacts"])
        if record["key"] != work.key or not whole:
            return None
        outcome = record["outcome"]
        return Outcome(**{**outcome, "kept": True, "gates": tuple(Gate(**gate) for gate in outcome["gates"])})
    except (OSError, ValueError, LookupError, TypeError):
        return None  # nothing, half of something, or nothing of ours: it is built


def _check_output(output: Path) -> None:
    """Refuse a folder that is neither new nor empty and holds no matrix."""
    publish.check_folder(output, overwrite=True)
    ours = (output / TABLE).is_file() or any(output.glob(f"*/{RECORD}"))
    if output.is_dir() and any(output.iterdir()) and not ours:
        raise OutputError("O110", f"{output} is not empty and holds no matrix", fix="choose another -o")


def _write(source: Path, outcomes: Sequence[Outcome], output: Path) -> None:
    values = {"source": str(source), "cells": [asdict(outcome) for outcome in outcomes]}
    scratch.write_text(output / TABLE, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    scratch.write_text(output / PAGE, matrix_page.render(values))


def _cores() -> int:
    return os.cpu_count() or 1
