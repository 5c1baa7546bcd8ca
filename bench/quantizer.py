"""Time and memory of quantization, against onnxruntime.quantization and against plain inference of the same samples.

Each figure comes from a process of its own; those that make up a ratio run one after the other, and the best of
several rounds counts. Exit status 1 where a bar does not hold.

python bench/quantizer.py [time] [memory] [graph]
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.large_models import MODELS  # noqa: E402
from tests.zoo import data  # noqa: E402
from tests.zoo.net import SeededNet  # noqa: E402

METHODS = ("minmax", "percentile", "entropy", "mse", "auto")
ROUNDS = 2
# Rows given; the last quarter of them, 4 to 16, is held back for verification.
ROWS = {"few": 12, "usual": 32, "many": 272}
CALIBRATED = {"few": 8, "usual": 24, "many": 256}


def peak_bytes() -> int:
    """The most memory that this process has had (ru_maxrss would count what its parent had, too)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def by_intact(model: Path, rows: Path, method: str) -> None:
    from intact.api.quantize import quantize
    from intact.settings.config import BuildConfig

    config = BuildConfig.from_dict({"quant": {"effort": "fast", "method": method, "load_path": str(rows)}})
    quantize(model, config=config, output=model.with_suffix(".intact.onnx"), overwrite=True)


def by_onnxruntime(model: Path, rows: Path, method: str) -> None:
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows = samples(rows, CALIBRATED["usual"])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

    ready, result = model.with_suffix(".ready.onnx"), model.with_suffix(".ort.onnx")
    quant_pre_process(str(model), str(ready))
    quantization.quantize_static(
        str(ready),
        str(result),
        Reader(),
        per_channel=True,
        weight_type=quantization.QuantType.QInt8,
        calibrate_method=quantization.CalibrationMethod[method],
    )


def by_inference(model: Path, rows: Path, _: str) -> None:
    import onnxruntime as ort

    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    for row in samples(rows, CALIBRATED["usual"]):
        session.run(None, row)


def samples(rows: Path, count: int) -> Iterator[dict[str, np.ndarray]]:
    arrays = dict(np.load(rows))
    return ({name: array[index : index + 1] for name, array in arrays.items()} for index in range(count))


JOBS = {"intact": by_intact, "ort": by_onnxruntime, "float": by_inference}


def measure(job: str, model: Path, rows: Path, method: str = "") -> tuple[float, int]:
    """Seconds of work, without imports, and the peak memory of the process that did it."""
    command = [sys.executable, __file__, "--job", job, str(model), str(rows), method]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{job} {method} failed: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return found["seconds"], found["bytes"]


def run_job(job: str, model: str, rows: str, method: str) -> None:
    # ONNX Runtime's quantization imports torch where that is installed, and does not need it: neither time nor memory
    # of that is its own.
    sys.modules["torch"] = None  # type: ignore[assignment]
    importlib.import_module("intact.api.quantize" if job == "intact" else "onnxruntime.quantization")
    start = time.perf_counter()
    JOBS[job](Path(model), Path(rows), method)
    print(json.dumps({"seconds": time.perf_counter() - start, "bytes": peak_bytes()}))


def told(what: str, found: float, bar: float) -> bool:
    """Print a row; whether the bar holds."""
    print(f"{what:66} {found:7.3f}   bar {bar:5.2f}   {'holds' if found <= bar else 'FAILS'}", flush=True)
    return found <= bar


def prepared(folder: Path, size: str) -> Iterator[tuple[str, Path, Path]]:
    for name, build in MODELS.items():
        model, rows = folder / f"{name}.onnx", folder / f"{name}.{size}.npz"
        built = build()
        onnx.save(built, model)
        np.savez(rows, **data(built, ROWS[size]))
        yield name, model, rows


