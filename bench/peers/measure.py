"""Runs every tool on every model, shuffled and taking turns, and writes down what each took and made."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers import judge, store
from bench.peers.environments import ROOT, Environment, python_of
from bench.peers.models import Case
from bench.peers.process import spent
from bench.peers.store import Judged, Results, Run
from bench.peers.tools import PACKAGES, ROOT_PACKAGE, Tool

JOBS = Path(__file__).resolve().parent / "jobs"
MOST_SECONDS = 900
LOADS = 3

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Task:
    """One quantization to measure."""

    case: Case
    tool: Tool
    samples: int
    repeat: int

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What tells this run from others."""
        return self.case.name, self.tool.label, self.samples, self.repeat


@dataclass(frozen=True, slots=True)
class Bench:
    """Folders of environments and of work, the file of results, and the devices whose simulators are asked."""

    environments: Path
    work: Path
    file: Path
    say: Say
    simulators: Sequence[str] = ()


def describe(bench: Bench, made: dict[str, Environment], results: Results) -> None:
    """Write down the machine and the tools; forget what was measured with other versions of them."""
    results.machine = machine()
    for name, environment in made.items():
        known = results.tools.get(name, {})
        found = _described(environment)
        if any(known.get(key) != found[key] for key in ("version", "error")):
            changed = {run.tool for run in results.runs} & _labels(name)
            results.forget(changed)
            known = {}
        results.tools[name] = {**found, "loading": known.get("loading") or _loading(bench, environment)}
    store.write(bench.file, results)


