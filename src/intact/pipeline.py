"""The order of the stages, and nothing else: load → optimize → quantize → rewrite → validate → compile → verify."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from intact import compile as compiling
from intact import data, lint, optimize, quantize, rewrite
from intact.analyze import inspection
from intact.analyze import report as analysis
from intact.config import BuildConfig, CompileConfig, QuantConfig
from intact.environment import versions
from intact.errors import ModelError, SettingsError
from intact.graph import io, normalize, shapes, upgrade
from intact.graph.rewriter import Rewritten
from intact.optimize.settle import settle_masks
from intact.quantize import boundary, detect, plan_file, presets
from intact.report import html, manifest, publish
from intact.results import Accuracy, Build, Form, Gate, Placement, QuantPlan, Stage
from intact.rewrite import exactness, reference, zero_point_notes
from intact.targets.registry import known_backends, load_target
from intact.targets.spec import Target
from intact.targets.validate import left_to_cpu, validate
from intact.vendor import cpu
from intact.verify import gates
from intact.verify.compare import compare

Outputs = Mapping[str, np.ndarray]

PRODUCER = "intact"

# The step of a Softmax output on a grid of this type: what is below half of it does not count.
SOFTMAX_STEPS = {"uint8": 2.0**-8, "int8": 2.0**-8, "uint16": 2.0**-16, "int16": 2.0**-15}

# Rounding in another order may move float32 results this little; an upgrade that changes the function moves them more.
LEAST_UPGRADE_SQNR = 60.0
UPGRADE_ROWS = 2
VALIDATION_ROWS = 8


class Events(Protocol):
    """Whoever watches a build: told about stages as they run, and about what is decided."""

    def stage(self, name: str, total: int | None = None) -> AbstractContextManager[Callable[[], None]]:
        """Called around a stage; the function it gives is called after each of `total` steps."""

    def note(self, text: str) -> None:
        """Called with a sentence for the user."""

    def warn(self, text: str) -> None:
        """Called with a sentence that the user should not miss; the manifest has it too."""


class Silence:
    """Watches and says nothing."""

    def stage(self, name: str, total: int | None = None) -> AbstractContextManager[Callable[[], None]]:
        return nullcontext(lambda: None)

    def note(self, text: str) -> None:
        return

    def warn(self, text: str) -> None:
        return


@dataclass(frozen=True, slots=True)
class Source:
    """A model as it was given, and the same function in the form that stages take."""

    path: Path
    sha256: str
    opset: int
    model: ir.Model
    quantized: detect.Quantized | None


@dataclass(slots=True)
class _Log:
    """Stages and warnings of a build so far."""

    events: Events
    stages: list[Stage] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[tuple[Callable[[], None], dict[str, Any]]]:
        """Time a stage; what is put into the dictionary goes to its record."""
        details: dict[str, Any] = {}
        start = time.perf_counter()
        with self.events.stage(name, total) as advance:
            yield advance, details
        self.stages.append(Stage(name, "ran", "", time.perf_counter() - start, details))

    def skip(self, name: str, reason: str) -> None:
        self.stages.append(Stage(name, "skipped", reason))
        self.events.note(f"{name}: skipped, {reason}")

    def warn(self, *texts: str) -> None:
        for text in texts:
            self.warnings.append(text)
            self.events.warn(text)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model after quantization (or without it), ready to be rewritten, with all that was settled on the way."""

    source: Source
    config: BuildConfig
    target: Target
    inputs: data.CalibrationAndTest
    model: ir.Model
    optimized: Rewritten
    calibrated: bool


def load(path: Path, *, dims: Mapping[str, int] | None = None, events: Events | None = None) -> Source:
    """The model at `path`, upgraded and normalised, and compared with the file as it is."""
    return _load(path, dims, _Log(events or Silence()))


def _load(path: Path, dims: Mapping[str, int] | None, log: _Log) -> Source:
    with log.stage("load") as (_, details):
        given = io.load(path)
        opset = given.opset_imports.get("", 0)
        upgraded = upgrade.upgrade(given)
        model = normalize.normalize(upgraded.model, dims=dims)
        log.warn(*upgraded.notes)
        details.update(opset_from=upgraded.from_opset, opset_to=upgraded.to_opset)
        if upgraded.from_opset != upgraded.to_opset:
            details["upgrade_sqnr_db"] = _check_upgrade(path, model)
        return Source(path, io.sha256_of(path), opset, model, detect.detect(model))


