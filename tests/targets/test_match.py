"""What keeps a node from a row of a table: each kind of mismatch, where it begins and where it ends."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from intact.targets.match import mismatches, nearest
from intact.targets.operands import NodeOperand, Use
from intact.targets.registry import load_target
from intact.targets.spec import Axis, OpSpec, Signature, Slot

TARGET = load_target("qnn", arch=73)
SPEC = OpSpec("Conv", "", (), "own", True, Axis(0), None, {}, (), "a test")
FLOATS = {"runs": "float"}


def operand(words):
    """An operand from the words that a table has for it; zero points are in the middle if it is symmetric."""
    slot = Slot.parse(words)
    if slot.types[0] in ("float", "index", "bool"):
        return NodeOperand("x", slot.types[0], slot.constant)
    axis = None if slot.granularity == "tensor" else 0
    zero = np.array([0 if slot.symmetric else 7])
    return NodeOperand("x", slot.types[0], slot.constant, slot.granularity, axis, 4, np.ones(1), zero)


def use(inputs, outputs, attributes=()):
    node = ir.Node("", "Conv", [], attributes)
    given = [None if words == "-" else operand(words) for words in inputs]
    return Use(node, "", "Conv", tuple(given), tuple(map(operand, outputs)))


def row(inputs, outputs, **options):
    slots = [Slot.parse(words) for words in inputs if words != "..."]
    results = tuple(map(Slot.parse, outputs))
    return Signature(tuple(slots), results, "..." in inputs, options.pop("arch", 0), "a test", **options)


def kinds(used, signature, spec=SPEC):
    return [found.kind for found in mismatches(used, signature, spec, TARGET)]


def test_the_scale_of_an_only_channel_is_one_scale_and_one_for_each_channel():
    given = dataclasses.replace(operand("int8"), is_one_channel=True)
    used = Use(ir.Node("", "Conv", []), "", "Conv", (given,), (operand("uint8"),))
    assert kinds(used, row(["int8 channel only"], ["uint8"])) == kinds(used, row(["int8"], ["uint8"])) == []


@pytest.mark.parametrize(
    ("inputs", "row_inputs", "found"),
    [
        (["uint8"], ["uint8", "int32"], []),
        (["uint8", "int32"], ["uint8", "int32"], []),
        (["uint8", "int32"], ["uint8"], ["arity"]),
        (["uint8", "uint8", "uint8"], ["uint8", "..."], []),
        (["uint8", "-", "uint8"], ["uint8", "uint8", "uint8"], []),
        (["uint8", "uint8", "int8"], ["uint8", "..."], ["type"]),
        (["uint8 constant"], ["uint8"], []),
        (["uint8"], ["uint8 constant"], ["constant"]),
        (["float"], ["any"], []),
        (["float"], ["real"], []),
        (["uint16"], ["real"], []),
        (["index"], ["real"], ["type"]),
        (["int32"], ["real"], ["type"]),
        (["uint8 channel"], ["real"], ["type"]),
        (["uint8"], ["uint8 symmetric"], ["symmetry"]),
        (["int8 symmetric"], ["int8 symmetric"], []),
        (["int8 channel"], ["int8"], ["granularity"]),
        (["int8"], ["int8 channel"], []),
        (["int8"], ["int8 channel only"], ["granularity"]),
        (["int8 block"], ["int8 block"], []),
        (["int8 block"], ["int8 channel"], ["blocks"]),
        (["int8 channel"], ["int8 block"], ["granularity"]),
        (["int32 channel"], ["int32"], []),
        (["int32 block"], ["int32"], ["blocks"]),
    ],
)
def test_what_stands_at_an_input_is_held_against_its_slot(inputs, row_inputs, found):
    assert kinds(use(inputs, ["uint8"]), row(row_inputs, ["uint8"])) == found


@pytest.mark.parametrize(("arch", "found"), [(73, []), (75, ["arch"])])
def test_a_row_is_for_an_architecture_and_all_newer_ones(arch, found):
    assert kinds(use(["uint8"], ["uint8"]), row(["uint8"], ["uint8"], arch=arch)) == found


@pytest.mark.parametrize(("rank", "found"), [(4, []), (None, []), (2, ["granularity"])])
def test_scales_per_channel_may_need_a_weight_of_some_rank(rank, found):
    spec = dataclasses.replace(SPEC, channel_rank=rank)
    used, signature = use(["int8 channel"], ["uint8"]), row(["int8 channel"], ["uint8"])
    assert kinds(used, signature, spec) == found
    for mismatch in mismatches(used, signature, spec, TARGET):
        assert mismatch.wanted == "one scale per channel of a weight of rank 2"


BLOCKED = {"check": "blocks_of_floats", "index": 1}


@pytest.mark.parametrize(
    ("inputs", "rule", "kind"),
    [
        (["uint8", "int4 block"], BLOCKED, "form"),
        (["uint8", "int4 channel"], BLOCKED, "check"),
        (["uint8", "-"], BLOCKED, "check"),
        (["uint8"], BLOCKED, "check"),
        (["uint8", "int4 block"], {**BLOCKED, "index": 0}, "check"),
    ],
)
def test_a_requirement_is_about_the_form_of_blocks_only_where_its_own_input_has_them(inputs, rule, kind):
    signature = row(["uint8", "int4 block"], ["uint8"], require=(rule,))
    assert kind in kinds(use(inputs, ["uint8"]), signature)
    assert {"form": "check", "check": "form"}[kind] not in kinds(use(inputs, ["uint8"]), signature)


def test_what_is_wanted_names_a_rank_only_for_channels():
    spec = dataclasses.replace(SPEC, channel_rank=2)
    (found,) = mismatches(use(["int8 channel"], ["uint8"]), row(["int8"], ["uint8"]), spec, TARGET)
    assert (found.found, found.wanted) == ("one scale per channel", "one scale per tensor")


@pytest.mark.parametrize(("axis", "found"), [(0, []), (-4, []), (1, ["axis"]), (-1, ["axis"])])
def test_scales_lie_along_the_axis_of_the_channels_counted_from_either_end(axis, found):
    spec = dataclasses.replace(SPEC, weight_axis=Axis(axis))
    assert kinds(use(["int8 channel"], ["uint8"]), row(["int8 channel"], ["uint8"]), spec) == found


@pytest.mark.parametrize(
    ("group", "inputs", "outputs", "grouped"),
    [
        ("all", ["uint8", "uint8"], ["uint8"], True),
        ("all", ["uint8", "uint16"], ["uint8"], False),
        ("all", ["uint8", "float"], ["uint8"], False),
        ("all", ["uint8", "float constant"], ["uint8"], True),
        ("all", ["uint8", "index"], ["uint8"], True),
        ("all", ["uint8", "-"], ["uint8"], True),
        ("all", ["uint8"], ["float"], False),
        ("all", ["uint8"], ["uint8", "uint16"], False),
        ("first", ["uint8", "uint16"], ["uint8"], True),
        ("first", ["uint16", "uint8"], ["uint8"], False),
        ("first", ["float", "uint8"], ["uint8"], False),
        ("first", ["-", "uint8"], ["uint8"], False),
        ("never", ["uint8"], ["uint8"], False),
    ],
)
def test_a_row_for_floats_is_not_for_what_a_device_takes_with_its_grids(group, inputs, outputs, grouped):
    spec = dataclasses.replace(SPEC, group=group)
    floats = row(["real", "any", "..."], ["any"], **FLOATS)
    assert ("group" in kinds(use(inputs, outputs), floats, spec)) is grouped


def test_a_row_that_names_the_types_of_a_grid_takes_them_even_if_it_runs_in_float():
    assert kinds(use(["uint8"], ["uint8"]), row(["uint8"], ["uint8"], **FLOATS)) == []
    assert "group" in kinds(use(["uint8"], ["uint8"]), row(["real"], ["real"], **FLOATS))


def test_a_node_without_inputs_has_no_group():
    assert kinds(use([], ["uint8"]), row(["real"], ["any"], **FLOATS)) == []


def test_the_nearest_row_is_the_one_that_asks_for_the_least():
    rows = (row(["uint16"], ["uint16"]), row(["uint8 symmetric"], ["uint8"]), row(["uint8"], ["int8"]))
    signature, found = nearest(use(["uint8"], ["uint8"]), dataclasses.replace(SPEC, signatures=rows), TARGET)
    assert signature is rows[1] and [mismatch.kind for mismatch in found] == ["symmetry"]
    assert nearest(use(["uint8"], ["uint8"]), SPEC, TARGET) is None
