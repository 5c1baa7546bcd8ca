"""Another form for a model whose compiled form is much worse than the quantized one, if somebody knows a better."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from intact.errors import IntactError
from intact.events import Log
from intact.model import io
from intact.pipeline import deployment
from intact.pipeline.deployment import CompiledModel, Outputs, RewrittenModel
from intact.pipeline.preparation import KEPT
from intact.pipeline.verifying import Verified
from intact.records import dataclass
from intact.results import Accuracy
from intact.settings.config import CompileConfig
from intact.targets.spec import Target

# A compiled form that keeps this much, or loses no more than that, is as right as a device with rounding of its own is.
ENOUGH_DB, ALLOWED_LOSS_DB = 33.0, 3.0
# Forms are looked for on a few rows, and judged on others.
MARGIN_DB = 3.0


@dataclass(frozen=True, slots=True)
class TakenForm:
    """A place that got another form: the tensor there, the remedy by its name, and the figures of both forms.

    The old one was wrong `alone`, or only with what is before it.
    """

    tensor: str
    remedy: str
    wrong_db: float | None
    right_db: float | None
    alone: bool


@dataclass(frozen=True, slots=True)
class Unmended:
    """Nodes that a device computes wrongly in every form that was tried, and that in words."""

    nodes: tuple[str, ...]
    told: str


@dataclass(frozen=True, slots=True)
class Mended:
    """A model in a form that its device computes better, and what was done, a sentence for each place.

    `unmended` are places that are wrong in this form too.
    """

    model: ir.Model
    done: tuple[str, ...]
    taken: tuple[TakenForm, ...] = ()
    unmended: tuple[Unmended, ...] = ()


# Gives a rewritten model the form that is known to be right on a device; None where nothing is known about it.
Recaller = Callable[[ir.Model, Sequence[Outputs], Target, CompileConfig], Mended | None]
# Looks for a form that a device computes rightly, on some rows, or at least so that it keeps so many dB of what the CPU
# computes; None where it finds none.
Mender = Callable[[ir.Model, Sequence[Outputs], Target, CompileConfig, float], Mended | None]
_Packed = tuple[tuple[str, ...], tuple[Unmended, ...]]
# Validates, compiles and verifies one form of a model.
Deploy = Callable[[RewrittenModel], tuple[CompiledModel, Verified]]


def shortfall(accuracy: Sequence[Accuracy]) -> float:
    """The dB that the compiled form misses of what it should keep, at its worst output; 0 where it misses nothing."""
    return max(shortfalls(accuracy), default=0.0)


def shortfalls(accuracy: Sequence[Accuracy]) -> list[float]:
    """The dB that each output of the compiled form misses, the worst first, and nothing for one that misses nothing."""
    quantized = {row.output: row for row in accuracy if row.form == "quantized"}
    missed = [
        min(_db(quantized[row.output].sqnr_db) - ALLOWED_LOSS_DB, ENOUGH_DB) - _kept(row, quantized[row.output])
        for row in accuracy
        if row.form == "compiled" and row.output in quantized and row.equal is None and not row.silent
    ]
    return sorted((lost for lost in missed if lost > 0), reverse=True)


def _kept(compiled: Accuracy, quantized: Accuracy) -> float:
    """The dB that count: none where all values became one, though values far from zero leave many on paper."""
    return 0.0 if compiled.constant and not quantized.constant else _db(compiled.sqnr_db)


def goal(accuracy: Sequence[Accuracy]) -> float:
    """The dB that a device has to keep of the quantized form, at each output, for the compiled one to miss nothing.

    The noise of both adds up: where the quantized form keeps 30 dB, the device may add as much noise again.
    """
    wanted = [0.0]
    for row in (row for row in accuracy if row.form == "quantized" and row.equal is None and not row.silent):
        kept = _db(row.sqnr_db)
        allowed = 10 ** (-min(kept - ALLOWED_LOSS_DB, ENOUGH_DB) / 10)
        wanted.append(-10 * math.log10(allowed - 10 ** (-kept / 10)) + MARGIN_DB)
    return max(wanted)


def shortcoming(accuracy: Sequence[Accuracy]) -> tuple[str, ...]:
    """A sentence about what the compiled form misses; none where it misses nothing."""
    missed = shortfall(accuracy)
    if not missed:
        return ()
    kept = f"{ALLOWED_LOSS_DB:g} dB less than the quantized one, or {ENOUGH_DB:g} dB"
    return (f"the compiled form misses {missed:.1f} dB of what a device can keep ({kept})",)


@dataclass(frozen=True, slots=True)
class MendedBuild:
    """A build with its model in a form that its device computes better, what was done, and what is wrong in it too."""

    form: RewrittenModel
    done: tuple[str, ...]
    unmended: tuple[Unmended, ...] = ()


def recall(rewritten: RewrittenModel, recaller: Recaller, log: Log) -> MendedBuild | None:
    """The form that earlier builds found for what is in a model; None where they learnt nothing about it."""
    prepared = rewritten.prepared
    rows = deployment.validation_rows(prepared.inputs)
    found = recaller(rewritten.rewritten.model, rows, prepared.target, prepared.config.compile)
    return None if found is None else MendedBuild(deployment.in_other_form(rewritten, found.model, log), found.done)


def mend(built: CompiledModel, mender: Mender, goal_db: float, log: Log) -> MendedBuild | None:
    """Ask for another form of a model that was compiled, of which a device keeps so much; None where there is none."""
    prepared = built.prepared
    with log.stage("mend") as (_, details):
        rows = deployment.validation_rows(prepared.inputs)
        try:
            found = mender(built.before.rewritten.model, rows, prepared.target, prepared.config.compile, goal_db)
        except IntactError as error:
            found = None
            log.warn(f"a form that the device computes better could not be looked for: {error}")
        details["done"] = [] if found is None else list(found.done)
    if found is None:
        return None
    return MendedBuild(deployment.in_other_form(built.before, found.model, log), found.done, found.unmended)


def mend_once(built: CompiledModel, mender: Mender, goal_db: float, log: Log) -> MendedBuild | None:
    """`mend`, unless it has been looked for already."""

    def pack(found: MendedBuild | None, folder: Path) -> _Packed | None:
        if found is None:
            return None
        io.save(found.form.rewritten.model, folder / KEPT)
        return found.done, found.unmended

    def unpack(packed: _Packed | None, folder: Path) -> MendedBuild | None:
        if packed is None:
            return None
        return MendedBuild(deployment.in_other_form(built.before, io.load(folder / KEPT), Log()), *packed)

    return built.prepared.checkpoints.stage("mend", lambda: mend(built, mender, goal_db, log), pack, unpack)


def deploy_best(
    rewritten: RewrittenModel, deploy: Deploy, mender: Mender | None, recaller: Recaller | None, log: Log
) -> tuple[CompiledModel, Verified]:
    """Deploy a model in the form that earlier builds found, or as it is; where that loses much, in a mended one."""
    before = log.mark()
    recalled, compiled, verified = _deploy_recalled(rewritten, deploy, recaller, log)
    best, missed = recalled, shortfalls(verified.accuracy)
    wanted = goal(verified.accuracy)
    found = mend_once(compiled, mender, wanted, log) if missed and mender is not None else None
    told = log.stages[-1:]  # how another form was looked for, where it was
    for form in () if found is None else _forms(recalled, found, strict=compiled.prepared.config.strict):
        log.back_to(before)
        try:
            compiled, verified = deploy(form.form)
            now = shortfalls(verified.accuracy)
        except IntactError:
            now = missed  # the target does not take this form
        if now < missed:
            best, missed = form, now
        else:
            log.back_to(before)
            compiled, verified = deploy(best.form)
        log.stages += told
        if not missed:
            break
    log.warn(*(f"mended for {compiled.prepared.target.name}: {one}" for one in best.done))
    log.warn(*shortcoming(verified.accuracy), *(_advice(found, compiled) if found is not None and missed else ()))
    return compiled, verified


def _forms(recalled: MendedBuild, found: MendedBuild, *, strict: bool) -> Iterator[MendedBuild]:
    """The form that was found, and then that with what is wrong in it too on the CPU, where settings allow that."""
    done = (*recalled.done, *found.done)
    if found.done:
        yield replace(found, done=done)
    if found.unmended and not strict:
        on_cpu = {node: one.told for one in found.unmended for node in one.nodes}
        left = [f"{one.told}, and is computed on the CPU" for one in found.unmended]
        yield MendedBuild(replace(found.form, on_cpu=on_cpu), (*done, *left))


def _advice(found: MendedBuild, compiled: CompiledModel) -> Iterator[str]:
    if compiled.prepared.config.strict:
        yield from (f"{one.told}: --no-strict computes it on the CPU" for one in found.unmended)


def _deploy_recalled(
    rewritten: RewrittenModel, deploy: Deploy, recaller: Recaller | None, log: Log
) -> tuple[MendedBuild, CompiledModel, Verified]:
    """Deploy the form that earlier builds found, if its target takes it, or else the one that is given."""
    before = log.mark()
    found = None if recaller is None else recall(rewritten, recaller, log)
    if found is not None:
        try:
            return found, *deploy(found.form)
        except IntactError:
            log.back_to(before)  # the target does not take this form
    return MendedBuild(rewritten, ()), *deploy(rewritten)


def _db(found: float | None) -> float:
    return math.inf if found is None else found
