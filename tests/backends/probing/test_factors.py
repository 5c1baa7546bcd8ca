"""Factors change what they say, and what has to follow; everything else stays."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from intact.backends.probing import subjects
from intact.backends.probing.answers import shipped
from intact.backends.probing.cases import Chain
from intact.backends.probing.factors import factors_between, factors_of
from intact.backends.probing.fitting import chained, fitted, unrounded
from intact.backends.probing.models import inputs_of, model_of, step_of
from intact.backends.probing.shape_factors import around, paired, shape_factors
from intact.backends.probing.spots import Spot
from intact.runtime import ort_cpu


@functools.cache
def taken(op):
    return subjects.taken(shipped("qnn"), 73, [op])


def case_of(start, output="uint8"):
    cases = taken(start.partition(" ")[0].rstrip(":"))
    return next(case for case in cases if case.name.startswith(start) and case.output == output)


def factor_of(case, name):
    (found,) = [factor for factor in factors_of(case) if factor.name == name]
    return found


def shapes(case):
    return [operand.shape for operand in case.template.operands]


@pytest.mark.parametrize(
    ("start", "name", "value", "wanted"),
    [
        ("Conv (", "size 1 of input 0", 4, [(1, 4, 8, 8), (16, 4, 3, 3), (16,)]),
        ("Conv (", "size 0 of input 1", 5, [(1, 16, 8, 8), (5, 16, 3, 3), (5,)]),
        ("Conv (", "size 2 of input 0", 17, [(1, 16, 17, 8), (16, 16, 3, 3), (16,)]),
        ("Conv: depthwise (", "size 1 of input 0", 8, [(1, 8, 8, 8), (8, 1, 3, 3), (8,)]),
        ("MatMul (", "size 1 of input 0", 65, [(4, 65), (65, 16)]),
        ("Add (", "size 1 of input 1", 1, [(1, 8, 4, 4), (1, 1, 4, 4)]),
    ],
)
def test_sizes_that_belong_together_change_together(start, name, value, wanted):
    assert shapes(factor_of(case_of(start), name).at(value)) == wanted


def test_a_size_that_no_operator_takes_is_no_case():
    assert factor_of(case_of("Conv ("), "size 2 of input 1").at(65) is None


@pytest.mark.parametrize("scale", [1e-7, 1e-2, 1e3])
def test_the_scale_of_an_input_is_the_one_that_is_asked_for_and_its_values_fill_the_grid(scale):
    case = factor_of(case_of("Relu (", "uint16"), "scale of input 0").at(scale)
    model = model_of(case)
    found = model.graph.initializers["input0_scale"].const_value.numpy()
    assert found == pytest.approx(scale, rel=1e-3)
    values = inputs_of(case)["input0"]
    assert np.ptp(values) > 0.9 * 65535 * scale


def test_values_cover_the_part_of_the_grid_that_is_asked_for():
    filled = factor_of(case_of("Relu ("), "part of the grid of input 0 that values cover")
    whole, part = (inputs_of(filled.at(share))["input0"] for share in (1.0, 1 / 16))
    assert part == pytest.approx(whole / 16)


@pytest.mark.parametrize(("end", "wanted"), [(0.0, 0), (1.0, 255), (2.0, 128)])
def test_a_zero_point_goes_to_the_ends(end, wanted):
    model = model_of(factor_of(case_of("Add ("), "range of input 0").at(end))
    assert int(model.graph.initializers["input0_zero_point"].const_value.numpy()) in (wanted, wanted - (wanted == 128))


def test_the_grid_of_a_result_is_what_comes_out_before_it_is_rounded():
    case = fitted(case_of("MatMul ("))
    (found,) = ort_cpu.Session(model_of(unrounded(case)), threads=1).run(inputs_of(case)).values()
    assert case.template.own == (pytest.approx(found.min()), pytest.approx(found.max()))
    assert step_of(case) == pytest.approx(np.ptp(found) / 255, rel=1e-6)


def test_a_chain_computes_one_operator_after_the_other():
    chain = next(c for c in subjects.chains(["Sigmoid"]) if [s.template.op for s in c.steps] == ["Sigmoid", "Mul"])
    feeds = inputs_of(chain)
    (found,) = ort_cpu.Session(model_of(chain), threads=1).run(feeds).values()
    x, y = feeds["0/input0"].astype(np.float64), feeds["1/input1"].astype(np.float64)
    wanted = y / (1 + np.exp(-x))
    assert np.abs(found - wanted).max() < 3 * step_of(chain)
    assert set(feeds) == {"0/input0", "1/input1"}


def test_the_second_of_a_chain_reads_the_grid_of_the_first():
    pair = next(c for c in subjects.chains(["Conv"]) if [s.template.name for s in c.steps] == ["Relu", "Conv"])
    assert pair.steps[1].template.operands[0].high == pytest.approx(pair.steps[0].template.own[1])
    model = model_of(pair)
    scales = {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}
    steps = scales["0/result0_scale"].astype(np.float64) * scales["1/constant1_scale"]
    np.testing.assert_allclose(scales["1/constant2_scale"], steps, rtol=1e-6)


def test_what_has_no_finite_result_is_no_chain():
    exponential = case_of("Exp (")
    wide = factor_of(exponential, "scale of input 0").at(1e3)
    assert wide is None
    assert chained([case_of("Conv ("), case_of("MatMul (")]) is None


@pytest.mark.parametrize(
    ("name", "value", "low", "high"),
    [
        ("grid of the result", 0, 0.0, 1.0),
        ("grid of the result, times as wide", 16.0, 16.0, 16.0),
        ("grid of the result, times as wide", 0.5, 0.5, 0.5),
    ],
)
def test_the_grid_of_a_result_can_be_another_than_what_it_covers(name, value, low, high):
    case = fitted(case_of("AveragePool (", "uint16"))
    factor = factor_of(case, name)
    assert factor.told([value]) == f"{name} {'cut off at 0, as by a Relu' if factor.words else f'{value:g}'}"
    assert value in factor.values and factor.ordered is not bool(factor.words)
    least, most = case.template.own
    assert factor.at(value).template.own == (pytest.approx(low * least), pytest.approx(high * most))


@pytest.mark.parametrize("start", ["Add (", "Relu (", "Conv ("])
def test_at_its_usual_value_a_factor_asks_what_it_varies(start):
    """Its answer is known then, and nothing is asked again."""
    case = fitted(case_of(start, "uint16"))
    factors = [factor for factor in factors_of(case) if factor.usual is not None]
    assert {factor.usual in factor.values for factor in factors} == {True}
    for factor in factors:
        same = factor.at(factor.usual)
        assert same.template.own == pytest.approx(case.template.own)
        feeds, wanted = inputs_of(same), inputs_of(case)
        assert feeds.keys() == wanted.keys() and all(np.allclose(feeds[name], wanted[name]) for name in wanted)
        assert Spot(case, factor, factor.usual).name == case.name != Spot(case, factor, 7.0).name


@functools.cache
def chains(op):
    return subjects.chains([op])


def chain_of(op, *names):
    return next(c for c in chains(op) if tuple(step.template.name for step in c.steps) == names)


def test_what_meets_a_result_is_varied_in_its_range_and_what_follows_fits():
    pair = chain_of("Where", "pointwise Conv", "Where")
    factor, room = [factor for factor in factors_between(pair) if factor.ordered and "as wide" not in factor.name]
    wide = factor.at(16.0)
    assert factor.name == "range of input 2 of Where, times" and factor.ordered
    assert [step.template.own for step in wide.steps[:-1]] == [step.template.own for step in pair.steps[:-1]]
    assert inputs_of(wide)["1/input2"] == pytest.approx(16 * inputs_of(pair)["1/input2"])
    assert wide.steps[1].template.own[1] > 3 * pair.steps[1].template.own[1]
    roomy = room.at(16.0)
    assert inputs_of(roomy)["1/input2"] == pytest.approx(inputs_of(pair)["1/input2"])
    scales = [model_of(one).graph.initializers["1/input2_scale"].const_value.numpy() for one in (pair, roomy)]
    assert scales[1] == pytest.approx(16 * scales[0])
    assert roomy.steps[1].template.own[1] == pytest.approx(pair.steps[1].template.own[1], rel=0.01)


def test_a_grid_between_operators_is_cut_off_at_0_as_a_rule_does_that_folds_a_relu():
    chain = chain_of("MaxPool", "MaxPool", "Relu", "Conv")
    (first,) = [factor for factor in factors_between(chain) if not factor.ordered]
    cut = first.at(0)
    assert (first.name, first.told([0])[-26:]) == ("grid between MaxPool and Relu", "cut off at 0, as by a Relu")
    assert cut.steps[0].template.own == (0.0, chain.steps[0].template.own[1])
    assert [step.output for step in cut.steps] == [step.output for step in chain.steps]


def test_a_choice_reads_what_is_before_it_as_an_activation_and_not_as_its_condition():
    pair = chain_of("Where", "Conv", "Where")
    feeds = inputs_of(pair)
    assert set(feeds) == {"0/input0", "1/input0", "1/input2"} and feeds["1/input0"].dtype == bool
    assert chain_of("Greater", "Conv", "Greater").steps[-1].output == "bool"
    assert not [c for c in chains("Greater") if c.steps[0].template.op == "Greater"]


def test_a_result_is_measured_on_the_numbers_that_are_asked_about():
    """A constant of another draw would make a grid that the values leave."""
    pair = chain_of("MaxPool", "MaxPool", "Mul by a constant")
    last = replace(pair.steps[-1], output="float", drawn_as=pair.steps[-1].name)
    (found,) = ort_cpu.Session(model_of(Chain((*pair.steps[:-1], last))), threads=1).run(inputs_of(pair)).values()
    assert pair.steps[-1].template.own == (pytest.approx(found.min()), pytest.approx(found.max()))


def test_a_window_larger_than_what_it_reads_is_no_case():
    sizes = factor_of(case_of("AveragePool ("), "size 2 of input 0")
    assert sizes.at(1) is None and sizes.at(2).template.operands[0].shape[2] == 2


def test_a_result_whose_range_is_held_keeps_it_whatever_its_values():
    case = case_of("Softmax: not the last axis")
    assert fitted(case).template.own == (0, 1)
    assert "grid of the result" not in [factor.name for factor in factors_of(case)]


def test_a_step_without_an_operator_is_a_grid_right_behind_another_one():
    chain = chain_of("MaxPool", "MaxPool on its grid", "another grid", "Conv")
    nodes = [node.op_type for node in model_of(chain).graph]
    assert nodes.count("MaxPool") == nodes.count("Conv") == 1 and nodes.count("QuantizeLinear") == 4
    assert "Identity" not in nodes and "" not in nodes
    cut = next(f for f in factors_between(chain) if f.name == "grid between another grid and Conv").at(0)
    scales = model_of(cut).graph.initializers
    assert int(scales["1/result0_zero_point"].const_value.numpy()) == 0
    assert int(scales["0/input0_zero_point"].const_value.numpy()) > 0


@pytest.mark.parametrize(("start", "name"), [("Add (", "input1"), ("Add: constant (", "constant1")])
def test_a_grid_gets_wider_than_its_values_need_which_stay(start, name):
    case = case_of(start)
    factor = factor_of(case, "grid of input 1 as a multiple of what its values need")
    plain, wide = (model_of(one).graph.initializers for one in (case, factor.at(256.0)))
    scales = [float(found[f"{name}_scale"].const_value.numpy()) for found in (plain, wide)]
    assert scales[1] == pytest.approx(256 * scales[0])
    if name == "constant1":
        integers = wide[name].const_value.numpy().astype(int) - int(wide[f"{name}_zero_point"].const_value.numpy())
        assert np.abs(integers).max() <= 1
    assert case.template.own[1] == pytest.approx(factor.at(256.0).template.own[1], rel=0.6)


def test_two_factors_change_together_unless_one_is_wrong_alone():
    case = case_of("MatMul (", "uint16")
    wrong = {"size 0 of input 0": [16], "size 1 of input 0": [1, 33]}
    both = next(paired(case, lambda factor: wrong.get(factor.name, [])))
    assert both.name == "size 0 of input 0 and size 1 of input 0"
    assert [both.word(value) for value in both.values] == ["1 and 16", "33 and 16"]
    assert [shapes(both.at(value)) for value in both.values] == [[(1, 16), (16, 16)], [(33, 16), (16, 16)]]
    everything = next(paired(case, lambda factor: []))
    assert len(everything.values) == 9
    assert [everything.word(value) for value in both.values] == ["1 and 16", "33 and 16"]


def test_a_size_that_is_no_case_alone_may_be_one_with_other_windows():
    case = case_of("AveragePool (")
    both = next(f for f in paired(case, lambda factor: []) if f.name == "size 2 of input 0 and pads")
    padded = both.at(both.words.index("1 and [1, 1, 1, 1]"))
    assert shapes(padded) == [(1, 8, 1, 4)] and padded.template.attributes["pads"] == [1, 1, 1, 1]


def test_around_a_shape_every_other_factor_is_varied_and_its_own_size_is_among_them():
    case = case_of("MatMul (", "uint16")
    first = next(shape_factors(case))
    others = {factor.name: factor for factor in around(first, 33)}
    width = others["where size 0 of input 0 33, size 1 of input 0"]
    assert first.name not in {name.rpartition(", ")[2] for name in others}
    assert shapes(width.at(32)) == [(33, 32), (32, 16)] and shapes(width.at(5)) == [(33, 5), (5, 16)]


@pytest.mark.parametrize(("op", "axes"), [("ConvTranspose: 3-D", 3), ("MaxPool: 1-D", 1)])
def test_windows_are_padded_along_each_axis_alone(op, axes):
    case = next(c for c in subjects.alone([op.partition(":")[0]]) if c.template.name == op)
    pads = next(factor for factor in shape_factors(case) if factor.name == "pads")
    wanted = [str([int(i % axes == axis) for i in range(2 * axes)]) for axis in range(axes)]
    assert set(wanted) <= set(pads.words)


def test_a_pool_may_reach_beyond_its_padding():
    case = case_of("AveragePool (")
    pools = factor_of(case, "a pool of")
    assert pools.words[0] == "kernel_shape [3, 3], strides [2, 2], ceil_mode 1"
    assert pools.at(0).template.attributes["ceil_mode"] == 1


def test_indices_reach_all_that_is_there():
    case = next(c for c in taken("Gather") if c.name.startswith("Gather: table, indices of 64 bits (uint8"))
    rows = factor_of(case, "size 1 of input 1").at(65)
    assert inputs_of(rows)["input1"].max() > 16 and inputs_of(rows)["input1"].max() < 32


def test_a_part_of_an_atlas_has_activations_of_some_types_only():
    cases = subjects.taken(shipped("qnn"), 73, ["Add", "Gather"], ["uint16"])
    assert cases and {case.output for case in cases} <= {"uint16", "index"}
    assert all("uint8" not in slot or "constant" in slot for case in cases for slot in case.slots)
    assert {chain.steps[0].output for chain in subjects.chains(["Clip"], ["uint16"])} == {"uint16"}


def test_the_number_of_samples_is_no_part_of_a_pair():
    pairs = [factor.name for factor in paired(case_of("Conv ("), lambda factor: [])]
    assert "size 1 of input 0 and size 2 of input 0" in pairs
    assert "size 1 of input 0 and size 0 of input 1" in pairs
    assert not [name for name in pairs if "size 0 of input 0" in name or "leading dimensions" in name]
    # A table of two dimensions has none.
    gather = next(c for c in taken("Gather") if c.name.startswith("Gather: table, indices of 64 bits (uint8"))
    assert "size 0 of input 0 and size 1 of input 0" in [factor.name for factor in paired(gather, lambda factor: [])]


def test_what_only_moves_integers_is_asked_about_two_scales():
    moved = next(c for c in taken("Transpose") if c.name == "Transpose (uint8) -> uint8, same grid")
    assert list(factor_of(moved, "scale of input 0").values) == [1e-7, 1e3]
    assert not [f.name for f in factors_of(moved, ()) if "multiple" in f.name or "part of the grid" in f.name]
    # The bounds of a Clip are numbers that its steps are compared with; another grid behind it is one to go over to.
    clipped = next(c for c in taken("Clip") if c.name == "Clip (uint8, numbers, numbers) -> uint8, same grid")
    regridded = next(c for c in taken("Transpose") if c.name == "Transpose (uint8) -> uint8")
    assert all(len(factor_of(case, "scale of input 0").values) == 11 for case in (clipped, regridded))


def test_two_at_a_time_windows_are_those_that_layers_have():
    case = next(c for c in subjects.alone(["ConvTranspose"]) if c.name.startswith("ConvTranspose: 3-D (uint16"))
    both = next(f for f in paired(case, lambda _: []) if f.name == "size 2 of input 0 and size 4 of input 1")
    sizes = {one.template.operands[1].shape[4] for value in both.values if (one := both.at(value)) is not None}
    assert sizes == {1, 3, 5}
    # Alone, all of them are asked about.
    assert factor_of(case, "size 4 of input 1").at(33).template.operands[1].shape[4] == 33
