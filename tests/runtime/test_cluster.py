"""Work on a cluster gives the same bytes as work here, survives its workers, and refuses those that would differ."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import intact
from intact.cli.main import app
from intact.data import shared_rows
from intact.data.dataset import Dataset
from intact.data.input_specs import input_specs
from intact.data.npz import open_arrays
from intact.errors import DataError, SettingsError, ToolchainError
from intact.quantization.calibration import shards
from intact.runtime import cluster, engines, worker_terms
from tests.builder import from_text
from tests.runtime import deaths

ROWS = 3 * shards.ROWS + 5

needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="distributed is not installed (extra: cluster)"
)
needs_qnn = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed (extra: qnn)"
)
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers that are rounded with feedback, and inputs enough for several shards."""
    rng = np.random.default_rng(1)
    weights = {
        "w": rng.normal(0, 0.3, (32, 48)).astype(np.float32),
        "v": rng.normal(0, 0.3, (48, 16)).astype(np.float32),
    }
    body = "a = MatMul(x, w) b = Relu(a) c = MatMul(b, v) y = Relu(c)"
    place = tmp_path_factory.mktemp("cluster")
    model = from_text("(float[1, 24, 32] x) => (float[1, 24, 16] y)", body, weights=weights)
    intact.save(model, place / "m.onnx")
    scales = rng.uniform(0.2, 4.0, 32)
    np.savez(place / "x.npz", x=(rng.normal(size=(ROWS + 16, 24, 32)) * scales).astype(np.float32))
    return place


def quantized(folder: Path, where: str | None, **settings: object) -> str:
    """The digest of the model, quantized here or on a cluster; nothing stays behind."""
    before = {path.name for path in folder.iterdir()}
    output = folder / "q.onnx"
    given = {"data": folder / "x.npz", "precision": "uint8", "samples": ROWS, **settings}
    intact.quantize(folder / "m.onnx", output=output, cluster=where, **given)
    found = hashlib.sha256(output.read_bytes()).hexdigest()
    output.unlink()
    assert {path.name for path in folder.iterdir()} - before <= {"mark"}
    return found


@pytest.fixture(scope="module")
def here(folder: Path) -> str:
    return quantized(folder, None)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Dask scheduler on the loopback, with two workers."""
    place = tmp_path_factory.mktemp("dask")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path))}

    def start(kind: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *words, "--host", "127.0.0.1"]
        return subprocess.Popen([*command, "--no-dashboard"], env=environment, cwd=place, stderr=subprocess.DEVNULL)

    file = place / "scheduler.json"
    running = [start("scheduler", "--port", "0", "--scheduler-file", str(file))]
    running += [start("worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-nanny") for _ in range(2)]
    try:
        yield address(file)
    finally:
        for process in reversed(running):
            process.kill()
            process.wait()


def address(file: Path) -> str:
    """The address of a scheduler, once it has written it down."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            return str(json.loads(file.read_text())["address"])
        time.sleep(0.1)
    raise AssertionError("the scheduler does not start")


def test_processes_here_give_the_same_bytes(folder: Path, here: str) -> None:
    assert quantized(folder, "local:2") == here


@pytest.mark.slow
def test_what_is_in_memory_is_written_down_for_the_workers(folder: Path, here: str) -> None:
    with np.load(folder / "x.npz") as file:
        arrays = {"x": file["x"]}
    assert quantized(folder, "local:2", data=arrays) == here
    assert quantized(folder, "local:2", data=lambda: arrays) == quantized(folder, None, data=lambda: arrays)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "w8", "w4", "w8a16"])
def test_every_kind_of_pass_gives_the_same_bytes(precision: str, folder: Path) -> None:
    assert quantized(folder, "local:2", precision=precision) == quantized(folder, None, precision=precision)


