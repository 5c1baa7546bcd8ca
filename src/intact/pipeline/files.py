"""What commands besides build, rewrite and convert do with files: each reads a model, runs stages, writes or tells."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import onnx_ir as ir

from intact import data
from intact.data import doctor, text
from intact.data.labels import load_labels
from intact.errors import ModelError, SettingsError
from intact.events import Events, Log, Silence
from intact.exporting import huggingface, origin
from intact.linting import linter
from intact.matching.rewriter import Rewritten
from intact.model import detect, inspection, io, normalize, shapes, upgrade
from intact.pipeline import acceptance, analysis, execution, loading, preparation, presets, verdict
from intact.pipeline.stages import PRODUCER, stamped
from intact.profiling import measure as performance
from intact.quantization import quantizing
from intact.quantization.planning import plan_file
from intact.reports import publish
from intact.results import Accuracy, Form, Gate, Origin, QuantPlan, TaskAccuracy, Verdict, Word
from intact.rules.float import constant_folding
from intact.rules.quantized import families
from intact.runtime import loads
from intact.settings.config import BuildConfig, QuantConfig, merge
from intact.targets.registry import known_backends, load_target
from intact.verification.compare import measure


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file to work on, and the settings for it."""

    path: Path
    config: BuildConfig


def export_file(
    name: str, config: BuildConfig, output: Path, *, overwrite: bool = False, events: Events | None = None
) -> dict[str, Any]:
    """Export the Hugging Face model `name` into the ONNX file `output`, and compare it with torch."""
    publish.check_file(output, overwrite=overwrite, ours=False)
    output.parent.mkdir(parents=True, exist_ok=True)
    log = Log(events or Silence())
    found = _export(name, config, output, log)
    log.warn(*origin.warnings(found))
    return {"output": str(output), **asdict(found)}


@contextmanager
def exported(name: str, config: BuildConfig, *, events: Events | None = None) -> Iterator[ModelFile]:
    """The Hugging Face model `name` as an ONNX file that is there until the block ends.

    Text is turned into inputs by its own tokenizer, and pixels are scaled as its own image processor says, unless
    the settings say otherwise.
    """
    with tempfile.TemporaryDirectory(prefix="intact-export-") as folder:
        path = Path(folder, "model.onnx")
        found = _export(name, config, path, Log(events or Silence()))
        yield ModelFile(path, _as_trained(config, found))


def _export(name: str, config: BuildConfig, output: Path, log: Log) -> Origin:
    with log.stage("export"):
        size, timeout = config.images.size, config.compile.timeout
        found = huggingface.export(name, output, config.export, image_size=size, timeout=timeout)
    distance = "identical to torch" if found.sqnr_db is None else f"{found.sqnr_db:.1f} dB from torch"
    log.events.note(f"{name} exported as {found.architecture} for {found.task}: {distance}")
    return found


def _as_trained(config: BuildConfig, found: Origin) -> BuildConfig:
    """`config` with the preparation of inputs that the model came with, under what the user set."""
    asked = config.model_dump(mode="json", exclude_unset=True)
    # The size of images is that of the exported model's input now.
    asked.get("images", {}).pop("size", None)
    quant = config.quantization
    sources = (config.test_path, None if quant is None else quant.load_path)
    paths = [Path(source) for source in sources if source is not None]
    usual: dict[str, Any] = {}
    if any(path.suffix.lower() == text.SUFFIX for path in paths):
        usual["tokenizer"] = found.name
    if any(path.is_dir() for path in paths):
        usual["images"] = dict(found.images or {})
    return BuildConfig.from_dict(merge(usual, asked))


def quantize_file(
    path: Path, config: BuildConfig, output: Path, *, overwrite: bool = False, events: Events | None = None
) -> dict[str, Any]:
    """Quantize the model at `path` into the file `output`, with the stages that `build` would use."""
    check_output(output, overwrite)
    log = Log(events or Silence())
    prepared = preparation.prepare_logged(path, config, log)
    if prepared.config.quantization is None:
        reason = prepared.source.quantized or f"--precision {prepared.config.precision} quantizes nothing"
        raise SettingsError("S114", f"{path}: nothing to do: {reason}", fix="use intact build or intact compile")
    write_model(prepared.model, output, path, log)
    stage = next(stage for stage in log.stages if stage.name == "quantize")
    return {
        "output": str(output),
        "target": prepared.target.name,
        "config": prepared.config.to_dict(),
        "warnings": log.warnings,
        **stage.details,
    }


