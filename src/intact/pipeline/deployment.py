"""The stages rewrite → validate → compile: from a quantized model to the files that a device loads."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact import data
from intact.backends import compiling, other_version
from intact.errors import ModelError, NotAvailable, ToolchainError
from intact.events import Log
from intact.linting import linter, repairs
from intact.matching.rewriter import Rewritten, Rule
from intact.model import normalize, shapes
from intact.model.copying import copied
from intact.pipeline import analysis, execution
from intact.pipeline.execution import WatchedModel
from intact.pipeline.preparation import PreparedModel, pack_rewritten, unpack_rewritten
from intact.pipeline.stamp import stamped
from intact.quantization import boundary, float16
from intact.results import Application, PlacedNode, RequantizedWeight, RewriteCheck, Violation
from intact.rules.proof import exactness, witness
from intact.rules.proof.exactness import KnownRewriting
from intact.rules.quantized import families, zero_point_notes
from intact.runtime import loads, ort_cpu, pieces
from intact.targets import validate as validation
from intact.targets.spec import Target
from intact.verification import clipped

Outputs = Mapping[str, np.ndarray]

PORTABLE = "model.qdq.onnx"
VALIDATION_ROWS = 8
# Of these, the rows that are looked at inside of a model at fast effort, if it is long or runs once more for that: a
# row has many elements of a tensor.
QUICK_ROWS = 2
# At fast effort, all applications of rules are held to their claims one by one in a quantized model of so many nodes;
# in one of twice as many every second of each rule is, and so on.
MOST_HELD = 20_000
# ONNX Runtime loads a graph in a time that grows with the square of its nodes. With more than this, only what is
# deployed is loaded as a whole.
MOST_LOADED = 20_000


@dataclass(frozen=True, slots=True)
class RewrittenModel:
    """A quantized model in the form that its target takes; `deployed` has the inputs and outputs as they were asked.

    `quantized` and `running` are sessions of the model before and after, once opened for all that runs them. `on_cpu`
    names nodes that the device would take and compute wrongly, each with the reason.
    """

    prepared: PreparedModel
    rewritten: Rewritten
    deployed: boundary.IntegerIO
    quantized: WatchedModel
    running: WatchedModel
    on_cpu: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ValidatedModel:
    """A rewritten model, and the nodes that stay on the CPU, each with the reason."""

    before: RewrittenModel
    on_cpu: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """A rewritten model, and the files that a device loads."""

    before: RewrittenModel
    compiled: compiling.Compiled

    @property
    def prepared(self) -> PreparedModel:
        return self.before.prepared

    @property
    def device(self) -> compiling.Device:
        """The device that it was compiled for."""
        return execution.device_of(self.prepared.target, self.prepared.config.compile)


def rewrite(quantized: PreparedModel, log: Log) -> RewrittenModel:
    """Bring a quantized model to the form that its target takes; a rule that breaks its claim stops the build."""
    with log.stage("rewrite") as (_, details):
        repaired = _repair(quantized, log)
        rules = families.rules_for(quantized.target)
        every = -(-len(repaired.model.graph) // MOST_HELD) if is_quick(quantized) else 1
        rewritten, seen = witness.rewrite(repaired.model, rules, every=every)
        rows = validation_rows(quantized.inputs)
        before, after = watched(quantized), WatchedModel(rewritten.model, [])
        # A model that was repaired first is no form that runs later.
        outputs = (
            zip(before.stream(rows, together=True), after.stream(rows, together=True), strict=True)
            if repaired.model is quantized.model
            else None
        )
        twin = None if quantized.twin is None else quantized.twin.model
        known = KnownRewriting(seen, outputs, twin, QUICK_ROWS if is_quick(quantized) else None)
        details.update(check_rewriting(repaired.model, rewritten, rules, rows, quantized.target, known))
        if every > 1:
            held = f"{details['validated_rewrites']} of {len(rewritten.applications)}, one in {every} of each rule"
            log.events.note(f"{held}, rewrites are held to their claims one by one: all of them would take long")
        details["requantized_weights"] = tell_zero_points(rewritten, quantized.target, log)
        # Nobody asks for refusals after this, of which large graphs have several a node.
        rewritten = replace(rewritten, applications=repaired.applications + rewritten.applications, refusals=())
        details["rewrites"] = len(rewritten.applications)
    if ort_cpu.is_large(quantized.source.model) or pieces.is_long(rewritten.model):
        # Files are written next, each in one message: verification opens these again.
        before.close()
        after.close()
    return RewrittenModel(quantized, rewritten, _deployable(quantized, rewritten.model, log), before, after)


def is_quick(prepared: PreparedModel) -> bool:
    """True if the settings ask for fast effort."""
    quant = prepared.config.quantization
    return quant is not None and quant.effort == "fast"


def watched(prepared: PreparedModel) -> WatchedModel:
    """The quantized model, which runs for more than one purpose, with the tensors on grids."""
    rows = QUICK_ROWS if is_quick(prepared) and pieces.is_long(prepared.model) else VALIDATION_ROWS
    return WatchedModel(prepared.model, list(clipped.watched(prepared.model)) if prepared.calibrated else [], rows)


def rewrite_once(quantized: PreparedModel, log: Log) -> RewrittenModel:
    """`rewrite`, unless the result is there already."""

    def unpack(found: tuple[Application, ...], folder: Path) -> RewrittenModel:
        rewritten = unpack_rewritten(found, folder)
        # Its warnings are among those that were kept.
        deployed = _deployable(quantized, rewritten.model, Log())
        return RewrittenModel(quantized, rewritten, deployed, watched(quantized), WatchedModel(rewritten.model, []))

    return quantized.checkpoints.stage(
        "rewrite",
        lambda: rewrite(quantized, log),
        lambda result, folder: pack_rewritten(result.rewritten, folder),
        unpack,
    )


def in_other_form(rewritten: RewrittenModel, model: ir.Model, log: Log) -> RewrittenModel:
    """The same build with another form of its rewritten model."""
    return replace(
        rewritten,
        rewritten=replace(rewritten.rewritten, model=model),
        deployed=_deployable(rewritten.prepared, model, log),
        running=WatchedModel(model, []),
    )


def validate(rewritten: RewrittenModel, log: Log) -> ValidatedModel:
    """Find the nodes that the NPU does not take, with the reasons; strict settings refuse them instead."""
    prepared = rewritten.prepared
    target, strict = prepared.target, prepared.config.strict
    if not target.npu:
        log.skip("validate", f"{target.name} has no NPU that could refuse a node")
        return ValidatedModel(rewritten, {})
    if prepared.unquantized is not None:
        log.skip("validate", f"nothing is quantized, and {target.name} runs it in float or refuses it whole")
        return ValidatedModel(rewritten, {})
    described = copied(rewritten.deployed.model)
    normalize.name_nodes(described)
    shapes.infer_shapes(described)
    with log.stage("analyze") as (_, details):
        found = analysis.analyze(described, target)
        details.update(compute_nodes=found.compute_nodes, npu_percent=found.npu_percent, partitions=found.partitions)
        details["float_nodes"] = [asdict(node) for node in found.float_nodes]
        details["doubts"] = [asdict(doubt) for doubt in found.doubts]
    with log.stage("validate") as (_, details):
        unheld = float16.violations(described, prepared.kept, target)
        if unheld and strict:
            raise validation.Violations(unheld, target)
        settings = prepared.config.compile
        by_table = validation.validate(described, target, strict=False)
        facts = other_version.of_this_version(
            described, target, by_table, timeout=settings.timeout, toolchain=settings.toolchain
        )
        log.warn(*facts.notes)
        if facts.violations and strict:
            raise validation.Violations(facts.violations, target)
        violations = (*facts.violations, *unheld)
        details["violations"] = [asdict(violation) for violation in violations]
        off = {**validation.left_to_cpu(described, target, violations), **rewritten.on_cpu}
    log.warn(*(f"{violation}" for violation in (*violations, *found.doubts)))
    return ValidatedModel(rewritten, off)


def validate_once(rewritten: RewrittenModel, log: Log) -> ValidatedModel:
    """`validate`, unless the result is there already."""
    return rewritten.prepared.checkpoints.stage(
        "validate",
        lambda: validate(rewritten, log),
        lambda result, _: dict(result.on_cpu),
        lambda on_cpu, _: ValidatedModel(rewritten, on_cpu),
    )


def compile_once(validated: ValidatedModel, folder: Path, log: Log) -> CompiledModel:
    """`compile`, unless the files are there already: then they are copied."""

    def pack(result: CompiledModel, kept: Path) -> compiling.Compiled:
        return _moved(result.compiled, kept)

    def unpack(found: compiling.Compiled, kept: Path) -> CompiledModel:
        there = replace(found, path=kept / found.path.name, files=_in(kept, found.files))
        return CompiledModel(validated.before, _moved(replace(there, made_from=_in(kept, found.made_from)), folder))

    checkpoints = validated.before.prepared.checkpoints
    return checkpoints.stage("compile", lambda: compile(validated, folder, log), pack, unpack)


def _moved(compiled: compiling.Compiled, folder: Path) -> compiling.Compiled:
    """A compiled model, copied into another folder."""
    for file in {compiled.path, *compiled.files, *compiled.made_from}:
        shutil.copyfile(file, folder / file.name)
    return replace(
        compiled,
        path=folder / compiled.path.name,
        files=_in(folder, compiled.files),
        made_from=_in(folder, compiled.made_from),
    )


def _in(folder: Path, files: Sequence[Path]) -> tuple[Path, ...]:
    return tuple(folder / file.name for file in files)


def compile(validated: ValidatedModel, folder: Path, log: Log) -> CompiledModel:
    """Let the vendor's toolchain compile a model into a folder."""
    rewritten = validated.before
    device = execution.device_of(rewritten.prepared.target, rewritten.prepared.config.compile)
    with log.stage("compile") as (_, details):
        model = compiling.kept_off(rewritten.deployed.model, device.backend, rewritten.on_cpu)
        compiled = compiling.compile(stamped(model), device, folder, on_cpu=validated.on_cpu)
        details["runtime"] = compiled.runtime
    if compiled.unforeseen and rewritten.prepared.config.strict:
        raise validation.Violations([_left_alone(node) for node in compiled.unforeseen], rewritten.prepared.target)
    log.warn(*compiled.warnings)
    return CompiledModel(rewritten, compiled)