@pytest.mark.slow
def test_a_worker_here_that_is_killed_costs_its_shard(folder: Path, here: str, monkeypatch) -> None:
    (folder / "mark").unlink(missing_ok=True)
    monkeypatch.setattr(shards, "watch_shard", deaths.watch_or_die)
    assert quantized(folder, "local:2") == here
    assert (folder / "mark").exists()


@needs_dask
@pytest.mark.slow
def test_a_dask_scheduler_gives_the_same_bytes_and_survives_a_killed_worker(
    folder: Path, here: str, scheduler: str, monkeypatch
) -> None:
    assert quantized(folder, scheduler) == here
    (folder / "mark").unlink(missing_ok=True)
    monkeypatch.setattr(shards, "watch_shard", deaths.watch_or_die)
    assert quantized(folder, scheduler) == here
    assert (folder / "mark").exists()


@needs_dask
@pytest.mark.slow
def test_a_matrix_and_a_search_run_on_a_scheduler(folder: Path, scheduler: str) -> None:
    words = {"data": folder / "x.npz", "samples": ROWS, "effort": "fast"}
    for name, where in (("here", None), ("there", scheduler)):
        intact.matrix(
            folder / "m.onnx",
            devices=["cpu"],
            precisions=["uint8", "w8a16"],
            output=folder / name,
            cluster=where,
            threads=1,
            **words,
        )
        intact.build(
            folder / "m.onnx", precision="auto", min_sqnr=38.0, output=folder / f"{name}-auto", cluster=where, **words
        )
    for part in ("cpu-uint8/model.onnx", "cpu-w8a16/model.onnx"):
        assert (folder / "here" / part).read_bytes() == (folder / "there" / part).read_bytes()
    same = [(folder / f"{name}-auto" / "model.onnx").read_bytes() for name in ("here", "there")]
    assert same[0] == same[1]


def jobs_done(scheduler: str) -> int:
    """Grows with every job that a scheduler was given."""
    from distributed import Client

    with Client(scheduler) as client:
        return int(client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.transition_counter))


@needs_dask
@needs_qnn
@pytest.mark.qnn
@pytest.mark.slow
def test_a_probe_and_the_search_on_a_simulator_run_on_a_scheduler(folder: Path, scheduler: str, tmp_path: Path) -> None:
    for name, where in (("here", None), ("there", scheduler)):
        before = jobs_done(scheduler)
        intact.probe(op=["Relu"], arch=["v73"], output=tmp_path / f"{name}.json", cluster=where)
        assert (jobs_done(scheduler) > before) == (where is not None)
    assert (tmp_path / "here.json").read_bytes() == (tmp_path / "there.json").read_bytes()
    words = {"data": folder / "x.npz", "samples": 8}
    intact.quantize(folder / "m.onnx", device="qnn", output=tmp_path / "q.onnx", effort="fast", **words)
    found = []
    for where in (None, scheduler):
        before = jobs_done(scheduler)
        found.append(intact.debug(tmp_path / "q.onnx", device="qnn", cluster=where, **words))
        assert (jobs_done(scheduler) > before) == (where is not None)
    assert repr(found[0]) == repr(found[1])


@needs_ray
@pytest.mark.slow
def test_ray_gives_the_same_bytes(folder: Path, here: str) -> None:
    import ray

    ray.init(num_cpus=2, include_dashboard=False)
    try:
        assert quantized(folder, "ray") == here
    finally:
        ray.shutdown()


def test_jobs_come_in_order_and_errors_whole() -> None:
    with cluster.used("local:2") as found:
        assert found is not None and cluster.current() is found
        assert list(found.each(deaths.square, range(7))) == [n * n for n in range(7)]
        with pytest.raises(DataError, match="3: no samples") as told:
            list(found.each(deaths.refuse, [3]))
        assert (told.value.code, told.value.fix) == ("D109", "add samples on axis 0")
    assert cluster.current() is None