def _check_upgrade(path: Path, model: ir.Model) -> float | None:
    """The least SQNR in dB between the file as given and the upgraded model, None if they are identical."""
    rows = list(data.load(model, None, samples=UPGRADE_ROWS).calibration)
    before = _run(_session(path), rows)
    accuracy = compare("upgraded", "onnxruntime", before, _run(_session(model), rows))
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


def prepare(path: Path, config: BuildConfig, *, events: Events | None = None) -> Prepared:
    """Load, optimize and quantize: the stages that `quantize`, `compile` and `build` have in common."""
    return _prepare(path, config, _Log(events or Silence()))


def _prepare(path: Path, asked: BuildConfig, log: _Log) -> Prepared:
    presets.available(asked)
    source = _load(path, asked.dims, log)
    config = presets.resolve(asked, quantized=source.quantized)
    target = _target(config.compile)
    _announce(config, target, log.events)
    inputs = _inputs(source.model, config, log)
    with log.stage("optimize") as (_, details):
        optimized = optimize.optimize(source.model)
        details["rewrites"] = len(optimized.applications)
    quant = config.quantization
    if quant is None:
        log.skip("quantize", str(source.quantized or f"--precision {config.precision} keeps the model in float"))
        model = source.model if source.quantized is not None else optimized.model
        return Prepared(source, config, target, inputs, model, optimized, False)
    quantized = _quantize(optimized.model, target, quant, inputs, log)
    return Prepared(source, config, target, inputs, quantized, optimized, True)


def _target(config: CompileConfig) -> Target:
    vnni, ort = config.assume_vnni, config.assume_ort
    return load_target(config.device, arch=config.arch, soc=config.soc, vnni=vnni, ort=ort)


def _announce(config: BuildConfig, target: Target, events: Events) -> None:
    quant = config.quantization
    events.note(f"target {target.name}" + (f" ({target.soc.name})" if target.soc is not None else ""))
    if quant is not None:
        events.note(f"precision {config.precision}: {presets.describe(quant)}")
    events.note(f"settings: {config.line()}")


def _inputs(model: ir.Model, config: BuildConfig, log: _Log) -> data.CalibrationAndTest:
    quant = config.quantization or QuantConfig()
    path = quant.load_path if config.quantization is not None else config.test_path
    test = config.test_path if config.quantization is not None else None
    inputs = data.load(
        model,
        path,
        samples=quant.samples,
        test_source=test,
        distribution=quant.distribution,
        seed=quant.seed,
        images=config.images,
    )
    if inputs.calibration.kind == "synthetic" and config.quantization is not None:
        what = "ranges come from" if quant.encodings is None or quant.calibrate_missing else "models are compared on"
        log.warn(f"no --data: {what} synthetic inputs, so the accuracy of this build says little about real ones")
    log.warn(*inputs.warnings)
    return inputs


def _quantize(
    model: ir.Model, target: Target, config: QuantConfig, inputs: data.CalibrationAndTest, log: _Log
) -> ir.Model:
    with log.stage("quantize", len(inputs.calibration)) as (advance, details):
        settled = settle_masks(model, inputs.calibration, SOFTMAX_STEPS.get(config.activation_type, 2.0**-8))
        log.warn(*settled.warnings)
        result = quantize.quantize(
            settled.model, target, config, inputs.calibration, ranges=settled.ranges, progress=advance
        )
        details.update(
            nodes_quantized=len(result.plan.nodes),
            tensors_quantized=len(result.plan.tensors),
            calibration_time_seconds=round(result.calibration_seconds, 4),
            qdq_insertion_time_seconds=round(result.insertion_seconds, 4),
            notes=list(result.notes),
        )
    for note in result.notes:
        log.events.note(note)
    log.warn(*result.warnings)
    return result.model


