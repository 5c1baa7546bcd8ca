"""The order of the stages, and nothing else: prepare (`preparation`) → rewrite → validate → compile → verify."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from intact import data, environment
from intact.backends import compiling
from intact.backends.installed import versions
from intact.errors import IntactError, ModelError, NotAvailable, ToolchainError
from intact.events import Events, Log, Silence
from intact.linting import linter
from intact.matching import rewriter
from intact.matching.rewriter import Rewritten, Rule
from intact.model import io, normalize, shapes
from intact.pipeline import acceptance, analysis, execution, preparation, presets, verdict
from intact.pipeline.preparation import PreparedModel
from intact.quantization import boundary, float16
from intact.reports import html, manifest, publish
from intact.results import Accuracy, Build, Form, Gate, TaskAccuracy, Verdict
from intact.rules.proof import exactness
from intact.rules.quantized import families, zero_point_notes
from intact.runtime import loads
from intact.settings.config import BuildConfig, CompileConfig
from intact.targets.spec import Target
from intact.targets.validate import Violations, left_to_cpu, validate
from intact.verification import clipped as clipping
from intact.verification.compare import Runner, measure

Outputs = Mapping[str, np.ndarray]
# Names the first node at which a device leaves the CPU on some rows, in a sentence; None where it finds none.
Finder = Callable[[ir.Model, Sequence[Outputs], Target, CompileConfig], str | None]

PRODUCER = "intact"

VALIDATION_ROWS = 8


@dataclass(frozen=True, slots=True)
class Verified:
    """What running every form showed; the first rows of `task` are the original's.

    `unrun` says why the deployed form did not run, `parted` where it leaves the quantized one.
    """

    accuracy: tuple[Accuracy, ...] = ()
    task: tuple[TaskAccuracy, ...] = ()
    latency: Gate | None = None
    unrun: str | None = None
    parted: str | None = None
    doubts: tuple[str, ...] = ()


def build(
    path: Path,
    config: BuildConfig,
    output: Path,
    *,
    overwrite: bool = False,
    verify: bool = True,
    events: Events | None = None,
    finder: Finder | None = None,
) -> Build:
    """Everything, from a model file to a folder with the deployable model, its manifest and its report.

    The folder appears whole or not at all. A gate that fails does not raise: see `Build.passed`. Of a model
    that intact exported, the float form goes to the folder too. Where the deployed form is much worse than the
    quantized one, `finder` names the place.
    """
    check(config, output, overwrite=overwrite)
    log = Log(events or Silence())
    prepared = preparation.prepare_logged(path, config, log)
    return build_prepared(prepared, output, log, overwrite=overwrite, verify=verify, finder=finder)


def check(config: BuildConfig, output: Path, *, overwrite: bool) -> None:
    """Refuse, before any work, what cannot be built: its place, its gates, and what is not installed or not there."""
    publish.check_folder(output, overwrite=overwrite)
    target = presets.available(config)
    acceptance.check_settings(config, target)
    versions(target.backend)
    compiling.check(target.backend, config.compile.ep_options)


def build_prepared(
    prepared: PreparedModel,
    output: Path,
    log: Log,
    *,
    overwrite: bool = False,
    verify: bool = True,
    finder: Finder | None = None,
) -> Build:
    """What `build` does with a model that is quantized already: rewrite, compile, verify, and write the folder."""
    environment = versions(prepared.target.backend)
    if compiling.is_compiled(prepared.source.model):
        return _adopt(prepared, output, environment, log)
    with log.stage("rewrite") as (_, details):
        repaired = _repair(prepared, log)
        rules = families.rules_for(prepared.target)
        rewritten = rewriter.apply(repaired.model.clone(), rules)
        rows = validation_rows(prepared.inputs)
        details.update(check_rewriting(repaired.model, rewritten, rules, rows, prepared.target))
        details["requantized_weights"] = tell_zero_points(rewritten, prepared.target, log)
        rewritten = replace(rewritten, applications=repaired.applications + rewritten.applications)
        details["rewrites"] = len(rewritten.applications)
    with publish.staged(output, overwrite=overwrite) as folder:
        kinds = {}
        if prepared.source.origin is not None:
            for file in io.save(io.load(prepared.source.path), folder / "model.float.onnx"):
                kinds[file.name] = "float model, as exported"
        if prepared.is_portable:
            for file in io.save(stamped(prepared.model), folder / "model.qdq.onnx"):
                kinds[file.name] = "portable quantized model"
        deployed = _deployable(prepared, rewritten.model, log)
        on_cpu = _check_target(prepared, deployed.model, log)
        compiled = _compile(prepared, deployed, on_cpu, folder, log)
        kinds |= _kinds(compiled)
        _check_loads(prepared, compiled, folder, verify=verify)
        if verify:
            found = _verify(prepared, rewritten, deployed, compiled, log)
            found = replace(found, parted=_parted(prepared, rewritten, found.accuracy, finder, log))
        else:
            found = _unverified(prepared, "compile does not verify; see intact verify", log)
        return _finish(prepared, rewritten, deployed, compiled, found, kinds, environment, folder, log)


def _adopt(prepared: PreparedModel, output: Path, environment: Mapping[str, str], log: Log) -> Build:
    """A model that a vendor has compiled already: there is nothing to do but to put it in its place."""
    for name in ("rewrite", "compile"):
        log.skip(name, "the model is compiled already")
    found = _unverified(prepared, "the model is compiled already", log)
    deployed = boundary.IntegerIO(prepared.model, {}, {})
    with publish.staged(output) as folder:
        compiled = compiling.adopt(prepared.source.path, prepared.source.model, folder)
        _load_adopted(prepared, compiled)
        kinds = _kinds(compiled)
        rewritten = Rewritten(prepared.model)
        return _finish(prepared, rewritten, deployed, compiled, found, kinds, environment, folder, log)


def _load_adopted(prepared: PreparedModel, compiled: compiling.Compiled) -> None:
    """Refuse a compiled model that its device does not load: what is in its binary is not known otherwise."""
    try:
        compiling.load(compiled.path, execution.device_of(prepared.target, prepared.config.compile))
    except NotAvailable:
        raise
    except (ToolchainError, ModelError) as error:
        found = f"{prepared.source.path}: {prepared.target.name} does not load it: {error.message}"
        raise ModelError(
            "M163", found, fix="give the --device that it was compiled for, or compile it again"
        ) from error


def _kinds(compiled: compiling.Compiled) -> dict[str, str]:
    """What each file of a compiled model is."""
    kinds = {file.name: "binary of the model" for file in compiled.files}
    kinds |= {file.name: manifest.MADE_FROM for file in compiled.made_from}
    return kinds | {compiled.path.name: manifest.DEPLOYABLE}


def tell_zero_points(rewritten: Rewritten, target: Target, log: Log) -> list[dict[str, Any]]:
    """Say what became of zero points that differ by channel; return the layers whose weight moved for it."""
    for note in zero_point_notes.notes(rewritten, target):
        log.events.note(note)
    log.warn(*zero_point_notes.warnings(rewritten, target))
    return zero_point_notes.requantized(rewritten.model)


def validation_rows(inputs: data.CalibrationAndTest) -> Sequence[Outputs]:
    """The rows that rewriting is held to its claims on."""
    return (list(inputs.test) or list(inputs.calibration))[:VALIDATION_ROWS]


def check_rewriting(
    before: ir.Model, rewritten: Rewritten, rules: Sequence[Rule], rows: Sequence[Outputs], target: Target
) -> dict[str, Any]:
    """What running the model before and after rewriting showed; a rule that breaks its claim stops the build."""
    found = exactness.validate(before, rewritten, rules, rows)
    return {
        "validation_samples": found.samples,
        "validated_rewrites": found.checked,
        "rewriting_identical": found.identical,
        "rewriting_sqnr_db": found.sqnr_db,
        "steps_moved": {rule: steps for rule, steps in found.moved.items() if steps > 0},
        "kernels_saturate": target.rewrite.saturates,
    }


def _repair(prepared: PreparedModel, log: Log) -> Rewritten:
    """A model that came quantized, without what ONNX Runtime would compute wrongly; others as they are."""
    if prepared.source.quantized is None:
        return Rewritten(prepared.model)
    found = [
        finding for finding in linter.findings(prepared.model) if finding.severity.at_least(linter.Severity.WARNING)
    ]
    for code in dict.fromkeys(finding.code for finding in found):
        same = [finding for finding in found if finding.code == code]
        log.warn(f"{same[0]}" + (f" (and {len(same) - 1} more; see intact lint)" if len(same) > 1 else ""))
    # The repairs are for the fusions of ONNX Runtime; an NPU's compiler wants the integers as they are.
    return linter.fix(prepared.model) if prepared.target.ort_fuses else Rewritten(prepared.model)


def stamped(model: ir.Model) -> ir.Model:
    """A copy of `model` that says who wrote it."""
    result = model.clone()
    result.producer_name, result.producer_version = PRODUCER, environment.versions()["intact"]
    return result


def _deployable(prepared: PreparedModel, model: ir.Model, log: Log) -> boundary.IntegerIO:
    if prepared.config.compile.io == "float":
        return boundary.IntegerIO(model, {}, {})
    deployed = boundary.integer_io(model)
    floats = [port["name"] for port in deployed.ports() if port["dtype"] == "float"]
    if floats:
        log.warn(f"--io quantized: {', '.join(floats)} stay float, because no quantization stands there alone")
    return deployed


def _check_target(prepared: PreparedModel, model: ir.Model, log: Log) -> dict[str, str]:
    """The nodes that the NPU does not take, with the reasons; strict settings refuse them instead."""
    target = prepared.target
    if not target.npu:
        log.skip("validate", f"{target.name} has no NPU that could refuse a node")
        return {}
    described = model.clone()
    normalize.name_nodes(described)
    shapes.infer_shapes(described)
    with log.stage("analyze") as (_, details):
        found = analysis.analyze(described, target)
        details.update({key: found[key] for key in ("compute_nodes", "npu_percent", "partitions", "float_nodes")})
    with log.stage("validate") as (_, details):
        unheld = float16.violations(described, prepared.kept, target)
        if unheld and prepared.config.strict:
            raise Violations(unheld, target)
        violations = (*validate(described, target, strict=prepared.config.strict), *unheld)
        details["violations"] = [asdict(violation) for violation in violations]
        off = left_to_cpu(described, target, violations)
    log.warn(*(f"{violation}" for violation in violations))
    return off


def _compile(
    prepared: PreparedModel, deployed: boundary.IntegerIO, on_cpu: Mapping[str, str], folder: Path, log: Log
) -> compiling.Compiled:
    device = execution.device_of(prepared.target, prepared.config.compile)
    with log.stage("compile") as (_, details):
        compiled = compiling.compile(stamped(deployed.model), device, folder, on_cpu=on_cpu)
        details["runtime"] = compiled.runtime
    log.warn(*compiled.warnings)
    return compiled


def _check_loads(prepared: PreparedModel, compiled: compiling.Compiled, folder: Path, *, verify: bool) -> None:
    """Refuse what was written unless ONNX Runtime, or the device where nothing runs on it afterwards, loads it."""
    if prepared.is_portable:
        loads.check(folder / "model.qdq.onnx")
    if not verify and compiled.runs and not compiled.loaded:
        compiling.load(compiled.path, execution.device_of(prepared.target, prepared.config.compile))


def _verify(
    prepared: PreparedModel,
    rewritten: Rewritten,
    deployed: boundary.IntegerIO,
    compiled: compiling.Compiled,
    log: Log,
) -> Verified:
    """Every form against the model as it was given, on inputs that calibration has not seen."""
    rows = prepared.inputs.test
    plain, config = execution.PLAIN, prepared.config
    with log.stage("verify") as (_, details):
        details["samples"] = len(rows)
        forms: list[tuple[Form, ir.Model]] = []
        if prepared.is_quantized:
            forms.append(("quantized", prepared.model))
        if rewritten.applications or not (compiled.runs or forms):
            forms.append(("rewritten", rewritten.model))
        runners = [Runner(form, plain, partial(execution.stream, model)) for form, model in forms]
        if compiled.runs:
            runners.append(_runner(prepared, deployed, compiled))
        original = Runner("original", plain, partial(execution.stream, prepared.source.path))
        first, others = measure(rows, original, runners, prepared.labels)
        clipped = _tell_clipping(prepared, log) if prepared.calibrated else []
        details["clipped"] = [asdict(one) for one in clipped]
    task = first.task + tuple(row for found in others for row in found.task)
    latency = None
    if config.max_latency_ratio is not None:
        with log.stage("perf") as (_, details):
            latency = acceptance.latency_gate(prepared.source.path, compiled.path, rows, config)
            details["ratio"] = latency.value if latency is not None else None
    accuracy = tuple(row for found in others for row in found.accuracy)
    unrun = None if compiled.runs else f"{prepared.target.name} is not on this machine"
    doubts = tuple(f"held-back samples do not fit the calibration data: {one}" for one in clipped[:1])
    return Verified(accuracy, task, latency, unrun, doubts=doubts)


def _parted(
    prepared: PreparedModel, rewritten: Rewritten, accuracy: Sequence[Accuracy], finder: Finder | None, log: Log
) -> str | None:
    """Name the place where the compiled form leaves the quantized one, if it lost much and somebody can find it."""
    lost = [row for row in verdict.losses(accuracy, prepared.config.verdict) if row.form == "compiled"]
    if not lost or finder is None:
        return None
    with log.stage("debug") as (_, details):
        try:
            found = finder(rewritten.model, validation_rows(prepared.inputs), prepared.target, prepared.config.compile)
        except IntactError as error:
            found = None
            log.warn(f"the place where the compiled form goes wrong could not be found: {error}")
        details["parted"] = found
    return found


def _tell_clipping(prepared: PreparedModel, log: Log) -> list[clipping.Clipped]:
    """Warn where held-back rows leave the grids that calibration chose: other figures show only that they are bad."""
    grids = clipping.watched(prepared.model)
    rows = islice(prepared.inputs.test, VALIDATION_ROWS)
    found = clipping.clipped(grids, execution.inside(prepared.model, list(grids), rows)) if grids else []
    if found:
        more = f" (and {len(found) - 1} more tensors)" if len(found) > 1 else ""
        log.warn(f"held-back samples lie far outside the calibration data: {found[0]}{more}")
    return found


def _runner(prepared: PreparedModel, deployed: boundary.IntegerIO, compiled: compiling.Compiled) -> Runner:
    def outputs(rows: Iterable[data.Feeds]) -> Iterator[Outputs]:
        feeds = map(deployed.quantize, rows)
        found = execution.stream_compiled(compiled.path, feeds, prepared.target, prepared.config.compile)
        return map(deployed.dequantize, found)

    return Runner("compiled", compiled.runtime, outputs)


def _unverified(prepared: PreparedModel, reason: str, log: Log) -> Verified:
    """Nothing, and said so: each gate that would have needed it is named."""
    log.skip("verify", reason)
    log.warn(*(f"{name} is not checked: {reason}" for name in acceptance.unchecked(prepared.config)))
    return Verified(unrun=reason)


def _judge(prepared: PreparedModel, found: Verified, gates: Sequence[Gate]) -> Verdict:
    checked = {gate.name for gate in gates}
    unchecked = [name for name in acceptance.GATES if getattr(prepared.config, name) is not None]
    evidence = verdict.Evidence(
        found.accuracy,
        gates,
        [name for name in unchecked if name not in checked],
        found.unrun,
        (*prepared.inputs.doubts, *found.doubts),
        found.parted,
    )
    return verdict.judge(evidence, prepared.config.verdict)


def _finish(
    prepared: PreparedModel,
    rewritten: Rewritten,
    deployed: boundary.IntegerIO,
    compiled: compiling.Compiled,
    found: Verified,
    kinds: dict[str, str],
    environment: Mapping[str, str],
    folder: Path,
    log: Log,
) -> Build:
    config, calibration, exported = prepared.config, prepared.inputs.calibration, prepared.source.origin
    kind = calibration.kind if prepared.calibrated else "none"
    checked = acceptance.check(config, found.accuracy, found.task, compiled.placement, calibration=kind)
    gates = checked if found.latency is None else (*checked, found.latency)
    judged = _judge(prepared, found, gates)
    result = Build(
        source_path=str(prepared.source.path) if exported is None else exported.name,
        source_sha256=prepared.source.sha256,
        source_opset=prepared.source.opset,
        config=config.to_dict(),
        environment=environment,
        calibration_kind=kind,
        calibration_samples=len(calibration) if prepared.calibrated else 0,
        calibration_sha256=calibration.sha256 if prepared.calibrated else None,
        stages=tuple(log.stages),
        rewrites=prepared.optimized.applications + rewritten.applications,
        placement=compiled.placement,
        io=deployed.ports(),
        accuracy=found.accuracy,
        task_accuracy=found.task,
        gates=gates,
        artifacts=publish.artifacts(folder, kinds),
        warnings=tuple(log.warnings),
        origin=exported,
        verdict=judged.word,
        verdict_reasons=judged.reasons,
    )
    write_down(result, folder)
    return result


def write_down(built: Build, folder: Path) -> None:
    """Write the manifest and the report of a build into its folder."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    values = manifest.to_manifest(built, created, built.environment["intact"])
    manifest.write(values, folder)
    html.write(values, folder)
