"""Asks a vendor's library what it takes: one small model a question, in child processes, some at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from intact.backends import installed
from intact.backends.base import Library
from intact.backends.probing import asking, joined
from intact.backends.probing.answers import Answer, Probed
from intact.backends.probing.asking import Question
from intact.backends.probing.cases import Case
from intact.backends.probing.chips import numbers, soc_of
from intact.errors import SettingsError, ToolchainError
from intact.records import dataclass
from intact.runtime import cluster, worker_terms

# One child answers this many questions: enough to make its start cheap, few enough to lose little with it.
BATCH = 200
WORKERS = 2


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
    library: Library, batches: Iterable[Sequence[Question]], workers: int
) -> Iterator[tuple[int, list[tuple[Question, Answer]]]]:
    """The answers to each batch with its number, as they come, from a cluster or from `workers` children here.

    Here a batch is made when a child is free for it.
    """
    version = str(library)
    jobs = (ProbeBatch(library, version, batch) for batch in batches)
    elsewhere = cluster.current()
    if elsewhere is not None:
        yield from elsewhere.as_done(ask_batch, list(jobs))
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
    if job.library.joins and all(question.numeric for question in job.questions):
        return joined.ask_joined(job.library, job.questions)
    return asking.ask(job.library, job.questions)
