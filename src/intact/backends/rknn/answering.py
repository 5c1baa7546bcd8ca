"""Answers of Rockchip's toolkit to questions of a probe: asked in its own interpreter, read and compared in ours."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from intact.backends.probing import chips
from intact.backends.probing.answers import Answer, Verdict
from intact.backends.probing.cases import cases
from intact.backends.probing.models import inputs_of, model_of
from intact.backends.probing.probe_job import ProbeQuestion, expected, greatest_error, sqnr
from intact.backends.rknn import client as rknn_client
from intact.backends.rknn import log as rknn_log
from intact.backends.rknn import placing
from intact.backends.rknn.log import CompilerReport
from intact.backends.rknn.readable import OPSET, readable
from intact.backends.rknn.toolchain import TOOLCHAIN
from intact.errors import ModelError
from intact.model import io
from intact.model.cutting import joined
from intact.records import dataclass
from intact.runtime import process
from intact.targets import provider_placement
from intact.targets.spec import Target

_STARTING = 600.0
# Against one that waits for ever; one that computes for ever is stopped by the kernel, whatever else the machine does.
_SECONDS_A_QUESTION = 120.0
_UNREADABLE = f"opset {OPSET}, the newest that the compiler reads, has no form of it"
_ASKED = "asked"
_FLOATS = {"FLOAT16", "FLOAT"}
_NUMBERS = {"INT8", *_FLOATS}
_SIMULATOR_STOPS = "the simulator stops"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A model in the form that the compiler reads, its file and its inputs, and what the CPU computes from them."""

    model: ir.Model
    path: Path
    inputs: Path
    wanted: list[np.ndarray]


def answers(folder: Path, questions: Sequence[ProbeQuestion]) -> Iterator[tuple[int, Answer]]:
    """The answer to each question; what the compiler cannot read is not asked."""
    asked: list[tuple[ProbeQuestion, _Asked, dict[str, str]]] = []
    # Questions about one model for several chips follow each other.
    for _, alike in itertools.groupby(questions, lambda question: Path(question["model"]).read_bytes()):
        rows = list(alike)
        try:
            alone = _written(rows[0], folder)
        except ModelError:
            yield from ((row["id"], Answer("refused", _UNREADABLE)) for row in rows)
            continue
        is_float = not any(node.op_type == "QuantizeLinear" for node in alone.model.graph)
        beside = _accompanied(alone, folder) if is_float else alone
        for row in rows:
            target = chips.target_of(TOOLCHAIN.name, row["arch"])
            written = alone if target.halves else beside
            asked.append((row, written, _order(row, written, target, folder)))
    for (question, written, order), end in zip(asked, _ends([order for *_, order in asked]), strict=True):
        yield question["id"], _answer(question, written, order, end)


def _written(question: ProbeQuestion, folder: Path) -> _Asked:
    """A model that answers are compared on: its inputs and what they give, and the file for the compiler."""
    model = readable(io.load(Path(question["model"])))
    path = io.save(model, folder / f"{question['id']}.readable.onnx")[0]
    return _Asked(model, path, Path(question["inputs"]), list(expected(question)[1].values()))


def _accompanied(alone: _Asked, folder: Path) -> _Asked:
    """The same model beside an operator in integers: some chips are asked about nothing without one."""
    [company] = [case for case in cases(["Relu"], ["int8"]) if case.grid == "own"]
    model = joined({_ASKED: alone.model.clone(), "company": readable(model_of(company))})
    path = io.save(model, folder / f"{alone.path.stem}.beside.onnx")[0]
    with np.load(alone.inputs, allow_pickle=False) as arrays:
        feeds = {f"{_ASKED}/{name}": arrays[name] for name in arrays.files}
    feeds |= {f"company/{name}": values for name, values in inputs_of(company).items()}
    np.savez(path.with_suffix(".npz"), **feeds)
    return _Asked(model, path, path.with_suffix(".npz"), alone.wanted)


def _order(question: ProbeQuestion, written: _Asked, target: Target, folder: Path) -> dict[str, str]:
    assert target.soc is not None, "every number of this backend is that of a chip"
    files = {name: str(folder / f"{question['id']}.{name}") for name in ("log", "built", "outputs.npz")}
    return {
        "model": str(written.path),
        "inputs": str(written.inputs),
        "platform": target.soc.name.lower(),
        "log": files["log"],
        "built": files["built"],
        "outputs": files["outputs.npz"],
    }


def _ends(orders: Sequence[dict[str, str]]) -> list[int]:
    """The end of the process of each question, in an interpreter of the toolkit that is started once for all."""
    if not orders:
        return []
    python = rknn_client.toolkit().python
    timeout = _STARTING + _SECONDS_A_QUESTION * len(orders)
    request: dict[str, Any] = {"questions": list(orders)}
    reply = process.call("intact.backends.rknn.ask:ask_all", request, timeout=timeout, python=python)
    ends: list[int] = reply.result["ends"]
    return ends


def _answer(question: ProbeQuestion, written: _Asked, order: dict[str, str], end: int) -> Answer:
    if end == -signal.SIGXCPU:
        return Answer("died", _death(end))
    log = Path(order["log"]).read_text(encoding="utf-8", errors="replace")
    if not Path(order["built"]).exists():
        return Answer("died", _death(end)) if end < 0 else Answer("refused", rknn_log.reason(log))
    verdict, reason = _verdict(written.model, rknn_log.report(log))
    if not Path(order["outputs"]).exists():
        why = f"{_SIMULATOR_STOPS}: {_death(end) if end < 0 else rknn_log.reason(log)}"
        return Answer(verdict, reason or why)
    with np.load(order["outputs"], allow_pickle=False) as arrays:
        found = [arrays[name] for name in arrays.files][: len(written.wanted)]
    if [value.size for value in found] != [value.size for value in written.wanted]:
        return Answer(verdict, reason or "the simulator's results have other shapes")
    worst = greatest_error(written.wanted, found, question["step"])
    return Answer(verdict, reason, sqnr(written.wanted, found), worst)


def _verdict(model: ir.Model, report: CompilerReport) -> tuple[Verdict, str]:
    """The place of the operators of a question, and the numbers that they run in."""
    placed = placing.placement(model, report.layers)
    beside = any(node.name.startswith(f"{_ASKED}/") for node in placed.npu_nodes + placed.cpu_nodes)
    on_npu, off = (
        {node.name for node in provider_placement.compute_nodes(nodes) if not beside or node.name.startswith(_ASKED)}
        for nodes in (placed.npu_nodes, placed.cpu_nodes)
    )
    if off:
        return "refused", placing.ON_CPU
    own = {layer.precision for layer in placed.layers if on_npu & set(layer.nodes)}
    # A layer that chooses by booleans is of their type; what it chooses from is told by those around it.
    types = own if own & _NUMBERS else {layer.precision for layer in placed.layers}
    return ("float" if types & _FLOATS else "integer"), ""


def _death(end: int) -> str:
    name = signal.Signals(-end).name
    return "the compiler does not end" if name == "SIGXCPU" else f"the process died of {name}"
