"""What bisection and the matrix cost, against the bars that they were built to.

Bisection of a transformer with a corrupted scale, and of one that the Hexagon compiler fails on without a name: the
planted node is named within a minute. Bisection of a 12-layer transformer takes at most 1.5 times the memory of
running both models once. Two workers build six cells at least 1.6 times as fast as one, to the same bytes. Exit
status 1 where a bar does not hold. Nothing else should run on the machine meanwhile.

python bench/search.py [grid] [compile] [memory] [matrix]
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from intact.api.debug import debug  # noqa: E402
from intact.api.quantize import quantize  # noqa: E402
from intact.search.debug.findings import FailingUnit, PartedUnit  # noqa: E402
from intact.search.debug.layers import Layer  # noqa: E402
from intact.search.matrix import cells as matrix  # noqa: E402
from intact.settings.config import BuildConfig  # noqa: E402
from tests.search.debug.faults import narrowed_gelu, spoiled_grid  # noqa: E402
from tests.zoo import ZOO, data, transformer  # noqa: E402

MOST_SECONDS = 60.0
MOST_MEMORY = 1.5
LEAST_SPEEDUP = 1.6
LAYERS, HEADS, HEAD_WIDTH, TOKENS = 12, 8, 64, 64
DEVICES, PRECISIONS = ("qnn:v69", "qnn:v73", "qnn:v75"), ("uint8", "w8a16")

# Run in a process of its own, which then says how much memory it took at most.
RUN = """
import sys
from pathlib import Path
from intact import data, execution
from intact.settings.config import BuildConfig
from intact.model import io
from intact.api.debug import debug
from intact.search.debug.debugging import ROWS
what, reference, candidate, inputs = sys.argv[1:]
if what == "debug":
    debug(Path(reference), Path(candidate), data=inputs)
else:
    rows = list(data.load(io.load(reference), inputs, samples=128).test)[:ROWS]
    for path in (reference, candidate):
        execution.run(Path(path), rows)
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(status["VmHWM"].split()[0])
"""


def saved(name: str, folder: Path, model: onnx.ModelProto | None = None) -> tuple[Path, Path]:
    """A zoo model, or `model` in its place, and inputs for it, as files."""
    model = model or ZOO[name]()
    onnx.save(model, folder / f"{name}.onnx")
    np.savez(folder / f"{name}.npz", **data(model, 24))
    return folder / f"{name}.onnx", folder / f"{name}.npz"


def quantized(path: Path, inputs: Path, precision: str, device: str = "qnn") -> Path:
    output = path.with_suffix(f".{precision}.onnx")
    settings = {"precision": precision, "quant": {"load_path": str(inputs), "effort": "fast"}}
    quantize(path, config=BuildConfig.from_dict({**settings, "compile": {"device": device}}), output=output)
    return output


def grid(folder: Path) -> bool:
    path, inputs = saved("bert", folder)
    planted = spoiled_grid(quantized(path, inputs, "uint8"), folder / "bad.onnx", "MatMul", 6, factor=0.02)
    start = time.perf_counter()
    found = debug(path, planted.path, data=str(inputs)).first
    return named("a corrupted scale", planted.node, found, time.perf_counter() - start)


def compile(folder: Path) -> bool:
    path, inputs = saved("bert", folder)
    planted = narrowed_gelu(quantized(path, inputs, "w8a16"), folder / "bad.onnx", 1)
    config = BuildConfig.from_dict({"compile": {"device": "qnn", "arch": "v68"}})
    start = time.perf_counter()
    found = debug(planted.path, None, config=config).first
    return named("a graph that fails at finalize", planted.node, found, time.perf_counter() - start)


def named(what: str, node: str, found: Layer | PartedUnit | FailingUnit | None, seconds: float) -> bool:
    holds = found is not None and found.node == node and seconds < MOST_SECONDS
    return told(what, f"{found.node if found else None} in {seconds:.1f} s", f"{node} in {MOST_SECONDS:.0f} s", holds)


def memory(folder: Path) -> bool:
    """A wider transformer of 12 layers: weights of a size that counts, and activations as well."""
    width = HEADS * HEAD_WIDTH
    size = transformer.EncoderSize(LAYERS, HEADS, width, 4 * width, tokens=TOKENS)
    path, inputs = saved("bert", folder, transformer.bert(size=size))
    other = quantized(path, inputs, "uint8")
    kilobytes = {
        what: int(
            subprocess.run(
                [sys.executable, "-c", RUN, what, str(path), str(other), str(inputs)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()[-1]
        )
        for what in ("run", "debug")
    }
    ratio = kilobytes["debug"] / kilobytes["run"]
    found = f"{kilobytes['debug'] / 1e3:.0f} MB, {ratio:.2f}x of {kilobytes['run'] / 1e3:.0f} MB"
    return told(
        f"memory, {LAYERS} layers, {path.stat().st_size / 1e6:.0f} MB", found, f"{MOST_MEMORY}x", ratio <= MOST_MEMORY
    )


def table(folder: Path) -> bool:
    """A model of a size at which building counts for more than starting a process."""
    path, inputs = saved("vit", folder, transformer.vit(size=replace(transformer.SMALL_IMAGES, layers=6)))
    cells = matrix.cells(DEVICES, PRECISIONS, BuildConfig.from_dict({"quant": {"load_path": str(inputs)}}))
    seconds, bytes_of = {}, {}
    for workers in (1, 2):
        output = folder / f"matrix-{workers}"
        start = time.perf_counter()
        outcomes = matrix.run(path, cells, output, workers=workers, threads=1)
        seconds[workers] = time.perf_counter() - start
        assert all(outcome.status == "built" for outcome in outcomes), outcomes
        found = sorted(output.glob("*/model*"))
        bytes_of[workers] = [(p.relative_to(output), hashlib.sha256(p.read_bytes()).hexdigest()) for p in found]
    speedup, same = seconds[1] / seconds[2], bytes_of[1] == bytes_of[2]
    found_text = f"{speedup:.2f}x ({seconds[1]:.1f} s, {seconds[2]:.1f} s), {'same' if same else 'OTHER'} bytes"
    bar = f"{LEAST_SPEEDUP}x, same bytes"
    return told(f"2 workers, {len(cells)} cells", found_text, bar, speedup >= LEAST_SPEEDUP and same)


def told(what: str, found: str, bar: str, holds: bool) -> bool:
    print(f"{what:34} {found:44} bar {bar:22} {'holds' if holds else 'FAILS'}", flush=True)
    return holds


PARTS: dict[str, Callable[[Path], bool]] = {"grid": grid, "compile": compile, "memory": memory, "matrix": table}


def main(asked: list[str]) -> int:
    """Measure what is asked for, or everything; return how many bars do not hold."""
    failed = 0
    for name in asked or PARTS:
        with tempfile.TemporaryDirectory(prefix="intact-bench-") as folder:
            failed += not PARTS[name](Path(folder))
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
