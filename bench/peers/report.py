"""RESULTS.md and its pictures, drawn from the raw results alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.peers import figures, plots
from bench.peers.store import Results
from bench.peers.tools import LEFT_OUT, Tool

ROOT = Path(__file__).resolve().parents[2]
NONE = "–"
SIMULATORS = {"qnn": "the simulator of a Hexagon NPU", "rknn": "the simulator of a Rockchip NPU"}


def write(folder: Path, results: Results) -> None:
    """Write RESULTS.md into a folder, and the pictures beside the raw figures."""
    (folder / "results").mkdir(parents=True, exist_ok=True)
    for name, text in plots.pictures(results).items():
        (folder / "results" / name).write_text(text, encoding="utf-8")
    (folder / "RESULTS.md").write_text(page(results), encoding="utf-8")


def page(results: Results) -> str:
    """The whole page."""
    parts = [
        "# intact beside other quantizers",
        "Written by `make bench-peers`; the raw figures are in [results/peers.json](results/peers.json).",
        _first_words(results),
        first_table(results),
        _reading(results),
        "## Where we lose",
        _losses(results),
        *(part for device in figures.simulators(results) for part in _simulated(results, device)),
        "## Memory",
        _table(results, _general(results), _memory_cell, "peak MB"),
        *(f"![{words}](results/{name})" for name, words in plots.captions(results).items()),
        "## The quantized models",
        "On ONNX Runtime as users run it, with all optimizations: time of a sample as a multiple of the float model's, "
        f"where the machine was quiet, SQNR in dB{_kernels(results)}, and the size in MB.",
        _table(results, figures.ran(results), _model_cell, "time / dB / MB"),
        _accuracies(results),
        _sameness(results),
        "## The tools",
        _packages(results),
        *_failures(results),
        "## How this was measured",
        _method(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _general(results: Results) -> list[Tool]:
    """The tools without those that are for one device."""
    return [tool for tool in figures.ran(results) if not tool.device]


def first_table(results: Results) -> str:
    """Seconds and SQNR of every tool on every model: the best of each in bold."""
    return _table(results, _general(results), _first_cell, "seconds / dB")


def _first_cell(results: Results, model: str, tool: str) -> str:
    if _failed(results, model, tool):
        return "fails"
    taken = figures.time_of(results, model, tool)
    if taken is None:
        return NONE
    kept = figures.figure_of(results, model, tool, "cpu", "sqnr_db")
    labels = [tool.label for tool in _general(results)]
    times = [figures.time_of(results, model, label) for label in labels]
    ratios = [figures.figure_of(results, model, label, "cpu", "sqnr_db") for label in labels]
    best_time = min((value for value in times if value is not None), default=None)
    best_ratio = max((value for value in ratios if value is not None), default=None)
    return f"{_bold(taken, best_time)} / {_bold(kept, best_ratio)}"


def _bold(value: float | None, best: float | None) -> str:
    if value is None:
        return NONE
    return f"**{value:.1f}**" if value == best else f"{value:.1f}"


def _failed(results: Results, model: str, tool: str) -> bool:
    runs = figures.of_tables(results, model, tool)
    return bool(runs) and all(run.error for run in runs)


def _memory_cell(results: Results, model: str, tool: str) -> str:
    found = figures.memory_of(results, model, tool)
    return NONE if found is None else f"{found:.0f}"


def _model_cell(results: Results, model: str, tool: str) -> str:
    ratio = figures.latency_of(results, model, tool)
    size = figures.size_of(results, model, tool)
    kept = figures.figure_of(results, model, tool, "cpu", "optimized_db")
    if kept is None or size is None:
        return NONE
    return f"{NONE if ratio is None else f'{ratio:.2f}'} / {kept:.1f} / {size:.2f}"


def _accuracies(results: Results) -> str:
    """Points of accuracy lost, for the models whose test samples have labels."""
    labelled = {one.model for one in results.judged if "points_lost" in one.cpu}
    if not labelled:
        return ""
    part = replace(results, models={model: known for model, known in results.models.items() if model in labelled})
    return f"Points of accuracy lost there:\n\n{_table(part, figures.ran(part), _points_cell, 'points lost')}"


def _points_cell(results: Results, model: str, tool: str) -> str:
    lost = figures.figure_of(results, model, tool, "cpu", "points_lost")
    return NONE if lost is None else f"{lost:.1f}"


def _kernels(results: Results) -> str:
    """The fact about integer kernels of this machine that a reader of figures has to know."""
    if results.machine["vnni"] is False:
        return " (this processor has no VNNI, so that sums of uint8 × int8 may saturate in its kernels)"
    return ""


def _npu_cell(device: str, results: Results, model: str, tool: str) -> str:
    judged = results.verdict(model, tool)
    found = {} if judged is None else judged.simulated.get(device, {})
    if not found:
        return NONE
    if "error" in found:
        return "refused"
    return f"{_bold(found['sqnr_db'], None)} dB, {found['npu_nodes']} of {found['nodes']}"


def _table(results: Results, tools: Sequence[Tool], cell: Callable[[Results, str, str], str], corner: str) -> str:
    rows = [
        [_title(results, model), *(cell(results, model, tool.label) for tool in tools)] for model in _models(results)
    ]
    return _markdown([corner, *(tool.label for tool in tools)], rows)


def _models(results: Results) -> list[str]:
    """Models from the smallest to the largest."""
    return sorted(results.models, key=lambda model: results.models[model]["parameters"])


def _title(results: Results, model: str) -> str:
    known = results.models[model]
    count = known["parameters"]
    size = f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count / 1e3:.0f} k"
    return f"{known['title']}, {size} parameters"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _first_words(results: Results) -> str:
    """A reader's first question, answered in counts."""
    models, others = _models(results), [tool.label for tool in figures.peers(results)]
    best = [model for model in models if _is_best(results, model, others)]
    faster = [model for model in models if _at_most(results, model, figures.FAST, "ORT MinMax")]
    samples = " or ".join(map(str, sorted({results.models[model]["samples"] for model in models})))
    return (
        f"{len(models)} model{'s' * (len(models) != 1)}, quantized to 8 bits with {samples} samples. `intact` keeps "
        f"more of the float model's output on the CPU than any other tool here on {len(best)} of them; `intact fast` "
        f"takes no longer than onnxruntime.quantization's MinMax on {len(faster)}."
    )


