"""The comparison with other quantizers: its page says what its raw figures say, and counts nobody's work as less."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from bench.peers import figures, measure, plots, process, report, store
from bench.peers.models import Case
from bench.peers.process import spent
from bench.peers.store import Judged, Results, Run
from bench.peers.tools import PACKAGES, TOOLS

BENCH = report.ROOT / "bench"
RAW = BENCH / "results/peers.json"

RUN = Run("small", "intact", 24, 0, 2.0, 3.0, 100_000_000, 0.0, "", "a", 1000)
MODELS = {"small": {"title": "a small model", "parameters": 1000, "bytes": 4000, "samples": 24}}
LOADED = {"seconds": 0.5, "processor_seconds": 0.4}
TOOLS_FOUND = {
    "intact": {"version": "1", "installed_bytes": 10, "error": "", "loading": LOADED},
    "onnxruntime": {"version": "2", "installed_bytes": 20, "error": "", "loading": LOADED},
}
MACHINE = {"processor": "one", "vnni": True, "cores": 2, "python": "3", "system": "Linux"}


def results(*runs: Run, judged: tuple[Judged, ...] = ()) -> Results:
    return Results(MACHINE, TOOLS_FOUND, MODELS, list(runs), list(judged))


def kept(tool: str, decibels: float, model: str = "small", samples: int = 64) -> Judged:
    figure = {"sqnr_db": decibels, "optimized_db": 40.0, "latency_ratio": 1.0, "float_ms": 1.0}
    simulated = {"sqnr_db": decibels, "npu_nodes": 1, "nodes": 1, "samples": samples}
    return Judged(model, tool, "a", figure, dict.fromkeys(("qnn", "rknn"), simulated))


def test_the_page_is_what_the_raw_figures_give():
    assert (BENCH / "RESULTS.md").read_text(encoding="utf-8") == report.page(store.read(RAW)), (
        "run: python -m bench.peers --report --into bench"
    )


def test_the_pictures_are_what_the_raw_figures_give():
    drawn = plots.pictures(store.read(RAW))
    assert drawn
    assert {name: (RAW.parent / name).read_text(encoding="utf-8") for name in drawn} == drawn


def test_the_first_table_stands_in_the_readme():
    assert report.first_table(store.read(RAW)) in (report.ROOT / "README.md").read_text(encoding="utf-8"), (
        "copy the first table of bench/RESULTS.md to README.md"
    )


def test_raw_figures_are_read_as_they_were_written(tmp_path):
    found = results(RUN, judged=(kept("intact", 40.0),))
    store.write(tmp_path / "raw.json", found)
    assert store.read(tmp_path / "raw.json") == found


@pytest.mark.parametrize(("others", "seconds"), [(0.0, 2.0), (0.5, 3.0)])
def test_seconds_are_of_the_clock_on_a_quiet_machine_and_of_the_processor_on_another(others, seconds):
    found = results(replace(RUN, others=others))
    assert figures.time_of(found, "small", "intact") == seconds


def test_the_median_of_repeats_counts_and_a_failure_does_not():
    runs = [replace(RUN, repeat=n, seconds=value) for n, value in enumerate((5.0, 1.0, 2.0))]
    found = results(*runs, replace(RUN, repeat=3, seconds=0.1, error="died"))
    assert figures.time_of(found, "small", "intact") == 2.0


@pytest.mark.parametrize(
    ("theirs", "lost"),
    [(replace(RUN, tool="ORT MinMax", seconds=1.0), ["seconds"]), (replace(RUN, tool="ORT MinMax", seconds=2.5), [])],
)
def test_a_peer_that_is_quicker_is_named(theirs, lost):
    found = list(figures.losses(results(RUN, theirs)))
    assert [loss.figure for loss in found] == lost
    assert all(loss.tool == "ORT MinMax" and (loss.ours, loss.theirs) == ("2.0 s", "1.0 s") for loss in found)


@pytest.mark.parametrize(("theirs", "lost"), [(41.0, ["SQNR on the CPU"]), (40.05, []), (39.0, [])])
def test_a_peer_that_keeps_more_is_named(theirs, lost):
    found = results(RUN, replace(RUN, tool="NNCF"), judged=(kept("intact", 40.0), kept("NNCF", theirs)))
    assert [loss.figure for loss in figures.losses(found)] == lost
    if lost:
        assert "| a small model | SQNR on the CPU | 40.0 dB | 41.0 dB (NNCF) |" in report.page(found)


@pytest.mark.parametrize(("fast", "said"), [(41.0, True), (40.05, False), (39.0, False)])
def test_an_effort_that_was_wasted_is_told(fast, said):
    runs = (RUN, replace(RUN, tool="intact fast"))
    page = report.page(results(*runs, judged=(kept("intact", 40.0), kept("intact fast", fast))))
    assert ("keeps less than the fast one, which takes less time, on: a small model." in page) == said


def test_a_tool_that_fails_is_quoted():
    page = report.page(results(RUN, replace(RUN, tool="NNCF", error="ValueError: opset 9")))
    assert "| fails |" in page and "- NNCF, a small model: ValueError: opset 9" in page


def test_each_simulator_has_a_table_without_the_tools_that_are_for_another_device():
    tools = ("intact", "intact for qnn", "intact for rknn")
    page = report.page(
        results(*(replace(RUN, tool=tool) for tool in tools), judged=tuple(kept(tool, 40.0) for tool in tools))
    )
    for title, own, other in (("Hexagon", "qnn", "rknn"), ("Rockchip", "rknn", "qnn")):
        part = page.partition(f"## On the simulator of a {title} NPU")[2].partition("\n## ")[0]
        assert f"| intact | intact for {own} |" in part and f"intact for {other}" not in part


def test_the_page_says_how_many_samples_a_simulator_was_given():
    given = results(RUN, judged=(kept("intact", 40.0),))
    assert "was given 64 samples." in report.page(given)
    given.models = {**MODELS, "large": {**MODELS["small"], "title": "a large model"}}
    given.judged.append(kept("intact", 40.0, "large", 2))
    assert "was given 64 samples of a small model, 2 samples of a large model." in report.page(given)


def test_a_model_is_judged_on_every_simulator_once_but_for_settings_of_other_devices(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(measure.judge, "on_cpu", lambda *_: {"sqnr_db": 40.0})
    monkeypatch.setattr(measure.judge, "on_simulator", lambda device, *_: asked.append(device) or {"sqnr_db": 40.0})
    bench = measure.Bench(tmp_path, tmp_path, tmp_path / "raw.json", lambda _: None, ("qnn", "rknn"))
    case = Case("small", "small", tmp_path, {24: tmp_path}, tmp_path, None)
    tools = [tool for tool in TOOLS if tool.label in ("intact", "intact for qnn")]
    for tool in tools:
        path = measure.result_of(bench, case, tool, 24)
        path.parent.mkdir(parents=True)
        path.touch()
    found = results(*(replace(RUN, tool=tool.label) for tool in tools))
    for _ in range(2):
        measure.judge_all(bench, [case], tools, found)
    assert asked == ["qnn", "qnn", "rknn"]
    assert {one.tool: list(one.simulated) for one in found.judged} == {
        "intact for qnn": ["qnn"],
        "intact": ["qnn", "rknn"],
    }


def test_a_simulator_that_does_not_end_with_a_model_is_not_asked_about_it_again(tmp_path, monkeypatch):
    asked = []
    late = {"error": measure.judge.TOO_LONG}
    monkeypatch.setattr(measure.judge, "on_cpu", lambda *_: {"sqnr_db": 40.0})
    monkeypatch.setattr(measure.judge, "on_simulator", lambda device, *_: asked.append(device) or late)
    bench = measure.Bench(tmp_path, tmp_path, tmp_path / "raw.json", lambda _: None, ("qnn", "rknn"))
    case = Case("small", "small", tmp_path, {24: tmp_path}, tmp_path, None)
    tools = [tool for tool in TOOLS if tool.label in ("intact", "ORT MinMax")]
    for tool in tools:
        path = measure.result_of(bench, case, tool, 24)
        path.parent.mkdir(parents=True)
        path.touch()
    found = results(*(replace(RUN, tool=tool.label) for tool in tools))
    measure.judge_all(bench, [case], tools, found)
    assert asked == ["qnn", "rknn"]
    assert found.verdict("small", "ORT MinMax").simulated["qnn"]["error"].startswith("not asked: ")


def test_the_same_bytes_are_claimed_of_two_runs_only():
    twice = results(RUN, replace(RUN, repeat=1))
    other = results(RUN, replace(RUN, repeat=1, sha256="b"))
    once = results(RUN)
    assert [figures.same_bytes(found, "small", "intact") for found in (twice, other, once)] == [True, False, None]


def test_tasks_are_mixed_and_complete(tmp_path):
    cases = [Case(name, name, tmp_path, {24: tmp_path, 8: tmp_path}, tmp_path, None) for name in ("a", "b")]
    found = [task.key for task in measure.tasks(cases, TOOLS, 2)]
    half = len(found) // 2
    assert len(set(found)) == len(found) == 2 * 2 * 2 * len(TOOLS)
    assert {key[3] for key in found[:half]} == {0} and {key[3] for key in found[half:]} == {1}
    assert [key[:3] for key in found[:half]] != [key[:3] for key in found[half:]] != sorted(key[:3] for key in found)
    assert found == [task.key for task in measure.tasks(cases, TOOLS, 2)]


def test_every_tool_has_a_package_and_a_job():
    assert all(tool.package in PACKAGES and (measure.JOBS / f"{tool.job}.py").is_file() for tool in TOOLS)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_and_time_of_children_count(tmp_path):
    child = "x = bytearray(150_000_000); import time; time.sleep(0.6); sum(range(3_000_000))"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    alone, both = (spent([sys.executable, "-c", code], tmp_path, 60) for code in ("pass", program))
    assert both.status == 0 and both.seconds > 0.6
    assert both.peak_bytes is not None and both.peak_bytes > 150_000_000
    assert both.processor_seconds > alone.processor_seconds


def test_the_end_of_a_command_is_not_seen_a_look_too_late(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "LOOK_EVERY", 20.0)
    assert spent([sys.executable, "-c", "import time; time.sleep(0.2)"], tmp_path, 60).seconds < 10


def test_a_command_that_does_not_end_is_ended(tmp_path):
    found = spent([sys.executable, "-c", "print('begun', flush=True); import time; time.sleep(60)"], tmp_path, 2)
    assert found.status == -9 and found.seconds < 30 and "begun" in found.said