def build(
    path: Path,
    config: BuildConfig,
    output: Path,
    *,
    overwrite: bool = False,
    verify: bool = True,
    events: Events | None = None,
) -> Build:
    """Everything, from a model file to a folder with the deployable model, its manifest and its report.

    The folder appears whole or not at all. A gate that fails does not raise: see `Build.passed`.
    """
    publish.check_folder(output, overwrite=overwrite)
    target = presets.available(config)
    _check_gates(config, target)
    environment = versions(target.backend)
    log = _Log(events or Silence())
    prepared = _prepare(path, config, log)
    if compiling.is_compiled(prepared.source.model):
        return _adopt(prepared, output, environment, log)
    with log.stage("rewrite") as (_, details):
        repaired = _repair(prepared, log)
        rewritten = rewrite.rewrite(repaired.model, prepared.target)
        details.update(_validate(repaired.model, rewritten, prepared.target, prepared.inputs))
        details["requantized_weights"] = _tell_zero_points(rewritten, prepared.target, log)
        rewritten = replace(rewritten, applications=repaired.applications + rewritten.applications)
        details["rewrites"] = len(rewritten.applications)
    with publish.staged(output, overwrite=overwrite) as folder:
        kinds = {}
        if prepared.calibrated or prepared.source.quantized is not None:
            for file in io.save(stamped(prepared.model), folder / "model.qdq.onnx"):
                kinds[file.name] = "portable quantized model"
        deployed = _deployable(prepared, rewritten.model, log)
        on_cpu = _check_target(prepared, deployed.model, log)
        compiled = _compile(prepared, deployed, on_cpu, folder, log)
        kinds |= {f.name: "deployable model" if f == compiled.path else "binary of the model" for f in compiled.files}
        accuracy = _verify(prepared, rewritten, deployed, compiled, log) if verify else ()
        if not verify:
            log.skip("verify", "compile does not verify; see intact verify")
            if prepared.config.min_sqnr is not None:
                log.warn("min_sqnr is not checked: compile does not verify")
        return _finish(prepared, rewritten, deployed, compiled, accuracy, kinds, environment, folder, log)


def _adopt(prepared: Prepared, output: Path, environment: Mapping[str, str], log: _Log) -> Build:
    """A model that a vendor has compiled already: there is nothing to do but to put it in its place."""
    for name in ("rewrite", "compile", "verify"):
        log.skip(name, "the model is compiled already")
    deployed = boundary.IntegerIO(prepared.model, {}, {})
    with publish.staged(output) as folder:
        compiled = compiling.adopt(prepared.source.path, prepared.source.model, folder)
        kinds = {f.name: "deployable model" if f == compiled.path else "binary of the model" for f in compiled.files}
        rewritten = Rewritten(prepared.model)
        return _finish(prepared, rewritten, deployed, compiled, (), kinds, environment, folder, log)


def _check_gates(config: BuildConfig, target: Target) -> None:
    if config.require_npu is not None and not target.npu:
        raise SettingsError("S118", f"--require-npu {config.require_npu:g}: {target.name} has no NPU")


def quantize_file(
    path: Path, config: BuildConfig, output: Path, *, overwrite: bool = False, events: Events | None = None
) -> dict[str, Any]:
    """Quantize the model at `path` into the file `output`, with the stages that `build` would use."""
    publish.check_file(output, overwrite=overwrite, ours=_is_ours(output))
    log = _Log(events or Silence())
    prepared = _prepare(path, config, log)
    if not prepared.calibrated:
        reason = prepared.source.quantized or f"--precision {prepared.config.precision} quantizes nothing"
        raise SettingsError("S114", f"{path}: nothing to do: {reason}", fix="use intact build or intact compile")
    output.parent.mkdir(parents=True, exist_ok=True)
    io.save(stamped(prepared.model), output)
    stage = next(stage for stage in log.stages if stage.name == "quantize")
    return {
        "output": str(output),
        "target": prepared.target.name,
        "config": prepared.config.to_dict(),
        "warnings": log.warnings,
        **stage.details,
    }


def rewrite_file(
    path: Path,
    config: BuildConfig,
    output: Path,
    *,
    exact: bool = False,
    explain: str | None = None,
    overwrite: bool = False,
    events: Events | None = None,
) -> dict[str, Any]:
    """Rewrite the quantized model at `path` for a target into the file `output`, and run both to compare them.

    `explain` names a node of the result: why no rule fires there is part of what is returned.
    """
    publish.check_file(output, overwrite=overwrite, ours=_is_ours(output))
    return _rewrite_to(path, config, _target(config.compile), output, exact, explain, events)


def convert_file(
    path: Path,
    form: str | None,
    config: BuildConfig,
    output: Path,
    *,
    overwrite: bool = False,
    events: Events | None = None,
) -> dict[str, Any]:
    """Convert the quantized model at `path` to the form `qdq` or `qlinear`, and run both to compare them."""
    publish.check_file(output, overwrite=overwrite, ours=_is_ours(output))
    return _rewrite_to(path, config, rewrite.conversion(form), output, False, None, events)