def _is_best(results: Results, model: str, others: Sequence[str]) -> bool:
    own = figures.figure_of(results, model, figures.NORMAL, "cpu", "sqnr_db")
    theirs = [figures.figure_of(results, model, label, "cpu", "sqnr_db") for label in others]
    return own is not None and all(value is None or own > value for value in theirs)


def _at_most(results: Results, model: str, ours: str, theirs: str) -> bool:
    own, other = figures.time_of(results, model, ours), figures.time_of(results, model, theirs)
    return own is not None and other is not None and own <= other


def _reading(results: Results) -> str:
    kind = "of the clock" if figures.quiet(results) else "of the processor"
    return (
        f"Seconds {kind} from the start of the process to its end, imports included, medians; then the SQNR in dB of "
        "the worst output on samples that no tool has seen, on ONNX Runtime, each node as it is written. Bold: the "
        "best of the row. `intact` is its normal effort, `intact fast` chooses ranges only."
    )


def _losses(results: Results) -> str:
    found = list(figures.losses(results))
    rows = [[_name(results, loss.model), loss.figure, loss.ours, f"{loss.theirs} ({loss.tool})"] for loss in found]
    words = (
        "Every figure in which the best of all other tools is clearly better, each figure by itself: the quickest tool "
        "is seldom the most accurate one.\n\n" + _markdown(["model", "figure", "intact", "best of the others"], rows)
    )
    parts = [words if found else "In no figure of this run is another tool clearly better."]
    wasted = [_name(results, model) for model in figures.wasted(results)]
    if wasted:
        parts.append(f"The normal effort keeps less than the fast one, which takes less time, on: {', '.join(wasted)}.")
    return "\n\n".join(parts)


def _simulated(results: Results, device: str) -> list[str]:
    """What the simulator of a device makes of every quantized model."""
    words = (
        f"Each quantized model is compiled by `intact compile --device {device} --no-strict`, which brings models of "
        "other tools to the form that the device takes where no number changes by it, and compared by `intact verify`: "
        f"SQNR of the worst output, and compute nodes on the NPU. `for {device}` are the settings of a tool for this "
        f"device; {NONE} was not asked. The simulator was given {_samples(results, device)}."
    )
    refused = [
        f"- {one.tool}, {results.models[one.model]['title']}: {one.simulated[device]['error']}"
        for one in results.judged
        if "error" in one.simulated.get(device, {}) and one.model in results.models
    ]
    tools = [tool for tool in figures.ran(results) if tool.device in ("", device)]
    cells = partial(_npu_cell, device)
    title = SIMULATORS.get(device, f"the simulator of {device}")
    return [f"## On {title}", words, _table(results, tools, cells, "dB, nodes on the NPU"), *_listed(refused)]


