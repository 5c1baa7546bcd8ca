"""`intact.verify`: models on the same inputs, how far apart their outputs are, and a verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Unpack

from intact.api.given_model import refuse_alone
from intact.api.notebook_progress import watched
from intact.api.request import settled
from intact.data import examination
from intact.data.labels import load_labels
from intact.events import Events, Log, Silence
from intact.glimpse import Glimpse, Sight
from intact.pipeline import acceptance, execution, trial, verdict
from intact.pipeline.model_files import inputs_for_comparison
from intact.records import dataclass
from intact.reports import integrity
from intact.reports.integrity import Integrity
from intact.results import Accuracy, Form, Gate, TaskAccuracy, Verdict, Word, decibels_shown
from intact.settings import contradictions
from intact.settings.config import BuildConfig
from intact.settings.keywords import AnyPath, Keywords
from intact.verification.compare import measure
from intact.verification.sequences import chained
from intact.verification.tolerance import Tolerance, tolerance


@dataclass(frozen=True, slots=True)
class VerifiedModel:
    """A model file, the form it is in, where it ran, and what was found; the reference has no rows of accuracy."""

    path: str
    form: Form
    runtime: str
    accuracy: tuple[Accuracy, ...]
    task_accuracy: tuple[TaskAccuracy, ...]

    @property
    def tolerance(self) -> Tolerance:
        """The tolerances that the model would pass."""
        return tolerance(self.accuracy)


@dataclass(frozen=True, slots=True, repr=False)
class Verification(Glimpse):
    """Model files compared with a reference on the same rows, the gates that were set, and the verdict."""

    samples: int
    reference: VerifiedModel
    models: tuple[VerifiedModel, ...]
    gates: tuple[Gate, ...]
    warnings: tuple[str, ...]
    judged: Verdict = verdict.NOTHING_COMPARED

    @property
    def verdict(self) -> Word:
        """One word about the models: see `intact.pipeline.verdict`."""
        return self.judged.word

    @property
    def verdict_reasons(self) -> tuple[str, ...]:
        """The sentences that led to the verdict, the worst first."""
        return self.judged.reasons

    @property
    def accuracy(self) -> tuple[Accuracy, ...]:
        """The rows of all models, in order."""
        return tuple(row for model in self.models for row in model.accuracy)

    def sight(self) -> Sight:
        """The verdict, and what every output of every model keeps."""
        rows = tuple(
            (str(model.path), row.output, decibels_shown([row])) for model in self.models for row in model.accuracy
        )
        figures = {"samples": str(self.samples), "least SQNR": decibels_shown(self.accuracy)}
        title = f"compared with {self.reference.path}"
        return Sight(title, self.verdict, figures, ("model", "output", "SQNR"), rows, self.verdict_reasons)


def verify(
    reference: AnyPath,
    *models: AnyPath,
    config: BuildConfig | None = None,
    events: Events | None = None,
    **settings: Unpack[Keywords],
) -> Verification:
    """Compare the outputs of model files with those of a reference on held-back rows, and judge them.

    What a build deployed runs as that build ran it; other files run on the CPU as they are written.
    """
    refuse_alone(reference, models)
    with settled(config, settings) as complete:
        return _verify(Path(reference), tuple(map(Path, models)), complete, Log(watched(events) or Silence()))


def verify_manifest(manifest: AnyPath) -> Integrity:
    """Hash the files of a build again, and compare them and the versions of packages with its manifest."""
    return integrity.check(Path(manifest))


def _verify(reference: Path, candidates: tuple[Path, ...], config: BuildConfig, log: Log) -> Verification:
    contradictions.check_labels(config)
    trial.check_files(reference, *candidates)
    described = execution.described(reference)
    inputs = inputs_for_comparison(described, config, log)
    inputs = replace(inputs, symptoms=examination.examine(described, inputs.test, images=config.images))
    log.warn(*(symptom.message for symptom in inputs.symptoms))
    labels = None if config.labels is None else load_labels(config.labels, inputs.test)
    first = replace(execution.runner(reference, config.compile, in_turn=True), form="original")
    states = execution.states_of(config.states, described, inputs.test, first)
    in_turn = bool(states)
    for name, output in states.items():
        log.events.note(f"verified in sequence: {output} is fed back to {name} for {len(inputs.test)} steps")
    with log.stage("verify", len(inputs.test)) as (advance, _):
        rows_done, files = execution.Furthest(advance), (reference, *candidates)
        first, *others = (
            execution.runner(path, config.compile, in_turn=in_turn, done=rows_done.counter()) for path in files
        )
        runners = [chained(runner, states) for runner in (replace(first, form="original"), *others)]
        base, found = measure(inputs.test, execution.counted(runners[0], rows_done.counter()), runners[1:], labels)
    models = tuple(
        VerifiedModel(str(path), runner.form, runner.runtime, one.accuracy, one.task)
        for path, runner, one in zip(candidates, others, found, strict=True)
    )
    rows = tuple(row for one in found for row in one.accuracy)
    checked = acceptance.check(config, rows, base.task + tuple(row for one in found for row in one.task))
    unchecked = [name for name in acceptance.unchecked(config) if name not in {gate.name for gate in checked}]
    judged = verdict.judge(verdict.Evidence(rows, checked, unchecked, doubts=inputs.doubts), config.verdict)
    original = VerifiedModel(str(reference), first.form, first.runtime, (), base.task)
    return Verification(len(inputs.test), original, models, checked, tuple(log.warnings), judged)