def _rewrite_to(
    path: Path,
    config: BuildConfig,
    target: Target,
    output: Path,
    exact: bool,
    explain: str | None,
    events: Events | None,
) -> dict[str, Any]:
    log = _Log(events or Silence())
    source = _load(path, config.dims, log)
    inputs = _inputs(source.model, config, log)
    with log.stage("rewrite"):
        rewritten = rewrite.rewrite(source.model, target, exact=exact)
        validation = _validate(source.model, rewritten, target, inputs, exact=exact)
    requantized = _tell_zero_points(rewritten, target, log)
    shapes.infer_shapes(rewritten.model)
    refusals = () if explain is None else rewrite.explain(rewritten.model, target, explain, exact=exact)
    output.parent.mkdir(parents=True, exist_ok=True)
    io.save(stamped(rewritten.model), output)
    return {
        "output": str(output),
        "target": target.name,
        "rules": rewrite.counts(rewritten.applications),
        "operators": rewrite.operators(source.model, rewritten.model),
        "validation": validation,
        "requantized_weights": requantized,
        "explain": [asdict(refusal) for refusal in refusals],
        "warnings": log.warnings,
    }


def _tell_zero_points(rewritten: Rewritten, target: Target, log: _Log) -> list[dict[str, Any]]:
    """Say what became of zero points that differ by channel; return the layers whose weight moved for it."""
    for note in zero_point_notes.notes(rewritten, target):
        log.events.note(note)
    log.warn(*zero_point_notes.warnings(rewritten, target))
    return zero_point_notes.requantized(rewritten.model)


def _validate(
    before: ir.Model, rewritten: Rewritten, target: Target, inputs: data.CalibrationAndTest, *, exact: bool = False
) -> dict[str, Any]:
    """What running the model before and after rewriting showed; a rule that breaks its claim stops the build."""
    rows = (list(inputs.test) or list(inputs.calibration))[:VALIDATION_ROWS]
    found = exactness.validate(before, rewritten, rewrite.rules_for(target, exact=exact), rows)
    return {
        "validation_samples": found.samples,
        "validated_rewrites": found.checked,
        "rewriting_identical": found.identical,
        "rewriting_sqnr_db": found.sqnr_db,
        "steps_moved": {rule: steps for rule, steps in found.moved.items() if steps > 0},
        "kernels_saturate": target.rewrite.saturates,
    }


def write_plan(
    path: Path, config: BuildConfig, output: Path, *, overwrite: bool = False, events: Events | None = None
) -> QuantPlan:
    """Write the plan for the model at `path` into the file `output`; nothing is run, no data is needed."""
    written_before = output.is_file() and output.read_bytes()[:200].startswith(plan_file.HEADER.encode()[:20])
    publish.check_file(output, overwrite=overwrite, ours=written_before)
    log = _Log(events or Silence())
    source = _load(path, config.dims, log)
    resolved = presets.resolve(config, quantized=source.quantized)
    quant = resolved.quantization
    if quant is None:
        raise SettingsError("S114", f"{path}: nothing to plan: {source.quantized or resolved.precision}")
    target = presets.available(resolved)
    _announce(resolved, target, log.events)
    planned = quantize.plan(optimize.optimize(source.model).model, target, quant)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(plan_file.to_text(planned, target, quant), encoding="utf-8")
    return planned


def verify_files(
    reference_path: Path,
    candidate: Path,
    *,
    data_path: str | None = None,
    test_path: str | None = None,
    config: BuildConfig | None = None,
    events: Events | None = None,
) -> tuple[tuple[Accuracy, ...], Gate | None]:
    """Compare two model files on held-back rows; an EPContext model runs on the vendor's simulator."""
    config = config or BuildConfig()
    log = _Log(events or Silence())
    inputs = data.load(
        io.load(reference_path), data_path, samples=QuantConfig().samples, test_source=test_path, images=config.images
    )
    if inputs.test.kind == "synthetic":
        log.warn("no --data: the models are compared on synthetic inputs")
    log.warn(*inputs.warnings)
    rows = list(inputs.test)
    with log.stage("verify"):
        expected = _run(_session(reference_path), rows)
        form, runtime, outputs = _run_file(candidate, rows, config)
        accuracy = compare(form, runtime, expected, outputs)
    return accuracy, None if config.min_sqnr is None else gates.sqnr_gate(accuracy, config.min_sqnr)


