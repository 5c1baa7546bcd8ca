"""Asks a vendor's library what it takes: one small model a question, in child processes, some at a time."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from intact.errors import IntactError, ToolchainError
from intact.graph import io
from intact.targets.probe.answers import Answer, Probed
from intact.targets.probe.cases import Case
from intact.targets.probe.job import MARK
from intact.targets.probe.models import PROBED, inputs_of, model_of
from intact.targets.registry import load_target
from intact.vendor import placement, process, qnn_client, qnn_log

# One child answers this many questions: enough to make its start cheap, few enough to lose little with it.
BATCH = 200
SECONDS_A_QUESTION = 10.0
WORKERS = 2

# Said of every model that is asked about with float inputs, whatever the operator.
_OF_THE_BOUNDARY = re.compile("graph (input|output)")


@dataclass(frozen=True, slots=True)
class Question:
    """A case for one architecture."""

    case: Case
    arch: int
    soc_id: int | None


def library() -> str:
    """The library that is asked, with its version."""
    return f"{qnn_client.PACKAGE} {qnn_client.environment()[qnn_client.PACKAGE]}"


def probe(
    cases: Sequence[Case],
    archs: Sequence[int],
    *,
    known: Probed | None = None,
    progress: Callable[[int, int, Probed], None] = lambda done, total, so_far: None,
    workers: int = WORKERS,
) -> Probed:
    """The answers to every case on every architecture; what `known` answers already is not asked again.

    Answers of another version of the library do not count. `progress` is called after each batch with the number
    of questions answered, the total, and the answers so far, which a caller may write down to go on from.
    """
    asked = library()
    answers = {name: dict(row) for name, row in known.answers.items()} if known and known.library == asked else {}
    questions = [
        Question(case, arch, _soc_id(arch))
        for case in cases
        for arch in archs
        if arch not in answers.get(case.name, {})
    ]
    batches = [questions[start : start + BATCH] for start in range(0, len(questions), BATCH)]
    total, done = len(questions), 0
    pool = joblib.Parallel(n_jobs=workers, prefer="threads", return_as="generator_unordered")
    for batch in pool(joblib.delayed(ask)(batch) for batch in batches):
        for question, answer in batch:
            answers.setdefault(question.case.name, {})[question.arch] = answer
        done += len(batch)
        progress(done, total, Probed(asked, answers))
    return Probed(asked, answers)


def ask(questions: Sequence[Question]) -> list[tuple[Question, Answer]]:
    """The answers to some questions. Where the library dies of one, the rest is asked in a new process."""
    with tempfile.TemporaryDirectory(prefix="intact-probe-") as name:
        folder = Path(name)
        orders = [_write(folder, number, question) for number, question in enumerate(questions)]
        answers: dict[int, Answer] = {}
        while len(answers) < len(orders):
            answers |= dict(_ask(folder, [order for order in orders if order["id"] not in answers]))
    return [(question, answers[number]) for number, question in enumerate(questions)]


def _soc_id(arch: int) -> int | None:
    soc = load_target("qnn", arch=arch).soc
    return soc.id if soc is not None else None


def _write(folder: Path, number: int, question: Question) -> dict[str, Any]:
    model, inputs = folder / f"{number}.onnx", folder / f"{number}.npz"
    io.save(model_of(question.case), model)
    # mypy takes the keyword arguments of numpy's stub for its flags.
    np.savez(inputs, **inputs_of(question.case))  # type: ignore[arg-type]
    return {
        "id": number,
        "model": str(model),
        "inputs": str(inputs),
        "arch": question.arch,
        "soc_id": question.soc_id,
    }


def _ask(folder: Path, orders: list[dict[str, Any]]) -> Iterator[tuple[int, Answer]]:
    """Answers as far as the child got; the question that it died of is answered too."""
    file = folder / "answers.jsonl"
    file.unlink(missing_ok=True)
    request = {"questions": orders, "answers": str(file)}
    log, death = "", None
    try:
        timeout = 60 + SECONDS_A_QUESTION * len(orders)
        limit = process.default_memory_limit()
        log = process.call("intact.targets.probe.job:ask_all", request, timeout=timeout, memory_limit=limit).log
    except ToolchainError as error:
        death = error
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    replies = [json.loads(line) for line in lines]
    reasons = _reasons(log)
    yield from ((reply["id"], _answer(reply, reasons)) for reply in replies)
    if death is not None:
        yield orders[len(replies)]["id"], Answer("died", _first_line(death))


def _answer(reply: Mapping[str, Any], reasons: Mapping[int, str]) -> Answer:
    if reply["verdict"] == "refused":
        return Answer("refused", reasons.get(reply["id"]) or reply["error"])
    return Answer(reply["verdict"], "", reply["sqnr_db"])


def _reasons(log: str) -> dict[int, str]:
    """Why a question was answered with no, by its number, from the log between its marks."""
    sections = log.split(f"{MARK} ")[1:]
    found: dict[int, str] = {}
    for section in sections:
        number, _, text = section.partition("\n")
        if number.isdecimal():
            found[int(number)] = _reason(qnn_log.reasons(text.split(MARK)[0]))
    return found


def _reason(reasons: Mapping[str, str]) -> str:
    """The reason against the operator itself, or else against a constant of it."""
    own = {placement.known_name(name, {PROBED: ""}): reason for name, reason in reasons.items()}
    if PROBED in own:
        return own[PROBED]
    return next(
        (reason for reason in reasons.values() if "graph input" not in reason and "graph output" not in reason), ""
    )


def _first_line(error: IntactError) -> str:
    return error.message.splitlines()[0].partition(": ")[2]
