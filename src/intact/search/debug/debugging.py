"""Bisection of files: where two models, or the CPU and the NPU, part ways, and what of a model does not compile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir

from intact import data
from intact.backends import compiling, installed
from intact.backends.base import Device
from intact.errors import NotAvailable, SettingsError, TargetError
from intact.events import Log
from intact.model import detect
from intact.model.cutting import Cutter
from intact.pipeline import execution, input_files, loading, preparation
from intact.pipeline.model_files import inputs_for_comparison
from intact.reports import publish
from intact.rules.quantized import families
from intact.search.debug import failing, repro
from intact.search.debug.bisect import compare_layers
from intact.search.debug.device import SIMULATED_ROWS, DeviceComparison, UnitError, simulator_of
from intact.search.debug.findings import (
    Bisection,
    CompileBisection,
    Destination,
    DeviceBisection,
    FailingUnit,
    ModelBisection,
    PartedUnit,
    UnitFinding,
)
from intact.search.debug.layers import Layer, first_parted, ranked
from intact.search.debug.paired_models import PairedModels
from intact.settings import contradictions
from intact.settings.config import BuildConfig
from intact.targets.spec import Target

# Rows that layers are compared on: one layer is much the same in all of them.
ROWS = 8


def debug_files(
    reference: Path, candidate: Path | None, config: BuildConfig, *, save: Destination | None = None, log: Log
) -> Bisection:
    """Find where `candidate` parts ways with `reference`, and where a device that the settings name does with the CPU.

    A candidate that is compiled already is taken as the reference on the device. With `save`, the worst node alone
    goes into that folder, with inputs and a way to run it.
    """
    contradictions.check_partner(config, alone=candidate is None)
    if save is not None:
        publish.check_folder(save.folder, overwrite=save.overwrite)
        input_files.protect(save.folder, config, reference, *(() if candidate is None else (candidate,)))
    given = _load(reference, config, log)
    other = None if candidate is None else _load(candidate, config, log)
    compiled = other is not None and compiling.is_compiled(other)
    device = "device" in config.compile.model_fields_set or compiled
    if compiled and "device" not in config.compile.model_fields_set:
        assert other is not None, "what is compiled is the candidate"
        made_by = config.compile.model_copy(update={"device": installed.maker_of(other)})
        config = config.model_copy(update={"compile": made_by})
    rows = _rows(given, config, log)
    if other is not None and not compiled:
        result = _compare(given, other, rows, save, log)
        if result.first is not None or not device:
            return result
    return _on_device(given if other is None or compiled else other, rows, config, save, log)


def _load(path: Path, config: BuildConfig, log: Log) -> ir.Model:
    model = loading.load(path, config, log).model
    if compiling.is_compiled(model):
        return model
    # Grids are compared where they stand between nodes; integer operators have them inside.
    return families.rewrite(model, families.conversion("qdq")).model if detect.detect(model) is not None else model


def _rows(model: ir.Model, config: BuildConfig, log: Log) -> list[data.Feeds]:
    inputs = inputs_for_comparison(model, config, log)
    if inputs.test.kind == "synthetic":
        log.warn("no --data: the models are compared on synthetic inputs")
    return list(inputs.test)[:ROWS]


def _compare(
    reference: ir.Model, candidate: ir.Model, rows: list[data.Feeds], save: Destination | None, log: Log
) -> ModelBisection:
    models = PairedModels(reference, candidate)
    with log.stage("debug", len(models.pairs)) as (advance, details):
        layers = compare_layers(models, rows, advance)
        first, by_error = first_parted(layers), ranked(layers)
        details["parted"] = None if first is None else f"{first.node} ({first.op})"
    worst = first or next(iter(by_error), None)
    if save is not None and worst is not None:
        _save_difference(save, models, worst, rows)
    return ModelBisection(
        first=first,
        layers=by_error,
        parted=[layer.tensor for layer in layers if layer.cause is not None],
        undone=[layer for layer in layers if layer.meant],
        compared=len(layers),
        samples=len(rows),
        repro=None if save is None or worst is None else str(save.folder),
        warnings=log.warnings,
    )


def _save_difference(save: Destination, models: PairedModels, layer: Layer, rows: list[data.Feeds]) -> None:
    """Write the layer of both models, between the same tensors; the candidate's with its grids."""
    tensor, reference = models.base(layer.tensor), models.reference
    inputs = models.inputs_of(tensor)
    arrays = {name: _value(reference, theirs, rows[0]) for name, theirs in inputs.items()}
    like = {theirs: arrays[name] for name, theirs in inputs.items()}
    expected = reference.piece([models.pairs[tensor]], set(inputs.values()), like)
    found = models.whole.piece([models.seen(layer.tensor)], set(inputs), arrays)
    for value in expected.graph.inputs:
        names = [name for name, theirs in inputs.items() if theirs == value.name]
        value.name = names[0] if names else value.name
    needed = {value.name or "": None for model in (expected, found) for value in model.graph.inputs}
    extra = {name: _value(reference, name, rows[0]) for name in needed if name not in arrays}
    what = f"{layer.node} ({layer.op}) keeps {_db(layer.own_db)} by itself, at {layer.tensor}."
    repro.write_difference(save.folder, what, expected, found, arrays | extra, overwrite=save.overwrite)


