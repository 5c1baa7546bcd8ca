"""Conditions of the table end where the simulator begins to be wrong: on both sides of the edge both say the same."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from intact.backends import probing
from intact.backends.probing import asking, chips, subjects
from intact.backends.probing.asking import Question
from intact.backends.probing.fitting import fitted, with_operand
from intact.backends.probing.judging import is_wrong
from intact.backends.probing.models import model_of
from intact.model import shapes
from intact.targets.registry import load_target
from intact.targets.validate import doubts
from tests.backends.probing.cases import by_name


def changed(name, **change):
    case = by_name()[name]
    return fitted(with_operand(case, 0, replace(case.template.operands[0], **change)))


def scaled(name, scale):
    return changed(name, low=-scale * 65535 * 0.45, high=scale * 65535 * 0.55)


def rows(name, size):
    return changed(name, shape=(1, 4, size))


def reduced(name, last):
    return changed(name, shape=(1, 8, 4, last))


@functools.cache
def pools():
    return {case.name: case for case in subjects.alone(["AveragePool"])}


def pooled(name, shape, **attributes):
    case = pools()[name]
    sized = with_operand(case, 0, replace(case.template.operands[0], shape=shape))
    given = {**case.template.attributes, **attributes}
    return fitted(replace(sized, template=replace(sized.template, attributes=given)))


def short(dtype, size):
    """Windows of two numbers, of which the first one begins in padding."""
    return pooled(f"AveragePool: 1-D ({dtype}) -> {dtype}", (1, 8, size), pads=[1, 0])


def solid(dtype, counts):
    whole = {"kernel_shape": [3] * 3, "strides": [1] * 3, "pads": [1] * 6, "count_include_pad": counts}
    return pooled(f"AveragePool: 3-D ({dtype}) -> {dtype}", (1, 8, 4, 4, 4), **whole)


MOST, LEAST = "ReduceMax ({0}, ints) -> {0}", "ReduceMin ({0}, ints) -> {0}"
ELU, LOG = "Elu ({0}) -> {0}", "LogSoftmax ({0}) -> {0}"
# A case at the edge, where it is right, and where it is wrong.
EDGES = {
    "Elu of 16 bits": (lambda scale: scaled(ELU.format("uint16"), scale), 2.75e-6, 2e-6),
    "Elu of 16 bits with signs": (lambda scale: scaled(ELU.format("int16"), scale), 2.75e-6, 2e-6),
    "LogSoftmax of 16 bits, a number more": (lambda size: rows(LOG.format("uint16"), size), 64, 65),
    "LogSoftmax of 16 bits, two more": (lambda size: rows(LOG.format("uint16"), size), 66, 65),
    "LogSoftmax of 8 bits, a number more": (lambda size: rows(LOG.format("uint8"), size), 128, 129),
    "LogSoftmax of 8 bits, two more": (lambda size: rows(LOG.format("uint8"), size), 130, 129),
    "AveragePool of 16 bits over one axis": (lambda size: short("uint16", size), 9, 8),
    "AveragePool of 8 bits over one axis": (lambda size: short("uint8", size), 7, 8),
    "AveragePool of 16 bits over three axes": (lambda counts: solid("uint16", counts), 0, 1),
    "AveragePool of 8 bits over three axes": (lambda counts: solid("uint8", counts), 0, 1),
    "ReduceMax of 16 bits": (lambda size: reduced(MOST.format("uint16"), size), 2, 1),
    "ReduceMax of 8 bits": (lambda size: reduced(MOST.format("uint8"), size), 2, 1),
    "ReduceMin of 16 bits": (lambda size: reduced(LEAST.format("uint16"), size), 2, 1),
    "ReduceMin of 8 bits": (lambda size: reduced(LEAST.format("uint8"), size), 2, 1),
}


@pytest.mark.parametrize("edge", EDGES)
def test_the_table_ends_there(edge):
    make, right, wrong = EDGES[edge]
    target = load_target("qnn")
    codes = [{doubt.code for doubt in doubts(_described(make(value)), target)} for value in (right, wrong)]
    assert codes == [set(), {"T118"}]


def _described(case):
    model = model_of(case)
    shapes.infer_shapes(model)
    return model


@functools.cache
def answers():
    """The answers to both sides of every edge, from one process."""
    sides = [make(value) for make, *values in EDGES.values() for value in values]
    questions = [Question(case, 73, chips.soc_of("qnn", 73), numeric=True) for case in sides]
    found = [is_wrong(answer, output=q.output) for q, answer in asking.ask(probing.library_of("qnn"), questions)]
    return dict(zip(EDGES, zip(found[::2], found[1::2], strict=True), strict=True))


@pytest.mark.qnn
@pytest.mark.parametrize("edge", EDGES)
def test_the_simulator_ends_there(edge):
    assert answers()[edge] == (False, True)
