"""The stage verify: every form of a model against the one that was given, and the place where the device leaves it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice

import numpy as np
import onnx_ir as ir

from intact import data
from intact.errors import IntactError, ModelError
from intact.events import Log
from intact.model import query, randomness
from intact.model.activation_grids import ActivationGrid, layers_apart, left_unrounded
from intact.model.garbage_pause import tidy
from intact.pipeline import acceptance, execution, verdict
from intact.pipeline.deployment import QUICK_ROWS, VALIDATION_ROWS, CompiledModel, is_quick, validation_rows
from intact.pipeline.execution import WatchedModel
from intact.pipeline.preparation import PreparedModel
from intact.reports.figures import count
from intact.results import Accuracy, Form, Gate, LayerError, TaskAccuracy
from intact.runtime import ort_cpu
from intact.settings.config import CompileConfig
from intact.targets.spec import Target
from intact.verification import clipped as clipping
from intact.verification import layer_errors
from intact.verification.compare import Runner, compare, measure
from intact.verification.sequences import chained

Outputs = Mapping[str, np.ndarray]
Streamer = Callable[[Iterable[data.Feeds]], Iterator[Outputs]]
# Layers that are compared one by one; of more, one in two, three or more is. Their report is as long as this.
MOST_COMPARED = 2_000

# Names the first node at which a device leaves the CPU on some rows, in a sentence; None where it finds none.
Finder = Callable[[ir.Model, Sequence[Outputs], Target, CompileConfig], str | None]


@dataclass(frozen=True, slots=True)
class Verified:
    """Figures of running every form; the first rows of `task` are the original's.

    `unrun` says why the deployed form did not run, `parted` where it leaves the quantized one.
    """

    accuracy: tuple[Accuracy, ...] = ()
    task: tuple[TaskAccuracy, ...] = ()
    latency: Gate | None = None
    unrun: str | None = None
    parted: str | None = None
    doubts: tuple[str, ...] = ()
    errors: tuple[LayerError, ...] = ()


def verify(built: CompiledModel, log: Log) -> Verified:
    """Compare every form with the model as it was given, on inputs that calibration has not seen."""
    prepared, compiled = built.prepared, built.compiled
    random = randomness.why_incomparable(prepared.source.model)
    if random is not None:
        return unverified(prepared, random, log)
    rows = prepared.inputs.test
    with log.stage("verify", len(rows)) as (advance, details):
        details["samples"] = len(rows)
        original = prepared.source.as_given()
        states = execution.states_of(prepared.config.states, prepared.source.model, rows, original)
        original = original if states else prepared.source.as_given_together()
        details.update({"states": states} if states else {})
        quantized = built.before.quantized
        # What is kept of the inside goes before the deployed model comes, which takes much memory if it is long.
        kept = prepared.calibrated and quantized.keeps_inside
        looked = _look_inside(prepared, quantized, quantized.rows_inside, log) if kept else _Inside()
        if kept:
            tidy(prepared.model)
        rows_done = execution.Furthest(advance)
        forms = (original, *_runners(built, quantized, rows_done.counter(), in_turn=bool(states)))
        runners = [chained(runner, states) for runner in forms]
        first, others = measure(rows, execution.counted(runners[0], rows_done.counter()), runners[1:], prepared.labels)
        built.before.running.close()
        if not kept:
            tidy(prepared.model)
            again = QUICK_ROWS if is_quick(prepared) else VALIDATION_ROWS
            looked = _look_inside(prepared, quantized, again, log) if prepared.calibrated else looked
        clipped, errors = looked.clipped, looked.errors
        details["clipped"] = [asdict(one) for one in clipped]
        details.update({"layers_compared": looked.compared, "layers": looked.layers} if looked.is_sample else {})
        doubts = clipping_doubts(prepared, quantized, clipped)
        _warn_of_clipped(clipped, log, shows=bool(doubts))
    for name, output in states.items():
        log.events.note(f"verified in sequence: {output} is fed back to {name} for {len(rows)} steps")
    accuracy = tuple(row for found in others for row in found.accuracy)
    return Verified(
        accuracy,
        first.task + tuple(row for found in others for row in found.task),
        _latency(built, log),
        None if compiled.runs else f"{prepared.target.name} is not on this machine",
        doubts=doubts,
        errors=errors,
    )


def verify_once(built: CompiledModel, log: Log) -> Verified:
    """`verify`, unless the figures are there already."""
    return _once("verify", built, lambda: verify(built, log))


def _once(name: str, built: CompiledModel, run: Callable[[], Verified]) -> Verified:
    figures: Verified = built.prepared.checkpoints.stage(name, run, lambda found, _: found, lambda found, _: found)
    return figures


def unverified(prepared: PreparedModel, reason: str, log: Log) -> Verified:
    """Nothing, and said so: each gate that would have needed it is named."""
    log.skip("verify", reason)
    log.warn(*(f"{name} is not checked: {reason}" for name in acceptance.unchecked(prepared.config)))
    return Verified(unrun=reason)


def _runners(built: CompiledModel, quantized: WatchedModel, done: Callable[[], None], *, in_turn: bool) -> list[Runner]:
    prepared, rewritten = built.prepared, built.before.rewritten
    forms: list[tuple[Form, Streamer]] = []
    if prepared.is_quantized:
        forms.append(("quantized", partial(quantized.stream, together=not in_turn)))
    if rewritten.applications or not (built.compiled.runs or forms):
        forms.append(("rewritten", partial(built.before.running.stream, together=not in_turn)))
    runners = [Runner(form, execution.PLAIN, run) for form, run in forms]
    return [*runners, _deployed(built, done, in_turn=in_turn)] if built.compiled.runs else runners


def _deployed(built: CompiledModel, done: Callable[[], None], *, in_turn: bool) -> Runner:
    io, prepared, path = built.before.deployed, built.prepared, built.compiled.path
    device = execution.device_of(prepared.target, prepared.config.compile, done)
    device = replace(device, nodes=len(io.model.graph))

    def outputs(rows: Iterable[data.Feeds]) -> Iterator[Outputs]:
        found = execution.stream_compiled(path, map(io.quantize, rows), device, in_turn=in_turn)
        return map(io.dequantize, found)

    return Runner("compiled", built.compiled.runtime, outputs)


def _latency(built: CompiledModel, log: Log) -> Gate | None:
    config = built.prepared.config
    if config.max_latency_ratio is None:
        return None
    with log.stage("perf") as (_, details):
        source = built.prepared.source
        rows = source.rows(built.prepared.inputs.test)
        gate = acceptance.latency_gate(source.path, built.compiled.path, rows, config)
        details["ratio"] = gate.value if gate is not None else None
    return gate


def placed(built: CompiledModel, found: Verified, finder: Finder | None, log: Log) -> Verified:
    """Name the place where the compiled form leaves the quantized one, if it lost much and somebody can find it."""
    prepared = built.prepared
    lost = [row for row in verdict.losses(found.accuracy, prepared.config.verdict) if row.form == "compiled"]
    if not lost or finder is None:
        return found
    with log.stage("debug") as (_, details):
        try:
            rows = validation_rows(prepared.inputs)
            parted = finder(built.before.rewritten.model, rows, prepared.target, prepared.config.compile)
        except IntactError as error:
            parted = None
            log.warn(f"the place where the compiled form goes wrong could not be found: {error}")
        details["parted"] = parted
    return replace(found, parted=parted)


def placed_once(built: CompiledModel, found: Verified, finder: Finder | None, log: Log) -> Verified:
    """`placed`, unless the place is known already."""
    return _once("debug", built, lambda: placed(built, found, finder, log))


@dataclass(frozen=True, slots=True)
class _Inside:
    """The tensors that leave the grids which calibration chose, and the errors of so many of the tensors on grids."""

    clipped: Sequence[clipping.Clipped] = ()
    errors: tuple[LayerError, ...] = ()
    compared: int = 0
    layers: int = 0

    @property
    def is_sample(self) -> bool:
        return self.compared < self.layers


def _look_inside(prepared: PreparedModel, quantized: WatchedModel, most_rows: int, log: Log) -> _Inside:
    """Compare the tensors on grids with their grids, and with those of the float model, on the first rows."""
    grids = clipping.watched(prepared.model)
    if not grids:
        return _Inside()
    every = -(-len(grids) // MOST_COMPARED)
    errors = [layer_errors.GridErrors(grid) for grid in list(grids.values())[::every]]
    if every > 1:
        shown = f"{len(errors)} of {len(grids)}, one in {every}"
        log.events.note(f"{shown}, layers are compared one by one with the float model: all of them would take long")
    rows = list(islice(prepared.inputs.test, most_rows))
    with log.events.stage("compare the layers", len(rows)) as advance:
        right = _right_tensors(prepared, quantized, list(grids.values()), errors, rows, log)
        compared = layer_errors.compared(errors, right, quantized.inside(rows))
        found = clipping.clipped(grids, _told(compared, advance))
    spreads = {} if prepared.twin is None else prepared.twin.spreads
    return _Inside(found, layer_errors.records(errors, prepared.model, spreads), len(errors), len(grids))


def _right_tensors(
    prepared: PreparedModel,
    quantized: WatchedModel,
    grids: Sequence[ActivationGrid],
    errors: Sequence[layer_errors.GridErrors],
    rows: Sequence[data.Feeds],
    log: Log,
) -> Iterator[Outputs]:
    """The tensors of the float model for the first rows; the layers of the quantized one are compared with them."""
    if prepared.twin is None:
        return
    twin = prepared.twin.model
    tensors = query.values(twin).keys()
    only = None if len(errors) == len(grids) else {one.grid.quantize for one in errors}
    apart = layers_apart(prepared.model, tensors & {grid.base for grid in grids}, only)
    compared = (one.grid.float_name for one in errors if one.grid.float_name in tensors)
    names = list(dict.fromkeys([*apart.feeds.values(), *compared]))
    first, taken = rows[: layer_errors.ROWS], deque[Outputs]()
    read = {value.name for value in apart.model.graph.inputs}
    rights: Iterable[Outputs] = execution.inside(twin, names, first)
    if ort_cpu.is_large(twin):
        # Its session holds a copy of the weights: it is gone before another one is there.
        quantized.close()
        rights = [{name: value.copy() for name, value in right.items()} for right in rights]

    def feeds() -> Iterator[Outputs]:
        for row, right in zip(first, rights, strict=True):
            taken.append(right)
            given = {name: array for name, array in row.items() if name in read}
            yield {**given, **{name: right[tensor] for name, tensor in apart.feeds.items()}}

    try:
        for alone in execution.stream(apart.model, feeds(), together=True):
            right = taken.popleft()
            layer_errors.compare_apart(errors, right, {name: alone[result] for name, result in apart.results.items()})
            yield right
    except ModelError as error:
        if error.code != ort_cpu.REFUSED:
            raise
        # Branches that nothing computes in are beyond ONNX Runtime, though the whole model is not.
        log.events.note(f"the layers are not compared one by one: {error}")


def _told(parts: Iterable[tuple[int, Outputs]], advance: Callable[[], None]) -> Iterator[Outputs]:
    """The parts of rows; for each row that begins, one is counted."""
    begun: set[int] = set()
    for number, values in parts:
        yield values
        if number not in begun:
            begun.add(number)
            advance()


def _warn_of_clipped(clipped: Sequence[clipping.Clipped], log: Log, *, shows: bool) -> None:
    """Warn where held-back rows leave the grids that calibration chose, and say so if the outputs do not show it."""
    if clipped:
        more = f" (and {count(len(clipped) - 1, 'more tensor')})" if len(clipped) > 1 else ""
        end = "" if shows else "; the outputs do not show it, as with scores that a mask covers"
        log.warn(f"held-back samples lie far outside the calibration data: {clipped[0]}{more}{end}")


def clipping_doubts(
    prepared: PreparedModel, quantized: WatchedModel, clipped: Sequence[clipping.Clipped]
) -> tuple[str, ...]:
    """Doubt the data if the outputs change much with what is cut off; masked scores, for one, may be cut off freely."""
    if not clipped:
        return ()
    rows = list(islice(prepared.inputs.test, VALIDATION_ROWS))
    known = list(quantized.stream(rows, together=True))
    with left_unrounded(prepared.model, {one.tensor for one in clipped}):
        free = execution.stream(prepared.model, rows, together=True)
        changed = compare("quantized", execution.PLAIN, free, known)
    limit = prepared.config.verdict.suspect_below_db
    if all(row.equal is not None or row.sqnr_db is None or row.sqnr_db >= limit for row in changed):
        return ()
    return (f"held-back samples do not fit the calibration data: {clipped[0]}",)
