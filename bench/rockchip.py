"""intact beside Rockchip's own quantizer: dB on the simulator, cycles, layers on the NPU and time, on the same data.

Each model is quantized by the vendor's `normal`, `kl_divergence` and `mmse` (as long as those end in ten minutes), and
built by intact at `--precision int8`, with fast and normal effort. Everything that was measured is kept: a run goes on
where it stopped, and `--again TOOL` measures one anew.

Times are processor seconds from the start of the process: theirs to import the toolkit as users do, quantize, build,
write the file and simulate the rows to judge by; ours of the whole command, which simulates the same rows, and runs the
float and the quantized model on the CPU, too, to compare with.

python bench/rockchip.py [MODEL …] [--soc rk3588] [--tools TOOL …] [--again TOOL …] [--rows 8]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.peers import models  # noqa: E402
from bench.peers.models import Case  # noqa: E402
from bench.peers.process import spent  # noqa: E402
from intact.backends.rknn import log as rknn_log  # noqa: E402
from intact.backends.rknn.toolchain import TOOLCHAIN  # noqa: E402
from intact.errors import IntactError  # noqa: E402
from intact.runtime import process, toolchains  # noqa: E402
from tests.zoo import ZOO, data  # noqa: E402

OUTPUT = ROOT / "output/rockchip"
RESULTS = ROOT / "bench/results/rockchip.txt"
THEIRS = ("normal", "kl_divergence", "mmse")
OURS = {"fast": ["--effort", "fast"], "normal effort": []}
NAMES = ("face", *models.EXAMPLES, *ZOO, "mobilenet_v2", "resnet50", "vit_small", "bert_base")
MOST_SECONDS = 600
OUR_MOST_SECONDS = 3000
# Bars: dB above the vendor's best, cycles and time against those of its `normal`.
MORE_DB = {"resnet50": 4.0, "vit_small": 12.0}
MOST_CYCLES, MOST_TIME = 1.05, 1.5


@dataclass(frozen=True, slots=True)
class Task:
    """A model with the rows that it is judged by, for one chip."""

    case: Case
    test: Path
    soc: str
    home: Path

    @property
    def rows(self) -> Path:
        """The rows to calibrate on."""
        return self.case.rows[self.case.counts[0]]

    @property
    def key(self) -> str:
        """The name in the store of results."""
        return f"{self.case.name} {self.soc}"


def task_of(name: str, soc: str, rows: int) -> Task:
    """A model by its name."""
    case = models.case(name, OUTPUT / "models", curve=False)
    home = OUTPUT / "models" / name
    test = home / f"judged.{rows}.npz"
    if name in ZOO or name in models.LARGE:
        np.savez(test, **data(onnx.load(case.model), rows, seed=1))
    else:
        with np.load(case.test) as arrays:
            np.savez(test, **{key: arrays[key][:rows] for key in arrays.files})
    return Task(case, test, soc, home)


def theirs(task: Task, algorithm: str) -> dict[str, Any]:
    """The figures of the vendor's quantizer, or its error."""
    inputs = [value.name for value in onnx.load(task.case.model, load_external_data=False).graph.input]
    outputs = task.home / f"outputs.{algorithm}.npz"
    request = {
        "model": str(task.case.model),
        "platform": task.soc,
        "algorithm": algorithm,
        "calibration": str(task.rows),
        "test": str(task.test),
        "outputs": str(outputs),
        "inputs": inputs,
    }
    python = toolchains.require(TOOLCHAIN).python
    try:
        reply = process.call("bench.rockchip_job:quantize", request, timeout=MOST_SECONDS, python=python)
    except IntactError as error:
        return {"error": f"{error.message}"[:300]}
    found = rknn_log.report(reply.log)
    with np.load(outputs) as arrays:
        simulated = {name: arrays[name] for name in arrays.files}
    return {
        "db": _db(task, simulated),
        "cycles": found.cycles,
        "npu": sum(layer.place == "NPU" for layer in found.layers),
        "cpu": sum(layer.place != "NPU" for layer in found.layers),
        "seconds": reply.result["seconds"],
        "built_seconds": reply.result["built_seconds"],
    }


def _db(task: Task, simulated: dict[str, np.ndarray]) -> list[float]:
    """The SQNR in dB of each output over all rows, against ONNX Runtime."""
    session = ort.InferenceSession(str(task.case.model), providers=["CPUExecutionProvider"])
    with np.load(task.test) as arrays:
        whole = {name: arrays[name] for name in arrays.files}
    count = len(next(iter(whole.values())))
    wanted = [session.run(None, {k: v[n : n + 1] for k, v in whole.items()}) for n in range(count)]
    figures = []
    for index in range(len(wanted[0])):
        exact = np.stack([row[index].astype(np.float64) for row in wanted])
        found = np.stack([simulated[f"{n}.{index}"].reshape(exact.shape[1:]) for n in range(count)])
        noise, signal = float(np.sum((found - exact) ** 2)), float(np.sum(exact**2))
        figures.append(round(10 * math.log10(signal / noise), 3) if noise else 999.0)
    return figures


