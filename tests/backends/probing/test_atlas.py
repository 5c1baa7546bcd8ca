"""The atlas finds where a library is wrong without being told, and asks nothing twice."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from intact.backends import probing
from intact.backends.base import Library
from intact.backends.probing import asking, atlas, chips, subjects, wrong_regions
from intact.backends.probing.answers import Answer, shipped
from intact.backends.probing.asking import Question
from intact.backends.probing.atlas import Atlas
from intact.backends.probing.cases import Case
from intact.backends.probing.factors import factors_between, factors_of
from intact.backends.probing.judging import is_wrong
from intact.backends.probing.spots import Spot
from intact.backends.probing.subjects import Asked
from intact.backends.probing.wrong_regions import WrongRegion
from intact.targets.registry import load_target

RIGHT, WRONG = Answer("integer", "", 80.0, 0.5), Answer("integer", "", 12.0, 900.0)


def silent(done, total, so_far):
    pass


def case_of(name):
    (found,) = [case for case in subjects.taken(shipped("qnn"), 73) if case.name == name]
    return found


@pytest.fixture(scope="module")
def softmax():
    return case_of("Softmax (uint16) -> uint16")


def scale_of(case: Case) -> float:
    operand = case.template.operands[0]
    return (operand.high - operand.low) / 65535


@pytest.fixture
def library(monkeypatch):
    """A library that is wrong below a scale of 4.2e-5, for some sizes, and about pairs with a Relu."""
    asked = []

    def ask_batch(job):
        asked.extend(job.questions)
        return [(question, answer(question)) for question in job.questions]

    def answer(question):
        case = question.case
        if not isinstance(case, Case):
            return WRONG if case.steps[-1].template.op == "Relu" and question.arch == 73 else RIGHT
        shape = case.template.operands[0].shape
        if shape[-1] == 17 or shape[1:] in ((16, 32), (16, 33)) or (scale_of(case) < 4.2e-5 and question.arch != 69):
            return WRONG
        return Answer("refused", "too large") if case.template.operands[0].shape[-1] > 60 else RIGHT

    monkeypatch.setattr(probing, "ask_batch", ask_batch)
    # It stands in for one that need not be installed.
    monkeypatch.setattr(Library, "__str__", lambda self: f"{self.package} 1.0")
    return asked


def test_it_narrows_an_edge_to_a_few_percent(library, softmax):
    found = Atlas("qnn", 73, workers=1)
    found.explore([softmax], [], silent)
    (region,) = [region for region in found.regions if "scale of input 0" in region.where]
    assert region.below is None and region.wrong[-1].value < 4.2e-5 <= region.above.value
    assert region.above.value / region.wrong[-1].value < 10 ** (1 / 16)
    assert (region.worst, region.usual) == (WRONG, RIGHT)
    assert region.where == f"scale of input 0 below {region.above.value:.3g}"


def test_it_names_the_sizes_that_are_wrong_and_leaves_out_those_that_are_refused(library, softmax):
    found = Atlas("qnn", 73, workers=1)
    found.explore([softmax], [], silent)
    assert [region.where for region in found.regions if region.where.startswith("size 2")] == ["size 2 of input 0 17"]


def test_two_sizes_that_are_wrong_together_are_found_and_what_else_that_takes(library, softmax):
    found = Atlas("qnn", 73, workers=1)
    found.explore([softmax], [], silent)
    told = [region.where for region in found.regions if "size 1 of input 0 and size 2" in region.where]
    corner = "where size 1 of input 0 and size 2 of input 0 16 and 33, size"
    # The first size does not matter, and so nothing is right around it.
    assert told[0] == "size 1 of input 0 and size 2 of input 0 16 and 33"
    assert told[1:] == [f"{corner} 1 of input 0 16", f"{corner} 2 of input 0 17, 32, 33"]


def test_operators_that_are_wrong_together_are_found_as_they_stand(library):
    chains = [chain for chain in subjects.chains(["Sigmoid"]) if len(chain.steps) == 2]
    found = Atlas("qnn", 73, workers=1)
    found.explore([], chains, silent)
    wrong = {region.wrong[0].asked.name for region in found.regions}
    assert wrong == {chain.name for chain in chains if chain.steps[-1].template.op == "Relu"} and wrong


def test_what_was_answered_is_not_asked_again(library, softmax):
    first = Atlas("qnn", 73, workers=1)
    first.explore([softmax], [], silent)
    names = [question.case for question in library]
    library.clear()
    again = Atlas("qnn", 73, first.probed, workers=1)
    again.explore([softmax], [], silent)
    assert names and library == []
    assert [str(region) for region in again.regions] == [str(region) for region in first.regions]


def test_a_figure_that_neighbours_change_is_that_of_the_question_alone(library, monkeypatch, softmax):
    """A library that reads what others left in memory: every wrong answer has the place in its batch as its figure."""
    ask_batch = probing.ask_batch

    def with_neighbours(job):
        found = ask_batch(job)
        left = [7.0 if len(found) == 1 else float(place % 5) for place in range(len(found))]
        pairs = zip(found, left, strict=True)
        return [(asked, replace(answer, sqnr_db=db) if answer == WRONG else answer) for (asked, answer), db in pairs]

    monkeypatch.setattr(probing, "ask_batch", with_neighbours)
    first = Atlas("qnn", 73, workers=1)
    first.explore([softmax], [], silent)
    assert first.regions and {region.worst.sqnr_db for region in first.regions} == {7.0}
    library.clear()
    again = Atlas("qnn", 73, first.probed, workers=1)
    again.explore([softmax], [], silent)
    assert library == [] and [str(one) for one in again.regions] == [str(one) for one in first.regions]


def test_another_architecture_is_asked_at_the_edges_only(library, softmax):
    first = Atlas("qnn", 73, workers=1)
    first.explore([softmax], [], silent)
    library.clear()
    other = Atlas("qnn", 69, first.probed, workers=1)
    confirmed = other.confirm(first.regions, silent)
    assert "size 2 of input 0 17" in [region.where for region in confirmed]
    assert not [region.where for region in confirmed if "scale" in region.where]
    assert {question.arch for question in library} == {69}
    # Both sides of an edge, also where values have no order.
    assert {17, 16} <= {question.case.template.operands[0].shape[2] for question in library}
    assert len(library) <= 1 + sum(len(region.edges) for region in first.regions)


def test_the_whole_atlas_says_which_architectures_are_wrong(library, monkeypatch, softmax, tmp_path):
    monkeypatch.setattr(subjects, "taken", lambda *_: [softmax])
    monkeypatch.setattr(subjects, "chains", lambda *_: [])
    monkeypatch.setattr(subjects, "alone", lambda *_: [])
    monkeypatch.setattr(subjects, "taken_wrongly", lambda *_: [])
    made = atlas.made("qnn", [73, 69], Asked(("Softmax",)), None, silent, 1)
    archs = {region.where.partition(" below")[0]: region.archs for region in made.wrong}
    assert archs["scale of input 0"] == (73,) and archs["size 2 of input 0 17"] == (69, 73)
    assert archs["size 1 of input 0 and size 2 of input 0 16 and 33"] == (69, 73)
    wrong_regions.write(made.wrong, "a library 1.0", ["Softmax"], tmp_path / "wrong.json")
    text = (tmp_path / "wrong.json").read_text()
    assert '"library": "a library 1.0", "asked": ["Softmax"]' in text and text.count('"case"') == len(made.wrong)


def test_the_shipped_regions_are_those_of_the_library_of_the_table_and_name_what_facts_named_before():
    found = wrong_regions.shipped_regions("qnn")
    assert found.library == shipped("qnn").library and wrong_regions.shipped_regions("cpu") is None
    (softmax,) = [r for r in found.wrong if r.case == "Softmax (uint16) -> uint16" and "below" in r.where]
    least = load_target("qnn").op("", "Softmax").least_scale(0, "uint16")
    assert float(softmax.where.rpartition(" ")[2]) <= least and softmax.archs == (68, 69, 73, 75, 79, 81)
    assert any(region.case.startswith("Gather") and region.worst_db < 10 for region in found.wrong)


@pytest.mark.parametrize(
    ("answer", "usual", "output", "wrong"),
    [
        (Answer("integer", "", 32.9, 900.0), None, "uint16", True),
        (Answer("integer", "", 33.0, 900.0), None, "uint16", False),
        (Answer("integer", "", 20.0, 3.0), None, "uint8", False),
        (Answer("integer", "", 20.0, 3.1), None, "int8", True),
        (Answer("integer", "", 40.0, 9.0), None, "uint8", False),
        (Answer("integer", "", 30.0, 900.0), Answer("integer", "", 35.9, 1.0), "uint16", False),
        (Answer("integer", "", 30.0, 900.0), Answer("integer", "", 36.1, 1.0), "int16", True),
        (Answer("integer", "", 10.0), None, "bool", False),
        (Answer("integer", "", 9.9), None, "bool", True),
        (Answer("integer", "", 19.9), Answer("integer", "", 999.0), "bool", True),
        (Answer("integer", "", 20.0), Answer("integer", "", 999.0), "bool", False),
        (Answer("integer", "", None), None, "uint16", False),
        (Answer("integer", "", 12.0, None), None, "int8", True),
    ],
)
def test_a_result_is_wrong_by_decibels_and_at_8_bits_by_steps_too(answer, usual, output, wrong):
    assert is_wrong(answer, usual, output=output) is wrong


def test_a_region_reads_as_a_sentence():
    region = WrongRegion("Softmax (uint16) -> uint16", "scale of input 0 below 2.7e-06", 17.5, 78.8, (68, 73))
    assert str(region) == "Softmax (uint16) -> uint16: scale of input 0 below 2.7e-06: 17.5 dB (v68, v73)"


@pytest.mark.slow
def test_the_simulator_shows_the_scale_below_which_a_softmax_is_wrong(softmax, monkeypatch):
    pytest.importorskip("onnxruntime_qnn", reason="the Hexagon compiler is not installed")
    scales = [factor for factor in atlas.factors_of(softmax) if factor.name == "scale of input 0"]
    monkeypatch.setattr(atlas, "factors_of", lambda case, sizes: scales)
    found = Atlas("qnn", 73)
    found.explore([softmax], [], silent)
    (region,) = found.regions
    # The facts were measured by hand: wrong at 1e-6, right at 3e-6.
    assert region.below is None and 1e-6 < region.above.value < 4e-6
    assert math.isclose(region.above.value, region.wrong[-1].value, rel_tol=0.2)


# What facts named before that the atlas looked for it; each has to be met by it, with nothing said beforehand.
ROOM = "as a multiple of what its values need"
CAUSES = [
    ("pointwise Conv (uint16", "Add", f"grid of input 1 of Add {ROOM}", 16.0, 4.0**7),
    ("MatMul (uint16", "Greater", f"grid of input 1 of Greater {ROOM}", 256.0, 4.0**8),
    ("pointwise Conv (uint16", "Where", f"grid of input 2 of Where {ROOM}", 256.0, 4.0**8),
    ("Add (uint8, uint8)", "", f"grid of input 1 {ROOM}", 16.0, 4.0**5),
    ("Greater (uint8, uint8)", "", f"grid of input 1 {ROOM}", 16.0, 4.0**8),
    ("Where (bool, uint16, uint16) -> uint16", "", f"grid of input 2 {ROOM}", 256.0, 4.0**8),
    ("Gather: table, indices of 64 bits (uint16 constant, index)", "", "size 1 of input 1", 17, 33),
    ("Reciprocal (uint16)", "", "scale of input 0", 1e-5, 1e-6),
]


@pytest.mark.slow
@pytest.mark.parametrize(("start", "then", "name", "right", "wrong"), CAUSES)
def test_the_atlas_itself_meets_what_was_found_by_hand(start, then, name, right, wrong):
    pytest.importorskip("onnxruntime_qnn", reason="the Hexagon compiler is not installed")
    op = then or start.partition(" ")[0].rstrip(":")
    asked = subjects.chains([op], ["uint16"]) if then else subjects.taken(shipped("qnn"), 73, [op])
    case = next(one for one in asked if one.name.startswith(start) and f"then {then}" in f"then {one.name}")
    factor = next(f for f in (factors_between(case) if then else factors_of(case)) if f.name == name)
    assert {right, wrong} <= set(factor.values)
    order = [Question(factor.at(value), 73, chips.soc_of("qnn", 73), numeric=True) for value in (right, wrong)]
    (_, first), (_, second) = asking.ask(probing.library_of("qnn"), order)
    output = Spot(case).output
    assert not is_wrong(first, output=output) and is_wrong(second, first, output=output), (first, second)


# The causes that people named before there was an atlas: what is asked about, and the region that has to come of it.
NAMED = {
    "a Softmax of a small scale": ("Softmax", "Softmax (uint16) -> uint16", "scale of input 0 below", 30),
    "a Gather of short rows": ("Gather", "Gather: table, indices of 64 bits (uint16 constant", "size ", 16),
    "an Add behind a layer": ("Add", "pointwise Conv (uint16", f"grid of input 1 of Add {ROOM}", 33),
    "a pool on two grids": ("MaxPool", "MaxPool on its grid (uint16)", "grid between another grid and ", 30),
    "uneven pads over three axes": ("ConvTranspose", "ConvTranspose: 3-D (uint16", "pads", 10),
    "a Reciprocal of small numbers": ("Reciprocal", "Reciprocal (uint16)", "scale of input 0 below", 5),
    "some pools": ("AveragePool", "AveragePool (uint16)", "", 25),
    "a Greater behind a layer": ("Greater", "MatMul (uint16", f"grid of input 1 of Greater {ROOM}", 20),
    "a Where behind a layer": ("Where", "pointwise Conv (uint16", f"grid of input 2 of Where {ROOM}", 25),
}


@pytest.mark.slow
@pytest.mark.parametrize("cause", NAMED)
def test_an_atlas_of_an_operator_finds_its_cause_with_nothing_said_but_its_name(cause):
    pytest.importorskip("onnxruntime_qnn", reason="the Hexagon compiler is not installed")
    op, case, where, most = NAMED[cause]
    made = atlas.made("qnn", [73], Asked((op,), ("uint16",)), None, silent, probing.WORKERS)
    found = [one for one in made.wrong if one.case.startswith(case) and one.where.startswith(where)]
    assert [one for one in found if one.worst_db <= most < one.usual_db]


LAYER, BETWEEN = "int8 constant channel symmetric, int32 constant", "grid between another grid and Conv"
EDGES = [
    ("ConvTranspose: 3-D (uint8", "strides", "[2, 2, 2]", "[1, 2, 1]"),
    ("ConvTranspose: 3-D (uint8", "pads", "[1, 1, 1, 1, 1, 1]", "[1, 0, 0, 1, 0, 0]"),
    ("ConvTranspose: 3-D (uint8", "pads", "[0, 0, 1, 0, 0, 1]", "[0, 1, 0, 0, 1, 0]"),
    ("ConvTranspose: 3-D (uint8", "strides", "[2, 1, 1]", "[1, 1, 2]"),
    ("MaxPool on its grid (uint16) -> uint16, same grid, then another grid", BETWEEN, None, "cut"),
    (f"Conv (uint16, {LAYER}) -> uint16, then another grid", BETWEEN, None, "cut"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("start", "name", "right", "wrong"), EDGES)
def test_the_simulator_is_right_on_one_side_of_an_edge_and_wrong_on_the_other(start, name, right, wrong):
    pytest.importorskip("onnxruntime_qnn", reason="the Hexagon compiler is not installed")
    asked = [*subjects.alone(["ConvTranspose"]), *subjects.chains(["MaxPool"]), *subjects.chains(["Conv"])]
    # Those that go over to another width in between are other questions.
    alike = [one for one in reversed(asked) if "another grid (uint16) -> uint8" not in one.name]
    case = next(one for one in alike if one.name.startswith(start) and "Conv" in one.name.split("then ")[-1])
    makers = factors_of(case) if isinstance(case, Case) else factors_between(case)
    factor = next(one for one in makers if one.name == name)
    values = [next(i for i, word in enumerate(factor.words) if word.startswith(end)) for end in (right, wrong) if end]
    questions = [case, *(factor.at(value) for value in values)] if right is None else [factor.at(v) for v in values]
    order = [Question(one, 73, chips.soc_of("qnn", 73), numeric=True) for one in questions]
    (_, first), (_, second) = asking.ask(probing.library_of("qnn"), order)
    assert first.sqnr_db > 40 and second.sqnr_db < 30


def test_every_edge_of_that_test_is_shipped():
    found = wrong_regions.shipped_regions("qnn").wrong
    for start, name, _, wrong in EDGES:
        about = [one for one in found if one.case.startswith(start) and one.where.startswith(f"{name} ")]
        (region,) = [one for one in about if wrong in one.where]
        assert region.archs == (68, 69, 73, 75, 79, 81) and region.worst_db < 30 < 40 < region.usual_db
