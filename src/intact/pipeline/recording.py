"""The record of a build: its files, the verdict, the manifest and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from intact.backends import compiling
from intact.backends.installed import versions
from intact.events import Log
from intact.model import io
from intact.pipeline import acceptance, cost_estimate, verdict
from intact.pipeline.deployment import PORTABLE, CompiledModel
from intact.pipeline.preparation import PreparedModel
from intact.pipeline.stamp import stamped
from intact.pipeline.verifying import Verified
from intact.reports import network, publish
from intact.results import BINARY, DEPLOYABLE, Build, CostEstimate, Gate, Verdict


def save_portable(quantized: PreparedModel, folder: Path) -> dict[str, str]:
    """Save the forms of a model that every device reads; return what each file is."""
    kinds = {}
    if quantized.source.origin is not None:
        for file in io.save(io.load(quantized.source.path), folder / "model.float.onnx"):
            kinds[file.name] = "float model, as exported"
    if quantized.is_portable:
        for file in io.save(stamped(quantized.model), folder / PORTABLE):
            kinds[file.name] = "portable quantized model"
    return kinds


def finish(built: CompiledModel, found: Verified, kinds: Mapping[str, str], folder: Path, log: Log) -> Build:
    """Judge a build, and write its manifest and its report into its folder."""
    prepared, compiled = built.prepared, built.compiled
    config, calibration, exported = prepared.config, prepared.inputs.calibration, prepared.source.origin
    kind = calibration.kind if prepared.calibrated else "none"
    known = acceptance.Circumstances(kind, prepared.target)
    checked = acceptance.check(config, found.accuracy, found.task, compiled.placement, cost=compiled.cost, known=known)
    gates = checked if found.latency is None else (*checked, found.latency)
    judged = _judge(prepared, found, gates)
    result = Build(
        source_path=str(prepared.source.path) if exported is None else exported.name,
        source_sha256=prepared.source.sha256,
        source_opset=prepared.source.opset,
        config=config.to_dict(),
        environment=versions(prepared.target.backend, prepared.config.compile.toolchain),
        calibration_kind=kind,
        calibration_samples=len(calibration) if prepared.calibrated else 0,
        calibration_sha256=calibration.sha256 if prepared.calibrated else None,
        stages=tuple(log.stages),
        rewrites=prepared.optimizations + built.before.rewritten.applications,
        placement=compiled.placement,
        io=built.before.deployed.ports(),
        accuracy=found.accuracy,
        task_accuracy=found.task,
        gates=gates,
        artifacts=publish.artifacts(folder, {**kinds, **_kinds(compiled)}),
        warnings=tuple(log.warnings),
        origin=exported,
        verdict=judged.word,
        verdict_reasons=judged.reasons,
        layers=network.layers_of(built.before.rewritten.model),
        errors=found.errors,
        source_weight_bytes=io.size_of_weights(prepared.source.model),
        cost=compiled.cost,
        estimate=_estimate(built),
    )
    write_down(result, folder)
    return result


def write_down(built: Build, folder: Path) -> None:
    """Write the manifest and the report of a build into its folder."""
    # Here and below: what quantizes and builds nothing loads neither.
    from intact.reports import html, manifest

    created = datetime.now(UTC).isoformat(timespec="seconds")
    values = manifest.to_manifest(built, created, built.environment["intact"])
    manifest.write(values, folder)
    html.write(values, folder)


def _judge(prepared: PreparedModel, found: Verified, gates: Sequence[Gate]) -> Verdict:
    checked = {gate.name for gate in gates}
    asked = [name for name in acceptance.GATES if getattr(prepared.config, name) is not None]
    evidence = verdict.Evidence(
        found.accuracy,
        gates,
        [name for name in asked if name not in checked],
        found.unrun,
        (*prepared.inputs.doubts, *found.doubts),
        found.parted,
    )
    return verdict.judge(evidence, prepared.config.verdict)


def _estimate(built: CompiledModel) -> CostEstimate | None:
    """The cost on an NPU by the rule of its table; a CPU is timed instead."""
    target, placement = built.prepared.target, built.compiled.placement
    if target.costs is None or not target.npu:
        return None
    off = {node.name for node in placement.cpu_nodes}
    return cost_estimate.estimate(built.before.rewritten.model, target.costs, off)


def _kinds(compiled: compiling.Compiled) -> dict[str, str]:
    """Say what each file of a compiled model is."""
    from intact.reports import manifest

    kinds = {file.name: BINARY for file in compiled.files}
    kinds |= {file.name: manifest.MADE_FROM for file in compiled.made_from}
    return kinds | {compiled.path.name: DEPLOYABLE}
