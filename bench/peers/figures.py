"""The figures of the report, out of the raw results: medians, their spread, and who is better."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.peers.store import Results, Run
from bench.peers.tools import PACKAGES, TOOLS, Tool

# The share of the machine that other programs may use before seconds of the clock mean little.
QUIET = 0.1
FAST, NORMAL = "intact fast", "intact"
FOR_QNN, FOR_RKNN = "intact for qnn", "intact for rknn"
# What a peer has to be better by to count, relative to ours: below it is chance.
CLEAR = 0.02
CLEAR_DB = 0.1


@dataclass(frozen=True, slots=True)
class Median:
    """A median and the least and most of what it stands for."""

    value: float
    least: float
    most: float
    count: int


@dataclass(frozen=True, slots=True)
class Loss:
    """A figure in which another tool is better than we are."""

    model: str
    figure: str
    ours: str
    tool: str
    theirs: str


def quiet(results: Results) -> bool:
    """True if other programs left the machine alone, as far as is known."""
    return busy_share(results) <= QUIET


def busy_share(results: Results) -> float:
    """The median share of the machine that other programs used during a run."""
    shares = [run.others for run in results.runs if run.others is not None]
    return statistics.median(shares) if shares else 0.0


def seconds(results: Results, runs: Sequence[Run]) -> Median | None:
    """Seconds of runs: of the clock on a quiet machine, of the processor on one that others use, too."""
    clock = quiet(results)
    return _median([run.seconds if clock else run.processor_seconds for run in runs if not run.error])


def megabytes(runs: Sequence[Run]) -> Median | None:
    """Peak memory of runs."""
    return _median([run.peak_bytes / 1e6 for run in runs if not run.error and run.peak_bytes])


def _median(values: Sequence[float]) -> Median | None:
    return Median(statistics.median(values), min(values), max(values), len(values)) if values else None


def ran(results: Results) -> list[Tool]:
    """The tools that were run on any model, ours first."""
    seen = {run.tool for run in results.runs}
    return [tool for tool in TOOLS if tool.label in seen]


def peers(results: Results) -> list[Tool]:
    """The tools that are not ours."""
    return [tool for tool in ran(results) if not tool.ours]


def of_tables(results: Results, model: str, tool: str) -> list[Run]:
    """The runs that tables show: those with the model's first number of samples."""
    return results.of(model, tool, results.models[model]["samples"])


def time_of(results: Results, model: str, tool: str) -> float | None:
    """Median seconds of a tool on a model."""
    found = seconds(results, of_tables(results, model, tool))
    return None if found is None else found.value


def memory_of(results: Results, model: str, tool: str) -> float | None:
    """Median peak megabytes of a tool on a model."""
    found = megabytes(of_tables(results, model, tool))
    return None if found is None else found.value


def figure_of(results: Results, model: str, tool: str, side: str, figure: str) -> float | None:
    """A figure of a quantized model on `cpu`, or on the simulator of a device."""
    judged = results.verdict(model, tool)
    if judged is None:
        return None
    found: float | None = (judged.cpu if side == "cpu" else judged.simulated.get(side, {})).get(figure)
    return found


def simulators(results: Results) -> list[str]:
    """The devices on whose simulators any model was judged."""
    return sorted({device for one in results.judged for device in one.simulated})


def size_of(results: Results, model: str, tool: str) -> float | None:
    """Megabytes of a quantized model."""
    return next((run.model_bytes / 1e6 for run in of_tables(results, model, tool) if not run.error), None)


def same_bytes(results: Results, model: str, tool: str) -> bool | None:
    """True if every run wrote the same file; None where there was only one."""
    digests = [run.sha256 for run in of_tables(results, model, tool) if not run.error]
    return None if len(digests) < 2 else len(set(digests)) == 1


Figure = Callable[[Results, str, str], float | None]


def _cpu_db(results: Results, model: str, tool: str) -> float | None:
    return figure_of(results, model, tool, "cpu", "sqnr_db")


def _optimized_db(results: Results, model: str, tool: str) -> float | None:
    return figure_of(results, model, tool, "cpu", "optimized_db")


def _qnn_db(results: Results, model: str, tool: str) -> float | None:
    return figure_of(results, model, tool, "qnn", "sqnr_db")


def _rknn_db(results: Results, model: str, tool: str) -> float | None:
    return figure_of(results, model, tool, "rknn", "sqnr_db")


def latency_of(results: Results, model: str, tool: str) -> float | None:
    """The time of a sample as a multiple of float's; on a machine that others use it says more about them."""
    if not quiet(results):
        return None
    return figure_of(results, model, tool, "cpu", "latency_ratio")


# A figure, in which of our tools it is compared, how it is written, and True where more is better.
COMPARED: tuple[tuple[str, Figure, str, str, bool], ...] = (
    ("seconds, fast", time_of, FAST, "{:.1f} s", False),
    ("seconds", time_of, NORMAL, "{:.1f} s", False),
    ("memory, fast", memory_of, FAST, "{:.0f} MB", False),
    ("memory", memory_of, NORMAL, "{:.0f} MB", False),
    ("SQNR on the CPU", _cpu_db, NORMAL, "{:.1f} dB", True),
    ("SQNR on the CPU, optimized", _optimized_db, NORMAL, "{:.1f} dB", True),
    ("SQNR on Hexagon's simulator", _qnn_db, FOR_QNN, "{:.1f} dB", True),
    ("SQNR on Rockchip's simulator", _rknn_db, FOR_RKNN, "{:.1f} dB", True),
    ("time on ONNX Runtime, of float", latency_of, NORMAL, "{:.2f}", False),
    ("size", size_of, NORMAL, "{:.2f} MB", False),
)


def losses(results: Results) -> Iterator[Loss]:
    """Every figure of every model in which the best of the others is clearly better than we are."""
    for model in results.models:
        for name, figure, ours, form, more in COMPARED:
            own = figure(results, model, ours)
            others = {tool.label: figure(results, model, tool.label) for tool in peers(results)}
            known = {label: value for label, value in others.items() if value is not None}
            if own is None or not known:
                continue
            best = (max if more else min)(known, key=lambda label: known[label])
            if _clearly_better(known[best], own, more=more):
                yield Loss(model, name, form.format(own), best, form.format(known[best]))
    yield from _of_packages(results)


def wasted(results: Results) -> list[str]:
    """The models on which the normal effort keeps less than the fast one."""
    pairs = {model: [_cpu_db(results, model, tool) for tool in (FAST, NORMAL)] for model in results.models}
    return [model for model, (fast, normal) in pairs.items() if fast and normal and normal < fast - CLEAR_DB]


def _clearly_better(theirs: float, own: float, *, more: bool) -> bool:
    return theirs > own + CLEAR_DB if more else theirs < own * (1 - CLEAR)


def _of_packages(results: Results) -> Iterator[Loss]:
    """Loading and size on disk, which no model changes."""
    usable = {name: found for name, found in results.tools.items() if found["loading"]}
    if "intact" not in usable or len(usable) < 2:
        return
    for name, value, form in (
        ("loading", lambda found: found["loading"]["processor_seconds"], "{:.2f} processor s"),
        ("installed", lambda found: found["installed_bytes"] / 1e6, "{:.0f} MB"),
    ):
        figures = {label: value(usable[label]) for label in PACKAGES if label in usable}
        own = figures.pop("intact")
        best = min(figures, key=lambda label: figures[label])
        if _clearly_better(figures[best], own, more=False):
            yield Loss("all", name, form.format(own), best, form.format(figures[best]))