def _run_file(path: Path, rows: list[data.Feeds], config: BuildConfig) -> tuple[Form, str, Iterable[Outputs]]:
    if not any(node.op_type == "EPContext" for node in io.load(path).graph):
        return "quantized", "onnxruntime, no optimizations", _run(_session(path), rows)
    target = load_target("qnn", arch=config.compile.arch, soc=config.compile.soc)
    outputs = _run_compiled(path, rows, target, config.compile)
    return "compiled", f"simulator of {target.name}", outputs


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
    devices = [name for name in known_backends() if load_target(name).precisions] if every_device else [None]
    return [_analyze(path, config if d is None else _for_device(config, d), live, events) for d in devices]


def _for_device(config: BuildConfig, device: str) -> BuildConfig:
    return config.model_copy(update={"compile": config.compile.model_copy(update={"device": device})})


def _analyze(path: Path, config: BuildConfig, live: bool, events: Events | None) -> dict[str, Any]:
    prepared = prepare(path, config, events=events)
    model = rewrite.rewrite(prepared.model, prepared.target).model
    shapes.infer_shapes(model)
    return analysis.analyze(model, prepared.target, live=live, timeout=prepared.config.compile.timeout)


def lint_file(path: Path, output: Path | None = None, *, overwrite: bool = False) -> dict[str, Any]:
    """What is wrong with the model at `path`; with `output`, a repaired copy of it goes there."""
    if output is not None:
        publish.check_file(output, overwrite=overwrite, ours=_is_ours(output) and not output.samefile(path))
    model = normalize.normalize(upgrade.upgrade(io.load(path)).model)
    found = lint.findings(model)
    repaired = Rewritten(model) if output is None else lint.fix(model)
    standing = {(finding.code, finding.node) for finding in lint.findings(repaired.model)}
    if output is not None:
        io.save(stamped(repaired.model), output)
    return {
        "path": str(path),
        "output": None if output is None else str(output),
        "findings": [asdict(finding) | {"fixed": (finding.code, finding.node) not in standing} for finding in found],
        "rewrites": [asdict(application) for application in repaired.applications],
    }


def _repair(prepared: Prepared, log: _Log) -> Rewritten:
    """A model that came quantized, without what ONNX Runtime would compute wrongly; others as they are."""
    if prepared.source.quantized is None:
        return Rewritten(prepared.model)
    found = [finding for finding in lint.findings(prepared.model) if finding.severity.at_least(lint.Severity.WARNING)]
    for code in dict.fromkeys(finding.code for finding in found):
        same = [finding for finding in found if finding.code == code]
        log.warn(f"{same[0]}" + (f" (and {len(same) - 1} more; see intact lint)" if len(same) > 1 else ""))
    # The repairs are for the fusions of ONNX Runtime; an NPU's compiler wants the integers as they are.
    return lint.fix(prepared.model) if prepared.target.backend == "cpu" else Rewritten(prepared.model)


def _is_ours(path: Path) -> bool:
    """Whether a file is a model that intact wrote."""
    try:
        return path.is_file() and io.load(path).producer_name == PRODUCER
    except ModelError:
        return False


def stamped(model: ir.Model) -> ir.Model:
    """A copy of `model` that says who wrote it."""
    result = model.clone()
    result.producer_name, result.producer_version = PRODUCER, versions()["intact"]
    return result


def _deployable(prepared: Prepared, model: ir.Model, log: _Log) -> boundary.IntegerIO:
    if prepared.config.compile.io == "float":
        return boundary.IntegerIO(model, {}, {})
    deployed = boundary.integer_io(model)
    floats = [port["name"] for port in deployed.ports() if port["dtype"] == "float"]
    if floats:
        log.warn(f"--io quantized: {', '.join(floats)} stay float, because no quantization stands there alone")
    return deployed


def _check_target(prepared: Prepared, model: ir.Model, log: _Log) -> dict[str, str]:
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
        violations = validate(described, target, strict=prepared.config.strict)
        details["violations"] = [asdict(violation) for violation in violations]
        off = left_to_cpu(described, target, violations)
    log.warn(*(f"{violation}" for violation in violations))
    return off


