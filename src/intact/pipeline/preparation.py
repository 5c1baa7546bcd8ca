"""The stages that every command on a model begins with: load, optimize, quantize, each from a value to a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from intact import data, environment
from intact.backends import installed
from intact.data import examination
from intact.data.labels import Labels, load_labels
from intact.errors import IntactError, ModelError, TargetError
from intact.events import Events, Log
from intact.linting import repairs
from intact.linting.repairs import Purpose
from intact.matching.rewriter import Rewritten
from intact.model import io, lowering, query
from intact.model.census import census
from intact.pipeline import fed_rows, input_files, loading, memory, presets
from intact.pipeline.checkpoints import Checkpoints, Key
from intact.pipeline.fed_rows import StatefulRows
from intact.pipeline.loading import LoadedModel, UpgradeCheck
from intact.quantization import quantizing
from intact.quantization.calibration.observe import Rows
from intact.quantization.calibration.spread import Spread
from intact.quantization.planning import plan_file
from intact.results import Application
from intact.rules.float import branches, masks, optimization
from intact.rules.float.settle import Settled, settle_masks
from intact.runtime import ort_cpu
from intact.settings import contradictions
from intact.settings.config import BuildConfig, CompileConfig, QuantConfig
from intact.targets.registry import load_target
from intact.targets.spec import Target

if TYPE_CHECKING:
    from intact.quantization import float16

# The step of a Softmax output on a grid of this type: what is below half of it does not count.
SOFTMAX_STEPS = {"uint8": 2.0**-8, "int8": 2.0**-8, "uint16": 2.0**-16, "int16": 2.0**-15}
FINE = ("uint16", "int16")


# The files of models among the finished stages of a build: of what a stage made, and of its float twin.
KEPT, TWIN = "model.onnx", "twin.onnx"


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model on its way from its file to a target, with all that was settled so far.

    `model` is what the last stage made of it: loaded, optimized, or quantized. `unquantized` says why nothing of it
    could be quantized, so that it stays as it is. A model that got grids here has the float one that they are in.
    """

    source: LoadedModel
    config: BuildConfig
    target: Target
    inputs: data.CalibrationAndTest
    model: ir.Model
    optimizations: tuple[Application, ...] = ()
    calibrated: bool = False
    kept: tuple[float16.Kept, ...] = ()
    labels: Labels | None = None
    unquantized: IntactError | None = None
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    twin: quantizing.FloatTwin | None = None

    @property
    def is_quantized(self) -> bool:
        """True if the model came quantized or was quantized here, so that it differs from the one given."""
        asked = self.config.quantization is not None and self.unquantized is None
        return self.source.quantized is not None or asked

    @property
    def is_portable(self) -> bool:
        """True if the quantized model is in the form that every target reads, so that it is worth a file."""
        quant = self.config.quantization
        return self.source.quantized is not None if quant is None else quant.has_grids and self.is_quantized


def key_of(begun: PreparedModel) -> Key:
    """All that decides the bytes of a build."""
    inputs, labels = begun.inputs, begun.labels
    return {
        "model or file that settings name": input_files.digests(begun.config, begun.source.path),
        "data": [inputs.calibration.sha256, inputs.test.sha256, labels is not None],
        # A limit on memory decides no byte: whoever was stopped by it goes on with a higher one.
        "setting": begun.config.model_copy(update={"max_memory": None}).to_dict(),
        "version": {**installed.versions(begun.target.backend), "sources": environment.sources()},
        "number of threads": ort_cpu.threads(),
    }


def prepare_unseen(path: Path, asked: BuildConfig, log: Log) -> tuple[ir.Model, Target]:
    """The model as it would be quantized, but on ranges that are assumed: types alone decide where nodes run."""
    source = loading.load(path, asked, log)
    config = presets.resolve(asked, quantized=source.quantized)
    target, quant = target_of(config.compile), config.quantization
    model = optimize_for(source.model, target, quant).model if config.optimize else source.model
    if quant is None:
        return model if source.quantized is None else source.model, target
    return quantizing.quantize_unseen(model, target, quant), target


def begin(path: Path, asked: BuildConfig, log: Log) -> tuple[PreparedModel, UpgradeCheck]:
    """Load the model at `path`, complete the settings and load the inputs; the upgrade is still to be confirmed."""
    presets.available(asked)
    source, upgrade = loading.start_loading(path, asked, log)
    try:
        return _with_inputs(source, asked, log, upgrade.details), upgrade
    except Exception:
        upgrade.confirm(log)  # a wrong upgrade may be why the rest does not fit
        raise