def _left_alone(node: PlacedNode) -> Violation:
    """The violation of a node that a compiler put on the CPU by itself."""
    requirement, fix = "the compiler has to compute it on the NPU", "replace it by operators that the NPU computes"
    fix = f"{fix}; --no-strict goes on with this node on the CPU"
    return Violation(node.name, node.op, requirement, node.reason, "the compiler's own placement", fix, "T128")


def check_loads(compiled: CompiledModel, folder: Path, log: Log, *, runs_later: bool) -> None:
    """Refuse what was written unless ONNX Runtime, or the device where nothing runs on it later, loads it."""
    if (folder / PORTABLE).is_file():
        _check_portable(folder / PORTABLE, len(compiled.prepared.model.graph), log)
    if not runs_later and compiled.compiled.runs and not compiled.compiled.loaded:
        compiling.load(compiled.compiled.path, compiled.device)


def _check_portable(path: Path, nodes: int, log: Log) -> None:
    """Let ONNX Runtime load a quantized model, with as much of its optimizations as its nodes allow."""
    if nodes > MOST_LOADED:
        why = f"which takes long: {nodes} nodes, more than {MOST_LOADED}"
        log.events.note(f"{path.name} was loaded by ONNX Runtime in pieces, not as a whole, {why}")
        return
    optimize = nodes <= ort_cpu.MOST_OPTIMIZED
    if not optimize:
        why = f"which take long: {nodes} nodes, more than {ort_cpu.MOST_OPTIMIZED}"
        log.events.note(f"{path.name} was loaded without ONNX Runtime's optimizations, {why}")
    loads.check(path, optimize=optimize)


