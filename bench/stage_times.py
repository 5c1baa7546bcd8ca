"""Where the time goes: processor seconds of each stage of quantizing and of whole builds, a process for each model.

Stages end where the program's own stopwatch ends them. Processor seconds of all threads hold up on a busy machine,
but for what shared caches cost. Models are those of bench/peers, with 24 samples, uint8 for the CPU; the first one is
also built for the simulator of an NPU, as `make demo` does.

python bench/stage_times.py [NAME...] [--efforts fast normal] [-o bench/STAGE_TIMES.md]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("digits_cnn", "resnet50", "vit_small", "bert_base")
BEGIN, END = "begin", "end"
HEADINGS = {
    "import": "imports",
    BEGIN: "load, check, optimize",
    "smoothing": "smooth",
    "calibration": "observe",
    "planning": "plan",
    "study": "study layers",
    "rounding": "round",
    "correction": "correct biases",
    "qdq_insertion": "insert",
    END: "write, check",
}


def measured(model: Path, rows: Path, effort: str) -> dict[str, float]:
    """Processor seconds by stage of one quantization in this process, which has just started."""
    started = time.process_time()
    import intact
    from intact.quantization import stopwatch

    spent = dict.fromkeys(HEADINGS, 0.0)
    last = [time.process_time()]
    spent["import"] = last[0] - started

    def mark(stage: str) -> None:
        now = time.process_time()
        spent[stage] += now - last[0]
        last[0] = now

    class Watch(stopwatch.Stopwatch):
        def __init__(self) -> None:
            super().__init__()
            mark(BEGIN)

        def lap(self, phase: stopwatch.Phase) -> None:
            super().lap(phase)
            mark(phase)

    from intact.quantization import quantizing

    quantizing.Stopwatch = Watch  # type: ignore[misc]
    mark("import")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "model.onnx"
        intact.quantize(model, output=output, device="cpu", precision="uint8", effort=effort, data=rows)
    mark(END)
    return spent


def measured_build(model: Path, rows: Path, device: str) -> dict[str, float]:
    """Processor seconds by stage of one build in this process and its children, which have ended by then."""
    started = sum(os.times()[:4])
    import intact
    from intact import events

    class Clock:
        """What a stage takes of the processor, where it asks for the time."""

        perf_counter = staticmethod(lambda: sum(os.times()[:4]))

    events.time = Clock  # type: ignore[assignment]
    build, begun = intact.build, Clock.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        built = build(model, output=Path(folder) / "out", device=device, precision="uint8", data=rows)
    stages = {stage.name: stage.seconds for stage in built.stages if stage.status == "ran"}
    rest = Clock.perf_counter() - begun - sum(stages.values())
    return {"imports": begun - started, **stages, "write, check, report": rest}


def table(quantized: dict[str, dict[str, float]], built: dict[str, dict[str, float]]) -> str:
    """The page: a row a model and effort, a column a stage."""
    named = {name: {HEADINGS[stage]: value for stage, value in spent.items()} for name, spent in quantized.items()}
    return "\n".join(
        [
            "# Where the time goes",
            "",
            "Written by `python bench/stage_times.py -o bench/STAGE_TIMES.md`: processor seconds of all threads,",
            "24 samples, uint8, one process for each row.",
            "",
            "## Quantizing for the CPU",
            "",
            *_rows(named, list(HEADINGS.values())),
            "",
            "## Whole builds, normal effort",
            "",
            "With rewriting, compiling, verification on held-back rows, manifest and report; child processes count.",
            "",
            *_rows(built, list(dict.fromkeys(stage for spent in built.values() for stage in spent))),
            "",
        ]
    )


def _rows(found: dict[str, dict[str, float]], columns: list[str]) -> list[str]:
    lines = [f"| model | {' | '.join(columns)} | all |", f"| --- | {' | '.join('---' for _ in columns)} | --- |"]
    for name, spent in found.items():
        figures = " | ".join(f"{spent[column]:.2f}" if column in spent else "–" for column in columns)
        lines.append(f"| {name} | {figures} | {sum(spent.values()):.2f} |")
    return lines


def main() -> None:
    """Measure every model in a process of its own, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"models of bench/peers [default: {' '.join(NAMES)}]")
    parser.add_argument("--efforts", nargs="+", default=["fast", "normal"])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.job:
        model, rows, how = asked.job
        job = measured if how in ("fast", "normal") else measured_build
        print(json.dumps(job(Path(model), Path(rows), how)))
        return
    sys.path.insert(0, str(ROOT))
    from bench.peers import models

    quantized: dict[str, dict[str, float]] = {}
    built: dict[str, dict[str, float]] = {}
    for name in asked.names or NAMES:
        case = models.case(name, ROOT / "output/peers/models", curve=False)
        files = [str(case.model.resolve()), str(case.rows[models.SAMPLES].resolve())]
        for effort in asked.efforts:
            quantized[f"{case.title}, {effort}"] = _in_a_process(*files, effort)
        for device in ("qnn", "cpu") if name == NAMES[0] else ("cpu",):
            built[f"{case.title}, {device}"] = _in_a_process(*files, device)
        page = table(quantized, built)
        if asked.output:
            asked.output.write_text(page, encoding="utf-8")
    print(page)


def _in_a_process(model: str, rows: str, how: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--job", model, rows, how]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
