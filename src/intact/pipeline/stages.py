"""The order of the stages, each a function from a value to a value; this file alone knows which follows which.

    stage      function                     hands on
    load       preparation.begin            PreparedModel, with settings, target and inputs
    optimize   preparation.optimize         PreparedModel, in friendlier operators
    quantize   preparation.quantize         PreparedModel, with Q/DQ nodes
    rewrite    deployment.rewrite_once      RewrittenModel, in the form that the target takes
    validate   deployment.validate_once     ValidatedModel, with the nodes that stay on the CPU
    compile    deployment.compile_once      CompiledModel, with the files that a device loads
    verify     verifying.verify_once        Verified, with the error of every form
               recording.finish             Build, with its verdict, manifest and report

`prepare` runs the first three, `deploy` the last three. A compiled form that lost much is deployed once more in a form
that somebody knows to be better (`mending.deploy_best`). What follows `prepare` is imported by the functions that run
it: `quantize` does without, and starts in half the time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from intact.backends import compiling
from intact.backends.installed import versions
from intact.events import Events, Log, Silence
from intact.model.garbage_pause import collected_by_stage, tidy
from intact.pipeline import checkpoints, input_files, memory, preparation, presets
from intact.pipeline.preparation import PreparedModel
from intact.records import dataclass
from intact.reports import publish
from intact.results import Build
from intact.settings import contradictions
from intact.settings.config import BuildConfig

if TYPE_CHECKING:
    from intact.pipeline.deployment import CompiledModel, RewrittenModel
    from intact.pipeline.mending import Mender, Recaller
    from intact.pipeline.verifying import Finder, Verified


class Spender(Protocol):
    """Completes the settings of an optimized model by nodes that stay in float."""

    def __call__(self, optimized: PreparedModel, log: Log) -> PreparedModel: ...


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Options of one call of a build, which are no settings.

    Where the deployed form is much worse than the quantized one, `mender` looks for a better one, and `finder` names
    the place. Before that, `recaller` gives a form that is known to be right: from the table, or from earlier builds.
    Before a model is quantized, `spender` says which nodes need not be, because the device has the time for it.
    """

    overwrite: bool = False
    verify: bool = True
    finder: Finder | None = None
    mender: Mender | None = None
    recaller: Recaller | None = None
    spender: Spender | None = None
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
        return complete(prepare(path, config, log, kept, options.spender), output, options, log)


def prepare(
    path: Path,
    asked: BuildConfig,
    log: Log,
    kept: checkpoints.Checkpoints | None = None,
    spender: Spender | None = None,
) -> PreparedModel:
    """Load, optimize and quantize: the stages that `quantize`, `compile` and `build` have in common.

    What is `kept` of a model, data and settings that are still the same is not done again.
    """
    contradictions.refuse_auto(asked)
    begun, upgrade = preparation.begin(path, asked, log)
    begun = replace(begun, checkpoints=kept or checkpoints.Checkpoints())
    begun.checkpoints.under(partial(preparation.key_of, begun))
    with memory.kept_within(begun.config):
        try:
            upgrade.make_way()
            optimized = preparation.optimize(begun, log)
            tidy(optimized.model)
            optimized = optimized if spender is None else spender(optimized, log)
            result = preparation.quantize(optimized, log)
            tidy(result.model)
            return result
        finally:
            upgrade.confirm(log)


def complete(quantized: PreparedModel, output: Path, options: BuildOptions, log: Log) -> Build:
    """Rewrite a quantized model, deploy it in its best form, and write the folder."""
    with memory.kept_within(quantized.config):
        return _complete(quantized, output, options, log)


def _complete(quantized: PreparedModel, output: Path, options: BuildOptions, log: Log) -> Build:
    if compiling.is_compiled(quantized.source.model):
        return _adopt(quantized, output, options, log)
    from intact.pipeline import deployment, mending, recording, verifying

    rewritten = deployment.rewrite_once(quantized, log)
    tidy(rewritten.rewritten.model)
    with publish.staged(output, overwrite=options.overwrite, tell=log.events.note) as folder:
        portable = recording.save_portable(quantized, folder)
        try_form = partial(deploy, folder=folder, options=options, log=log)
        compiled, verified = mending.deploy_best(rewritten, try_form, options.mender, options.recaller, log)
        placed = verifying.placed_once(compiled, verified, options.finder, log)
        return recording.finish(compiled, placed, portable, folder, log)


def deploy(rewritten: RewrittenModel, folder: Path, options: BuildOptions, log: Log) -> tuple[CompiledModel, Verified]:
    """Validate, compile and verify one form of a model."""
    from intact.pipeline import deployment, verifying

    validated = deployment.validate_once(rewritten, log)
    compiled = deployment.compile_once(validated, folder, log)
    deployment.check_loads(compiled, folder, log, runs_later=options.verify)
    tidy(rewritten.rewritten.model)
    if not options.verify:
        why = "compile does not verify; see intact verify"
        return compiled, verifying.unverified(rewritten.prepared, why, log)
    return compiled, verifying.verify_once(compiled, log)


def check(path: Path, config: BuildConfig, output: Path, *, overwrite: bool) -> None:
    """Refuse, before any work, what cannot be built: its place, its gates, and what is not installed or not there."""
    from intact.pipeline import acceptance

    publish.check_folder(output, overwrite=overwrite)
    input_files.protect(output, config, path)
    target = presets.available(config)
    acceptance.check_settings(config, target)
    versions(target.backend, config.compile.toolchain)
    compiling.check(target.backend, config.compile.ep_options)


def _adopt(given: PreparedModel, output: Path, options: BuildOptions, log: Log) -> Build:
    """Copy a model that a vendor has compiled already into the output folder, if its device loads it."""
    from intact.pipeline import deployment, recording, verifying

    why = "the model is compiled already"
    for name in ("rewrite", "compile"):
        log.skip(name, why)
    verified = verifying.unverified(given, why, log)
    with publish.staged(output, overwrite=options.overwrite, tell=log.events.note) as folder:
        adopted = deployment.adopt(given, folder)
        return recording.finish(adopted, verified, {}, folder, log)
