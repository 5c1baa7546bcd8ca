"""Where the time of quantizing goes: processor seconds of each stage, and of their start, in a process for each model.

Stages end where the program's own stopwatch ends them. Processor seconds of all threads hold up on a busy machine,
but for what shared caches cost. Models are those of bench/peers, with 24 samples, uint8 for the CPU.

python bench/stage_times.py [NAME...] [--efforts fast normal] [-o bench/STAGE_TIMES.md]
"""

from __future__ import annotations

import argparse
import json
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


def table(found: dict[str, dict[str, float]]) -> str:
    """The page: a row a model and effort, a column a stage."""
    lines = [
        "# Where the time of quantizing goes",
        "",
        "Written by `python bench/stage_times.py -o bench/STAGE_TIMES.md`: processor seconds of all threads,",
        "24 samples, uint8 for the CPU, one process for each row.",
        "",
        f"| model, effort | {' | '.join(HEADINGS.values())} | all |",
        f"| --- | {' | '.join('---' for _ in HEADINGS)} | --- |",
    ]
    for name, spent in found.items():
        figures = " | ".join(f"{spent[stage]:.2f}" for stage in HEADINGS)
        lines.append(f"| {name} | {figures} | {sum(spent.values()):.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every model in a process of its own, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"models of bench/peers [default: {' '.join(NAMES)}]")
    parser.add_argument("--efforts", nargs="+", default=["fast", "normal"])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.job:
        model, rows, effort = asked.job
        print(json.dumps(measured(Path(model), Path(rows), effort)))
        return
    sys.path.insert(0, str(ROOT))
    from bench.peers import models

    found = {}
    for name in asked.names or NAMES:
        case = models.case(name, ROOT / "output/peers/models", curve=False)
        for effort in asked.efforts:
            files = [str(case.model.resolve()), str(case.rows[models.SAMPLES].resolve())]
            command = [sys.executable, __file__, "--job", *files, effort]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[f"{case.title}, {effort}"] = json.loads(done.stdout.splitlines()[-1])
            page = table(found)
            if asked.output:
                asked.output.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
