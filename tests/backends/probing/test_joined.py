"""Questions that share a model get the answers that they get alone, and one that spoils it spoils no other."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from intact.backends import installed, probing
from intact.backends.probing import asking, chips, joined, probe_job, subjects
from intact.backends.probing.answers import Answer, shipped
from intact.backends.probing.asking import Question
from intact.backends.probing.joined_names import keep, owner_of
from intact.backends.probing.judging import CLEAR_DB, LEAST_DB, is_clear, is_wrong
from intact.backends.probing.models import inputs_of, joined_inputs, joined_model, model_of, step_of
from intact.errors import ToolchainError
from intact.runtime import ort_cpu, process
from tests.backends.probing.cases import by_name

OPS = ("Add", "Sub", "Mul", "Div", "Max", "Min")


def questions(ops=OPS, arch=73):
    cases = [by_name()[f"{op} (uint8, uint8) -> uint8"] for op in ops]
    return [Question(case, arch, 43, numeric=True) for case in cases]


def test_a_joined_model_computes_what_its_parts_compute():
    chains = subjects.chains(["HardSwish"], ["uint16"])[:2]
    asked = [question.case for question in questions()] + [by_name()["Split (uint8, ints) -> uint8"], *chains]
    model, steps = joined_model(asked)
    together = ort_cpu.Session(model).run(joined_inputs(asked))
    for number, one in enumerate(asked):
        alone = ort_cpu.Session(model_of(one)).run(inputs_of(one))
        own = {name: values for name, values in together.items() if owner_of(name) == number}
        assert [name.partition("/")[2] for name in own] == list(alone)
        assert all(np.array_equal(left, right) for left, right in zip(own.values(), alone.values(), strict=True))
    assert steps == [step_of(one) for one in asked]


def test_a_part_of_a_joined_model_computes_the_same():
    asked = [question.case for question in questions()]
    model, _ = joined_model(asked)
    whole = ort_cpu.Session(model).run(joined_inputs(asked))
    keep(model, {1, 4})
    session = ort_cpu.Session(model)
    feeds = joined_inputs(asked)
    part = session.run({port.name: feeds[port.name] for port in session.inputs})
    assert list(part) == [name for name in whole if owner_of(name) in (1, 4)] and len(part) == 2
    assert all(np.array_equal(values, whole[name]) for name, values in part.items())
    assert (
        {owner_of(node.name) for node in model.graph} == {owner_of(name) for name in model.graph.initializers} == {1, 4}
    )


def test_halves_of_a_group_that_is_refused_are_asked_in_one_process(tmp_path):
    cases = questions()
    order = joined._write(tmp_path, 0, list(enumerate(cases)))
    seen = []

    def ask(group):
        seen.append(group["numbers"])
        session = ort_cpu.Session(Path(group["model"]))
        assert {owner_of(port.name) for port in session.outputs} == set(group["numbers"])
        return None if 4 in group["numbers"] else [f"answer {number}" for number in group["numbers"]]

    found = probe_job._settled(ask, order)
    assert seen == [[0, 1, 2, 3, 4, 5], [0, 1, 2], [3, 4, 5]]
    assert found == ["answer 0", "answer 1", "answer 2", None, None, None]


class Fake:
    """A library by its answers: it records the operators of each model that it is asked about."""

    def __init__(self, dies_of=(), refuses=(), unclear=()):
        self.dies_of, self.refuses, self.unclear = dies_of, refuses, unclear
        self.groups, self.alone = [], []

    def __call__(self, job, request, *, timeout, memory_limit):
        with open(request["answers"], "a", encoding="utf-8") as file:
            for group in request.get("groups", ()):
                ops = self._ops(group)
                self.groups.append(ops)
                reply = None if set(ops) & set(self.refuses) else [self._answer(op, 50.0) for op in ops]
                file.write(json.dumps(reply) + "\n")
            for question in request.get("questions", ()):
                (op,) = self._ops(question)
                self.alone.append(op)
                file.write(json.dumps({"id": question["id"], **self._answer(op, 49.0)}) + "\n")
        return process.Reply({}, "")

    def _ops(self, asked):
        text = Path(asked["model"]).read_bytes().decode("latin-1")
        ops = sorted((op for op in OPS if f'"\x03{op}' in text), key=lambda op: text.index(f'"\x03{op}'))
        if set(ops) & set(self.dies_of):
            raise ToolchainError("E102", "job: the process died of SIGSEGV")
        return ops

    def _answer(self, op, sqnr_db):
        return {"verdict": "integer", "sqnr_db": 12.0 if op in self.unclear else sqnr_db, "steps": 9.0}


def answered(fake, monkeypatch, ops=OPS):
    monkeypatch.setattr(process, "call", fake)
    asked = questions(ops)
    found = joined.ask_joined(probing.library_of("qnn"), asked)
    assert [question for question, _ in found] == asked
    return {op: answer for op, (_, answer) in zip(ops, found, strict=True)}


def test_what_is_clearly_right_together_is_not_asked_alone(monkeypatch):
    fake = Fake()
    found = answered(fake, monkeypatch)
    assert fake.groups == [list(OPS)] and fake.alone == []
    assert set(found.values()) == {Answer("integer", "", 50.0, 9.0)}


def test_what_is_wrong_together_gets_its_answer_alone(monkeypatch):
    fake = Fake(unclear=("Mul",))
    found = answered(fake, monkeypatch)
    assert fake.alone == ["Mul"]
    assert found["Mul"].sqnr_db == 12.0 and found["Add"].sqnr_db == 50.0


@pytest.mark.parametrize("way", ["dies_of", "refuses"])
def test_a_question_that_spoils_a_group_gets_its_answer_alone(monkeypatch, way):
    fake = Fake(**{way: ("Div",)})
    found = answered(fake, monkeypatch)
    verdict = "died" if way == "dies_of" else "integer"
    assert {op: answer.verdict for op, answer in found.items()} == {**dict.fromkeys(OPS, "integer"), "Div": verdict}


def test_of_a_group_that_the_library_dies_of_each_is_asked_alone_and_other_groups_are_not(monkeypatch):
    monkeypatch.setattr(joined, "JOINED", 4)
    fake = Fake(dies_of=("Div",))
    found = answered(fake, monkeypatch)
    assert fake.groups == [["Add", "Mul", "Max"]] and fake.alone == ["Sub", "Min"]
    assert found["Div"].verdict == "died"


def test_a_child_may_not_take_all_memory_of_the_machine(monkeypatch):
    limits = []

    def call(job, request, *, timeout, memory_limit):
        limits.append(memory_limit)
        raise ToolchainError("E100", "the job died: out of memory")

    monkeypatch.setattr(process, "default_memory_limit", lambda: 64 << 30)
    monkeypatch.setattr(process, "call", call)
    joined.ask_joined(probing.library_of("qnn"), questions(("Add",)))
    assert set(limits) == {asking.MOST_MEMORY} and asking.MOST_MEMORY <= 8 << 30


LIMITED = """
import time
from intact.backends.probing import probe_job