def _with_inputs(source: LoadedModel, asked: BuildConfig, log: Log, details: dict[str, object]) -> PreparedModel:
    config = presets.resolve(asked, quantized=source.quantized)
    target = target_of(config.compile)
    announce(config, target, log.events)
    need = memory.needed(source.model, config)
    log.events.note(f"{need}")
    details["memory_needed_bytes"] = need.total
    memory.refuse_beyond(need, config)
    warn_of_chip(config, target, log)
    inputs = inputs_for(source.model, config, log)
    labels = None if config.labels is None else load_labels(config.labels, inputs.test)
    return PreparedModel(source, config, target, inputs, source.model, labels=labels)


def optimize(begun: PreparedModel, log: Log) -> PreparedModel:
    """Bring a float model to fewer and friendlier operators, unless the settings leave it as it is."""
    if not begun.config.optimize:
        log.skip("optimize", "--no-optimize leaves the model as it is")
        return begun

    def run() -> Rewritten:
        with log.stage("optimize") as (_, details):
            optimized = optimize_for(begun.source.model, begun.target, begun.config.quantization)
            details["rewrites"] = len(optimized.applications)
        return optimized

    optimized = begun.checkpoints.stage("optimize", run, pack_rewritten, unpack_rewritten)
    for choice in (item for item in optimized.applications if item.rule == branches.SELECT):
        log.events.note(f"{choice.node}: both branches are computed, because {begun.target.name} has no If")
    return replace(begun, model=optimized.model, optimizations=optimized.applications)


def pack_rewritten(rewritten: Rewritten, folder: Path) -> tuple[Application, ...]:
    """Keep a model after rewriting in a folder, and return what was done."""
    io.save(rewritten.model, folder / KEPT)
    return rewritten.applications


def unpack_rewritten(applications: tuple[Application, ...], folder: Path) -> Rewritten:
    """The model that `pack_rewritten` kept."""
    return Rewritten(io.load(folder / KEPT), applications)


def optimize_for(model: ir.Model, target: Target, quant: QuantConfig | None) -> Rewritten:
    """`model` in fewer and friendlier operators; an NPU gets those that it has, the CPU runs them all."""
    # In float the CPU runs what was fused for it as it is.
    take_apart = target.npu or (quant is not None and quant.has_grids)
    # Where a grid is as fine as half precision, in which an NPU computes such layers, it holds their states better.
    unroll = target.npu and quant is not None and quant.activation_type in FINE
    ops = target.has if target.npu else None
    in_integers = quant is not None and quant.has_grids
    ends_anywhere = quant is not None and quant.activation_type not in FINE and not quant.activation_symmetric
    asked = optimization.rules_of(target, in_integers=in_integers, ends_anywhere=in_integers and ends_anywhere)
    return optimization.optimize(model, ops=ops, take_apart=take_apart, unroll_layers=unroll, asked=asked)


def quantize(optimized: PreparedModel, log: Log) -> PreparedModel:
    """Quantize the model as its settings say, in an opset that the target's toolchain reads."""
    result, target = _quantize_or_skip(optimized, log), optimized.target
    if target.opset is None:
        return result
    # A model that came quantized may have operators of newer opsets still: it was not optimized.
    older = optimization.in_older_forms(result.model, target.has) if optimized.source.quantized else result.model
    return replace(result, model=lowering.lowered(older, target.opset))


def _quantize_or_skip(optimized: PreparedModel, log: Log) -> PreparedModel:
    """Quantize the model as its settings say; leave it as it is where they do not."""
    source, quant = optimized.source, optimized.config.quantization
    if quant is None:
        log.skip("quantize", str(source.quantized or _kept_in_float(optimized.config, optimized.target)))
        return optimized if source.quantized is None else replace(optimized, model=_that_loads(source.model, log))
    return optimized.checkpoints.stage(
        "quantize", partial(_quantize_or_leave, optimized, quant, log), _pack, partial(_unpack, optimized)
    )


def _that_loads(quantized: ir.Model, log: Log) -> ir.Model:
    """A model that came quantized, in a form that ONNX Runtime loads in the opset that it was upgraded to."""
    repaired = repairs.repair(quantized, Purpose.LOAD)
    if repaired.applications:
        log.warn(f"{len(repaired.applications)} nodes written so that ONNX Runtime {Purpose.LOAD}")
    return repaired.model


def _quantize_or_leave(optimized: PreparedModel, quant: QuantConfig, log: Log) -> PreparedModel:
    try:
        found = _quantize(optimized, quant, log)
    except (TargetError, ModelError) as nothing:
        if nothing.code not in quantizing.NOTHING_TO_QUANTIZE or not _is_of_use_in_float(optimized):
            raise
        return _left_as_it_is(optimized, nothing, log)
    # Weights alone are quantized as they are: no data decides about them.
    calibrated = quant.activation_type != "float"
    return replace(optimized, model=found.model, calibrated=calibrated, kept=found.kept, twin=found.twin)


