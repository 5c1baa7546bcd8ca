"""A region becomes the quantity that tells its two sides apart, and none in which something right lies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from intact.backends.probing import subjects
from intact.backends.probing.answers import shipped
from intact.backends.probing.factors import factors_between, factors_of
from intact.backends.probing.narrowing import (
    IN_A_ROW,
    OF_VALUES,
    ONE_POINT,
    SAME_GRIDS,
    Narrowed,
    RegionEvidence,
    narrowed,
    views_of,
)
from tests.backends.probing.cases import by_name


def of(case, factor, wrong, right, **more):
    """The condition of a factor with some wrong values and some right ones."""
    factors = factors_of(case) if not hasattr(case, "steps") else factors_between(case)
    (found,) = [one for one in factors if one.name == factor]
    sides = [[found.at(value) for value in values] for values in (wrong, right)]
    return narrowed(RegionEvidence(factor, case, *sides, **more)).condition


def why(case, factor, wrong, right):
    """The reason why such a region has no condition."""
    (found,) = [one for one in factors_of(case) if one.name == factor]
    sides = [[found.at(value) for value in values] for values in (wrong, right)]
    return narrowed(RegionEvidence(factor, case, *sides)).unread


def taken(name):
    op = name.partition(" ")[0]
    return next(case for case in subjects.taken(shipped("qnn"), 73, [op]) if case.name == name)


def test_an_absolute_scale_of_an_only_input():
    found = of(by_name()["Softmax (uint16) -> uint16"], "scale of input 0", (1e-7, 2e-6), (1e-5, 1e3))
    ((ends,),) = [box.between.values() for box in found.boxes]
    assert (found.op, found.operands, found.before) == ("Softmax", "(uint16) -> uint16", ())
    assert ends == pytest.approx((1e-7, 2e-6), rel=1e-4)


def test_room_that_values_do_not_need_is_read_from_steps():
    room = "grid of input 0 as a multiple of what its values need"
    case = taken("Abs (uint16) -> uint16")
    found = of(case, room, (4096.0, 65536.0), (16.0, 1024.0))
    (box,) = found.boxes
    ((name, (low, high)),) = box.between.items()
    # Values end at 1, and so does the result's grid, to a step of the input; that reaches from -0.75 to 1, times its
    # room. With the greatest room a step is all that the result has.
    assert name == "steps of input 0 as a multiple of those of the result"
    assert low == pytest.approx(4096 * 1.75, rel=0.03) and high == 65535.0


def test_beside_another_input_a_scale_is_told_by_that():
    case = taken("Concat (uint8, uint8) -> uint8, same grid")
    found = of(case, "scale of input 1", (0.1, 10.0), (1e-5, 1e-3))
    assert [name.partition(" as ")[0] for box in found.boxes for name in box.between] == ["steps of input 1"]


def test_the_end_of_a_grid_is_told_by_its_zero_point():
    found = of(taken("Abs (uint16) -> uint16"), "range of input 0", (1,), (0, 2))
    (box,) = found.boxes
    assert box.between == {"share below 0 of the grid of input 0": (1.0, 1.0)}


def test_values_beyond_a_grid_cannot_be_read_in_a_model():
    case = taken("Concat (uint8, uint8) -> uint8, same grid")
    beyond = "part of the grid of input 0 that values cover"
    assert of(case, beyond, (2.0,), (0.25, 1.0)) is None
    assert why(case, beyond, (2.0,), (0.25, 1.0)) == OF_VALUES


def test_what_is_right_by_another_factor_is_in_no_condition():
    """Behind a fixed result, a grid with room looks like one whose values are large, which is right."""
    case = by_name()["Softmax (uint16) -> uint16"]
    room, scales = "grid of input 0 as a multiple of what its values need", {}
    (scale,) = [one for one in factors_of(case) if one.name == "scale of input 0"]
    assert of(case, room, (256.0, 4096.0), (16.0,)) is not None
    alike = [scale.at(value) for value in (1e-2, 1e-1, 1.0)]
    (factor,) = [one for one in factors_of(case) if one.name == room]
    evidence = RegionEvidence(room, case, [factor.at(256.0), factor.at(65536.0)], [factor.at(16.0), *alike], **scales)
    assert narrowed(evidence) == Narrowed(None, SAME_GRIDS)


def test_where_no_quantity_alone_tells_two_sides_apart_all_that_vary_may():
    """A step of the input is as coarse where its scale is as large, but not for a result that is as fine."""
    room, wide = "grid of input 0 as a multiple of what its values need", "grid of the result, times as wide"
    case = taken("Abs (uint16) -> uint16")
    (roomy,), (wider,) = ([one for one in factors_of(case) if one.name == name] for name in (room, wide))
    (scale,) = [one for one in factors_of(case) if one.name == "scale of input 0"]
    wrong = [roomy.at(4096.0), roomy.at(65536.0)]
    coarse = float(views_of(wrong[0])[0].grids["scale of input 0"])
    right = [roomy.at(16.0), scale.at(2 * coarse)]
    alone = narrowed(RegionEvidence(room, case, wrong, right)).condition
    # A result in halves of steps: as many steps of it go into one of the input, whose scale is an ordinary one.
    beside = narrowed(RegionEvidence(room, case, wrong, [*right, wider.at(2.0**-13)])).condition
    assert [len(condition.boxes[0].between) for condition in (alone, beside)] == [1, 2]
    assert not any(box.holds(view.grids) for box in beside.boxes for one in right for view in views_of(one))


def test_one_wrong_grid_says_nothing_of_others():
    case = taken("Abs (uint16) -> uint16")
    room = "grid of input 0 as a multiple of what its values need"
    assert of(case, room, (4096.0,), (16.0, 8192.0)) is None
    assert why(case, room, (4096.0,), (16.0, 8192.0)) == ONE_POINT


def test_operators_in_a_row_that_are_wrong_as_they_stand_say_that_none_of_them_is_known_to_be_the_one():
    chain = subjects.chains(["HardSwish"], ["uint16"])[0]
    assert narrowed(RegionEvidence("", chain, [chain], [])) == Narrowed(None, IN_A_ROW)


def test_sizes_are_those_that_were_asked_in_every_dimension():
    case = by_name()["LogSoftmax (uint16) -> uint16"]
    found = of(case, "size 2 of input 0", (65,), (64, 33))
    (box,) = found.boxes
    shape = case.template.operands[0].shape
    assert box.among["size 2 of input 0"] == (65.0,) and box.among["size 1 of input 0"] == (float(shape[1]),)


def test_sizes_around_widen_the_box_unless_something_right_is_in_it():
    case = by_name()["LogSoftmax (uint16) -> uint16"]
    (size,) = [one for one in factors_of(case) if one.name == "size 2 of input 0"]
    corner = size.at(65)
    (other,) = [one for one in factors_of(corner) if one.name == "size 1 of input 0"]
    plain = RegionEvidence("size 2 of input 0", case, [corner], [size.at(64)], [other.at(16), other.at(33)])
    beside = replace(plain, right=[size.at(64), other.at(33)], around=[other.at(33)])
    wide, narrow = (narrowed(one).condition for one in (plain, beside))
    own = float(case.template.operands[0].shape[1])
    assert set(wide.boxes[0].among["size 1 of input 0"]) == {own, 16.0, 33.0}
    assert set(narrow.boxes[0].among["size 1 of input 0"]) == {own}


def test_of_operators_in_a_row_the_one_is_named_that_the_factor_is_about():
    chain = next(
        one for one in subjects.chains(["HardSwish"], ["uint16"]) if [s.template.op for s in one.steps][-1] == "Add"
    )
    room = "grid of input 1 of Add as a multiple of what its values need"
    found = of(chain, room, (4096.0, 65536.0), (16.0,))
    assert (found.op, found.before, found.behind) == ("Add", (chain.steps[0].template.op,), ())


def test_a_view_has_what_a_validator_reads():
    (view,) = views_of(by_name()["Softmax (uint16) -> uint16"])
    operand = by_name()["Softmax (uint16) -> uint16"].template.operands[0]
    assert view.grids["scale of input 0"] == pytest.approx((operand.high - operand.low) / 65535, rel=1e-3)
    assert view.grids["share below 0 of the grid of the result"] == 0.0
    assert [view.sizes[f"size {axis} of input 0"] for axis in range(3)] == list(map(float, operand.shape))