with probe_job._limited(0.2):
    time.sleep(0.4)
print("waited", flush=True)
with probe_job._limited(5.0):
    sum(range(10**6))
print("computed", flush=True)
with probe_job._limited(0.2):
    while True:
        pass
"""


@pytest.mark.skipif(not hasattr(signal, "ITIMER_PROF"), reason="there is no clock of processor seconds")
def test_a_compiler_that_computes_without_end_is_given_up_and_one_that_waits_is_not():
    ended = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout.split() == ["waited", "computed"] and ended.returncode == -signal.SIGPROF


def test_questions_of_another_chip_or_version_of_onnx_are_in_a_model_of_their_own(monkeypatch):
    monkeypatch.setattr(process, "call", Fake())
    newer = by_name()["RMSNormalization (uint8, uint8 constant) -> uint8"]
    two = [*questions(("Add",)), *questions(("Sub",), arch=75), replace(questions(("Mul",))[0], case=newer)]
    groups = [[question.case.template.op for _, question in group] for group in joined._groups(two)]
    assert sorted(groups) == [["Add"], ["RMSNormalization"], ["Sub"]]


@pytest.mark.parametrize(
    ("answer", "output", "clear"),
    [
        (Answer("integer", "", CLEAR_DB, 900.0), "uint16", True),
        (Answer("integer", "", CLEAR_DB - 0.1, 1.0), "uint16", False),
        (Answer("integer", "", 10.0, 1.5), "uint8", True),
        (Answer("integer", "", 10.0, 1.6), "uint8", False),
        (Answer("integer", "", None, None), "uint8", False),
        (Answer("integer", "", 15.0, None), "bool", False),
    ],
)
def test_a_clear_result_is_far_from_a_wrong_one(answer, output, clear):
    assert is_clear(answer, output=output) is clear
    assert not (clear and is_wrong(answer, output=output)) and CLEAR_DB > LEAST_DB


@pytest.mark.qnn
def test_the_library_answers_together_what_it_answers_alone():
    wanted = [
        "Conv (uint8",
        "Softmax (uint16",
        "Gelu (uint8",
        "Transpose (uint16",
        "Reciprocal: of small numbers (uint8",
    ]
    wanted += ["Greater (uint8", "LSTM (float", "Asin (uint16", "RMSNormalization (uint8", "Pad (int8", "Mod (uint8"]
    cases = [next(case for name, case in by_name().items() if name.startswith(start)) for start in wanted]
    asked = [Question(case, 73, chips.soc_of("qnn", 73), numeric=True) for case in cases]
    library = installed.find("qnn").library
    together, alone = joined.ask_joined(library, asked), asking.ask(library, asked)
    assert together == alone
    assert {"integer", "float", "refused"} <= {answer.verdict for _, answer in alone}
    assert any(is_wrong(answer, output=question.output) for question, answer in alone)
    assert shipped("qnn").library == str(library)
