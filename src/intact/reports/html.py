"""The report: one HTML file, drawn from the manifest alone.

Functions here choose what is said; `template.html.j2` lays it out and escapes it, for names in a model may be hostile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from intact.backends import installed
from intact.reports import error_bars, layer_map, snippet
from intact.reports.cost_curve import curve
from intact.reports.cost_words import cost_words
from intact.reports.figures import MISSING, count, decibels, duration, figure, size
from intact.reports.layer_cycles import layer_cycles
from intact.reports.native_snippets import native_snippets, systems
from intact.reports.next_steps import next_steps
from intact.reports.pages import page
from intact.reports.stage_words import stage_words
from intact.results import BINARY, DEPLOYABLE
from intact.targets.provider_placement import CONVERSIONS

Record = Mapping[str, Any]

# Outputs of one form that are listed before the rest is folded away.
OUTPUTS_SHOWN = 8
# The right end of SQNR bars, unless a value lies beyond it.
LEAST_SCALE_DB = 50.0

# Each word of a verdict: its colour, and what it means to the reader.
WORDS = {
    "good": ("good", "every form computes what the original does"),
    "passed": ("good", "the gates that were set hold, and nothing else is wrong"),
    "suspect": ("warn", "something is doubtful: look at it before you deploy this"),
    "unverified": ("warn", "what is deployed was not compared with the original"),
    "failed": ("bad", "a gate does not hold or could not be checked: do not deploy this"),
    "broken": ("bad", "the result is wrong: do not deploy this"),
}
FORMS = {
    "upgraded": "moved to a newer opset",
    "quantized": "portable QDQ model",
    "rewritten": "in the form that the target takes",
    "compiled": "what is deployed",
}
CLAIMS = {
    "exact": "the same numbers for every input",
    "within one step": "the replaced tensor moves by at most one step of its grid",
    "bounded": "the same function up to float rounding",
}
CALIBRATIONS = {
    "npz": "arrays from an .npz file",
    "arrays": "arrays in memory",
    "callable": "a Python function",
    "images": "images",
    "synthetic": "synthetic: drawn at random, not real data",
    "none": "nothing was calibrated",
}

# Fields of every stage, and lists whose content is among the warnings, in the map or in the table of placement.
COMMON = ("name", "status", "reason", "seconds")
TOLD_ELSEWHERE = ("violations", "float_nodes", "clipped", "requantized_weights", "notes")


def write(manifest: dict[str, Any], folder: Path) -> Path:
    """Write `reports.html` into a folder."""
    path = folder / "report.html"
    # A path or name that is not valid Unicode must not cost the user the report.
    path.write_text(render(manifest), encoding="utf-8", errors="backslashreplace", newline="\n")
    return path


def render(manifest: Record) -> str:
    """The report as a self-contained page; the same manifest gives the same text."""
    scripts = {"layer_map.js": manifest.get("layers"), "error_bars.js": manifest.get("errors")}
    return page("template.html.j2", *(name for name, needed in scripts.items() if needed), m=manifest, **view(manifest))


def view(manifest: Record) -> dict[str, Any]:
    """The values of the page beyond the manifest's own."""
    config, stages = manifest["config"], {stage["name"]: stage for stage in manifest["stages"]}
    placement = _placement(manifest["placement"], config["compile"]["device"])
    return {
        "created": manifest["created"].replace("T", " ").replace("+00:00", " UTC"),
        "model": manifest["source"]["path"].replace("\\", "/").rsplit("/", 1)[-1],
        "verdict": verdict(manifest),
        "task": _task(manifest["task_accuracy"]),
        "target": _target(config, stages),
        "precision": _precision(config, stages),
        "placement": placement,
        "accuracy": _accuracy(manifest["accuracy"], config["min_sqnr"]),
        "headline": _headline(manifest["accuracy"], config["min_sqnr"]),
        "tested": _tested(config, stages),
        "calibration": CALIBRATIONS.get(manifest["calibration"]["kind"], manifest["calibration"]["kind"]),
        "stages": _stages(manifest["stages"]),
        "rewrites": _grouped(manifest["rewrites"], ("rule", "exactness"), "node"),
        "claims": CLAIMS,
        "cost": cost_words(manifest),
        "cycles": layer_cycles(manifest),
        "curve": curve(manifest.get("search"), config["min_sqnr"]),
        "map": layer_map.drawing(manifest),
        "errors": error_bars.drawing(manifest),
        "next": next_steps(manifest),
        "sizes": _sizes(manifest),
        "ports": [dict(port) | {"dimensions": _dimensions(port.get("shape"))} for port in manifest["io"]],
        "native": native_snippets(manifest),
        "systems": systems(manifest),
        "load": snippet.lines(manifest),
    }


def verdict(manifest: Record) -> dict[str, Any]:
    """The word about the build, what it means, and why; older manifests have none, so their gates decide."""
    word = manifest.get("verdict") or ("failed" if manifest["status"] == "failed" else "unverified")
    state, text = WORDS[word]
    return {"state": state, "word": word, "text": text, "reasons": manifest.get("verdict_reasons", [])}