@dataclass(frozen=True, slots=True)
class _KeptQuantized:
    """A quantized model without its graphs, which lie in files of their own."""

    calibrated: bool
    kept: tuple[float16.Kept, ...]
    unquantized: IntactError | None
    spreads: Mapping[str, Spread] | None


def _pack(quantized: PreparedModel, folder: Path) -> _KeptQuantized:
    twin = quantized.twin
    if quantized.unquantized is None:
        io.save(quantized.model, folder / KEPT)
    if twin is not None:
        io.save(twin.model, folder / TWIN)
    spreads = None if twin is None else twin.spreads
    return _KeptQuantized(quantized.calibrated, quantized.kept, quantized.unquantized, spreads)


def _unpack(optimized: PreparedModel, found: _KeptQuantized, folder: Path) -> PreparedModel:
    return replace(
        optimized,
        model=optimized.model if found.unquantized is not None else io.load(folder / KEPT),
        calibrated=found.calibrated,
        kept=found.kept,
        unquantized=found.unquantized,
        twin=None if found.spreads is None else quantizing.FloatTwin(io.load(folder / TWIN), found.spreads),
    )


def _kept_in_float(config: BuildConfig, target: Target) -> str:
    halves = f", which {target.name} computes in half precision" if target.halves else ""
    return f"--precision {config.precision} keeps the model in float{halves}"


def _is_of_use_in_float(optimized: PreparedModel) -> bool:
    """True if a target runs a model of which nothing is quantized: an NPU does in half precision, if that will do."""
    target = optimized.target
    return target.runs_float or (target.halves and not optimized.config.strict)


def _left_as_it_is(optimized: PreparedModel, nothing: IntactError, log: Log) -> PreparedModel:
    """The model without the precision that was asked for, because nothing of it can have that; said aloud."""
    halves = f", which {optimized.target.name} computes in half precision" if optimized.target.halves else ""
    log.skip("quantize", nothing.message)
    log.warn(f"nothing is quantized, the model stays as it is{halves}: {nothing.message}")
    return replace(optimized, unquantized=nothing)


def target_of(config: CompileConfig) -> Target:
    ort = config.assume_ort
    here = not installed.is_backend(config.device) or installed.find(config.device).on_host(config.ep_options)
    # Of no other device do the kernels of a processor concern anybody.
    vnni = config.assume_vnni if here else True
    return load_target(config.device, arch=config.arch, soc=config.soc, vnni=vnni, ort=ort)


def announce(config: BuildConfig, target: Target, events: Events) -> None:
    quant = config.quantization
    events.note(f"target {target.name}" + (f" ({target.soc.name})" if target.soc is not None else ""))
    if config.precision == contradictions.AUTO:
        events.note("precision auto: the cheapest types that meet the gates are searched for")
    elif quant is not None:
        events.note(f"precision {config.precision}: {presets.describe(quant)}")
    if differing := config.line(presets.usual(config)):
        events.note(f"settings: {differing}")


def warn_of_chip(config: BuildConfig, target: Target, log: Log) -> None:
    """Graphs in half precision are compiled for one chip: say which, where the user has not."""
    quant = config.quantization
    in_float = config.precision is not None and presets.PRECISIONS[config.precision] is None
    halves = target.halves and in_float if quant is None else quant.activation_type == "float16"
    if halves and target.soc is not None and config.compile.soc is None:
        log.warn(f"no --soc: half precision is compiled for {target.soc.name}, the first chip of {target.name}")


def inputs_for(model: ir.Model, config: BuildConfig, log: Log) -> data.CalibrationAndTest:
    quant = config.quantization or QuantConfig()
    path = quant.load_path if config.quantization is not None else config.test_path
    test = config.test_path if config.quantization is not None else None
    constants = query.initializers(model)
    fixed = {name: query.known_constant(constants[name]) for name in config.fixed_inputs}
    inputs = data.load(
        model,
        path,
        samples=quant.samples,
        test_source=test,
        reading=data.Reading(config.images, config.tokenizer, quant.distribution, quant.seed, fixed),
    )
    observes = quant.activation_type != "float" and (quant.encodings is None or quant.calibrate_missing)
    log.warn(*inputs.warnings)
    # Where no range is measured, the rows to compare models on are all that counts.
    pair = (inputs.calibration, inputs.test) if observes else (inputs.test, None)
    symptoms = examination.examine(model, *pair, images=config.images)
    log.warn(*(symptom.message for symptom in symptoms))
    return replace(inputs, symptoms=symptoms)


