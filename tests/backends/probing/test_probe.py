"""The shipped answers of the vendors' libraries, and the tables that have to agree with them."""

from __future__ import annotations

import functools
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from intact.backends import installed, probing
from intact.backends.probing import chips
from intact.backends.probing.answers import NO_ARCH, Answer, Probed, shipped
from intact.backends.probing.cases import cases
from intact.backends.probing.chips import target_of
from intact.errors import ToolchainError
from intact.runtime import process
from intact.targets.placement import in_float
from intact.targets.registry import disagreements, load_target
from intact.targets.validate import violations_of
from tests.backends.probing.cases import by_name, model

# Every backend with a library, on each of its architectures.
LIBRARIES = {name: found.library for name, found in installed.every() if found.library is not None}
TARGETS = [(backend, number) for backend in LIBRARIES for number in chips.numbers(backend)]
DISAGREEMENTS = [(backend, row) for backend in LIBRARIES for row in disagreements(backend)]
SAMPLE = 12


# Nothing here changes a model, so that one of each serves every target.
built = functools.cache(model)


@pytest.mark.parametrize("backend", LIBRARIES)
def test_every_case_has_a_name_of_its_own_and_an_answer_for_every_architecture(backend):
    names = [case.name for case in cases(types=LIBRARIES[backend].types)]
    assert len(set(names)) == len(names)
    answers = shipped(backend).answers
    assert set(answers) == set(names)
    assert {(backend, arch) for row in answers.values() for arch in row} == {t for t in TARGETS if t[0] == backend}


@pytest.mark.parametrize("backend", LIBRARIES)
def test_a_table_cites_the_library_that_answered(backend):
    probed = {s.source for spec in load_target(backend).ops.values() for s in spec.signatures if "probed" in s.source}
    assert probed and all(shipped(backend).library in source for source in probed)


def is_taken(answer):
    return answer.verdict in ("integer", "float") and answer.right


@pytest.mark.parametrize(("backend", "arch"), TARGETS)
def test_the_table_takes_nothing_that_the_library_refuses_or_gets_wrong(backend, arch):
    target = target_of(backend, arch)
    wrong = [
        name
        for name, row in shipped(backend).answers.items()
        if not is_taken(row[arch]) and not violations_of(built(name)[1], target)
    ]
    assert wrong == []


# What a library computes in integers and a table leaves out all the same: constants in float, which the planner never
# leaves; Reciprocal on qnn, which is right for some numbers and wrong for others; Softmax and HardSigmoid of 8 bits on
# grids that are right in the simulator and wrong on chips; and on OpenVINO grids of 16 bits, which are dropped with
# what they cut off.
WRONG_ON_CHIPS = (
    "Softmax (uint8) -> uint8, narrow grid",
    "Softmax (int8) -> int8, narrow grid",
    "HardSigmoid (uint8) -> uint8, narrow grid",
)
# On rknn also what is planned in half precision or as another operator, what one chip of an architecture has and
# another has not, numbers that are no activations, and moves at the ends of a model, which RK3566 leaves to the CPU.
PLANNED_OTHERWISE = ("MatMul", "Gemm: both dynamic", "Softmax", "CumSum (", "LSTM (", "Where (")
ON_SOME_CHIPS = ("Sin (", "Cos (", "Greater (", "Reshape (", "Transpose (")
LEFT_OUT = {
    "qnn": ("float constant", "Reciprocal (", *WRONG_ON_CHIPS),
    "openvino": ("int16",),
    "rknn": (
        *("float constant", "of indices", "of booleans", "GlobalAveragePool ("),
        *PLANNED_OTHERWISE,
        *ON_SOME_CHIPS,
    ),
}


@pytest.mark.parametrize(("backend", "arch"), TARGETS)
def test_the_table_takes_whatever_the_library_computes_in_integers(backend, arch):
    target = target_of(backend, arch)
    missing = [
        name
        for name, row in shipped(backend).answers.items()
        if row[arch].accepted
        and not any(word in name for word in LEFT_OUT[backend])
        and violations_of(built(name)[1], target)
    ]
    assert missing == []


@pytest.mark.parametrize(("backend", "arch"), TARGETS)
def test_the_table_knows_what_the_library_computes_in_float(backend, arch):
    target = target_of(backend, arch)
    wrong = [
        name
        for name, row in shipped(backend).answers.items()
        if is_taken(row[arch])
        and not (backend == "rknn" and name.startswith(PLANNED_OTHERWISE))
        and not violations_of(built(name)[1], target)
        and bool(in_float(built(name)[0], target)) != (row[arch].verdict == "float")
    ]
    assert wrong == []


@pytest.mark.parametrize(("backend", "row"), DISAGREEMENTS, ids=lambda value: getattr(value, "what", value))
def test_what_contradicts_a_document_is_among_the_answers(backend, row):
    assert shipped(backend).answers[row.case][row.arch].verdict == row.verdict


@pytest.mark.parametrize(
    ("backend", "archs"),
    [
        pytest.param("qnn", [68, 73], marks=pytest.mark.qnn),
        pytest.param("openvino", [NO_ARCH], marks=pytest.mark.openvino),
        pytest.param("rknn", [3588, 1106], marks=pytest.mark.rknn),
    ],
)
def test_the_library_still_says_so(backend, archs):
    """A sample of the shipped answers, asked again."""
    chosen = random.Random(0).sample(sorted(shipped(backend).answers), SAMPLE)
    found = probing.probe(backend, [by_name()[name] for name in chosen], archs)
    if found.library != shipped(backend).library:
        pytest.skip(f"another library: {found.library}")
    for name in chosen:
        for arch in archs:
            assert found.answers[name][arch].verdict == shipped(backend).answers[name][arch].verdict, (name, arch)


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

    known = replace(LIBRARIES["qnn"], version=lambda: "9.9")
    monkeypatch.setattr(installed.find("qnn"), "library", known)
    monkeypatch.setattr(process, "call", call)
    return asked


def test_a_library_that_dies_takes_only_its_question_with_it(library):
    chosen = [by_name()[f"{op} (uint8, uint8) -> uint8"] for op in ("Add", "Sub", "Mul", "Div")]
    found = probing.probe("qnn", chosen, [73])
    verdicts = {name.split()[0]: row[73].verdict for name, row in found.answers.items()}
    assert verdicts == {"Add": "integer", "Sub": "died", "Mul": "integer", "Div": "integer"}
    assert "SIGSEGV" in found.answers["Sub (uint8, uint8) -> uint8"][73].reason


def test_answers_that_are_known_are_not_asked_for_again(library):
    add, mul = (by_name()[f"{op} (uint8, uint8) -> uint8"] for op in ("Add", "Mul"))
    first = probing.probe("qnn", [add], [73])
    again = probing.probe("qnn", [add, mul], [73], known=first)
    assert len(library) == 2 and len(again.answers) == 2
    probing.probe("qnn", [add], [73], known=Probed("onnxruntime-qnn 9.8", first.answers))
    assert len(library) == 3


def test_answers_survive_a_file(tmp_path):
    rows = {
        "Add (uint8)": {68: Answer("refused", "no"), 73: Answer("integer", "", 51.5), 75: Answer("integer", "", 51.5)}
    }
    probed = Probed("lib 1", rows)
    probed.write(tmp_path / "answers.json")
    assert Probed.read(tmp_path / "answers.json") == probed