def _value(model: Cutter, tensor: str, row: Mapping[str, np.ndarray]) -> np.ndarray:
    """One tensor of a model for one row."""
    if tensor in row:
        return np.asarray(row[tensor])
    piece = model.piece([tensor], set(row))
    feeds = {value.name or "": np.asarray(row[value.name or ""]) for value in piece.graph.inputs}
    return execution.session(piece).run(feeds)[tensor]


def _on_device(
    model: ir.Model, rows: list[data.Feeds], config: BuildConfig, save: Destination | None, log: Log
) -> DeviceBisection | CompileBisection:
    target = preparation.target_of(config.compile)
    simulator = simulator_of(target)
    if simulator is None:
        allowed = ", ".join(installed.simulated())
        raise NotAvailable("E190", f"{target.name}: there is no simulator of it here", allowed=allowed)
    if detect.detect(model) is None:
        raise SettingsError(
            "S199",
            "the model is not quantized, so there are no grids to cut it at",
            fix=f"intact quantize --device {target.backend}",
        )
    device = execution.device_of(target, config.compile)
    # A build gives the compiler what its rules make of a model, and what they make may be what it gets wrong.
    model = families.rewrite(model, target).model
    fails = failing.compiler(simulator, device)
    with log.stage("compile"):
        error = fails(model)
    if error is not None:
        with log.stage("debug") as (_, details):
            found = failing.smallest_failing(model, fails)
            details["parted"] = None if found is None else ", ".join(unit.node for unit in found.units)
        if found is None:
            raise TargetError("T190", f"{target.name}: the model fails to compile as a whole, but not cut up: {error}")
        return _failing(found, target, device, save, log)
    comparison = DeviceComparison(model, rows[:SIMULATED_ROWS], simulator, device)
    return _against_cpu(comparison, target, len(rows[:SIMULATED_ROWS]), save, log)


def _failing(
    found: failing.Failure, target: Target, device: Device, save: Destination | None, log: Log
) -> CompileBisection:
    unit = found.units[-1]
    pattern = "; ".join(unit.pattern for unit in found.units)
    nodes = [name for unit in found.units for name in unit.nodes]
    if save is not None:
        what = f"{', '.join(nodes)}: {pattern}\nThe compiler for {target.name} fails: {found.error}"
        repro.write_device(save, what, found.model, {}, device)
    return CompileBisection(
        target=target.name,
        first=FailingUnit(unit.node, unit.op, unit.tensor, "compile", pattern, nodes, found.error),
        compiled=found.attempts,
        repro=None if save is None else str(save.folder),
        warnings=log.warnings,
    )


def _against_cpu(
    comparison: DeviceComparison, target: Target, rows: int, save: Destination | None, log: Log
) -> DeviceBisection:
    with log.stage("debug", len(comparison.units.units)) as (advance, details):
        errors = comparison.errors(advance)
        alone = next((error for error in errors if error.parted), None)
        joined = next(comparison.together(), None) if alone is None else None
        first = alone or joined
        details["parted"] = None if first is None else f"{first.unit.node} ({first.unit.op})"
    by_error = sorted((e for e in errors if e.own_db is not None), key=lambda e: e.own_db or 0.0)
    worst = first or next(iter(by_error), None)
    if save is not None and worst is not None:
        _save_unit(save, comparison, worst, target, together=joined is not None)
    return DeviceBisection(
        target=target.name,
        first=None if first is None else PartedUnit(**asdict(_told(first)), together=joined is not None),
        layers=[_told(error) for error in by_error],
        parted=[error.unit.tensor for error in (*errors, *([] if joined is None else [joined])) if error.parted],
        compared=len(errors),
        samples=rows,
        repro=None if save is None or worst is None else str(save.folder),
        warnings=log.warnings,
    )


def _save_unit(
    save: Destination, comparison: DeviceComparison, worst: UnitError, target: Target, *, together: bool
) -> None:
    """Write a unit alone, or one that is right alone with all that is before it."""
    unit = worst.unit
    piece, inputs = comparison.behind(unit) if together else comparison.alone(unit)
    nodes = f"{', '.join(unit.nodes)}{', behind all that is before' if together else ''}"
    what = f"{nodes}: {unit.pattern}\nCPU and {target.name} differ: {_db(worst.own_db)}."
    repro.write_device(save, what, piece, inputs, comparison.device)


def _told(error: UnitError) -> UnitFinding:
    unit = error.unit
    cause: Literal["device"] | None = "device" if error.parted else None
    figures = (error.own_db, error.steps, error.max_abs_error)
    return UnitFinding(unit.node, unit.op, unit.tensor, *figures, unit.pattern, cause)


def _db(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.1f} dB"
