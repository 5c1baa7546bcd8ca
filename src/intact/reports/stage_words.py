"""The figures of a stage as words: the same in the terminal and in the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from intact.reports.figures import count, decibels, types_in_words

Details = Mapping[str, Any]


def stage_words(name: str, details: Details) -> str:
    """Sum up the work of a stage in a few words; empty where its figures say nothing."""
    tell = _WORDS.get(name)
    told = [] if tell is None else [part for part in tell(details) if part]
    return ", ".join([*told, *(["resumed"] if details.get("resumed") else [])])


def _load(details: Details) -> list[str]:
    before, after = details.get("opset_from"), details.get("opset_to")
    moved = f"opset {before} → {after}" if before != after else f"opset {before}" if before is not None else ""
    return [moved, _distance("upgrade", details.get("upgrade_sqnr_db", "")) if before != after else ""]


def _optimize(details: Details) -> list[str]:
    return [count(details["rewrites"], "rewrite") if details.get("rewrites") else "nothing to simplify"]


def _quantize(details: Details) -> list[str]:
    types = types_in_words(details["types"]) if details.get("types") else ""
    kept = len(details.get("kept_in_float32") or {})
    return [types, f"{count(kept, 'node')} kept in float32" if kept else ""]


def _rewrite(details: Details) -> list[str]:
    fired = details.get("rewrites")
    same = "same numbers" if details.get("rewriting_identical") else _distance("", details.get("rewriting_sqnr_db", ""))
    return [count(fired, "rewrite"), same] if fired else ["nothing to rewrite"]


def _analyze(details: Details) -> list[str]:
    share, nodes = details.get("npu_percent"), details.get("compute_nodes")
    return [] if share is None or nodes is None else [f"{share:.0f} % of {count(nodes, 'compute node')} fit the device"]


def _validate(details: Details) -> list[str]:
    broken = len(details.get("violations") or [])
    return [count(broken, "violation") if broken else "no violations"]


def _verify(details: Details) -> list[str]:
    clipped = len(details.get("clipped") or [])
    tensors = f"{count(clipped, 'tensor')} outside their range" if clipped else ""
    return [f"{count(details['samples'], 'sample')} compared" if "samples" in details else "", tensors]


def _search(details: Details) -> list[str]:
    tried, builds = details.get("assignments_tried"), details.get("builds")
    words = [count(details["groups"], "group")] if "groups" in details else []
    words += [] if tried is None else [f"{count(tried, 'assignment')} tried"]
    return [*words, *([] if builds is None else [count(builds, "build")])]


def _distance(what: str, db: object) -> str:
    """`identical`, or how far apart two forms are; nothing where that was not measured."""
    if db == "":
        return ""
    told = "identical" if db is None else f"{decibels(float(str(db)))} dB"
    return f"{what} {told}".strip()


_WORDS: dict[str, Callable[[Details], list[str]]] = {
    "load": _load,
    "optimize": _optimize,
    "quantize": _quantize,
    "rewrite": _rewrite,
    "analyze": _analyze,
    "validate": _validate,
    "compile": lambda details: [str(details.get("runtime") or "")],
    "verify": _verify,
    "search": _search,
    "mend": lambda details: ["; ".join(details.get("done") or ["no better form found"])],
    "debug": lambda details: [str(details.get("parted") or "no single place found")],
    "perf": lambda details: [f"{details['ratio']:.2f} times the original" if details.get("ratio") else ""],
}
