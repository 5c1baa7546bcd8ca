"""Factors change what they say, and what has to follow; everything else stays."""

from __future__ import annotations

import numpy as np
import pytest

from intact.backends.probing import subjects
from intact.backends.probing.answers import shipped
from intact.backends.probing.factors import chained, factors_of, fitted, in_float
from intact.backends.probing.models import inputs_of, model_of, step_of
from intact.runtime import ort_cpu


def case_of(start, output="uint8"):
    cases = subjects.taken(shipped("qnn"), 73)
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
    model = model_of(factor_of(case_of("Add ("), "zero point of input 0 at an end").at(end))
    assert int(model.graph.initializers["input0_zero_point"].const_value.numpy()) in (wanted, wanted - (wanted == 128))


def test_the_grid_of_a_result_is_what_float_computes():
    case = fitted(case_of("MatMul ("))
    (found,) = ort_cpu.Session(model_of(in_float(case)), threads=1).run(inputs_of(in_float(case))).values()
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
