"""Many questions in one model: what is clearly right there is answered, everything else is asked again alone.

Compiling a small model costs a library far more than the operators in it, so that models side by side in one are
answered in a tenth of the time. Only a right result is believed: what is refused, wrong or near the limit, and what
the library dies of, gets its answer from a model of its own.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from intact import scratch
from intact.backends.base import Library
from intact.backends.probing import asking
from intact.backends.probing.answers import Answer
from intact.backends.probing.asking import Question
from intact.backends.probing.judging import is_clear
from intact.backends.probing.models import joined_inputs, joined_model, versions_of
from intact.backends.probing.probe_job import JoinedOrder, JoinedQuestions, ProbeAnswer
from intact.errors import ToolchainError
from intact.model import io
from intact.runtime import process

# Questions of one model. With more a question takes less time, until it takes all: of 18 Gemms and ConvTransposes of
# odd sizes a compiler made nothing in a minute, of 12 in a quarter of a second.
JOINED = 12
# Of the clock, for a child that waits: one that computes is given up by `probe_job` far sooner.
SECONDS_TO_START, SECONDS_A_GROUP = 60.0, 10.0

Group = list[tuple[int, Question]]


def ask_joined(library: Library, questions: Sequence[Question]) -> list[tuple[Question, Answer]]:
    """The answers to some questions, most of them from models that join many."""
    answers: dict[int, Answer] = {}
    groups = list(_groups(questions))
    while groups:
        groups, found = _asked(library, groups)
        answers |= found
    alone = [number for number in range(len(questions)) if number not in answers]
    if alone:
        found_alone = asking.ask(library, [questions[number] for number in alone])
        answers |= {number: answer for number, (_, answer) in zip(alone, found_alone, strict=True)}
    return [(question, answers[number]) for number, question in enumerate(questions)]


def _groups(questions: Sequence[Question]) -> Iterator[Group]:
    """Questions of one chip and one version of ONNX together, neighbours apart.

    Neighbours are alike, and a compiler may need very long for many operators of a kind that it joins (Where).
    """

    def kind(item: tuple[int, Question]) -> tuple[object, ...]:
        question = item[1]
        return question.arch, question.soc_id or 0, versions_of(question.case)

    for _, group in itertools.groupby(sorted(enumerate(questions), key=kind), key=kind):
        found = list(group)
        count = -(-len(found) // JOINED)
        yield from (found[start::count] for start in range(count))


def _asked(library: Library, groups: list[Group]) -> tuple[list[Group], dict[int, Answer]]:
    """Groups that were not reached, and the answers that are clear."""
    with scratch.folder("joined") as folder:
        orders = [_write(folder, number, group) for number, group in enumerate(groups)]
        replies = _replies(library, folder, orders)
    answers: dict[int, Answer] = {}
    for group, reply in zip(groups, replies, strict=False):
        # Each question of what the library died of is asked alone: to die again of half of it would cost more.
        if reply is None:
            continue
        for (number, question), one in zip(group, reply, strict=True):
            answer = None if one is None else Answer(one["verdict"], "", one["sqnr_db"], one["steps"])
            if answer is not None and is_clear(answer, output=question.output):
                answers[number] = answer
    return groups[len(replies) :], answers


def _replies(library: Library, folder: Path, orders: list[JoinedQuestions]) -> list[list[ProbeAnswer | None] | None]:
    """The reply to each group as far as the child got; None for the one that it died of."""
    file = folder / "answers.jsonl"
    request: JoinedOrder = {"library": library.module, "groups": orders, "answers": str(file)}
    died = False
    try:
        limit = asking.memory_limit()
        job = "intact.backends.probing.probe_job:ask_groups"
        process.call(job, request, timeout=SECONDS_TO_START + SECONDS_A_GROUP * len(orders), memory_limit=limit)
    except ToolchainError:
        died = True
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [*map(json.loads, lines), *([None] if died else [])]


def _write(folder: Path, number: int, group: Group) -> JoinedQuestions:
    asked, first = [question.case for _, question in group], group[0][1]
    model, inputs = folder / f"{number}.onnx", folder / f"{number}.npz"
    written, steps = joined_model(asked)
    io.save(written, model)
    # mypy takes the keyword arguments of numpy's stub for its flags.
    np.savez(inputs, **joined_inputs(asked))  # type: ignore[arg-type]
    return {
        "model": str(model),
        "inputs": str(inputs),
        "numbers": list(range(len(group))),
        "steps": steps,
        "arch": first.arch,
        "soc_id": first.soc_id,
    }
