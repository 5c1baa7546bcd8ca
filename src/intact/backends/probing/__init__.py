"""Asks a vendor's library what it takes: one small model a question, in child processes, some at a time."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from intact import scratch
from intact.backends import installed
from intact.backends.base import Library
from intact.backends.probing.answers import Answer, Probed
from intact.backends.probing.cases import Case, Chain
from intact.backends.probing.chips import numbers, soc_of
from intact.backends.probing.models import inputs_of, model_of, step_of
from intact.backends.probing.probe_job import ProbeAnswer, ProbeOrder, ProbeQuestion
from intact.errors import IntactError, SettingsError, ToolchainError
from intact.model import io
from intact.runtime import cluster, process, worker_terms

# One child answers this many questions: enough to make its start cheap, few enough to lose little with it.
BATCH = 200
SECONDS_A_QUESTION = 10.0
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Question:
    """A case, or a chain of them, for one architecture or chip; `numeric` asks for the error in steps too."""

    case: Case | Chain
    arch: int
    soc_id: int | None
    numeric: bool = False


def library_of(backend: str) -> Library:
    """The library that knows what `backend` takes."""
    library = installed.find(backend).library if installed.is_backend(backend) else None
    if library is None:
        able = ", ".join(name for name, other in installed.every() if other.library is not None)
        raise SettingsError("S191", f"--device {backend}: it has no library to ask", allowed=able)
    return library


def probe(
    backend: str,
    cases: Sequence[Case],
    archs: Sequence[int] | None = None,
    *,
    known: Probed | None = None,
    progress: Callable[[int, int, Probed], None] = lambda done, total, so_far: None,
    workers: int = WORKERS,
) -> Probed:
    """The answers to every case on every architecture; what `known` answers already is not asked again.

    Answers of another version of the library do not count. `progress` is called after each batch with the number
    of questions answered, the total, and the answers so far, which a caller may write down to go on from.
    """
    library = library_of(backend)
    asked = str(library)
    answers = {name: dict(row) for name, row in known.answers.items()} if known and known.library == asked else {}
    questions = [
        Question(case, arch, soc_of(backend, arch))
        for case in cases
        for arch in archs or numbers(backend)
        if arch not in answers.get(case.name, {})
    ]
    batches = [questions[start : start + BATCH] for start in range(0, len(questions), BATCH)]
    total, done = len(questions), 0
    for _, batch in ask_batches(library, batches, workers):
        for question, answer in batch:
            answers.setdefault(question.case.name, {})[question.arch] = answer
        done += len(batch)
        progress(done, total, Probed(asked, answers))
    return Probed(asked, answers)


@dataclass(frozen=True, slots=True)
class ProbeBatch:
    """Questions for a library, which is known by its name and version wherever they are asked."""

    library: Library
    asked: str
    questions: Sequence[Question]


def ask_batches(
    library: Library, batches: Sequence[Sequence[Question]], workers: int
) -> Iterator[tuple[int, list[tuple[Question, Answer]]]]:
    """The answers to each batch with its number, as they come, from a cluster or from `workers` children here."""
    jobs = [ProbeBatch(library, str(library), batch) for batch in batches]
    elsewhere = cluster.current()
    if elsewhere is not None:
        yield from elsewhere.as_done(ask_batch, jobs)
        return
    # Loaded where it is needed, since builds ask nothing.
    import joblib

    pool = joblib.Parallel(n_jobs=workers, prefer="threads", return_as="generator_unordered")
    yield from pool(joblib.delayed(_numbered)(number, job) for number, job in enumerate(jobs))


def _numbered(number: int, job: ProbeBatch) -> tuple[int, list[tuple[Question, Answer]]]:
    return number, ask_batch(job)


def ask_batch(job: ProbeBatch) -> list[tuple[Question, Answer]]:
    """Ask in whatever process this is; refuse a library of another version, whose answers would pass for this one's."""
    if str(job.library) != job.asked:
        raise ToolchainError(
            "E193", f"worker {worker_terms.name()} has {job.library}, here is {job.asked}", fix="install the same there"
        )
    return ask(job.library, job.questions)


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
    }


def _ask(library: Library, folder: Path, orders: list[ProbeQuestion]) -> Iterator[tuple[int, Answer]]:
    """Answers as far as the child got; the question that it died of is answered too."""
    file = folder / "answers.jsonl"
    file.unlink(missing_ok=True)
    request: ProbeOrder = {"library": library.module, "questions": orders, "answers": str(file)}
    log, death = "", None
    try:
        timeout = 60 + SECONDS_A_QUESTION * len(orders)
        limit = process.default_memory_limit()
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


def _ask_apart(library: Library, folder: Path, orders: list[ProbeQuestion]) -> Iterator[tuple[int, Answer]]:
    """All answers of a library that is no part of this interpreter: its backend knows how to ask it."""
    yield from importlib.import_module(library.module).answers(folder, orders)


def _answer(reply: ProbeAnswer, reasons: Mapping[int, str]) -> Answer:
    if reply["verdict"] == "refused":
        return Answer("refused", reasons.get(reply["id"]) or reply["error"])
    return Answer(reply["verdict"], "", reply["sqnr_db"], reply.get("steps"))


def _first_line(error: IntactError) -> str:
    return error.message.splitlines()[0].partition(": ")[2]
