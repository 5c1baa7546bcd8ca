"""Calibration on a Dask cluster, against the bar that it was built to.

Two workers calibrate at least 1.6 times as fast as one, to the bytes of a run without a cluster, and to the same
bytes where one of them is killed in the middle. A worker has one thread, and so has the process that asks, so that a
core stands for a machine. One and two workers take turns, and the fastest run of each counts: it was disturbed least.
Beside the time on the clock stands that of processors on the longest way through the work (the process that asks, then
the busiest worker), which says the same on a machine that is busy with other things, and how many cores others used
meanwhile. Exit status 1 where a bar does not hold.

python bench/cluster.py [LAYERS ROWS]
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Before numpy and joblib look at the machine.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "LOKY_MAX_CPU_COUNT": "1"}
os.environ.update(ONE_THREAD)

import numpy as np  # noqa: E402
import onnx  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.large_models import IMAGE, transformer  # noqa: E402
from intact.api.quantize import quantize  # noqa: E402

LEAST_SPEEDUP = 1.6
LAYERS, ROWS = 1, 512
TURNS = 2
if len(sys.argv) > 1:
    LAYERS, ROWS = map(int, sys.argv[1:])


@dataclass(frozen=True, slots=True)
class Run:
    """One quantization: the bytes that came out, and where the time went."""

    digest: str
    seconds: float
    asking: float
    workers: tuple[float, ...]
    others: float

    @property
    def longest(self) -> float:
        """Seconds of processors on the longest way through the work."""
        return self.asking + max(self.workers, default=0.0)


@contextmanager
def scheduler(workers: int, folder: Path) -> Iterator[str]:
    """A scheduler with some workers on the loopback."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(os.path.isabs, [*sys.path, str(ROOT)]))}
    file = folder / "scheduler.json"

    def start(kind: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *words, "--scheduler-file", str(file)]
        command += ["--host", "127.0.0.1", "--no-dashboard"]
        return subprocess.Popen(command, env=environment, cwd=folder, stderr=subprocess.DEVNULL)

    running = [start("scheduler", "--port", "0")]
    running += [start("worker", "--nthreads", "1", "--no-nanny", "--name", f"w{n}") for n in range(workers)]
    try:
        while not file.exists() or not file.read_text():
            time.sleep(0.1)
        yield str(json.loads(file.read_text())["address"])
    finally:
        for process in reversed(running):
            process.kill()
            process.wait()


def used(address: str, workers: int) -> dict[int, float]:
    """Seconds of processors that each worker has used, by its process, once so many are there."""
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(workers)
        found = client.run(_used_here)
    return dict(found.values())


def _used_here() -> tuple[int, float]:
    # What it takes to import the program is no part of the work.
    importlib.import_module("intact.quantization.calibration.shards")
    return os.getpid(), sum(os.times()[:2])


def machine_seconds() -> float:
    """Seconds that all processors of this machine have worked since it started."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def run(model: Path, data: Path, address: str | None = None, workers: int = 0, survivors: int | None = None) -> Run:
    """Quantize once; `workers` are there when it begins, and `survivors` when it ends."""
    output = model.with_name("quantized.onnx")
    before = {} if address is None else used(address, workers)
    machine, start, asking = machine_seconds(), time.perf_counter(), sum(os.times()[:2])
    quantize(model, data=data, samples=ROWS, precision="uint8", output=output, cluster=address, overwrite=True)
    seconds, asking = time.perf_counter() - start, sum(os.times()[:2]) - asking
    machine = machine_seconds() - machine
    after = {} if address is None else used(address, workers if survivors is None else survivors)
    each = tuple(after[pid] - before[pid] for pid in after)
    # A worker that died took what it had used with it.
    others = max(0.0, machine - asking - sum(each)) / seconds
    found = Run(hashlib.sha256(output.read_bytes()).hexdigest(), seconds, asking, each, others)
    shares = ", ".join(f"{one:.1f}" for one in each)
    print(
        f"{workers} workers: {seconds:.1f} s on the clock; seconds of processors: {asking:.1f} here, [{shares}]; "
        f"others used {others:.2f} cores",
        flush=True,
    )
    return found


def kill_one_at_work(address: str) -> None:
    """Kill the first worker that is seen to have work for some seconds."""
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(2)
        pids = client.run(os.getpid)
        while True:
            time.sleep(1.0)
            busy = [worker for worker, tasks in client.processing().items() if tasks]
            if busy:
                os.kill(pids[busy[0]], signal.SIGKILL)
                return


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, data = folder / "model.onnx", folder / "data.npz"
        onnx.save(transformer(LAYERS), model)
        rng = np.random.default_rng(0)
        np.savez(data, image=rng.normal(size=(ROWS + 16, *IMAGE[1:])).astype(np.float32))
        here = run(model, data)
        found: dict[int, list[Run]] = {1: [], 2: []}
        for turn in range(TURNS):
            for workers, runs in found.items():
                place = folder / f"{turn}-{workers}"
                place.mkdir()
                with scheduler(workers, place) as address:
                    runs.append(run(model, data, address, workers))
        (folder / "killed").mkdir()
        with scheduler(2, folder / "killed") as address:
            killer = threading.Thread(target=kill_one_at_work, args=(address,))
            killer.start()
            killed = run(model, data, address, 2, survivors=1)
            killer.join()
    return report(here, found[1], found[2], killed.digest)


def report(here: Run, ones: list[Run], twos: list[Run], killed: str) -> int:
    one, two = (min(runs, key=lambda run: run.seconds) for runs in (ones, twos))
    clock, work = one.seconds / two.seconds, one.longest / two.longest
    same = {run.digest for run in (here, *ones, *twos)} == {here.digest}
    print(f"2 workers against 1  {clock:.2f}x on the clock, {work:.2f}x on the longest way   bar {LEAST_SPEEDUP}x")
    survived = killed == here.digest
    print(f"bytes of all         {'same' if same else 'differ'}; a worker killed: {'same' if survived else 'differ'}")
    return 0 if clock >= LEAST_SPEEDUP and same and survived else 1


if __name__ == "__main__":
    sys.exit(main())