def adopt(given: PreparedModel, folder: Path) -> CompiledModel:
    """Copy a compiled model; refuse one that its device does not load: what is in it is not known otherwise."""
    compiled = compiling.adopt(given.source.path, given.source.model, folder)
    runs = WatchedModel(given.model, [])
    whole = RewrittenModel(given, Rewritten(given.model), boundary.IntegerIO(given.model, {}, {}), runs, runs)
    adopted = CompiledModel(whole, compiled)
    try:
        compiling.load(compiled.path, adopted.device)
    except NotAvailable:
        raise
    except (ToolchainError, ModelError) as error:
        found = f"{given.source.path}: {given.target.name} does not load it: {error.message}"
        fix = "give the --device that it was compiled for, or compile it again"
        raise ModelError("M163", found, fix=fix) from error
    return adopted


def tell_zero_points(rewritten: Rewritten, target: Target, log: Log) -> list[RequantizedWeight]:
    """Say what became of zero points that differ by channel; return the layers whose weight moved for it."""
    for note in zero_point_notes.notes(rewritten, target):
        log.events.note(note)
    log.warn(*zero_point_notes.warnings(rewritten, target))
    return zero_point_notes.requantized(rewritten.model)


def validation_rows(inputs: data.CalibrationAndTest) -> Sequence[Outputs]:
    """The rows that rewriting is held to its claims on."""
    return (list(inputs.test) or list(inputs.calibration))[:VALIDATION_ROWS]


def check_rewriting(
    before: ir.Model,
    rewritten: Rewritten,
    rules: Sequence[Rule],
    rows: Sequence[Outputs],
    target: Target,
    known: KnownRewriting | None = None,
) -> RewriteCheck:
    """Run the model before and after rewriting, as far as that was not done, and tell what that showed."""
    found = exactness.validate(before, rewritten, rules, rows, known)
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
    model, saturates = prepared.model, prepared.target.rewrite.saturates
    every = linter.findings(model, saturates=saturates)
    found = [finding for finding in every if finding.severity.at_least(linter.Severity.WARNING)]
    for code in dict.fromkeys(finding.code for finding in found):
        same = [finding for finding in found if finding.code == code]
        log.warn(f"{same[0]}" + (f" (and {len(same) - 1} more; see intact lint)" if len(same) > 1 else ""))
    # The repairs are for the fusions of ONNX Runtime; an NPU's compiler wants the integers as they are.
    return repairs.repair(model, saturates=saturates) if prepared.target.ort_fuses else Rewritten(model)


def _deployable(prepared: PreparedModel, model: ir.Model, log: Log) -> boundary.IntegerIO:
    if prepared.config.compile.io == "float":
        return boundary.IntegerIO(model, {}, {})
    deployed = boundary.integer_io(model)
    floats = [port["name"] for port in deployed.ports() if port["dtype"] == "float"]
    if floats:
        log.warn(f"--io quantized: {', '.join(floats)} stay float, because no quantization stands there alone")
    return deployed