def _samples(results: Results, device: str) -> str:
    """How many samples a simulator was given, by the models that it ran."""
    found: dict[int, list[str]] = {}
    for model, known in results.models.items():
        counts = {one.simulated.get(device, {}).get("samples", 0) for one in results.judged if one.model == model}
        if most := max(counts, default=0):
            found.setdefault(most, []).append(known["title"])
    told = [f"{count} samples of {' and '.join(titles)}" for count, titles in sorted(found.items(), reverse=True)]
    return f"{next(iter(found))} samples" if len(found) == 1 else ", ".join(told) or "no samples"


def _listed(lines: Sequence[str]) -> list[str]:
    return ["\n".join(lines)] if lines else []


def _sameness(results: Results) -> str:
    """Who writes the same bytes twice, as far as a tool ran twice."""
    said = []
    for tool in figures.ran(results):
        found = [figures.same_bytes(results, model, tool.label) for model in _models(results)]
        known = [value for value in found if value is not None]
        if known:
            said.append(f"{tool.label} on {sum(known)} of {len(known)}")
    if not said:
        return "Every tool ran once on each model: whether it writes the same bytes twice is not known."
    return f"The same bytes in every run, of the models with more than one: {', '.join(said)}."


def _packages(results: Results) -> str:
    rows = [
        [
            name if name == "intact" else found["version"],
            f"{found['loading']['seconds']:.2f} / {found['loading']['processor_seconds']:.2f}",
            f"{found['installed_bytes'] / 1e6:.0f}",
        ]
        for name, found in results.tools.items()
        if found["loading"]
    ]
    return _markdown(["package", "loading, seconds / processor seconds", "installed, MB with all that it needs"], rows)


def _failures(results: Results) -> list[str]:
    absent = [f"- {found['version']}: {found['error']}" for found in results.tools.values() if found["error"]]
    failed = {(run.tool, run.model): run.error for run in results.runs if run.error and run.model in results.models}
    errors = [f"- {tool}, {results.models[model]['title']}: {error}" for (tool, model), error in failed.items()]
    cpu = [
        f"- {one.tool}, {results.models[one.model]['title']}, when it ran: {one.cpu['error']}"
        for one in results.judged
        if "error" in one.cpu and one.model in results.models
    ]
    left_out = [f"- {name}: {reason}." for name, reason in LEFT_OUT.items()]
    parts = [
        ("Not compared:", left_out),
        ("Not usable here, in the words of pip or Python:", absent),
        ("Failed, in the tool's own words:", [*errors, *cpu]),
    ]
    return [f"{head}\n\n" + "\n".join(lines) for head, lines in parts if lines]


def _name(results: Results, model: str) -> str:
    return results.models[model]["title"] if model in results.models else "every model"


def _spread(results: Results) -> str:
    """The widest distance between repeats, relative to their median."""
    found = [
        figures.seconds(results, results.of(model, tool.label, known["samples"]))
        for model, known in results.models.items()
        for tool in figures.ran(results)
    ]
    widths = [(one.most - one.least) / one.value for one in found if one is not None and one.count > 1]
    if not widths:
        return "Nothing was repeated: how far seconds spread is not known."
    return f"From the least to the most, repeats span {100 * statistics.median(widths):.0f} % of their median, " + (
        f"at most {100 * max(widths):.0f} %."
    )


def _times(counts: Sequence[int]) -> str:
    """How often something was done, in words."""
    least, most = min(counts), max(counts)
    if least == most:
        return "once" if most == 1 else f"{most} times"
    return f"{least} to {most} times"


def _method(results: Results) -> str:
    known, share = results.machine, figures.busy_share(results)
    counts = [
        len(figures.of_tables(results, model, tool.label)) for model in results.models for tool in figures.ran(results)
    ]
    state = (
        "The machine was quiet"
        if figures.quiet(results)
        else "The machine was **not** quiet: seconds in the tables are of the processor, all threads together"
    )
    lines = [
        f"- {known['processor']}, {known['cores']} cores, {known['system']}, Python {known['python']}.",
        f"- {state}; other programs used {100 * share:.0f} % of it in the median run.",
        f"- Each tool ran in an environment of its own, with pinned versions, {_times(counts)} on each model, tools "
        "and models in shuffled order within a call; a page may hold the runs of several calls. The job of each is in "
        "`bench/peers/jobs/`.",
        f"- {_spread(results)}",
        "- Every tool is given the same samples. intact holds a quarter of them back to judge its own choices by.",
        "- Memory is the most that a process and its children had together, looked at twenty times a second.",
        "- Models with drawn weights say much about time and memory, and less about accuracy: no training shaped them.",
    ]
    return "\n".join(lines)
