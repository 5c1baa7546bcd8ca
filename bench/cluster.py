"""Calibration on a Dask cluster, against the bar that it was built to.

Two workers calibrate at least 1.6 times as fast as one, to the bytes of a run without a cluster, and to the same
bytes where one of them is killed in the middle. A worker has one thread, and so has the process that asks, so that a
core stands for a machine. Beside the time on the clock stands that of processors on the longest way through the work
(the process that asks, then the busiest worker): it says the same on a machine that is busy with other things. Exit
status 1 where a bar does not hold.

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
LAYERS, ROWS = 2, 512
if len(sys.argv) > 1:
    LAYERS, ROWS = map(int, sys.argv[1:])


@dataclass(frozen=True, slots=True)
class Run:
    """One quantization: the bytes that came out, and where the time went."""

    digest: str
    seconds: float
    asking: float
    workers: tuple[float, ...] = ()

    @property
    def longest(self) -> float:
        """Seconds of processors on the longest way through the work."""
        return self.asking + max(self.workers, default=0.0)


@contextmanager
def scheduler(workers: int, folder: Path) -> Iterator[str]:
    """A scheduler with some workers on the loopback."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(os.path.isabs, [*sys.path, str(ROOT)]))}
    file = folder / f"scheduler-{workers}.json"

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


def used(address: str) -> dict[int, float]:
    """Seconds of processors that each worker has used, by its process."""
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        found = client.run(_used_here)
    return dict(found.values())


def _used_here() -> tuple[int, float]:
    # What it takes to import the program is no part of the work.
    importlib.import_module("intact.quantization.calibration.shards")
    return os.getpid(), sum(os.times()[:2])


def run(model: Path, data: Path, address: str | None = None) -> Run:
    output = model.with_name("quantized.onnx")
    before = {} if address is None else used(address)
    start, asking = time.perf_counter(), sum(os.times()[:2])
    quantize(model, data=data, samples=ROWS, precision="uint8", output=output, cluster=address, overwrite=True)
    seconds, asking = time.perf_counter() - start, sum(os.times()[:2]) - asking
    after = {} if address is None else used(address)
    workers = tuple(after[pid] - before.get(pid, 0.0) for pid in after)
    found = Run(hashlib.sha256(output.read_bytes()).hexdigest(), seconds, asking, workers)
    shares = ", ".join(f"{worker:.1f}" for worker in workers)
    print(f"{len(workers)} workers: {seconds:.1f} s on the clock; seconds of processors: {asking:.1f} here, [{shares}]")
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
        found = {}
        for workers in (1, 2):
            with scheduler(workers, folder) as address:
                found[workers] = run(model, data, address)
        (folder / "killed").mkdir()
        with scheduler(2, folder / "killed") as address:
            killer = threading.Thread(target=kill_one_at_work, args=(address,))
            killer.start()
            killed = run(model, data, address)
            killer.join()
    return report(here, found[1], found[2], killed.digest)


def report(here: Run, one: Run, two: Run, killed: str) -> int:
    clock, work = one.seconds / two.seconds, one.longest / two.longest
    same = here.digest == one.digest == two.digest
    print(f"2 workers against 1  {clock:.2f}x on the clock, {work:.2f}x on the longest way   bar {LEAST_SPEEDUP}x")
    survived = killed == here.digest
    print(f"bytes of both        {'same' if same else 'differ'}; a worker killed: {'same' if survived else 'differ'}")
    return 0 if clock >= LEAST_SPEEDUP and same and survived else 1


if __name__ == "__main__":
    sys.exit(main())
