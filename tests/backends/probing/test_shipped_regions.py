"""The regions that come with a backend name what was found by hand, and the simulator still ends them there."""

from __future__ import annotations

import functools
import random

import pytest

from intact.backends import probing
from intact.backends.probing import asking, chips, subjects, wrong_regions
from intact.backends.probing.answers import Answer, shipped
from intact.backends.probing.asking import Question
from intact.backends.probing.cases import Case, Chain
from intact.backends.probing.factors import factors_between, factors_of
from intact.backends.probing.fitting import chained
from intact.backends.probing.judging import LEAST_DB, is_wrong
from intact.backends.probing.models import PROBED, model_of
from intact.backends.probing.shape_factors import around, paired, shape_factors
from intact.backends.probing.spots import AS_IT_STANDS
from intact.model import shapes
from intact.targets import faults
from intact.targets.operands import use_of
from intact.targets.registry import known_archs, load_target
from intact.targets.validate import doubts

ARCH = 73
SAMPLE = 40
# Of the regions that a factor shows, without those of values beyond a grid, so many have a condition.
LEAST_SHARE = 0.7


@functools.cache
def regions():
    return wrong_regions.shipped_regions("qnn").wrong


# What people found by hand, on simulators and on chips, before the atlas was there: the case, its condition, and the
# most that is left of the signal.
ROOM = "as a multiple of what its values need"
CAUSES = [
    ("Softmax (uint16) -> uint16", "scale of input 0 below", 20),
    ("Gather: table, indices of 64 bits (uint16 constant, index) -> uint16, same grid", "size 1 of input 1", 16),
    ("pointwise Conv (uint16, *, then Add (uint16, uint16) -> uint16", f"grid of input 1 of Add {ROOM}", 33),
    ("MaxPool on its grid (uint16) -> uint16, same grid, then another grid *", "grid between another grid and", 30),
    ("ConvTranspose: 3-D (uint8, *", "pads", 10),
    ("ConvTranspose: 3-D (uint16, *", "pads", 10),
    ("Reciprocal: of small numbers (uint16) -> uint16", AS_IT_STANDS, 5),
    ("Reciprocal (uint8) -> uint8", "scale of input 0 below", 5),
    ("AveragePool (uint8) -> uint8", "a pool of", 25),
    ("MatMul (uint16, *, then Greater *", f"grid of input 1 of Greater {ROOM}", 20),
    ("pointwise Conv (uint16, *, then Where *", f"grid of input 2 of Where {ROOM}", 25),
    ("HardSigmoid (uint16) -> uint16, narrow grid", AS_IT_STANDS, 5),
    ("Softmax (uint8) -> uint8, shifted grid", AS_IT_STANDS, 0),
    ("Sigmoid (uint16) -> uint16, narrow grid", AS_IT_STANDS, 5),
]


@pytest.mark.parametrize(("case", "where", "most"), CAUSES)
def test_what_was_found_by_hand_is_among_the_regions(case, where, most):
    start, _, end = case.partition("*")
    about = [one for one in regions() if one.case.startswith(start) and (one.case == case or "*" in case)]
    told = [one for one in about if end.rstrip("* ").strip() in one.case and one.where.startswith(where)]
    assert told and min(one.worst_db for one in told) <= most
    assert any(set(one.archs) == set(known_archs("qnn")) for one in told)


@functools.cache
def taken_cases():
    every = [*subjects.taken(shipped("qnn"), ARCH), *subjects.alone(), *subjects.taken_wrongly(shipped("qnn"), ARCH)]
    return {case.name: case for case in reversed(every)}


@functools.cache
def rows_of_chains():
    """The operators of every chain by its name, as yet without ranges: those take long to find."""
    rows = [*subjects._rows(None, list(subjects.TYPES)), *subjects._mixed_rows(None, subjects.MIXED)]
    return {Chain(tuple(row)).name: row for row in reversed(rows)}


@functools.cache
def question_of(name):
    """The case or the chain that a region is about."""
    return taken_cases()[name] if name in taken_cases() else chained(rows_of_chains()[name])


def factor_of(region):
    """The factor of a region with an edge."""
    asked = question_of(region.case)
    if not isinstance(asked, Case):
        factors = factors_between(asked)
    elif region.factor.startswith("where "):
        factors = (one for first, value in corners(asked, region) for one in around(first, value))
    else:
        factors = [*factors_of(asked), *paired(asked, lambda _: [])]
    return next(factor for factor in factors if factor.name == region.factor)


def corners(case, region):
    """The shape factors that a region stands around, each with its value there."""
    every = [*shape_factors(case), *paired(case, lambda _: [])]
    return [(f, value) for f in every for value in f.values if region.factor.startswith(f"where {f.told([value])}, ")]


