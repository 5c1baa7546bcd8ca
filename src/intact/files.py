"""What the commands do with files, besides a whole build: each reads a model, runs stages, and writes or tells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from intact import data, execution, lint, optimize, pipeline, quantize, rewrite
from intact.analyze import inspection
from intact.analyze import report as analysis
from intact.config import BuildConfig, QuantConfig
from intact.errors import ModelError, SettingsError
from intact.events import Events, Log, Silence
from intact.execution import Outputs
from intact.graph import io, normalize, shapes, upgrade
from intact.graph.rewriter import Rewritten
from intact.pipeline import PRODUCER, stamped
from intact.quantize import detect, plan_file, presets
from intact.report import publish
from intact.results import Accuracy, Form, Gate, QuantPlan
from intact.targets.registry import known_backends, load_target
from intact.targets.spec import Target
from intact.verify import gates
from intact.verify.compare import compare


def quantize_file(
    path: Path, config: BuildConfig, output: Path, *, overwrite: bool = False, events: Events | None = None
) -> dict[str, Any]:
    """Quantize the model at `path` into the file `output`, with the stages that `build` would use."""
    publish.check_file(output, overwrite=overwrite, ours=_is_ours(output))
    log = Log(events or Silence())
    prepared = pipeline.prepare_logged(path, config, log)
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
    return _rewrite_to(path, config, pipeline.target_of(config.compile), output, exact, explain, events)


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
    log = Log(events or Silence())
    source = pipeline.load_logged(path, config.dims, log)
    inputs = pipeline.inputs_for(source.model, config, log)
    with log.stage("rewrite"):
        rewritten = rewrite.rewrite(source.model, target, exact=exact)
        validation = pipeline.check_rewriting(source.model, rewritten, target, inputs, exact=exact)
    requantized = pipeline.tell_zero_points(rewritten, target, log)
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


def write_plan(
    path: Path, config: BuildConfig, output: Path, *, overwrite: bool = False, events: Events | None = None
) -> QuantPlan:
    """Write the plan for the model at `path` into the file `output`; nothing is run, no data is needed."""
    written_before = output.is_file() and output.read_bytes()[:200].startswith(plan_file.HEADER.encode()[:20])
    publish.check_file(output, overwrite=overwrite, ours=written_before)
    log = Log(events or Silence())
    source = pipeline.load_logged(path, config.dims, log)
    resolved = presets.resolve(config, quantized=source.quantized)
    quant = resolved.quantization
    if quant is None:
        raise SettingsError("S114", f"{path}: nothing to plan: {source.quantized or resolved.precision}")
    target = presets.available(resolved)
    pipeline.announce(resolved, target, log.events)
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
    log = Log(events or Silence())
    inputs = data.load(
        io.load(reference_path), data_path, samples=QuantConfig().samples, test_source=test_path, images=config.images
    )
    if inputs.test.kind == "synthetic":
        log.warn("no --data: the models are compared on synthetic inputs")
    log.warn(*inputs.warnings)
    rows = list(inputs.test)
    with log.stage("verify"):
        expected = execution.run(reference_path, rows)
        form, runtime, outputs = _run_file(candidate, rows, config)
        accuracy = compare(form, runtime, expected, outputs)
    return accuracy, None if config.min_sqnr is None else gates.sqnr_gate(accuracy, config.min_sqnr)


def _run_file(path: Path, rows: list[data.Feeds], config: BuildConfig) -> tuple[Form, str, Iterable[Outputs]]:
    if not any(node.op_type == "EPContext" for node in io.load(path).graph):
        return "quantized", "onnxruntime, no optimizations", execution.run(path, rows)
    target = load_target("qnn", arch=config.compile.arch, soc=config.compile.soc)
    outputs = execution.run_compiled(path, rows, target, config.compile)
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
    prepared = pipeline.prepare(path, config, events=events)
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


def _is_ours(path: Path) -> bool:
    """Whether a file is a model that intact wrote."""
    try:
        return path.is_file() and io.load(path).producer_name == PRODUCER
    except ModelError:
        return False