def write_plan(
    path: Path, config: BuildConfig, output: Path, *, overwrite: bool = False, events: Events | None = None
) -> QuantPlan:
    """Write the plan for the model at `path` into the file `output`; nothing is run, no data is needed."""
    written_before = output.is_file() and output.read_bytes()[:200].startswith(plan_file.HEADER.encode()[:20])
    publish.check_file(output, overwrite=overwrite, ours=written_before)
    log = Log(events or Silence())
    source = loading.load_logged(path, config.dims, log)
    resolved = presets.resolve(config, quantized=source.quantized)
    quant = resolved.quantization
    if quant is None or not quant.has_grids:
        raise SettingsError("S114", f"{path}: nothing to plan: {source.quantized or resolved.precision}")
    target = presets.available(resolved)
    preparation.announce(resolved, target, log.events)
    planned = quantizing.plan(preparation.optimize_for(source.model, target).model, target, quant)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(plan_file.to_text(planned, target, quant), encoding="utf-8")
    return planned


@dataclass(frozen=True, slots=True)
class VerifiedModel:
    """A model file, the form it is in, where it ran, and what was found; the reference has no rows of accuracy."""

    path: str
    form: Form
    runtime: str
    accuracy: tuple[Accuracy, ...]
    task_accuracy: tuple[TaskAccuracy, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """Model files compared with a reference on the same rows, and the gates that were set."""

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
    def accuracy(self) -> tuple[Accuracy, ...]:
        """The rows of all models, in order."""
        return tuple(row for model in self.models for row in model.accuracy)


def verify_files(
    reference: Path,
    *candidates: Path,
    data_path: str | None = None,
    test_path: str | None = None,
    config: BuildConfig | None = None,
    events: Events | None = None,
) -> Verification:
    """Compare model files with a reference on held-back rows, each where `execution.runner` says that it runs."""
    config = config or BuildConfig()
    log = Log(events or Silence())
    acceptance.check_labels(config)
    described = execution.described(reference)
    inputs = _inputs(described, data_path, config, log, test_path=test_path)
    inputs = replace(inputs, symptoms=doctor.examine(described, inputs.test, images=config.images))
    log.warn(*(symptom.message for symptom in inputs.symptoms))
    labels = None if config.labels is None else load_labels(config.labels, inputs.test)
    runners = [execution.runner(path, config.compile) for path in (reference, *candidates)]
    first = replace(runners[0], form="original")
    with log.stage("verify"):
        base, found = measure(inputs.test, first, runners[1:], labels)
    models = tuple(
        VerifiedModel(str(path), runner.form, runner.runtime, one.accuracy, one.task)
        for path, runner, one in zip(candidates, runners[1:], found, strict=True)
    )
    task = base.task + tuple(row for one in found for row in one.task)
    checked = acceptance.check(config, tuple(row for one in found for row in one.accuracy), task)
    original = VerifiedModel(str(reference), runners[0].form, first.runtime, (), base.task)
    rows = tuple(row for one in found for row in one.accuracy)
    unchecked = [name for name in acceptance.unchecked(config) if name not in {gate.name for gate in checked}]
    judged = verdict.judge(verdict.Evidence(rows, checked, unchecked, doubts=inputs.doubts), config.verdict)
    return Verification(len(inputs.test), original, models, checked, tuple(log.warnings), judged)


def perf_files(
    *paths: Path,
    data_path: str | None = None,
    threads: int = 0,
    rounds: int | None = None,
    config: BuildConfig | None = None,
    events: Events | None = None,
) -> tuple[performance.Measurement, Gate | None]:
    """Time model files beside each other on the same rows, with the gate on the slowest if one is set."""
    config = config or BuildConfig()
    log = Log(events or Silence())
    plugins = execution.plugins(paths)
    for path in (path for path in paths if path not in plugins):
        performance.refuse_compiled(path)
    inputs = _inputs(execution.described(paths[0]), data_path, config, log)
    rows = list(islice(inputs.test, acceptance.ROWS_TO_TIME))
    with log.stage("perf", rounds) as (advance, _):
        found = performance.measure(paths, rows, plugins=plugins, threads=threads, rounds=rounds, advance=advance)
    most = config.max_latency_ratio
    if most is None or len(paths) == 1:
        return found, None
    slowest = max(found.models[1:], key=lambda model: model.latency.ratio_to_first)
    return found, acceptance.ratio_gate(slowest.latency.ratio_to_first, most, slowest.path)


def _inputs(
    model: ir.Model, data_path: str | None, config: BuildConfig, log: Log, *, test_path: str | None = None
) -> data.CalibrationAndTest:
    inputs = data.load(
        model,
        data_path,
        samples=QuantConfig().samples,
        test_source=test_path,
        images=config.images,
        tokenizer=config.tokenizer,
    )
    # Nothing is calibrated here: where test inputs are given, the others do not matter.
    log.warn(*(inputs.warnings if test_path is None else inputs.test.source.warnings))
    return inputs


def inspect_file(path: Path) -> dict[str, Any]:
    """What is in the model at `path`, as it is in the file."""
    model = io.load(path)
    quantized = detect.detect(model)
    return {"path": str(path), **inspection.inspect(model), "quantized": str(quantized) if quantized else None}


def analyze_file(
    path: Path,
    config: BuildConfig,
    *,
    live: bool = False,
    every_device: bool = False,
    events: Events | None = None,
) -> list[dict[str, Any]]:
    """Where the nodes of the model at `path` would run on the device of `config`, or on each that is known.

    A float model is quantized first, with the settings that a build would use.
    """
    if not every_device:
        return [_analyze(path, config, live, events)]
    return [_analyze(path, _for_device(config, name), live, events) for name in _able(config, events or Silence())]


def _able(config: BuildConfig, events: Events) -> list[str]:
    """The devices that take the precision of `config`; of the others it is said that they are left out."""
    precision = config.precision or presets.DEFAULT_PRECISION
    built = {name: load_target(name).precisions for name in known_backends() if load_target(name).precisions}
    for name in (name for name, taken in built.items() if precision not in taken):
        events.warn(f"{name} is left out: it takes {', '.join(built[name])}, not {precision}")
    return [name for name, taken in built.items() if precision in taken]


def _for_device(config: BuildConfig, device: str) -> BuildConfig:
    return config.model_copy(update={"compile": config.compile.model_copy(update={"device": device})})


def _analyze(path: Path, config: BuildConfig, live: bool, events: Events | None) -> dict[str, Any]:
    prepared = preparation.prepare(path, config, events=events)
    model = families.rewrite(prepared.model, prepared.target).model
    shapes.infer_shapes(model)
    return analysis.analyze(model, prepared.target, live=live, timeout=prepared.config.compile.timeout)


def lint_file(path: Path, output: Path | None = None, *, overwrite: bool = False) -> dict[str, Any]:
    """What is wrong with the model at `path`; with `output`, a repaired copy of it goes there."""
    if output is not None:
        publish.check_file(output, overwrite=overwrite, ours=_is_ours(output) and not output.samefile(path))
    given = io.load(path)
    model = normalize.normalize(upgrade.upgrade(given).model)
    # ONNX Runtime does so before it fuses: what is constant to it has to be constant here.
    constant_folding.fold(model)
    found = linter.findings(model, opset=given.opset_imports.get(""))
    repaired = Rewritten(model) if output is None else linter.fix(model)
    standing = {(finding.code, finding.node) for finding in linter.findings(repaired.model)}
    if output is not None:
        write_model(repaired.model, output, path, Log())
    return {
        "path": str(path),
        "output": None if output is None else str(output),
        "findings": [asdict(finding) | {"fixed": (finding.code, finding.node) not in standing} for finding in found],
        "rewrites": [asdict(application) for application in repaired.applications],
    }


def write_model(model: ir.Model, output: Path, given: Path, log: Log, *, foreign: bool = False) -> None:
    """Write a model to its place, once ONNX Runtime has loaded it in another process as an application would.

    Only a warning is due where it does not load the model that was given, either, or refuses one that is for a
    `foreign` version of it.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".intact-", dir=output.parent) as folder:
        written = io.save(stamped(model), Path(folder, output.name))
        problem = loads.problems(written[0]).get(written[0])
        if problem is not None and not foreign and not loads.problems(given):
            raise loads.refusal(output, problem)
        if problem is not None:
            log.warn(f"{output}: ONNX Runtime here does not load it: {problem}")
        for file in written:
            file.replace(output.parent / file.name)


def check_output(path: Path, overwrite: bool) -> None:
    """Refuse to write a model over a file that intact did not write."""
    publish.check_file(path, overwrite=overwrite, ours=not overwrite and _is_ours(path))


def _is_ours(path: Path) -> bool:
    """Whether a file is a model that intact wrote."""
    try:
        return path.is_file() and io.load(path).producer_name == PRODUCER
    except ModelError:
        return False