def ours(task: Task, flags: list[str]) -> dict[str, Any]:
    """The figures of one build, from its manifest, or its error."""
    command = [sys.executable, "-c", "from intact.cli.main import main; main()", "build", str(task.case.model)]
    command += ["--device", "rknn", "--soc", task.soc, "--precision", "int8", "--no-strict", "--overwrite", "-q"]
    command += ["--data", str(task.rows), "--test-data", str(task.test), "-o", str(task.home / f"out-{task.soc}")]
    used = spent([*command, *flags], task.home, OUR_MOST_SECONDS)
    manifest = task.home / f"out-{task.soc}" / "manifest.json"
    if used.status not in (0, 1) or not manifest.is_file():
        return {"error": (used.said.strip().splitlines() or ["no word"])[-1][:300]}
    built = json.loads(manifest.read_text(encoding="utf-8"))
    layers = built["placement"]["layers"]
    forms = {form: [row for row in built["accuracy"] if row["form"] == form] for form in ("quantized", "compiled")}
    return {
        "db": [_known(row["sqnr_db"]) for row in forms["compiled"]],
        "cpu_db": [_known(row["sqnr_db"]) for row in forms["quantized"]],
        "cycles": built["cost"]["cycles"],
        "npu": sum(layer["kernel"] == "NPU" for layer in layers),
        "cpu": sum(layer["kernel"] != "NPU" for layer in layers),
        "seconds": used.processor_seconds,
        "stages": {stage["name"]: stage["seconds"] for stage in built["stages"] if stage.get("seconds")},
    }


def _known(db: float | None) -> float:
    return 999.0 if db is None else round(db, 3)


def measure(task: Task, tools: list[str], again: list[str]) -> dict[str, Any]:
    """All figures of a model; what is in the store is not measured again."""
    kept = OUTPUT / "results" / f"{task.key}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    for tool in tools:
        if tool in results and tool not in again:
            continue
        results[tool] = ours(task, OURS[tool]) if tool in OURS else theirs(task, tool)
        kept.write_text(json.dumps(results, indent=1), encoding="utf-8")
        print(f"{task.key} {tool}: {results[tool]}", flush=True)
    return results


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each model and tool, and what holds of the bars."""
    lines = [f"{'model':24}{'tool':15}{'dB':>16}{'cycles':>12}{'ratio':>7}{'NPU':>5}{'CPU':>5}{'CPU s':>8}{'ratio':>7}"]
    for key, tools in results.items():
        plain = tools.get("normal", {})
        for tool, found in tools.items():
            if "error" in found:
                lines.append(f"{key:24}{tool:15}{found['error'][:70]}")
                continue
            decibels = "/".join(f"{db:.1f}" for db in found["db"])
            cycles = found["cycles"] / plain["cycles"] if "cycles" in plain else math.nan
            spent_ = found["seconds"] / plain["seconds"] if "seconds" in plain else math.nan
            lines.append(
                f"{key:24}{tool:15}{decibels:>16}{found['cycles']:>12}{cycles:>7.3f}{found['npu']:>5}{found['cpu']:>5}"
                f"{found['seconds']:>8.1f}{spent_:>7.2f}"
            )
    return lines


def bars(results: dict[str, dict[str, Any]]) -> list[str]:
    """For each model and effort of ours, the bars that are missed."""
    lines = []
    for key, tools in results.items():
        others = [tools[name] for name in THEIRS if "db" in tools.get(name, {})]
        for effort in (name for name in OURS if "db" in tools.get(name, {})):
            found = tools[effort]
            if others:
                lines.append(f"{key} {effort}: " + ("; ".join(_missed(key, effort, found, others)) or "holds"))
    return lines


def _missed(key: str, effort: str, found: dict[str, Any], others: list[dict[str, Any]]) -> list[str]:
    more, plain = MORE_DB.get(key.split()[0], 0.0), others[0]
    best = [max(other["db"][index] for other in others) + more for index in range(len(found["db"]))]
    missed = [f"{db:.2f} of {wanted:.2f} dB" for db, wanted in zip(found["db"], best, strict=True) if db <= wanted]
    if found["cycles"] > MOST_CYCLES * plain["cycles"]:
        missed.append(f"{found['cycles'] / plain['cycles']:.3f} times the cycles")
    if found["cpu"] > plain["cpu"]:
        missed.append(f"{found['cpu']} layers on the CPU, {plain['cpu']} of theirs")
    if effort == "fast" and found["seconds"] > MOST_TIME * plain["seconds"]:
        missed.append(f"{found['seconds'] / plain['seconds']:.2f} times the time")
    return missed


def kept_results() -> dict[str, dict[str, Any]]:
    """All that was ever measured, in the order of the models."""
    files = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (OUTPUT / "results").glob("*.json")}
    order = {name: index for index, name in enumerate(NAMES)}
    return dict(sorted(files.items(), key=lambda item: (item[0].split()[1], order.get(item[0].split()[0], 99))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"models [default: {' '.join(NAMES)}]")
    parser.add_argument("--soc", default="rk3588")
    parser.add_argument("--tools", nargs="+", default=[*THEIRS, *OURS], choices=[*THEIRS, *OURS])
    parser.add_argument("--again", nargs="+", default=[], choices=[*THEIRS, *OURS])
    parser.add_argument("--rows", type=int, help="rows that models are judged by [default: 64, 8 of large models]")
    parser.add_argument("--report", action="store_true", help="measure nothing, write the table again")
    parser.add_argument("--machine", default="a busy machine", help="words about the machine, for the first line")
    asked = parser.parse_args()
    for name in () if asked.report else asked.names or NAMES:
        try:
            rows = asked.rows or (8 if name in models.LARGE else 64)
            measure(task_of(name, asked.soc, rows), asked.tools, asked.again)
        except models.Unknown as error:
            print(f"left out: {error}")
    results = kept_results()
    told = f"python bench/rockchip.py, {TOOLCHAIN.package} {TOOLCHAIN.version}, processor seconds on {asked.machine}"
    text = "\n".join([told, "", *table(results), "", *bars(results)]) + "\n"
    print(text)
    RESULTS.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
