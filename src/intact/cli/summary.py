"""Results for people, on stdout: narrow enough for a small terminal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from intact.cli.console import print_json, print_wrapped, say, table, verdict_line
from intact.reports.figures import count, quantized_nodes, size, types_in_words
from intact.results import (
    BINARY,
    DEPLOYABLE,
    Accuracy,
    Analysis,
    Build,
    Cost,
    InspectedModel,
    QuantizeFigures,
    Refusal,
    TaskAccuracy,
)
from intact.settings.config import BuildConfig

if TYPE_CHECKING:
    from intact.pipeline.rewriting import RewrittenFile

_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")


def show(built: Build, folder: Path, *, as_json: bool, quiet: bool) -> None:
    """Show a finished build: its manifest to programs, a summary to people."""
    if as_json:
        print_json(json.loads((folder / "manifest.json").read_text(encoding="utf-8")))
        return
    if quiet:
        return
    say("")
    facts = (_subject(built), _quantized(built), _placed(built), _cost(built), _calibrated(built), _fixed(built))
    for line in (verdict_line(built.judged), *facts):
        if line:
            say(line)
    if built.accuracy:
        show_accuracy(built.accuracy)
    if built.task_accuracy:
        show_task_accuracy(built.task_accuracy)
    for gate in built.gates:
        say(f"gate {gate.name} {gate.limit:g}: {'passed' if gate.passed else 'FAILED'}, {gate.detail}")
    for artifact in built.artifacts:
        say(f"{folder / artifact.path}  ({size(artifact.bytes)}, {artifact.kind})")
    say(f"{folder / 'manifest.json'}")
    say(f"report: {folder / 'report.html'}")


def show_more(built: Build) -> None:
    """Show all settings of a build, and the time of each stage or why it was skipped."""
    say(f"settings: {BuildConfig.from_dict(built.config).line()}")
    for stage in built.stages:
        say(f"{stage.name}: {f'{stage.seconds:.2f} s' if stage.status == 'ran' else f'skipped, {stage.reason}'}")


def show_accuracy(rows: Sequence[Accuracy]) -> None:
    """Show the accuracy of each form and output."""
    rows_shown = table(("form", "output"), ("SQNR dB", "cosine", "max error", "top-1"))
    for row in rows:
        figures = (_db(row), _number(row.cosine, ".5f"), f"{row.max_abs_error:.3g}", _share(row))
        rows_shown.add_row(row.form, row.output, *figures)
    print_wrapped(rows_shown)


def show_task_accuracy(rows: Sequence[TaskAccuracy]) -> None:
    """Show the number of labels that each form got right."""
    labels = table(("form", "output"), ("right", "of", "accuracy"))
    for row in rows:
        labels.add_row(row.form, row.output, str(row.correct), str(row.total), f"{100 * row.accuracy:.2f} %")
    print_wrapped(labels)


def show_model(facts: InspectedModel) -> None:
    """Show what `inspect` found."""
    used = {op.rpartition("::")[0] for op in facts.operators}
    # Tools import domains that nothing uses; --json lists them all.
    shown = {domain: version for domain, version in facts.opsets.items() if domain in used or not domain}
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in shown.items())
    say(f"{facts.path}: {count(facts.nodes, 'node')}, {size(facts.weight_bytes)} of weights, opset {opsets}")
    say(f"producer: {facts.producer}")
    for direction, ports in (("input", facts.inputs), ("output", facts.outputs)):
        for port in ports:
            say(f"{direction} {port['name']}: {port['dtype']} {port['shape']}")
    if facts.free_dims:
        say(f"free dimensions: {', '.join(facts.free_dims)} (fix them with --dim name=size)")
    say(facts.quantized or "not quantized")
    if facts.nonfinite_weights:
        say(f"NaN or infinite values in: {', '.join(facts.nonfinite_weights)}")
    operators = table(["operator"], ["number"])
    for op, number in facts.operators.items():
        operators.add_row(op, str(number))
    print_wrapped(operators)


def show_rewriting(result: RewrittenFile) -> None:
    """Show rules with their claims, operators before and after, and what running both models showed."""
    rules = table(["rule"], ["times"], ["claim"])
    for row in result.rules:
        rules.add_row(row["rule"], str(row["count"]), row["exactness"])
    print_wrapped(rules if result.rules else "no rule applies")
    ops = table(["operator"], ["before", "after"])
    for op, number in result.operators.items():
        ops.add_row(op, str(number["before"]), str(number["after"]))
    print_wrapped(ops)
    found = result.validation
    distance = "identical" if found["rewriting_identical"] else f"{found['rewriting_sqnr_db']:.2f} dB apart"
    say(f"outputs on {count(found['validation_samples'], 'sample')}: {distance}")
    for (rule, reason), nodes in _together(result.explain).items():
        more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        say(f"{nodes[0]}{more}: {rule}: {reason}")
    say(str(result.output))


def _together(refusals: Iterable[Refusal]) -> dict[tuple[str, str], list[str]]:
    """Nodes where a rule says the same, in order."""
    found: dict[tuple[str, str], list[str]] = {}
    for item in refusals:
        found.setdefault((item.rule, item.reason), []).append(item.node)
    return found


def show_targets(found: Sequence[Analysis]) -> None:
    """Show what several devices take of one model, beside each other."""
    targets = table(["target"], ("compute nodes", "taken", "in float", "pieces"))
    for one in found:
        figures = (one.compute_nodes, len(one.npu_nodes), len(one.float_nodes), one.partitions)
        targets.add_row(one.target, *map(str, figures))
    print_wrapped(targets)


def _subject(built: Build) -> str:
    """The model, the device, the precision and the sizes: whoever reads the summary elsewhere has nothing else."""
    config, name = BuildConfig.from_dict(built.config), built.source_path.replace("\\", "/").rsplit("/", 1)[-1]
    chip = [part for part in (config.compile.device, config.compile.soc or config.compile.arch) if part]
    before = "" if built.source_weight_bytes is None else f" ({size(built.source_weight_bytes)} of weights)"
    after = sum(artifact.bytes for artifact in built.artifacts if artifact.kind in (DEPLOYABLE, BINARY))
    return f"{name}{before} for {' '.join(chip)}, {config.precision or 'as it came'}: {size(after)} to deploy"


def _cost(built: Build) -> str:
    found = built.estimate
    if found is None or built.cost is not None:
        return ""
    return f"estimated at {found.ratio:.2f} × {found.unit} ({found.rule})"


def _quantized(built: Build) -> str:
    stage = next(s for s in built.stages if s.name == "quantize")
    if stage.status == "skipped":
        return f"not quantized here: {stage.reason}"
    figures, quant = cast("QuantizeFigures", stage.details), BuildConfig.from_dict(built.config).quantization
    assert quant is not None, "a stage that quantized had settings for it"
    if quant.activation_type == "float16":
        halves = count(figures["nodes_quantized"], "node")
        return f"{halves} in half precision, {len(figures['kept_in_float32'])} in float32"
    if quant.activation_type == "float":
        return f"weights of {count(figures['nodes_quantized'], 'node')} packed to {quant.weight_type}"
    return f"{count(quantized_nodes(figures['types']), 'node')} quantized: {types_in_words(figures['types'])}"


def _placed(built: Build) -> str:
    if built.placement.known and not built.placement.partitions:
        return "runs on the CPU"
    if not built.placement.known:
        return "placement is not known: the device is not on this machine"
    on, off = (
        [node for node in nodes if node.op not in _CONVERSIONS]
        for nodes in (built.placement.npu_nodes, built.placement.cpu_nodes)
    )
    where = f"on the {built.placement.place}, {count(built.placement.partitions, 'partition')}"
    text = f"{len(on)} of {count(len(on) + len(off), 'compute node')} {where}" + _layers(built)
    text += "" if built.cost is None else f"\n{_estimated(built.cost)}"
    return text + "".join(f"\n  on the CPU: {node.name} ({node.op}): {node.reason}" for node in off)


def _estimated(cost: Cost) -> str:
    time = "" if cost.milliseconds is None else f", about {cost.milliseconds:.3g} ms at the chip's clock"
    sizes = {"weights": cost.weight_bytes, "activations": cost.activation_bytes}
    memory = [f"{size / 1024:.0f} KB of {what}" for what, size in sizes.items() if size is not None]
    return f"the compiler estimates {', '.join([f'{cost.cycles} cycles{time}', *memory])}"


def _layers(built: Build) -> str:
    """The number of layers in each precision, the most common first; nothing where the toolchain does not tell."""
    counts = Counter(layer.precision for layer in built.placement.layers).most_common()
    return (
        f"; {count(sum(n for _, n in counts), 'layer')}: {', '.join(f'{n} in {p}' for p, n in counts)}"
        if counts
        else ""
    )


def _calibrated(built: Build) -> str:
    if built.calibration_kind == "none":
        return ""
    return f"calibrated on {count(built.calibration_samples, 'sample')} ({built.calibration_kind})"


def _fixed(built: Build) -> str:
    """The inputs that are constants of the deployed model."""
    given = BuildConfig.from_dict(built.config).fixed_inputs
    return "".join(f"input {name} is a constant: {json.dumps(value)}\n" for name, value in given.items()).rstrip()


def _db(row: Accuracy) -> str:
    return "identical" if row.identical else f"{row.sqnr_db:.2f}"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _share(row: Accuracy) -> str:
    return "–" if row.top1_agreement is None else f"{100 * row.top1_agreement:.1f} %"