def _quantize(optimized: PreparedModel, config: QuantConfig, log: Log) -> quantizing.QuantizedModel:
    target, inputs = optimized.target, optimized.inputs
    with log.stage("quantize") as (_, details):
        settled = settle(optimized.model, config, inputs, target)
        log.warn(*settled.warnings)
        stateful = fed_rows.with_states(settled.model, inputs.calibration, optimized.config.states)
        if stateful.note:
            log.events.note(stateful.note)
        known = quantizing.Known(settled.ranges, types_of_results=optimized.config.compile.io == "quantized")
        result = _quantized(settled.model, known, target, config, stateful, log.events)
        result = _for_runtime(result, target)
        details.update(
            nodes_quantized=len(result.plan.nodes),
            tensors_quantized=len(result.plan.tensors),
            **{f"{phase}_time_seconds": round(seconds, 4) for phase, seconds in result.seconds.items()},
            notes=list(result.notes),
            types=[group.to_dict() for group in census(result.model)],
            kept_in_float32={kept.node: kept.reason for kept in result.kept},
        )
    for note in result.notes:
        log.events.note(note)
    log.warn(*result.warnings)
    return result


def _quantized(
    model: ir.Model,
    known: quantizing.Known,
    target: Target,
    config: QuantConfig,
    stateful: StatefulRows,
    events: Events,
) -> quantizing.QuantizedModel:
    """A model in fewer bits; one with state in as many as keep it from drifting."""

    def quantize(config: QuantConfig, rows: Rows, events: Events | None = None) -> quantizing.QuantizedModel:
        return quantizing.quantize(model, target, config, rows, known=known, events=events)

    if not stateful.states or not config.has_grids:
        return quantize(config, stateful.rows, events)
    # Loaded where it is needed, since few models have state.
    from intact.pipeline import drift

    config = drift.roomy(config)
    if not config.rescue:
        return quantize(config, stateful.rows, events)
    steps = drift.steps_of(model, stateful.sequence, stateful.states)
    ways = drift.trials(steps, quantize, stateful.rows, npu=target.npu)
    return drift.steadied(steps, config, partial(quantize, rows=stateful.rows, events=events), ways, target)


def _for_runtime(result: quantizing.QuantizedModel, target: Target) -> quantizing.QuantizedModel:
    """A quantized model in a form that ONNX Runtime loads and computes rightly with all its optimizations."""
    purposes = []
    if any(grid.dtype == "int8" for grid in result.plan.grids.values()):
        purposes.append(Purpose.LOAD)
    if target.ort_fuses:
        purposes.append(Purpose.FUSE)
    if target.ort_fuses and target.rewrite.saturates:
        purposes.append(Purpose.MULTIPLY)
    for purpose in purposes:
        repaired = repairs.repair(result.model, purpose, saturates=target.rewrite.saturates)
        if repaired.applications:
            note = f"{len(repaired.applications)} nodes written so that ONNX Runtime {purpose}"
            result = replace(result, model=repaired.model, notes=(*result.notes, note))
    return replace(result, warnings=(*result.warnings, *_saturation(result.model, target)))


def _saturation(model: ir.Model, target: Target) -> list[str]:
    """A warning, where a target saturates and has no exact kernels that the weights could be written for."""
    if target.ort_fuses or not target.rewrite.saturates:
        return []
    from intact.linting import linter

    found = [finding for finding in linter.findings(model, saturates=True) if finding.code == linter.SATURATED]
    text = f"{len(found)} products may saturate in {target.backend} on a CPU without VNNI, which costs accuracy"
    return [f"{text} (intact explain {linter.SATURATED}; --assume-vnni if the model runs elsewhere)"] if found else []


def settle(
    model: ir.Model, config: QuantConfig, inputs: data.CalibrationAndTest, target: Target | None = None
) -> Settled:
    """Masks as deep as a grid can tell apart; without grids they stay as deep as float32 and float16 can hold.

    With a `target`, that is so where no grid for it holds masked scores, too: then nothing runs to see them.
    """
    if not config.has_grids or (target is not None and not _are_masks_on_grids(model, config, target)):
        return Settled(model, {})
    return settle_masks(model, inputs.calibration, _softmax_step(model, config))


def _are_masks_on_grids(model: ir.Model, config: QuantConfig, target: Target) -> bool:
    """True if a grid may hold what a mask is, or scores that one is added to."""
    masked = masks.masked(model)
    if not masked or config.encodings is not None:
        return bool(masked)
    types, config = plan_file.edited(model, target, config)
    found = quantizing.plan(model, target, config, types)
    return not masked.isdisjoint(map(found.source, found.tensors))


def _softmax_step(model: ir.Model, config: QuantConfig) -> float:
    """The finest step of any Softmax; one that stays in float is as fine as the finest grid."""
    nodes = [node.name or "" for node in model.graph if node.op_type == "Softmax"]
    types = {config.types.get(name, config.activation_type) for name in nodes} or {config.activation_type}
    return min(SOFTMAX_STEPS.get(dtype, min(SOFTMAX_STEPS.values())) for dtype in types)
