"""The order of the stages: load → optimize → quantize → rewrite → validate → compile → verify.

Each stage is a function from a value to a value; this file alone knows which follows which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from intact.backends import compiling
from intact.backends.installed import versions
from intact.errors import IntactError
from intact.events import Events, Log, Silence
from intact.model.garbage_pause import collected_by_stage, tidy
from intact.pipeline import (
    acceptance,
    checkpoints,
    deployment,
    input_files,
    memory,
    mending,
    preparation,
    presets,
    recording,
    verifying,
)
from intact.pipeline.deployment import CompiledModel, RewrittenModel
from intact.pipeline.mending import Mender
from intact.pipeline.preparation import PreparedModel
from intact.pipeline.verifying import Finder, Verified
from intact.reports import publish
from intact.results import Build
from intact.settings.config import BuildConfig


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Options of one call of a build, which are no settings.

    Where the deployed form is much worse than the quantized one, `mender` looks for a better one, and `finder` names
    the place. Before that, `recaller` gives a form that is known to be right: from the table, or from earlier builds.
    """

    overwrite: bool = False
    verify: bool = True
    finder: Finder | None = None
    mender: Mender | None = None
    recaller: Mender | None = None
    resume: bool = False
    """Keep finished stages beside the output until the build ends well, and go on from those that are there."""


def build(
    path: Path, config: BuildConfig, output: Path, options: BuildOptions | None = None, events: Events | None = None
) -> Build:
    """Take a model file to a folder with the deployable model, its manifest and its report.

    The folder appears whole or not at all. A verdict that forbids deployment does not raise: see `Build.passed`.
    """
    options = options or BuildOptions()
    check(path, config, output, overwrite=options.overwrite)
    log = Log(events or Silence())
    with collected_by_stage(), checkpoints.kept(output if options.resume else None, log) as kept:
        return complete(preparation.prepare(path, config, log, kept), output, options, log)


def complete(quantized: PreparedModel, output: Path, options: BuildOptions, log: Log) -> Build:
    """Run the stages behind quantization, and write the folder."""
    with memory.kept_within(quantized.config):
        return _complete(quantized, output, options, log)


def _complete(quantized: PreparedModel, output: Path, options: BuildOptions, log: Log) -> Build:
    if compiling.is_compiled(quantized.source.model):
        return _adopt(quantized, output, options, log)
    rewritten = deployment.rewrite_once(quantized, log)
    tidy(rewritten.rewritten.model)
    with publish.staged(output, overwrite=options.overwrite, tell=log.events.note) as folder:
        portable = recording.save_portable(quantized, folder)
        compiled, verified = _deploy(rewritten, folder, options, log)
        return recording.finish(compiled, verified, portable, folder, log)


def _deploy(rewritten: RewrittenModel, folder: Path, options: BuildOptions, log: Log) -> tuple[CompiledModel, Verified]:
    """Validate, compile and verify a model; one that the compiler gets wrong in another form, if one is better."""
    before = log.mark()
    rewritten, compiled, verified = _try_recalled(rewritten, folder, options, log)
    missed = mending.shortfall(verified.accuracy)
    found = mending.mend_once(compiled, options.mender, log) if missed and options.mender is not None else None
    if found is not None:
        told = log.stages.pop()
        log.back_to(before)
        try:
            compiled, verified = _try(found.form, folder, options, log)
            is_better = mending.shortfall(verified.accuracy) < missed
        except IntactError:
            is_better = False  # the target does not take this form
        if is_better:
            log.warn(*(f"mended for {compiled.prepared.target.name}: {done}" for done in found.done))
        else:
            log.back_to(before)
            compiled, verified = _try(rewritten, folder, options, log)
        log.stages.append(told)
    log.warn(*mending.shortcoming(verified.accuracy))
    return compiled, _once("debug", compiled, lambda: verifying.placed(compiled, verified, options.finder, log))


def _try_recalled(
    rewritten: RewrittenModel, folder: Path, options: BuildOptions, log: Log
) -> tuple[RewrittenModel, CompiledModel, Verified]:
    """Try the form that earlier builds found, if its target takes it, or else the one that is given."""
    before = log.mark()
    found = None if options.recaller is None else mending.recall(rewritten, options.recaller, log)
    if found is not None:
        try:
            compiled, verified = _try(found.form, folder, options, log)
        except IntactError:
            log.back_to(before)  # the target does not take this form
        else:
            log.warn(*(f"mended for {compiled.prepared.target.name}: {done}" for done in found.done))
            return found.form, compiled, verified
    return rewritten, *_try(rewritten, folder, options, log)


def _try(rewritten: RewrittenModel, folder: Path, options: BuildOptions, log: Log) -> tuple[CompiledModel, Verified]:
    validated = deployment.validate_once(rewritten, log)
    compiled = deployment.compile_once(validated, folder, log)
    deployment.check_loads(compiled, folder, log, runs_later=options.verify)
    tidy(rewritten.rewritten.model)
    if not options.verify:
        return compiled, _unverified(rewritten.prepared, log)
    return compiled, _once("verify", compiled, lambda: verifying.verify(compiled, log))


def _once(name: str, compiled: CompiledModel, run: Callable[[], Verified]) -> Verified:
    """Figures of a stage at the end, unless they are there already."""
    found: Verified = compiled.prepared.checkpoints.stage(name, run, lambda one, _: one, lambda one, _: one)
    return found


def check(path: Path, config: BuildConfig, output: Path, *, overwrite: bool) -> None:
    """Refuse, before any work, what cannot be built: its place, its gates, and what is not installed or not there."""
    publish.check_folder(output, overwrite=overwrite)
    input_files.protect(output, config, path)
    target = presets.available(config)
    acceptance.check_settings(config, target)
    versions(target.backend, config.compile.toolchain)
    compiling.check(target.backend, config.compile.ep_options)


def _adopt(given: PreparedModel, output: Path, options: BuildOptions, log: Log) -> Build:
    """Copy a model that a vendor has compiled already into the output folder, if its device loads it."""
    why = "the model is compiled already"
    for name in ("rewrite", "compile"):
        log.skip(name, why)
    verified = verifying.unverified(given, why, log)
    with publish.staged(output, overwrite=options.overwrite, tell=log.events.note) as folder:
        adopted = deployment.adopt(given, folder)
        return recording.finish(adopted, verified, {}, folder, log)


def _unverified(quantized: PreparedModel, log: Log) -> Verified:
    return verifying.unverified(quantized, "compile does not verify; see intact verify", log)
