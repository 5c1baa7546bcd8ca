"""The regions that come with a backend name what was found by hand, and the simulator still ends them there."""

from __future__ import annotations

import functools
import random

import pytest

from intact.backends import probing
from intact.backends.probing import asking, chips, subjects, wrong_regions
from intact.backends.probing.answers import Answer, shipped
from intact.backends.probing.asking import Question
from intact.backends.probing.atlas import AS_IT_STANDS
from intact.backends.probing.cases import Case
from intact.backends.probing.factors import factors_between, factors_of
from intact.backends.probing.judging import is_wrong
from intact.backends.probing.shape_factors import paired
from intact.targets.registry import known_archs

ARCH = 73
SAMPLE = 40


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
def asked_about(op):
    found = [*subjects.taken(shipped("qnn"), ARCH, [op]), *subjects.alone([op]), *subjects.chains([op])]
    return {one.name: one for one in found}


def factor_of(region):
    """The factor of a region with an edge; None where it is one around a corner."""
    # The step that cuts is a Slice.
    last = region.case.split(", then ")[-1].partition(" (")[0].partition(":")[0].replace("Concat and cut", "Slice")
    (op,) = [name for name in last.split() if name[0].isupper()] or ["Conv"]
    asked = asked_about(op)[region.case]
    factors = [*factors_of(asked), *paired(asked, lambda _: [])] if isinstance(asked, Case) else factors_between(asked)
    return next((factor for factor in factors if factor.name == region.factor), None)


def check_edges(chosen):
    """Every region is wrong at its last wrong value, and right at the next one."""
    ends = [(one, factor) for one in chosen if (factor := factor_of(one)) is not None]
    sides = [
        (one, is_so, factor.at(value))
        for one, factor in ends
        for is_so, value in ((True, one.wrong_at), (False, one.right_at))
    ]
    questions = [Question(case, ARCH, chips.soc_of("qnn", ARCH), numeric=True) for _, _, case in sides]
    answers = [answer for _, answer in asking.ask(probing.library_of("qnn"), questions)]
    found = zip(sides, questions, answers, strict=True)
    wrong = [
        (one.case, one.where, is_so, answer.sqnr_db)
        for (one, is_so, _), question, answer in found
        if is_wrong(answer, Answer("integer", "", one.usual_db), output=question.output) is not is_so
    ]
    assert ends and wrong == []


def with_edges():
    return [
        one
        for one in regions()
        if one.right_at is not None and ARCH in one.archs and not one.factor.startswith("where ")
    ]


@pytest.mark.qnn
def test_the_simulator_still_ends_some_regions_where_they_ended():
    check_edges(random.Random(1).sample(with_edges(), 4))


@pytest.mark.slow
def test_the_simulator_still_ends_a_sample_of_the_regions_where_they_ended():
    pytest.importorskip("onnxruntime_qnn", reason="the Hexagon compiler is not installed")
    check_edges(random.Random(2).sample(with_edges(), SAMPLE))