def sides_of(region):
    """The last wrong question of a region and the right one nearest to it; None where nothing that was asked is.

    That is the case as it stands, if no other is, unless its result is wrong by itself.
    """
    asked = question_of(region.case)
    if not region.factor:
        return asked, None
    factor = factor_of(region)
    if region.right_at is not None:
        return factor.at(region.wrong_at), factor.at(region.right_at)
    return factor.at(region.wrong_at), None if is_low(region) else asked


def is_low(region):
    """True if the case as it stands is as bad as what is wrong about it."""
    return region.usual_db < LEAST_DB


def check_edges(chosen):
    """Every region is wrong at its last wrong value, and right at the next one."""
    both = [(one, is_so, side) for one in chosen for is_so, side in zip((True, False), sides_of(one), strict=True)]
    sides = [(one, is_so, side) for one, is_so, side in both if side is not None]
    questions = [Question(case, ARCH, chips.soc_of("qnn", ARCH), numeric=True) for _, _, case in sides]
    answers = [answer for _, answer in asking.ask(probing.library_of("qnn"), questions)]
    found = zip(sides, questions, answers, strict=True)
    wrong = [
        (one.case, one.where, is_so, answer.sqnr_db)
        for (one, is_so, _), question, answer in found
        if is_wrong(answer, Answer("integer", "", one.usual_db), output=question.output) is not is_so
    ]
    assert sides and wrong == []


def with_edges():
    return [one for one in regions() if one.factor and ARCH in one.archs]


def uses_of(asked):
    """The operators of a question as a validator sees them."""
    model = model_of(asked)
    shapes.infer_shapes(model)
    return [use_of(node) for node in model.graph if (node.name or "").endswith(PROBED)]


def is_named(region, asked):
    """True if any operator of a question meets the condition of a region."""
    return any(faults.holds(region.condition, use) is not None for use in uses_of(asked))


def check_conditions(chosen):
    """The condition of every region holds at its last wrong value, and not at the next one."""
    mistaken = []
    for one in chosen:
        wrong, right = sides_of(one)
        if not is_named(one, wrong) or (right is not None and is_named(one, right)):
            mistaken.append((one.case, one.where))
    assert chosen and mistaken == []


def with_conditions():
    return [one for one in regions() if one.condition is not None]


def operators():
    return sorted({one.condition.op for one in with_conditions()})


def test_some_conditions_end_where_their_regions_do():
    check_conditions(random.Random(3).sample(with_conditions(), SAMPLE))


@pytest.mark.slow
@pytest.mark.parametrize("op", operators())
def test_all_conditions_of_an_operator_end_where_their_regions_do(op):
    check_conditions([one for one in with_conditions() if one.condition.op == op])


def check_right_ones(names):
    """Nothing that is right as it stands is named."""
    folder = load_target("qnn").wrong
    right = [question_of(name) for name in names if shipped("qnn").answers[name][ARCH].accepted]
    wrong_too = {one.case for one in regions() if not one.factor}
    named = [
        (asked.name, str(found))
        for asked in right
        for use in uses_of(asked)
        if asked.name not in wrong_too and (found := faults.met(use, folder, ARCH)) is not None
    ]
    assert len(right) > len(names) / 2 and named == []


def ordinary():
    return [name for name in taken_cases() if ARCH in shipped("qnn").answers.get(name, {})]


def test_some_of_what_is_right_as_it_stands_is_not_named():
    check_right_ones(random.Random(4).sample(ordinary(), SAMPLE))


@pytest.mark.slow
def test_nothing_that_is_right_as_it_stands_is_named():
    check_right_ones(ordinary())


def test_a_region_has_a_condition_or_the_reason_why_not():
    assert [one.case for one in regions() if (one.condition is None) is not bool(one.unread)] == []


def test_most_regions_can_be_read_in_a_model():
    """The others take values: those beyond a grid, or a width that only values can show to be too much."""
    alone = [one for one in regions() if one.factor and not one.factor.startswith("part of")]
    assert sum(one.condition is not None for one in alone) >= LEAST_SHARE * len(alone)


def test_a_validator_names_what_a_file_says_of_an_ordinary_operator():
    """By way of the target that a build has: the last wrong value is named, and the next one is not, by any region."""
    named = []
    for one in [one for one in with_conditions() if one.case == "Atan (uint16) -> uint16" and one.factor]:
        factor = factor_of(one)
        for value in (one.wrong_at, one.right_at):
            model = model_of(factor.at(value))
            shapes.infer_shapes(model)
            named.append([doubt.code for doubt in doubts(model, load_target("qnn"))])
    assert named and named == [["T118"], []] * (len(named) // 2)


@pytest.mark.qnn
def test_the_simulator_still_ends_some_regions_where_they_ended():
    check_edges(random.Random(1).sample(with_edges(), 4))


@pytest.mark.slow
def test_the_simulator_still_ends_a_sample_of_the_regions_where_they_ended():
    pytest.importorskip("onnxruntime_qnn", reason="the Hexagon compiler is not installed")
    check_edges(random.Random(2).sample(with_edges(), SAMPLE))
