"""The figures of one quantized model: SQNR, accuracy and latency on the CPU, and all of it on simulators of NPUs.

`python -m bench.peers.judge FLOAT QUANTIZED TEST LABELS` prints those of the CPU as JSON; LABELS is `-` where there are
none. It is a process of its own, since a model that another tool wrote may end it.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from intact.backends import installed
from intact.errors import IntactError

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, np.ndarray]

MOST_SECONDS = 900
# Rows that are timed, and that a simulator, a hundred times slower, is given: of small models so many that another draw
# moves the SQNR by little (eight put two tools in the wrong order), and of others.
TIMED_ROWS, SIMULATED_ROWS, FEW_SIMULATED_ROWS = 20, 64, 2
SMALL_BYTES = 4_000_000
FORMAT = {"QuantizeLinear", "DequantizeLinear"}


class Refused(Exception):
    """A model that did not compile or run, in the words of the program that refused it."""


TOO_LONG = f"not done after {MOST_SECONDS} s"


def on_cpu(model: Path, quantized: Path, test: Path, labels: Path | None) -> dict[str, Any]:
    """The figures on the CPU, or the error."""
    command = [sys.executable, "-m", "bench.peers.judge", *map(str, (model, quantized, test, labels or "-"))]
    try:
        return dict(json.loads(_said(command)))
    except Refused as error:
        return {"error": str(error)}


def simulators() -> list[str]:
    """The devices whose vendor's compiler and simulator are installed here."""
    return [name for name in installed.names() if installed.find(name).simulator is not None and _is_usable(name)]


def _is_usable(device: str) -> bool:
    try:
        installed.versions(device)
    except IntactError:
        return False
    return True


def on_simulator(device: str, model: Path, quantized: Path, test: Path, folder: Path) -> dict[str, Any]:
    """The figures on the simulator of an NPU, or the error of whoever refuses the model."""
    place, rows = folder / "compiled", folder / "simulated.npz"
    shutil.rmtree(place, ignore_errors=True)
    with np.load(test) as arrays:
        most = SIMULATED_ROWS if model.stat().st_size <= SMALL_BYTES else FEW_SIMULATED_ROWS
        count = min(most, *(len(arrays[name]) for name in arrays.files))
        np.savez(rows, **{name: arrays[name][:count] for name in arrays.files})
    deployed = place / f"model{installed.find(device).suffix}"
    options = ("--device", device, "--no-strict", "--data", rows)
    try:
        built = json.loads(_intact("compile", quantized, *options, "-o", place))
        compared = json.loads(_intact("verify", model, deployed, "--test-data", rows))
    except Refused as error:
        return {"error": str(error)}
    finally:
        shutil.rmtree(place, ignore_errors=True)
    where = {side: [node["op"] for node in built["placement"][f"{side}_nodes"]] for side in ("npu", "cpu")}
    on, off = (sum(op not in FORMAT for op in where[side]) for side in ("npu", "cpu"))
    least = _least(row["sqnr_db"] for row in compared["outputs"])
    return {"sqnr_db": least, "npu_nodes": on, "nodes": on + off, "samples": count}


def _intact(command: str, *words: object) -> str:
    """What a command of intact prints as JSON; a verdict of broken (status 1) is a figure, not an error."""
    program = "from intact.cli.main import main; main()"
    return _said([sys.executable, "-c", program, command, *map(str, words), "--json"], fine=(0, 1))


def _said(command: list[str], fine: tuple[int, ...] = (0,)) -> str:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=MOST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Refused(TOO_LONG) from None
    if done.returncode not in fine or not done.stdout.strip():
        raise Refused(last_words(done.stderr) or f"ended with status {done.returncode}")
    return done.stdout


def last_words(text: str) -> str:
    """The line that says what went wrong, of all that a program said before it ended; paths begin at this checkout."""
    lines = [line.strip().replace(f"{ROOT}/", "") for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error[") or ("Error" in line and ":" in line)]
    return " ".join((errors or lines or [""])[-1].split())[:300]


def _least(values: Any) -> float | None:
    """The smallest of some figures that can be written as JSON: None is infinite, for outputs that are equal."""
    least = min((math.inf if value is None else value for value in values), default=math.inf)
    return None if math.isinf(least) and least > 0 else least


def figures(model: Path, quantized: Path, test: Path, labels: Path | None) -> dict[str, Any]:
    """SQNR of the worst output over all rows, points of accuracy lost, and the time of a row against float.

    The SQNR is that of the model as it is written, node by node; `optimized_db` is that of the session that users have,
    whose integer kernels saturate on processors without VNNI unless weights are written for it.
    """
    with np.load(test) as arrays:
        whole = {name: arrays[name] for name in arrays.files}
    count = len(next(iter(whole.values())))
    rows = [{name: array[n : n + 1] for name, array in whole.items()} for n in range(count)]
    before, after, plain = _session(model), _session(quantized), _session(quantized, optimized=False)
    expected, found, written = ([_run(session, row) for row in rows] for session in (before, after, plain))
    times = _times([before, after], rows[:TIMED_ROWS])
    result = {"sqnr_db": _worst(expected, written), "optimized_db": _worst(expected, found)}
    if labels is not None:
        right = np.load(labels)
        result["points_lost"] = 100 * (_accuracy(expected, right) - _accuracy(found, right))
    return result | {"latency_ratio": times[1] / times[0], "float_ms": 1e3 * times[0]}


def _session(path: Path, *, optimized: bool = True) -> Any:
    """A session as users have it, or one that computes every node as it is written."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _run(session: Any, row: Row) -> list[np.ndarray]:
    return list(session.run(None, row))


def _times(sessions: list[Any], rows: list[Row]) -> list[float]:
    """The median seconds of a row in each session; they take turns, so that what disturbs one disturbs all."""
    seconds: list[list[float]] = [[] for _ in sessions]
    for _ in range(math.ceil(TIMED_ROWS / len(rows))):
        for row in rows:
            for session, taken in zip(sessions, seconds, strict=True):
                start = time.perf_counter()
                session.run(None, row)
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in seconds]


def _worst(expected: list[list[np.ndarray]], found: list[list[np.ndarray]]) -> float | None:
    """The SQNR of the worst output."""
    return _least(map(_sqnr, zip(*expected, strict=True), zip(*found, strict=True)))


def _sqnr(expected: tuple[np.ndarray, ...], found: tuple[np.ndarray, ...]) -> float:
    """The SQNR in dB of one output over all rows."""
    wanted, got = (np.concatenate(parts).astype(np.float64) for parts in (expected, found))
    noise = float(np.sum((got - wanted) ** 2))
    if not np.isfinite(noise):
        raise SystemExit("Error: outputs are no finite numbers")
    return math.inf if noise == 0 else 10 * math.log10(max(float(np.sum(wanted**2)), 1e-300) / noise)


def _accuracy(outputs: list[list[np.ndarray]], labels: np.ndarray) -> float:
    return float(np.mean([row[0].argmax() == label for row, label in zip(outputs, labels, strict=True)]))


def main(words: list[str]) -> None:
    """Print the figures of the CPU for the files of the command line."""
    model, quantized, test = map(Path, words[:3])
    print(json.dumps(figures(model, quantized, test, None if words[3] == "-" else Path(words[3]))))


if __name__ == "__main__":
    main(sys.argv[1:])
