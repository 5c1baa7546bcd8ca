"""The side of a probe that runs in the worker: puts one small model after another to a library."""

from __future__ import annotations

import importlib
import json
import math
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np

from intact.backends.probing.joined_names import keep
from intact.model import io
from intact.numbers.decibels import sqnr_of
from intact.runtime import ort_cpu

# Reported where a library and the CPU agree bit for bit, and where nothing of the signal is left.
IDENTICAL, NOTHING_RIGHT = 999.0, -300.0

# Processor seconds after which a compiler is given up. A group takes a quarter of a second, the slowest of many
# thousands two; of a few layers side by side, or one with very wide windows, it makes nothing in a minute.
SECONDS_A_GROUP, SECONDS_ALONE = 6.0, 40.0

# Halves of so few questions are not asked about any more where the library takes no model of all: each is alone then.
FEW = 3


class ProbeQuestion(TypedDict):
    """A question as the worker gets it: a model and inputs for it, as paths, and the chip that is asked about.

    `step` is that of the grid of the result, if it is on one. `explain` asks for the reason of a refusal.
    """

    id: int
    model: str
    inputs: str
    step: float | None
    arch: int
    soc_id: int | None
    explain: bool


class ProbeOrder(TypedDict):
    """Questions to the module `library`, and the file that takes the answers."""

    library: str
    questions: list[ProbeQuestion]
    answers: str


class JoinedQuestions(TypedDict):
    """Several questions as one model, and inputs for it; names begin with the number of theirs (`models.owner_of`).

    `numbers` are those of the questions in the model, and `steps` those of their results, in the same order.
    """

    model: str
    inputs: str
    numbers: list[int]
    steps: list[float | None]
    arch: int
    soc_id: int | None


class JoinedOrder(TypedDict):
    """Groups of joined questions to the module `library`, and the file that takes the answers, one line a group."""

    library: str
    groups: list[JoinedQuestions]
    answers: str


class ProbeAnswer(TypedDict, total=False):
    """The answer of a library: a verdict, with its error or with the SQNR of the result.

    `steps` is the greatest error of the result, in steps of its grid.
    """

    id: int
    verdict: Literal["integer", "float", "refused"]
    error: str
    sqnr_db: float | None
    steps: float | None


def ask_all(request: ProbeOrder) -> dict[str, object]:
    """Answer each question of `request` and append the answer to the file `answers` at once.

    A library that dies takes only the question with it that it died of. `library` is the module that asks it: its
    `ask(question)` returns a verdict, with an error or the SQNR of the result.
    """
    library = importlib.import_module(request["library"])
    with open(request["answers"], "a", encoding="utf-8") as answers:
        for question in request["questions"]:
            with _limited(SECONDS_ALONE):
                answer = library.ask(question)
            answers.write(json.dumps({"id": question["id"], **answer}) + "\n")
            answers.flush()
    return {}


def ask_groups(request: JoinedOrder) -> dict[str, object]:
    """Answer each group of joined questions, and append its answers to the file `answers` at once.

    The library's `ask_together(group)` gives an answer for each question, None where it takes a model of its own, or
    None alone where it takes no model of all: then it is asked about each half.
    """
    library = importlib.import_module(request["library"])
    with open(request["answers"], "a", encoding="utf-8") as answers:
        for group in request["groups"]:
            with _limited(SECONDS_A_GROUP):
                found = _settled(library.ask_together, group)
            answers.write(json.dumps(found) + "\n")
            answers.flush()
    return {}


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """End this process, as a crash would, if it computes for longer; what waits for others is not counted.

    Where there is no such clock, the limit of the whole job stands alone.
    """
    if not hasattr(signal, "ITIMER_PROF"):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def _settled(
    ask: Callable[[JoinedQuestions], list[ProbeAnswer | None] | None], group: JoinedQuestions
) -> list[ProbeAnswer | None]:
    found = ask(group)
    if found is not None:
        return found
    middle = len(group["numbers"]) // 2
    if middle < FEW:
        return [None] * len(group["numbers"])
    halves = [_part(group, slice(0, middle)), _part(group, slice(middle, None))]
    return [answer for half in halves for answer in _settled(ask, half)]


def _part(group: JoinedQuestions, part: slice) -> JoinedQuestions:
    """Some of the questions of a group, in a model of their own."""
    numbers = group["numbers"][part]
    path = Path(group["model"]).with_suffix(f".{numbers[0]}-{numbers[-1]}.onnx")
    model = io.load(group["model"])
    keep(model, set(numbers))
    io.save(model, path)
    return {**group, "model": str(path), "numbers": numbers, "steps": group["steps"][part]}


def expected(question: ProbeQuestion | JoinedQuestions) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The inputs of a question, and what ONNX Runtime's CPU provider makes of them."""
    session = ort_cpu.Session(Path(question["model"]), threads=1)
    with np.load(question["inputs"], allow_pickle=False) as arrays:
        feeds = {port.name: arrays[port.name] for port in session.inputs}
    return feeds, session.run(feeds)


def sqnr(wanted: Iterable[np.ndarray], found: Iterable[np.ndarray]) -> float:
    """The SQNR of a result in dB, with one decimal."""
    right, given = (np.concatenate([value.ravel() for value in values]) for values in (wanted, found))
    distance = sqnr_of(right, given)
    return IDENTICAL if math.isinf(distance) and distance > 0 else round(max(distance, NOTHING_RIGHT), 1)


def greatest_error(wanted: Iterable[np.ndarray], found: Iterable[np.ndarray], step: float | None) -> float | None:
    """The greatest error of the first result in steps of its grid, with one decimal; None where it is on none."""
    if step is None:
        return None
    right, given = (np.asarray(next(iter(values)), np.float64) for values in (wanted, found))
    return round(float(np.abs(right - given).max(initial=0.0)) / step, 1)