def times(folder: Path) -> list[bool]:
    """Wall time against ONNX Runtime's quantization, and against the inference of the same samples."""
    held = []
    for name, model, rows in prepared(folder, "usual"):
        best: dict[tuple[str, str], float] = {}
        jobs = [("float", ""), ("ort", "MinMax"), *(("intact", method) for method in METHODS)]
        for job in jobs * ROUNDS:
            best[job] = min(best.get(job, np.inf), measure(job[0], model, rows, job[1])[0])
        percentile = measure("ort", model, rows, "Percentile")[0]
        print(f"{name}: " + ", ".join(f"{' '.join(job).strip()} {value:.2f} s" for job, value in best.items()))
        held.append(told(f"{name}: minmax / ORT MinMax", best["intact", "minmax"] / best["ort", "MinMax"], 0.6))
        for method in METHODS[1:]:
            held.append(told(f"{name}: {method} / ORT Percentile", best["intact", method] / percentile, 0.25))
        for method in METHODS:
            held.append(told(f"{name}: {method} / float inference", best["intact", method] / best["float", ""], 2.5))
    return held


def memory(folder: Path) -> list[bool]:
    """Peak memory of each method against min–max and ONNX Runtime's Percentile, and of many samples against few."""
    held = []
    for name, model, rows in prepared(folder, "usual"):
        peaks = {method: measure("intact", model, rows, method)[1] for method in METHODS}
        print(f"{name}: " + ", ".join(f"{method} {peak / 1e6:.0f} MB" for method, peak in peaks.items()))
        percentile = measure("ort", model, rows, "Percentile")[1]
        print(f"{name}: ORT Percentile {percentile / 1e6:.0f} MB")
        for method in METHODS[1:]:
            held.append(told(f"{name}: memory of {method} / minmax", peaks[method] / peaks["minmax"], 1.3))
            held.append(told(f"{name}: memory of {method} / ORT Percentile", peaks[method] / percentile, 0.4))
    for size in ("few", "many"):
        for name, model, rows in prepared(folder, size):
            peaks[f"{name} {size}"] = measure("intact", model, rows, "auto")[1]
    for name in MODELS:
        ratio = peaks[f"{name} many"] / peaks[f"{name} few"]
        held.append(told(f"{name}: memory with 256 samples / with 8", ratio, 1.05))
    return held


def chain(nodes: int) -> onnx.ModelProto:
    """A model of about this many nodes, each of them tiny: Conv, Relu, Conv, Add, again and again."""
    net = SeededNet("chain", 0)
    x = net.input("image", (1, 4, 4, 4))
    for _ in range(nodes // 4):
        y = net.op("Relu", net.op("Conv", x, net.normal((4, 4, 1, 1), 0.5)))
        x = net.op("Add", x, net.op("Conv", y, net.normal((4, 4, 1, 1), 0.1)))
    net.output(x, "y", (1, 4, 4, 4))
    return net.checked()


def graph(folder: Path) -> list[bool]:
    """Planning and inserting, without load, run and save, at three sizes."""
    from intact.model import io, normalize, upgrade
    from intact.quantization.calibration.observe import observe
    from intact.quantization.calibration.resolve import resolve
    from intact.quantization.insert import insert
    from intact.quantization.quantizing import plan
    from intact.settings.config import QuantConfig
    from intact.targets.registry import load_target

    config, seconds = QuantConfig(effort="fast"), {}
    for nodes in (2_000, 10_000, 20_000):
        path = folder / "chain.onnx"
        onnx.save(chain(nodes), path)
        model = normalize.normalize(upgrade.upgrade(io.load(path)).model)
        target = load_target("qnn")
        start = time.perf_counter()
        planned = plan(model, target, config)
        middle = time.perf_counter()
        seen = observe(model, planned, [{"image": np.ones((1, 4, 4, 4), np.float32)}])
        resolved = resolve(model, planned, seen)
        again = time.perf_counter()
        insert(model, planned, resolved)
        seconds[nodes] = middle - start + time.perf_counter() - again
    print(", ".join(f"{nodes} nodes {value:.2f} s" for nodes, value in seconds.items()))
    return [
        told("plan and insert 20,000 nodes, seconds", seconds[20_000], 5.0),
        told("time a node at 20,000 / at 2,000", seconds[20_000] / seconds[2_000] / 10, 1.5),
    ]


PARTS: dict[str, Any] = {"time": times, "memory": memory, "graph": graph}


def main(asked: list[str]) -> int:
    """Run the parts asked for, or all; return 1 where a bar does not hold."""
    held: list[bool] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in asked or PARTS:
            held += PARTS[name](Path(folder))
    print(f"{sum(held)} of {len(held)} bars hold")
    return int(not all(held))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        run_job(*sys.argv[2:6])
    else:
        sys.exit(main(sys.argv[1:]))
