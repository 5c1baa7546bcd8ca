"""Processor time and memory of builds of big graphs and of big weights, against the bars that they were built to.

Each build runs in a process of its own. Its time is that of the processor, with that of its child processes; its
memory is what all of its processes hold at once and no file backs (`Anonymous` in /proc/PID/smaps_rollup). Exit
status 1 where a bar does not hold.

python bench/scale.py graphs [KIND…]           5,000 and 50,000 nodes of each kind
python bench/scale.py weights [BYTES]          3 GB of weights beside the model, uint8 and w4
python bench/scale.py estimate [MODEL…]        what builds say that they need, against what they hold and ask for
python bench/scale.py curve KIND NODES…        one kind at these sizes
python bench/scale.py profile KIND NODES       the functions that take the most time
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.big_graphs import FEATURES, GRAPHS, gemms, save_weights  # noqa: E402
from bench.large_models import IMAGE, cnn  # noqa: E402

FEW, MANY = 5_000, 50_000
MOST_SECONDS, MOST_BYTES, MOST_GROWTH = 120.0, 2 * 10**9, 1.5
WEIGHTS, WEIGHT_SECONDS, WEIGHT_SHARE = 3 * 10**9, 150.0, 1.3
MOST_APART = 1.3
ROWS = 8
EVERY = 0.005


@dataclass(frozen=True, slots=True)
class Cost:
    """What a build took: seconds of the processor, the most bytes that no file backs, and seconds of each stage.

    `needed` is what it said beforehand that it would hold.
    """

    seconds: float
    peak: int
    needed: int
    stages: dict[str, float]


def measured(model: Path, rows: Path, *flags: str) -> Cost:
    """Build a model in a process of its own, watched."""
    command = [sys.executable, __file__, "--job", str(model), str(rows), *flags]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    watch = MemoryWatch(started.pid)
    output, _ = started.communicate()
    if started.returncode:
        raise SystemExit(f"the build of {model.name} failed")
    told = json.loads(output.splitlines()[-1])
    return Cost(told["seconds"], watch.peak, told["needed"], told["stages"])


class MemoryWatch(threading.Thread):
    """Looks again and again how much memory that no file backs a process and those below it hold together."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.root, self.peak = root, 0
        self.start()

    def run(self) -> None:
        while (held := sum(map(anonymous, tree(self.root)))) or Path(f"/proc/{self.root}").exists():
            self.peak = max(self.peak, held)
            time.sleep(EVERY)


def tree(root: int) -> list[int]:
    """A process and all processes below it."""
    found = [root]
    for pid in found:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                found.extend(map(int, children.read_text().split()))
            except OSError:
                continue
    return found