def _compile(
    prepared: Prepared, deployed: boundary.IntegerIO, on_cpu: Mapping[str, str], folder: Path, log: _Log
) -> compiling.Compiled:
    config, target = prepared.config.compile, prepared.target
    with log.stage("compile") as (_, details):
        compiled = compiling.compile(
            stamped(deployed.model),
            device=target.backend,
            folder=folder,
            arch=target.arch,
            soc_id=target.soc.id if target.soc is not None else None,
            ep_options=config.ep_options,
            on_cpu=on_cpu,
            timeout=config.timeout,
        )
        details["runtime"] = compiled.runtime
    log.warn(*compiled.warnings)
    return compiled


def _verify(
    prepared: Prepared,
    rewritten: Rewritten,
    deployed: boundary.IntegerIO,
    compiled: compiling.Compiled,
    log: _Log,
) -> tuple[Accuracy, ...]:
    """Every form against the model as it was given, on inputs that calibration has not seen."""
    rows = list(prepared.inputs.test)
    accuracy: list[Accuracy] = []
    with log.stage("verify") as (_, details):
        details["samples"] = len(rows)
        given = _run(_session(prepared.source.path), rows)
        forms: list[tuple[Form, ir.Model]] = []
        if prepared.calibrated or prepared.source.quantized is not None:
            forms.append(("quantized", prepared.model))
        if rewritten.applications:
            forms.append(("rewritten", rewritten.model))
        for form, model in forms:
            accuracy += compare(form, "onnxruntime, no optimizations", given, _run(_session(model), rows))
        feeds = [deployed.quantize(row) for row in rows]
        outputs = _run_compiled(compiled.path, feeds, prepared.target, prepared.config.compile)
        accuracy += compare("compiled", compiled.runtime, given, map(deployed.dequantize, outputs))
    return tuple(accuracy)


def _gates(config: BuildConfig, accuracy: tuple[Accuracy, ...], placement: Placement) -> tuple[Gate, ...]:
    checked = []
    if config.min_sqnr is not None and accuracy:
        checked.append(gates.sqnr_gate(accuracy, config.min_sqnr))
    if config.require_npu is not None:
        checked.append(gates.placement_gate(placement, config.require_npu))
    return tuple(checked)


def _run_compiled(
    path: Path, rows: list[data.Feeds], target: Target, config: CompileConfig
) -> list[dict[str, np.ndarray]]:
    return compiling.run(
        path,
        rows,
        device=target.backend,
        arch=target.arch,
        soc_id=target.soc.id if target.soc is not None else None,
        ep_options=config.ep_options,
        timeout=config.timeout,
    )


def _session(model_or_path: ir.Model | Path) -> cpu.Session:
    """A model on the CPU; what ONNX Runtime refuses in it is computed in another way, with the same integers."""
    model = io.load(model_or_path) if isinstance(model_or_path, Path) else model_or_path
    known = reference.runnable(model)
    return cpu.Session(model_or_path if known is model else known)


def _run(session: cpu.Session, rows: list[data.Feeds]) -> list[Outputs]:
    return [session.run(row) for row in rows]


def _finish(
    prepared: Prepared,
    rewritten: Rewritten,
    deployed: boundary.IntegerIO,
    compiled: compiling.Compiled,
    accuracy: tuple[Accuracy, ...],
    kinds: dict[str, str],
    environment: Mapping[str, str],
    folder: Path,
    log: _Log,
) -> Build:
    config, calibration = prepared.config, prepared.inputs.calibration
    result = Build(
        source_path=str(prepared.source.path),
        source_sha256=prepared.source.sha256,
        source_opset=prepared.source.opset,
        config=config.to_dict(),
        environment=environment,
        calibration_kind=calibration.kind if prepared.calibrated else "none",
        calibration_samples=len(calibration) if prepared.calibrated else 0,
        calibration_sha256=calibration.sha256 if prepared.calibrated else None,
        stages=tuple(log.stages),
        rewrites=prepared.optimized.applications + rewritten.applications,
        placement=compiled.placement,
        io=deployed.ports(),
        accuracy=accuracy,
        gates=_gates(config, accuracy, compiled.placement),
        artifacts=publish.artifacts(folder, kinds),
        warnings=tuple(log.warnings),
    )
    values = manifest.to_manifest(result, datetime.now(UTC).isoformat(timespec="seconds"), environment["intact"])
    manifest.write(values, folder)
    html.write(values, folder)
    return result
