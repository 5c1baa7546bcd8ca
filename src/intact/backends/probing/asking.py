"""Puts questions to a vendor's library one by one, in a child process; where it dies of one, the rest goes on."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from intact import scratch
from intact.backends.base import Library
from intact.backends.probing.answers import Answer
from intact.backends.probing.cases import Case, Chain
from intact.backends.probing.models import inputs_of, model_of, step_of
from intact.backends.probing.probe_job import ProbeAnswer, ProbeOrder, ProbeQuestion
from intact.errors import IntactError, ToolchainError
from intact.model import io
from intact.records import dataclass
from intact.runtime import process

SECONDS_A_QUESTION = 10.0
# A small model takes a library some hundred megabytes; where a compiler asks for all that there is, others go without.
MOST_MEMORY = 4 << 30


@dataclass(frozen=True, slots=True)
class Question:
    """A case, or a chain of them, for one architecture or chip.

    `numeric` asks for the error in steps too, and for no reason where the library refuses it.
    """

    case: Case | Chain
    arch: int
    soc_id: int | None
    numeric: bool = False

    @property
    def output(self) -> str:
        """The type of the result."""
        last = self.case if isinstance(self.case, Case) else self.case.steps[-1]
        return last.output.split()[0]


def ask(library: Library, questions: Sequence[Question]) -> list[tuple[Question, Answer]]:
    """The answers to some questions. Where the library dies of one, the rest is asked in a new process."""
    with scratch.folder("probe") as folder:
        orders = [_write(folder, number, question) for number, question in enumerate(questions)]
        answers: dict[int, Answer] = {}
        while len(answers) < len(orders):
            rest = [order for order in orders if order["id"] not in answers]
            answers |= dict((_ask_apart if library.apart else _ask)(library, folder, rest))
    return [(question, answers[number]) for number, question in enumerate(questions)]


def _write(folder: Path, number: int, question: Question) -> ProbeQuestion:
    model, inputs = folder / f"{number}.onnx", folder / f"{number}.npz"
    io.save(model_of(question.case), model)
    # mypy takes the keyword arguments of numpy's stub for its flags.
    np.savez(inputs, **inputs_of(question.case))  # type: ignore[arg-type]
    return {
        "id": number,
        "model": str(model),
        "inputs": str(inputs),
        "step": step_of(question.case) if question.numeric else None,
        "arch": question.arch,
        "soc_id": question.soc_id,
        "explain": not question.numeric,
    }


def _ask(library: Library, folder: Path, orders: list[ProbeQuestion]) -> Iterator[tuple[int, Answer]]:
    """Answers as far as the child got; the question that it died of is answered too."""
    file = folder / "answers.jsonl"
    file.unlink(missing_ok=True)
    request: ProbeOrder = {"library": library.module, "questions": orders, "answers": str(file)}
    log, death = "", None
    try:
        timeout = 60 + SECONDS_A_QUESTION * len(orders)
        limit = memory_limit()
        job = "intact.backends.probing.probe_job:ask_all"
        log = process.call(job, request, timeout=timeout, memory_limit=limit).log
    except ToolchainError as error:
        death = error
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    replies: list[ProbeAnswer] = [json.loads(line) for line in lines]
    reasons = library.reasons(log)
    yield from ((reply["id"], _answer(reply, reasons)) for reply in replies)
    if death is not None:
        yield orders[len(replies)]["id"], Answer("died", _first_line(death))


def memory_limit() -> int | None:
    """Bytes of address space for a child that is asked."""
    whole = process.default_memory_limit()
    return None if whole is None else min(whole, MOST_MEMORY)


def _ask_apart(library: Library, folder: Path, orders: list[ProbeQuestion]) -> Iterator[tuple[int, Answer]]:
    """All answers of a library that is no part of this interpreter: its backend knows how to ask it."""
    yield from importlib.import_module(library.module).answers(folder, orders)


def _answer(reply: ProbeAnswer, reasons: Mapping[int, str]) -> Answer:
    if reply["verdict"] == "refused":
        return Answer("refused", reasons.get(reply["id"]) or reply["error"])
    return Answer(reply["verdict"], "", reply["sqnr_db"], reply.get("steps"))


def _first_line(error: IntactError) -> str:
    return error.message.splitlines()[0].partition(": ")[2]