def anonymous(pid: int) -> int:
    """Bytes that a process holds and that no file backs."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    # A counter, which is read at once; to add up the same from a list of mappings takes longer than some peaks last.
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def run_job(model: str, rows: str, *flags: str) -> None:
    """Build one model and tell what it took; the imports of the command line count, as they do for a user."""
    from intact.api.build import build

    settings = json.loads(flags[0]) if flags else {}
    with tempfile.TemporaryDirectory() as folder:
        built = build(model, data=rows, output=f"{folder}/built", device="cpu", effort="fast", **settings)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    stages = {stage.name: round(stage.seconds or 0.0, 2) for stage in built.stages}
    needed = next(stage for stage in built.stages if stage.name == "load").details["memory_needed_bytes"]
    seconds = sum(one.ru_utime + one.ru_stime for one in used)
    print(json.dumps({"seconds": seconds, "needed": needed, "stages": stages}))


def graph(folder: Path, kind: str, nodes: int) -> tuple[Path, Path]:
    """A graph and inputs for it, as files."""
    model, rows = folder / f"{kind}_{nodes}.onnx", folder / f"{kind}.npz"
    made = GRAPHS[kind](nodes)
    onnx.save(made, model)
    shape = [ROWS, *(size.dim_value for size in made.graph.input[0].type.tensor_type.shape.dim[1:])]
    np.savez(rows, x=np.random.default_rng(1).standard_normal(shape, np.float32))
    return model, rows


def told(what: str, found: float, bar: float) -> bool:
    """Print a row; return True if the bar holds."""
    print(f"{what:58} {found:9.3f}   bar {bar:8.2f}   {'holds' if found <= bar else 'FAILS'}", flush=True)
    return found <= bar


def curve(kind: str, sizes: list[int]) -> dict[int, Cost]:
    """Build graphs of one kind of several sizes, and print what each took."""
    found = {}
    for nodes in sizes:
        with tempfile.TemporaryDirectory() as folder:
            found[nodes] = cost = measured(*graph(Path(folder), kind, nodes))
        stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in cost.stages.items() if seconds >= 0.05)
        each = f"{1000 * cost.seconds / nodes:6.2f} ms a node"
        print(
            f"{kind:9} {nodes:6} nodes {cost.seconds:7.1f} CPU s {each}, {cost.peak / 1e9:5.2f} GB   ({stages})",
            flush=True,
        )
    return found


def graphs(*kinds: str) -> bool:
    held = []
    for kind in kinds or tuple(GRAPHS):
        found = curve(kind, [FEW, MANY])
        few, many = (found[nodes].seconds / nodes for nodes in (FEW, MANY))
        held += [
            told(f"{kind}: CPU seconds of {MANY} nodes", found[MANY].seconds, MOST_SECONDS),
            told(f"{kind}: GB of {MANY} nodes", found[MANY].peak / 1e9, MOST_BYTES / 1e9),
            told(f"{kind}: time a node, against {FEW} nodes", many / few, MOST_GROWTH),
        ]
    return all(held)


def weights(*sizes: str) -> bool:
    held = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("INTACT_BENCH_FOLDER")) as folder:
        model, rows = big_weights(Path(folder), int(float(sizes[0])) if sizes else WEIGHTS)
        bytes_of = model.with_suffix(".data").stat().st_size
        for precision in ("uint8", "w4"):
            cost = measured(model, rows, json.dumps({"precision": precision}))
            print(f"{precision}: {cost.stages}")
            share = f"{precision}: GB held, for {bytes_of / 1e9:.2f} GB of weights: times"
            held += [
                told(share, cost.peak / bytes_of, WEIGHT_SHARE),
                told(f"{precision}: CPU seconds", cost.seconds, WEIGHT_SECONDS),
                told_need(precision, cost),
            ]
    return all(held)


def estimate(*names: str) -> bool:
    """Compare what builds say that they need with what they hold, and build again within exactly that much."""
    held = []
    for name in names or ESTIMATED:
        make, settings = ESTIMATED[name]
        with tempfile.TemporaryDirectory(dir=os.environ.get("INTACT_BENCH_FOLDER")) as folder:
            model, rows = make(Path(folder))
            cost = measured(model, rows, json.dumps(settings))
            held.append(told_need(name, cost))
            measured(model, rows, json.dumps({**settings, "max_memory": f"{-(-cost.needed // 10**6)}M"}))
            print(f"{name}: built within {cost.needed / 1e9:.2f} GB", flush=True)
    return all(held)


def told_need(name: str, cost: Cost) -> bool:
    """Print what a build said that it needs and what it held; return True if they are near each other."""
    sizes = f"{cost.needed / 1e9:.2f} GB said, {cost.peak / 1e9:.2f} GB held"
    return told(f"{name}: {sizes}, times", max(cost.needed, cost.peak) / min(cost.needed, cost.peak), MOST_APART)


def big_weights(folder: Path, size: int) -> tuple[Path, Path]:
    """Layers with weights of so many bytes beside the model, and inputs for them."""
    model, rows = folder / "weights.onnx", folder / "rows.npz"
    save_weights(model, size)
    np.savez(rows, x=np.random.default_rng(1).standard_normal((ROWS, 4, FEATURES), np.float32))
    return model, rows


def weights_inside(folder: Path) -> tuple[Path, Path]:
    """Gemm layers with 0.3 GB of weights in the file of the model."""
    model, rows = folder / "inside.onnx", folder / "rows.npz"
    onnx.save(gemms(3 * 10**8), model)
    np.savez(rows, x=np.random.default_rng(1).standard_normal((ROWS, FEATURES), np.float32))
    return model, rows


def network(folder: Path) -> tuple[Path, Path]:
    """A CNN, and images for it."""
    model, images = folder / "cnn.onnx", folder / "images.npz"
    onnx.save(cnn(), model)
    np.savez(images, image=np.random.default_rng(1).standard_normal((ROWS, *IMAGE[1:]), np.float32))
    return model, images


ESTIMATED: dict[str, tuple[Callable[[Path], tuple[Path, Path]], dict[str, str]]] = {
    "layers": (partial(graph, kind="layers", nodes=3_000), {}),
    "cnn": (network, {}),
    "inside": (weights_inside, {}),
    "weights": (partial(big_weights, size=3 * 10**8), {"precision": "uint8"}),
    "w4": (partial(big_weights, size=3 * 10**8), {"precision": "w4"}),
    "1 GB": (partial(big_weights, size=10**9), {"precision": "uint8"}),
    "1 GB, w4": (partial(big_weights, size=10**9), {"precision": "w4"}),
    "3 GB": (partial(big_weights, size=WEIGHTS), {"precision": "uint8"}),
    "3 GB, w4": (partial(big_weights, size=WEIGHTS), {"precision": "w4"}),
}


class StackSampler:
    """Says in which functions the time of the processor went: every 5 ms of it, it looks at the stack.

    A sample weighs as much as passed since the last: a signal waits for the end of a call of a library. Unlike
    cProfile it costs nothing worth mentioning, and makes small functions no slower than they are.
    """

    def __init__(self) -> None:
        self.alone: Counter[str] = Counter()
        self.within: Counter[str] = Counter()
        self._last = time.process_time()

    def __enter__(self) -> StackSampler:
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, 0.005, 0.005)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, _: int, frame: FrameType | None) -> None:
        now = time.process_time()
        passed, self._last = now - self._last, now
        names: list[str] = []
        while frame is not None:
            code, frame = frame.f_code, frame.f_back
            names.append(f"{'/'.join(Path(code.co_filename).parts[-3:])}:{code.co_firstlineno} {code.co_name}")
        self.alone[names[0]] += passed
        self.within.update(dict.fromkeys(names, passed))


def profile(kind: str, nodes: str, shown: str = "45") -> bool:
    with tempfile.TemporaryDirectory() as folder:
        model, rows = graph(Path(folder), kind, int(nodes))
        with StackSampler() as found:
            run_job(str(model), str(rows))
    for what, times in (("in the function itself", found.alone), ("and in those that it calls", found.within)):
        print(f"ms a node {what}")
        for name, seconds in times.most_common(int(shown)):
            print(f"{1000 * seconds / int(nodes):9.3f} {name}")
    return True


def main(what: str = "graphs", *arguments: str) -> None:
    if what == "--job":
        return run_job(*arguments)
    if what == "curve":
        curve(arguments[0], list(map(int, arguments[1:])))
        return None
    parts = {"graphs": graphs, "weights": weights, "estimate": estimate, "profile": profile}
    raise SystemExit(0 if parts[what](*arguments) else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
