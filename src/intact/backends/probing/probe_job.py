"""The side of a probe that runs in the worker: puts one small model after another to a library."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np

from intact.numbers.decibels import sqnr_of
from intact.runtime import ort_cpu

# Reported where a library and the CPU agree bit for bit, and where nothing of the signal is left.
IDENTICAL, NOTHING_RIGHT = 999.0, -300.0


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
    """Several questions as one model, and inputs for it; names begin with the number of theirs (`models.owner_of`)."""

    model: str
    inputs: str
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
            answers.write(json.dumps({"id": question["id"], **library.ask(question)}) + "\n")
            answers.flush()
    return {}


def ask_groups(request: JoinedOrder) -> dict[str, object]:
    """Answer each group of joined questions, and append its answers to the file `answers` at once.

    The library's `ask_together(group)` gives an answer for each question, None where it takes a model of its own.
    """
    library = importlib.import_module(request["library"])
    with open(request["answers"], "a", encoding="utf-8") as answers:
        for group in request["groups"]:
            answers.write(json.dumps(library.ask_together(group)) + "\n")
            answers.flush()
    return {}


def expected(question: ProbeQuestion | JoinedQuestions) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The inputs of a question, and what ONNX Runtime's CPU provider makes of them."""
    with np.load(question["inputs"], allow_pickle=False) as arrays:
        feeds = dict(arrays)
    return feeds, ort_cpu.Session(Path(question["model"]), threads=1).run(feeds)


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
