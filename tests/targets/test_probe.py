"""The shipped answers of the vendor's library, and the table that has to agree with them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from intact.errors import ToolchainError
from intact.targets import probe
from intact.targets.probe.answers import Answer, Probed, shipped
from intact.targets.probe.cases import cases
from intact.targets.registry import disagreements, known_archs, load_target
from intact.targets.validate import violations_of
from intact.vendor import process
from tests.targets.cases import by_name, model

ARCHS = known_archs("qnn")
SAMPLE = 12


def test_every_case_has_a_name_of_its_own_and_an_answer_for_every_architecture():
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names)
    answers = shipped("qnn").answers
    assert set(answers) == set(names)
    assert all(sorted(row) == ARCHS for row in answers.values())


def is_taken(answer):
    return answer.verdict in ("integer", "float") and answer.right


@pytest.mark.parametrize("arch", ARCHS)
def test_the_table_takes_nothing_that_the_library_refuses_or_gets_wrong(arch):
    target = load_target("qnn", arch=arch)
    wrong = [
        name
        for name, row in shipped("qnn").answers.items()
        if not is_taken(row[arch]) and not violations_of(model(name)[1], target)
    ]
    assert wrong == []


@pytest.mark.parametrize("arch", ARCHS)
def test_the_table_takes_whatever_the_library_computes_in_integers(arch):
    """Except with constants left in float, which the planner never leaves."""
    target = load_target("qnn", arch=arch)
    missing = [
        name
        for name, row in shipped("qnn").answers.items()
        if row[arch].accepted and "float constant" not in name and violations_of(model(name)[1], target)
    ]
    assert missing == []


@pytest.mark.parametrize("row", disagreements("qnn"), ids=lambda row: row.what)
def test_what_contradicts_a_document_is_among_the_answers(row):
    assert shipped("qnn").answers[row.case][row.arch].verdict == row.verdict


@pytest.mark.qnn
def test_the_library_still_says_so():
    """A sample of the shipped answers, asked again."""
    chosen = random.Random(0).sample(sorted(by_name()), SAMPLE)
    found = probe.probe([by_name()[name] for name in chosen], [68, 73])
    if found.library != shipped("qnn").library:
        pytest.skip(f"another library: {found.library}")
    for name in chosen:
        for arch in (68, 73):
            assert found.answers[name][arch].verdict == shipped("qnn").answers[name][arch].verdict, (name, arch)


@pytest.fixture
def library(monkeypatch):
    """A library that takes everything, but dies of every question about Sub; it records what it was asked."""
    asked = []

    def call(job, request, *, timeout, memory_limit):
        with open(request["answers"], "a", encoding="utf-8") as file:
            for question in request["questions"]:
                if "Sub" in Path(question["model"]).read_bytes().decode("latin-1"):
                    raise ToolchainError("E102", "job: the process died of SIGSEGV")
                asked.append(question["id"])
                file.write(json.dumps({"id": question["id"], "verdict": "integer", "sqnr_db": 50.0}) + "\n")
        return process.Reply({}, "")

    monkeypatch.setattr(probe, "library", lambda: "onnxruntime-qnn 9.9")
    monkeypatch.setattr(process, "call", call)
    return asked


def test_a_library_that_dies_takes_only_its_question_with_it(library):
    chosen = [by_name()[f"{op} (uint8, uint8) -> uint8"] for op in ("Add", "Sub", "Mul", "Div")]
    found = probe.probe(chosen, [73])
    verdicts = {name.split()[0]: row[73].verdict for name, row in found.answers.items()}
    assert verdicts == {"Add": "integer", "Sub": "died", "Mul": "integer", "Div": "integer"}
    assert "SIGSEGV" in found.answers["Sub (uint8, uint8) -> uint8"][73].reason


def test_answers_that_are_known_are_not_asked_for_again(library):
    add, mul = (by_name()[f"{op} (uint8, uint8) -> uint8"] for op in ("Add", "Mul"))
    first = probe.probe([add], [73])
    again = probe.probe([add, mul], [73], known=first)
    assert len(library) == 2 and len(again.answers) == 2
    probe.probe([add], [73], known=Probed("onnxruntime-qnn 9.8", first.answers))
    assert len(library) == 3


def test_answers_survive_a_file(tmp_path):
    rows = {
        "Add (uint8)": {68: Answer("refused", "no"), 73: Answer("integer", "", 51.5), 75: Answer("integer", "", 51.5)}
    }
    probed = Probed("lib 1", rows)
    probed.write(tmp_path / "answers.json")
    assert Probed.read(tmp_path / "answers.json") == probed