def _sizes(manifest: Record) -> dict[str, int | None]:
    """Bytes of the weights as given, and of the files that an application needs."""
    needed = (DEPLOYABLE, BINARY)
    after = sum(item["bytes"] for item in manifest["artifacts"] if item["kind"] in needed)
    return {"before": manifest["source"].get("weight_bytes"), "after": after or None}


def _dimensions(shape: Sequence[int | str | None] | None) -> str:
    """A shape as people write it; a free dimension by its name."""
    if shape is None:
        return MISSING
    return " × ".join("?" if dim is None else str(dim) for dim in shape) or "one number"


def _task(rows: Sequence[Record]) -> list[dict[str, Any]]:
    """Accuracy on labels by form, with the points that each lost against the original."""
    before = {row["output"]: row["correct"] for row in rows if row["form"] == "original"}
    return [dict(row) | {"lost": 100 * (before[row["output"]] - row["correct"]) / row["total"]} for row in rows]


def _target(config: Record, stages: Record) -> dict[str, str]:
    compiling = config["compile"]
    chip = [compiling[key] for key in ("soc", "arch") if compiling[key] is not None]
    return {
        "name": installed.title(compiling["device"]),
        "chip": ", ".join(chip) if chip else "the target's default",
        "runtime": stages.get("compile", {}).get("runtime") or MISSING,
    }


def _quant(config: Record) -> Record | None:
    quant: Record | None = config["quant"] if config["quant"] is not None else config["compile"]["quant"]
    return quant


def _precision(config: Record, stages: Record) -> dict[str, str]:
    """The precision by name and in words."""
    quant, name = _quant(config), config["precision"]
    if quant is None:
        reason = stages.get("quantize", {}).get("reason") or "nothing was quantized"
        return {"name": name or "as given", "words": reason}
    if quant["activation_type"] == "float16":
        return {"name": name or "set by hand", "words": "float16 throughout, inputs and outputs as they are"}
    if quant["activation_type"] == "float":
        words = f"activations float, weights {quant['weight_type']} in blocks of {quant['block_size']}"
        return {"name": name or "set by hand", "words": words}
    types = stages.get("quantize", {}).get("types")
    if name == "auto" and types is not None:
        return {"name": name, "words": f"{_types(types)} (activations × weights), ranges by {quant['method']}"}
    weights = "per channel" if quant["per_channel"] else "per tensor"
    words = (
        f"activations {quant['activation_type']} ({_symmetry(quant['activation_symmetric'])}), "
        f"weights {quant['weight_type']} ({weights}, {_symmetry(quant['weight_symmetric'])}), "
        f"ranges by {quant['method']}"
    )
    return {"name": name or "set by hand", "words": words}


def _symmetry(symmetric: bool) -> str:
    return "symmetric" if symmetric else "asymmetric"


def _placement(placement: Record, device: str) -> dict[str, Any]:
    """The share of the model on the NPU. Q/DQ compute nothing, so they are counted apart."""
    npu, cpu = placement["npu_nodes"], placement["cpu_nodes"]
    on, off = _compute(npu), _compute(cpu)
    ops = sorted({node["op"] for node in (*npu, *cpu)})
    total, partitions = len(on) + len(off), placement["partitions"]
    known = placement.get("known", True)  # manifests of earlier versions know it always
    has_npu = bool(partitions) or not known
    return {
        "known": known,
        "npu": has_npu,
        "place": placement.get("place", "NPU"),
        "layers": _grouped(_layers(placement.get("layers", ())), ("precision", "kind", "kernel"), "nodes"),
        "on": len(on),
        "total": total,
        "nodes": count(total, "compute node"),
        "bar": _percent(len(on), total),
        "state": "plain" if not (has_npu and known) else "good" if not off and partitions == 1 else "warn",
        "partitions": count(partitions, "partition"),
        "off": _grouped(off, ("op", "reason"), "name"),
        "off_count": len(off),
        "conversions": _grouped([node for node in cpu if node["op"] in CONVERSIONS], ("op", "reason"), "name"),
        "ops": [(op, *(sum(node["op"] == op for node in nodes) for nodes in (npu, cpu))) for op in ops],
    }


def _layers(layers: Iterable[Record]) -> list[dict[str, Any]]:
    """Layers with their nodes as one text."""
    return [dict(layer) | {"nodes": " + ".join(layer["nodes"])} for layer in layers]


def _compute(nodes: Iterable[Record]) -> list[Record]:
    return [node for node in nodes if node["op"] not in CONVERSIONS]


