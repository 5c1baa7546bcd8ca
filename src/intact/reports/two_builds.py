"""The page that compares two builds: their verdicts, figures and settings beside each other, differences marked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from intact.reports import html
from intact.reports.cost_words import cost_words
from intact.reports.figures import MISSING, count, decibels, size
from intact.reports.pages import page
from intact.results import BINARY, DEPLOYABLE
from intact.targets.provider_placement import CONVERSIONS

Record = Mapping[str, Any]


class ComparedLine(NamedTuple):
    """One line of the comparison: a name, and what each of two builds has there."""

    name: str
    first: str
    second: str

    @property
    def differs(self) -> bool:
        return self.first != self.second


def render(first: Record, second: Record, names: tuple[str, str]) -> str:
    """Two manifests as a self-contained page; the same manifests give the same text."""
    settings = _pairs(dict(_flat(first["config"])), dict(_flat(second["config"])))
    environment = _pairs(first["environment"], second["environment"])
    return page(
        "two_builds.html.j2",
        names=names,
        models=_models(first["source"]["path"], second["source"]["path"]),
        same_source=first["source"]["sha256"] == second["source"]["sha256"],
        verdicts=[html.verdict(build) for build in (first, second)],
        figures=_pairs(_figures(first), _figures(second)),
        accuracy=_pairs(_accuracy(first), _accuracy(second)),
        settings=[pair for pair in settings if pair.differs],
        environment=[pair for pair in environment if pair.differs],
        placement=_pairs(_off_npu(first), _off_npu(second)),
    )


def _models(*paths: str) -> list[str]:
    """The names of two model files, or their paths where those are the same."""
    names = [path.replace("\\", "/").rsplit("/", 1)[-1] for path in paths]
    return list(paths) if names[0] == names[1] else names


def _pairs(first: Mapping[str, str], second: Mapping[str, str]) -> list[ComparedLine]:
    """Pair the values of two builds by name, in the order of the first; names of the second alone come last."""
    return [ComparedLine(name, first.get(name, MISSING), second.get(name, MISSING)) for name in {**first, **second}]


def _figures(build: Record) -> dict[str, str]:
    placement, calibration = build["placement"], build["calibration"]
    on, off = (_compute(placement[key]) for key in ("npu_nodes", "cpu_nodes"))
    deployed = sum(item["bytes"] for item in build["artifacts"] if item["kind"] in (DEPLOYABLE, BINARY))
    return {
        "device": " ".join(str(build["config"]["compile"][key] or "") for key in ("device", "soc", "arch")).strip(),
        "precision": build["config"]["precision"] or "as given",
        "deployed size": size(deployed),
        **_cost(build),
        "compute nodes on the NPU": f"{len(on)} of {len(on) + len(off)}" if placement["partitions"] else MISSING,
        "partitions": str(placement["partitions"] or MISSING),
        "calibration": f"{count(calibration['samples'], 'sample')} ({calibration['kind']})",
        "rewrites": str(len(build["rewrites"])),
        "warnings": str(len(build["warnings"])),
        "time to build": f"{sum(stage['seconds'] for stage in build['stages']):.1f} s",
    }


def _cost(build: Record) -> dict[str, str]:
    found = cost_words(build)
    return {found.title.lower(): f"{found.value} {found.words}" if found.source else found.value}


def _compute(nodes: list[Record]) -> list[Record]:
    return [node for node in nodes if node["op"] not in CONVERSIONS]


def _accuracy(build: Record) -> dict[str, str]:
    return {
        f"{row['form']}, {row['output']}": "identical" if row["sqnr_db"] is None else f"{decibels(row['sqnr_db'])} dB"
        for row in build["accuracy"]
    }


def _off_npu(build: Record) -> dict[str, str]:
    if not build["placement"]["partitions"]:
        return {}
    return {f"{node['name']} ({node['op']})": node["reason"] for node in _compute(build["placement"]["cpu_nodes"])}


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", MISSING if value is None else str(value)