@pytest.mark.slow
def test_jobs_that_kill_every_worker_are_given_up(tmp_path: Path) -> None:
    with cluster.used("local:2") as found:
        assert found is not None
        assert list(found.each(deaths.die_once, [tmp_path / "mark"] * 4)) == ["done"] * 4
        with pytest.raises(ToolchainError, match="workers keep dying"):
            list(found.each(deaths.die_always, [1, 2]))


def test_a_worker_with_other_versions_is_refused_before_it_works() -> None:
    mine = worker_terms.here()
    theirs = {**mine.versions, "numpy": "1.0", "platform": "another"}
    assert worker_terms.difference(mine.versions, theirs) == f"numpy 1.0 there, {np.__version__} here"
    other = worker_terms.Terms({**mine.versions, worker_terms.SOURCES: "other"}, mine.sessions, mine.algebra)
    with pytest.raises(ToolchainError, match=rf"worker .*: {worker_terms.SOURCES} \w+ there, other here"):
        worker_terms.perform(deaths.square, 1, other)
    engine = engines.Engine("far", {}, ask=lambda ask: {"tcp://far": theirs})
    with pytest.raises(ToolchainError, match=r"worker tcp://far: numpy 1\.0 there"):
        cluster._compare(engine, cluster.Silence())


def test_another_kind_of_processor_is_told() -> None:
    said: list[str] = []

    class Told(cluster.Silence):
        def warn(self, text: str) -> None:
            said.append(text)

    theirs = {**worker_terms.here().versions, worker_terms.PROCESSOR: "Zen exact"}
    cluster._compare(engines.Engine("far", {}, ask=lambda ask: {"tcp://far": theirs}), Told())
    assert len(said) == 1 and "another kind of processor (Zen exact" in said[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [("moon", "no backend of this name"), ("local:none", "'none' is no number"), ("local:0", "'0' is")],
)
def test_an_address_that_means_nothing_is_refused(name: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words), cluster.used(name):
        pass


@needs_dask
@pytest.mark.slow
def test_the_command_line_says_what_dask_needs(folder: Path) -> None:
    told = CliRunner().invoke(app, ["quantize", str(folder / "m.onnx"), "--cluster", "dask", "-o", str(folder / "q")])
    assert isinstance(told.exception, SettingsError) and "tcp://HOST:8786" in str(told.exception)


def test_rows_are_checked_where_they_are_read(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "x.npz"
    place.write_bytes((folder / "x.npz").read_bytes())
    specs = input_specs(intact.load(folder / "m.onnx"))
    rows = Dataset.checked(open_arrays(place, specs), 0, 5)
    found = shared_rows.shared(rows, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"], "files are read where they are"
    assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(found.part(2, 4), list(rows)[2:4], strict=True))
    with np.load(place) as file:
        arrays = {"x": file["x"].copy()}
    arrays["x"][3] += 1
    np.savez(place, **arrays)
    with pytest.raises(DataError, match="sample 3 is another for worker"):
        list(found)
    place.unlink()
    with pytest.raises(DataError, match="cannot read it: No such file"):
        list(found)


def test_rows_in_memory_are_filed_and_numbers_keep_their_shape(tmp_path: Path) -> None:
    rows = [{"a": np.float32(n) * np.ones((2, n + 1), np.float32), "n": np.asarray(n)} for n in range(3)]
    found = list(shared_rows.shared(rows, tmp_path))
    assert [row["a"].shape for row in found] == [(2, 1), (2, 2), (2, 3)] and found[2]["n"].shape == ()


@pytest.mark.skipif(importlib.util.find_spec("fsspec") is None, reason="fsspec is not installed (extra: cluster)")
def test_a_url_is_read_on_a_cluster_alone(folder: Path, here: str) -> None:
    url = (folder / "x.npz").as_uri()
    assert quantized(folder, "threading", data=url) == here
    with pytest.raises(DataError, match="read by the workers of a cluster"):
        quantized(folder, None, data=url)
    with pytest.raises(DataError, match="cannot be read: FileNotFoundError"):
        quantized(folder, "threading", data=url + ".gone")