def _grouped(records: Iterable[Record], keys: tuple[str, ...], name: str) -> list[dict[str, Any]]:
    """Records that agree in `keys` as one, with the names of all; the largest groups first."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for record in records:
        groups.setdefault(tuple(record[key] for key in keys), []).append(record[name])
    largest_first = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [dict(zip(keys, group, strict=True)) | {"names": names} for group, names in largest_first]


def _accuracy(rows: Sequence[Record], limit: float | None) -> dict[str, Any]:
    """Rows by form, with the least SQNR of all marked, and bars on one scale."""
    noisy = [row["sqnr_db"] for row in rows if row["sqnr_db"] is not None]
    scale = max([LEAST_SCALE_DB, limit or 0.0, *noisy])
    # What looks equal is not told apart.
    least = decibels(min(noisy)) if len({_shown_db(row) for row in rows}) > 1 else None
    forms: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        below, lowest = _below(row, limit), least is not None and _shown_db(row) == least
        marks = {
            "bar": 100.0 if row["sqnr_db"] is None else _percent(row["sqnr_db"], scale),
            "state": "bad" if below else "least" if lowest else "",
            "notes": [*(["below the gate"] if below else []), *(["lowest"] if lowest else [])],
        }
        forms.setdefault((row["form"], row["runtime"]), []).append(dict(row) | marks)
    groups = [_form(form, runtime, found) for (form, runtime), found in forms.items()]
    for before, group in pairwise(groups):
        group["same_as"] = (
            before["form"] if list(map(_figures, before["rows"])) == list(map(_figures, group["rows"])) else ""
        )
    return {
        "groups": groups,
        "tick": None if limit is None else _percent(limit, scale),
        "folded": any(len(group["rows"]) > OUTPUTS_SHOWN for group in groups),
    }


def _form(form: str, runtime: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    worst_first = sorted(rows, key=_quality)
    shown = rows if len(rows) <= OUTPUTS_SHOWN else worst_first[:OUTPUTS_SHOWN]
    return {"form": form, "words": FORMS.get(form, ""), "runtime": runtime, "rows": rows, "shown": shown, "same_as": ""}


def _figures(row: Record) -> tuple[Any, ...]:
    """The figures of a row that the report shows, to tell whether two forms differ."""
    return tuple(
        row[key] for key in ("output", "sqnr_db", "cosine", "max_abs_error", "mean_abs_error", "top1_agreement")
    )


def _headline(rows: Sequence[Record], limit: float | None) -> Record | None:
    """The worst output of the last form that was measured, which is the one to deploy."""
    last = [row for row in rows if row["form"] == rows[-1]["form"]]
    worst = min(last, key=_quality, default=None)
    return None if worst is None else dict(worst) | {"state": "bad" if _below(worst, limit) else "plain"}


def _quality(row: Record) -> float:
    return math.inf if row["sqnr_db"] is None else float(row["sqnr_db"])


def _shown_db(row: Record) -> str:
    return "identical" if row["sqnr_db"] is None else decibels(row["sqnr_db"])


def _below(row: Record, limit: float | None) -> bool:
    return limit is not None and _quality(row) < limit


def _tested(config: Record, stages: Record) -> dict[str, Any]:
    """The inputs that accuracy was measured on."""
    quant = _quant(config)
    path = config["test_path"] or (quant["load_path"] if quant is not None else None)
    number = stages.get("verify", {}).get("samples")
    reason = stages.get("verify", {}).get("reason") or "accuracy was not measured"
    samples = count(number, "sample") if number is not None else "samples"
    return {"path": path, "samples": samples, "synthetic": path is None, "reason": reason}


def _stages(stages: Sequence[Record]) -> list[dict[str, Any]]:
    longest = max((stage["seconds"] for stage in stages), default=0.0)
    return [
        {key: stage[key] for key in COMMON}
        | {
            "bar": _percent(stage["seconds"], longest),
            "words": stage_words(stage["name"], stage) if stage["status"] == "ran" else "",
            "details": [_detail(key, value) for key, value in stage.items() if _tells(key, value)],
        }
        for stage in stages
    ]


def _tells(key: str, value: Any) -> bool:
    """True for a figure that is not empty and stands nowhere else in the report."""
    return key not in (*COMMON, *TOLD_ELSEWHERE) and value not in ("", [], {})


def _detail(key: str, value: Any) -> tuple[str, str]:
    """A figure of one stage, with its unit where the name tells it."""
    if key.endswith("_seconds") and isinstance(value, float):
        return key.removesuffix("_seconds").replace("_", " "), duration(value)
    if key.endswith("_sqnr_db"):
        label = key.removesuffix("_sqnr_db").replace("_", " ") + " SQNR"
        return label, "identical" if value is None else f"{decibels(value)} dB"
    if key.endswith("_bytes") and isinstance(value, int):
        return key.removesuffix("_bytes").replace("_", " "), size(value)
    if key == "types":
        return "types of nodes", _types(value)
    return key.replace("_", " "), _in_words(value)


def _in_words(value: Any) -> str:
    """A value of a manifest as people write it."""
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_in_words(entry)}" for name, entry in value.items())
    if isinstance(value, list):
        return ", ".join(map(_in_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return MISSING if value is None else figure(value) if isinstance(value, float) else str(value)


def _types(groups: Sequence[Record]) -> str:
    """The number of nodes with each type of activations and weights."""
    pairs = (" × ".join(filter(None, (group["activations"], group["weights"]))) for group in groups)
    return ", ".join(f"{group['nodes']} {pair}" for group, pair in zip(groups, pairs, strict=True))


def _percent(value: float, of: float) -> float:
    """Length of a bar; what is not a length is no bar."""
    return round(100 * min(max(value / of, 0.0), 1.0), 1) if of > 0 and math.isfinite(value) else 0.0
