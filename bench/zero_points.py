"""What zero points that differ by channel cost on ONNX Runtime's CPU provider, before and after rewriting.

Ratios of times that were measured interleaved in one run, one thread, all optimizations. Exit status 1 where a bar
does not hold.

python bench/zero_points.py
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from intact.rules.quantized import families  # noqa: E402
from intact.runtime import ort_cpu  # noqa: E402
from intact.targets.registry import load_target  # noqa: E402
from tests.builder import Net  # noqa: E402
from tests.rules.proof.harness import integers  # noqa: E402

ROUNDS = 31
KINDS = ((np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8))
LAYERS = {
    "depthwise 128 x 56 x 56, 3 x 3": (128, 128, (56, 56)),
    "depthwise 128 x 1024, 3": (128, 128, (1024,)),
    "dense 64 x 56 x 56, 3 x 3": (64, 1, (56, 56)),
    "dense 32 x 128, 3": (32, 1, (128,)),
    "dense 16 x 16 x 16, 3 x 3": (16, 1, (16, 16)),
    "dense 32 x 8 x 8, 3 x 3": (32, 1, (8, 8)),
    "dense 32 x 8 x 8 x 8, 3 x 3 x 3": (32, 1, (8, 8, 8)),
}
"""Channels, groups, and sizes. The small ones take the form for every runtime, whichever is at hand."""

RUNTIMES = (None, "1.26")
"""What models are rewritten for: the version at hand, which has bars, and one that takes no distinct zero points."""

# The least gain over the model as it was, and the most time against one zero point for all channels.
LEAST_GAIN = {"depthwise 128 x 56 x 56, 3 x 3": 10.0}
MOST_OF_UNIFORM = {name: 2.0 if name.startswith("depthwise") else 1.15 for name in LAYERS}


def layer(
    act: type, wt: type, channels: int, group: int, sizes: tuple[int, ...], *, uniform: bool
) -> tuple[ir.Model, np.ndarray]:
    """A QLinearConv with a bias, and an input for it."""
    rng, net = np.random.default_rng(0), Net()
    w, zeros = integers(rng, wt, (channels, channels // group, *[3] * len(sizes))), integers(rng, wt, (channels,))
    scales, bias = rng.uniform(0.005, 0.015, channels).astype(np.float32), rng.integers(-3000, 3000, channels)
    zeros = np.full_like(zeros, zeros[0]) if uniform else zeros
    low, y_scale = int(np.iinfo(act).min), np.float32(0.4 * np.sqrt(w[0].size))
    grids = np.float32(0.02), act(low + 100), w, scales, zeros, y_scale, act(low + 130), bias.astype(np.int32)
    x = integers(rng, act, (1, channels, *sizes))
    return net.model({"x": x}, net.op("QLinearConv", "x", *grids, group=group, pads=[1] * 2 * len(sizes))), x


def milliseconds(models: Mapping[str, ir.Model], x: np.ndarray) -> dict[str, float]:
    """The median time of each model, measured in turns."""
    sessions = {name: ort_cpu.Session(model, optimize=True, threads=1) for name, model in models.items()}
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(ROUNDS):
        for name, session in sessions.items():
            start = time.perf_counter()
            session.run({"x": x})
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(found[3:]) for name, found in times.items()}


def main() -> int:
    """Print a row for each layer and pair of types; return how many bars do not hold."""
    failed = 0
    print(f"{'layer':32} {'types':14} {'distinct':>9} {'rewritten':>9} {'uniform':>9} {'gain':>7} {'of uniform':>10}")
    for ort, (name, shape), (act, wt) in itertools.product(RUNTIMES, LAYERS.items(), KINDS):
        target = load_target("cpu", ort=ort)
        distinct, x = layer(act, wt, *shape, uniform=False)
        uniform, _ = layer(act, wt, *shape, uniform=True)
        models = {
            "distinct": distinct,
            "rewritten": families.rewrite(distinct, target).model,
            "uniform": families.rewrite(uniform, target).model,
        }
        a, b = (
            next(iter(ort_cpu.run(models[form], {"x": x}, optimize=True).values()))
            for form in ("distinct", "rewritten")
        )
        found = milliseconds(models, x)
        gain, share = found["distinct"] / found["rewritten"], found["rewritten"] / found["uniform"]
        holds = gain >= LEAST_GAIN.get(name, 0) and share <= MOST_OF_UNIFORM[name] and np.array_equal(a, b)
        holds = holds or (ort is not None and np.array_equal(a, b))
        failed += not holds
        types = f"{act.__name__} {wt.__name__}"
        row = f"{found['distinct']:9.2f} {found['rewritten']:9.2f} {found['uniform']:9.2f} {gain:6.1f}x {share:9.2f}x"
        verdict = f"for {ort}, no bar" if ort and holds else "holds" if holds else "FAILS"
        print(f"{name:32} {types:14} {row}  {verdict}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
