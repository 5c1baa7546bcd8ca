"""Results for people, on stdout: narrow enough for a small terminal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from intact.cli.console import print_json, verdict_line
from intact.reports.figures import quantized_nodes, size, types_in_words
from intact.results import Accuracy, Build, TaskAccuracy

_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")


def show(built: Build, folder: Path, *, as_json: bool, quiet: bool) -> None:
    """A finished build: its manifest for programs, a summary for people."""
    if as_json:
        print_json(json.loads((folder / "manifest.json").read_text(encoding="utf-8")))
        return
    if quiet:
        return
    out = _console()
    out.print()
    for line in (verdict_line(built.judged), _quantized(built), _placed(built), _calibrated(built)):
        if line:
            out.print(line, soft_wrap=True)
    if built.accuracy:
        show_accuracy(built.accuracy)
    if built.task_accuracy:
        show_task_accuracy(built.task_accuracy)
    for gate in built.gates:
        out.print(
            f"gate {gate.name} {gate.limit:g}: {'passed' if gate.passed else 'FAILED'}, {gate.detail}", soft_wrap=True
        )
    for artifact in built.artifacts:
        out.print(f"{folder / artifact.path}  ({size(artifact.bytes)}, {artifact.kind})", soft_wrap=True)
    out.print(f"{folder / 'manifest.json'}", soft_wrap=True)
    out.print(f"report: {folder / 'report.html'}", soft_wrap=True)


def show_accuracy(rows: Sequence[Accuracy]) -> None:
    """One row for each form and output."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("form", "output"):
        table.add_column(name, overflow="fold")
    for name in ("SQNR dB", "cosine", "max error", "top-1"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.form, row.output, _db(row), _number(row.cosine, ".5f"), f"{row.max_abs_error:.3g}", _share(row)
        )
    _console().print(table)


def show_task_accuracy(rows: Sequence[TaskAccuracy]) -> None:
    """How many labels each form got right."""
    table = _table(("form", False), ("output", False), ("right", True), ("of", True), ("accuracy", True))
    for row in rows:
        table.add_row(row.form, row.output, str(row.correct), str(row.total), f"{100 * row.accuracy:.2f} %")
    _console().print(table)


def show_model(facts: dict[str, Any]) -> None:
    """What `inspect` found."""
    out = _console()
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in facts["opsets"].items())
    out.print(
        f"{facts['path']}: {facts['nodes']} nodes, {size(facts['weight_bytes'])} of weights, opset {opsets}",
        soft_wrap=True,
    )
    out.print(f"producer: {facts['producer']}", soft_wrap=True)
    for direction in ("inputs", "outputs"):
        for port in facts[direction]:
            out.print(f"{direction[:-1]} {port['name']}: {port['dtype']} {port['shape']}", soft_wrap=True)
    if facts["free_dims"]:
        out.print(f"free dimensions: {', '.join(facts['free_dims'])} (fix them with --dim name=size)", soft_wrap=True)
    out.print(facts["quantized"] or "not quantized", soft_wrap=True)
    if facts["nonfinite_weights"]:
        out.print(f"NaN or infinite values in: {', '.join(facts['nonfinite_weights'])}", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("operator", overflow="fold")
    table.add_column("number", justify="right")
    for op, count in facts["operators"].items():
        table.add_row(op, str(count))
    out.print(table)


def show_rewriting(result: dict[str, Any]) -> None:
    """Rules with their claims, operators before and after, and what running both models showed."""
    out = _console()
    rules = _table(("rule", False), ("times", True), ("claim", False))
    for row in result["rules"]:
        rules.add_row(row["rule"], str(row["count"]), row["exactness"])
    out.print(rules if result["rules"] else "no rule applies")
    ops = _table(("operator", False), ("before", True), ("after", True))
    for op, count in result["operators"].items():
        ops.add_row(op, str(count["before"]), str(count["after"]))
    out.print(ops)
    found = result["validation"]
    distance = "identical" if found["rewriting_identical"] else f"{found['rewriting_sqnr_db']:.2f} dB apart"
    out.print(f"outputs on {found['validation_samples']} samples: {distance}", soft_wrap=True)
    for (rule, reason), nodes in _together(result["explain"]).items():
        more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        out.print(f"{nodes[0]}{more}: {rule}: {reason}", soft_wrap=True)
    out.print(result["output"], soft_wrap=True)


def _together(refusals: Iterable[dict[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Nodes where a rule says the same, in order."""
    found: dict[tuple[str, str], list[str]] = {}
    for item in refusals:
        found.setdefault((item["rule"], item["reason"]), []).append(item["node"])
    return found


def show_targets(found: Sequence[dict[str, Any]]) -> None:
    """What several devices take of one model, beside each other."""
    table = _table(("target", False), ("compute nodes", True), ("taken", True), ("in float", True), ("pieces", True))
    for analysis in found:
        taken, floats = len(analysis["npu_nodes"]), len(analysis["float_nodes"])
        figures = (analysis["compute_nodes"], taken, floats, analysis["partitions"])
        table.add_row(analysis["target"], *map(str, figures))
    _console().print(table)


def _table(*columns: tuple[str, bool]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, is_number in columns:
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    return table


def _console() -> Console:
    return Console(highlight=False, markup=False)


def _quantized(built: Build) -> str:
    stage = next(s for s in built.stages if s.name == "quantize")
    if stage.status == "skipped":
        return f"not quantized here: {stage.reason}"
    quant = built.config.get("quant") or built.config["compile"]["quant"]
    if quant["activation_type"] == "float16":
        kept = len(stage.details["kept_in_float32"])
        return f"{stage.details['nodes_quantized']} nodes in half precision, {kept} in float32"
    if quant["activation_type"] == "float":
        return f"weights of {stage.details['nodes_quantized']} nodes packed to {quant['weight_type']}"
    types = stage.details["types"]
    return f"{quantized_nodes(types)} nodes quantized: {types_in_words(types)}"


def _placed(built: Build) -> str:
    if built.placement.known and not built.placement.partitions:
        return "runs on the CPU"
    if not built.placement.known:
        return "placement is not known: the device is not on this machine"
    on, off = (
        [node for node in nodes if node.op not in _CONVERSIONS]
        for nodes in (built.placement.npu_nodes, built.placement.cpu_nodes)
    )
    where = f"on the {built.placement.place}, {built.placement.partitions} partition(s)"
    text = f"{len(on)} of {len(on) + len(off)} compute nodes {where}" + _layers(built)
    return text + "".join(f"\n  on the CPU: {node.name} ({node.op}): {node.reason}" for node in off)


def _layers(built: Build) -> str:
    """How many layers run in each precision, the most common first; nothing where the toolchain does not tell."""
    counts = Counter(layer.precision for layer in built.placement.layers).most_common()
    return f"; {sum(n for _, n in counts)} layers: {', '.join(f'{n} in {p}' for p, n in counts)}" if counts else ""


def _calibrated(built: Build) -> str:
    if built.calibration_kind == "none":
        return ""
    return f"calibrated on {built.calibration_samples} samples ({built.calibration_kind})"


def _db(row: Accuracy) -> str:
    return "identical" if row.identical else f"{row.sqnr_db:.2f}"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _share(row: Accuracy) -> str:
    return "–" if row.top1_agreement is None else f"{100 * row.top1_agreement:.1f} %"