def machine() -> dict[str, Any]:
    """Processor, cores and versions, without the name of the machine."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return {
        "processor": name,
        "vnni": bool({"avx512_vnni", "avx_vnni"} & set(flags)) if flags else None,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def _labels(package: str) -> set[str]:
    from bench.peers.tools import TOOLS

    return {tool.label for tool in TOOLS if tool.package == package}


def _described(environment: Environment) -> dict[str, Any]:
    version = sources() if environment.package == ROOT_PACKAGE else _version(environment)
    return {"version": version, "installed_bytes": environment.installed_bytes, "error": environment.error}


def _version(environment: Environment) -> str:
    """The pinned requirement of the package itself."""
    return environment.requires[0]


def sources() -> str:
    """A hash of our own sources, by which results of another state are told."""
    files = sorted(path for path in (ROOT / "src/intact").rglob("*") if path.suffix in (".py", ".toml"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def _loading(bench: Bench, environment: Environment) -> dict[str, float] | None:
    """The median seconds of loading a tool; the first time, which may compile its modules, does not count."""
    if not environment.usable:
        return None
    python, package = python_of(bench.environments, environment.package), PACKAGES[environment.package]
    bench.work.mkdir(parents=True, exist_ok=True)
    taken = [spent([str(python), "-c", package.loads], bench.work, MOST_SECONDS) for _ in range(LOADS + 1)][1:]
    return {
        "seconds": statistics.median(one.seconds for one in taken),
        "processor_seconds": statistics.median(one.processor_seconds for one in taken),
    }


def tasks(cases: Sequence[Case], tools: Sequence[Tool], repeats: int) -> list[Task]:
    """Every tool on every model, all of them mixed; every repeat in an order of its own, the same every time."""
    found: list[Task] = []
    for repeat in range(repeats):
        turn = [Task(case, tool, count, repeat) for case in cases for tool in tools for count in case.counts]
        random.Random(repeat).shuffle(turn)
        found += turn
    return found


def measure(bench: Bench, todo: Sequence[Task], results: Results) -> None:
    """Run what has not been run yet; a tool that failed on a model is not asked again."""
    done = {run.key for run in results.runs}
    for number, task in enumerate(todo, 1):
        failed = any(run.error for run in results.of(task.case.name, task.tool.label, task.samples))
        if task.key in done or failed:
            continue
        run = _run(bench, task)
        results.runs.append(run)
        store.write(bench.file, results)
        shown = run.error or f"{run.seconds:.1f} s, {run.processor_seconds:.1f} processor s"
        bench.say(f"{number}/{len(todo)} {task.case.name} {task.tool.label} {task.samples} samples: {shown}")


def result_of(bench: Bench, case: Case, tool: Tool, samples: int) -> Path:
    """The quantized model of a task."""
    return bench.work / case.name / tool.label.replace(" ", "_") / str(samples) / "model.onnx"


def _run(bench: Bench, task: Task) -> Run:
    result = result_of(bench, task.case, task.tool, task.samples)
    shutil.rmtree(result.parent, ignore_errors=True)
    result.parent.mkdir(parents=True)
    python, job = python_of(bench.environments, task.tool.package), JOBS / f"{task.tool.job}.py"
    rows = task.case.rows[task.samples].resolve()
    command = [str(python), str(job), str(task.case.model.resolve()), str(rows), str(result), task.tool.setting]
    taken = spent(command, result.parent, MOST_SECONDS)
    error = "" if taken.status == 0 and result.exists() else judge.last_words(taken.said) or f"status {taken.status}"
    digest, size = ("", 0) if error else _contents(result)
    own = (taken.seconds, taken.processor_seconds, taken.peak_bytes, taken.others)
    return Run(*task.key, *own, error, digest, size)


def _contents(result: Path) -> tuple[str, int]:
    """A hash and the size of a model with the files of weights beside it, but for what a tool kept on its way."""
    files = [result, *sorted(result.parent.glob("model.onnx*data")), *sorted(result.parent.glob("model.data"))]
    content = hashlib.sha256()
    for path in files:
        content.update(path.read_bytes())
    return content.hexdigest(), sum(path.stat().st_size for path in files)


def judge_all(bench: Bench, cases: Sequence[Case], tools: Sequence[Tool], results: Results) -> None:
    """Judge the models of the tables as far as they have not been judged yet, on the CPU first, which is quicker."""
    pairs = [(case, tool) for case in cases for tool in tools]
    for device in (None, *bench.simulators):
        for case, tool in pairs:
            # Settings for one device say nothing about another.
            if device is None or tool.device in ("", device):
                _judge(bench, case, tool, results, device)


def _judge(bench: Bench, case: Case, tool: Tool, results: Results, device: str | None) -> None:
    """Judge a model on the simulator of a device, or on the CPU."""
    runs, known = results.of(case.name, tool.label, case.counts[0]), results.verdict(case.name, tool.label)
    quantized = result_of(bench, case, tool, case.counts[0])
    is_known = known is not None and (device is None or device in known.simulated)
    if is_known or not runs or runs[-1].error or not quantized.exists():
        return
    cpu = known.cpu if known else judge.on_cpu(case.model, quantized, case.test, case.labels)
    simulated = dict(known.simulated) if known else {}
    if device is not None:
        simulated[device] = (
            {"error": f"not asked: another tool's was {judge.TOO_LONG}"}
            if _takes_too_long(results, case, device)
            else judge.on_simulator(device, case.model, quantized, case.test, quantized.parent)
        )
    found = Judged(case.name, tool.label, runs[-1].sha256, cpu, simulated)
    results.judged = [*(one for one in results.judged if one is not known), found]
    store.write(bench.file, results)
    bench.say(f"{case.name} {tool.label}: {device or 'CPU'} {json.dumps(simulated[device] if device else cpu)}")


def _takes_too_long(results: Results, case: Case, device: str) -> bool:
    """True if a simulator did not end with a model that one of the tools made of the same."""
    told = [one.simulated.get(device, {}).get("error") for one in results.judged if one.model == case.name]
    return judge.TOO_LONG in told


def note_models(cases: Sequence[Case], results: Results) -> None:
    """Write down which models there are, and their size."""
    for case in cases:
        size = case.model.stat().st_size
        found = {"title": case.title, "parameters": case.parameters(), "bytes": size, "samples": case.counts[0]}
        results.models[case.name] = found
    if not results.models:
        sys.exit("no model to compare on")
