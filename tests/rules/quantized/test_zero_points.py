"""Zero points that differ by channel: every combination is bit-exact with the reference, before and after rewriting.

A sample of the combinations runs always, all of them with `-m slow`, there on ONNX Runtime 1.26 as well.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.api.quantize import quantize
from intact.api.rewrite import rewrite
from intact.api.verify import verify
from intact.cli import arguments, options
from intact.errors import ModelError, SettingsError
from intact.matching import rewriter
from intact.model import io, query, shapes
from intact.numbers.integer import INT16_MAX, largest_pair
from intact.pipeline import stages
from intact.rules.proof import exactness
from intact.rules.proof.reference import runnable
from intact.rules.quantized import depthwise, families, input_copies, symmetric, zero_points
from intact.rules.quantized.copies import copy_indices, fits, split, split_small
from intact.rules.quantized.families import FAMILIES, Latitude
from intact.rules.quantized.zero_point_notes import notes, requantized, warnings
from intact.runtime import ort_cpu
from intact.settings.config import BuildConfig
from intact.targets.registry import load_target
from intact.targets.validate import validate
from tests.builder import Net
from tests.kernels import exact
from tests.rules.proof.harness import Case, fired, integers, refused
from tests.rules.proof.interpreter import evaluate
from tests.rules.quantized.cases.zero_points import GROUPS, KINDS, X_SCALE, convolution, product
from tests.zoo import data
from tests.zoo.cnn import depthwise_cnn, inverted_residual_cnn

U8, I8 = np.uint8, np.int8
OLD, NEW = load_target("cpu", vnni=True, ort="1.26.0"), load_target("cpu", vnni=True, ort="1.27.0")
ANY = load_target("cpu", vnni=True)
"""For the version at hand, and for older ones where that costs little."""
QNN = load_target("qnn", arch=73)
ZEROS = {
    "distinct": lambda zeros: zeros,
    "uniform": lambda zeros: np.full_like(zeros, zeros[2]),
    "zero": np.zeros_like,
}
PLACES = {
    "pads": lambda n: {"pads": [1, 0, 2][:n] + [0, 2, 1][:n]},
    "strides": lambda n: {"strides": [2, 1, 3][:n]},
    "dilations": lambda n: {"dilations": [2, 1, 2][:n]},
    "all": lambda n: {"pads": [1] * 2 * n, "strides": [1, 2, 1][:n], "dilations": [2] * n},
    "auto_pad": lambda n: {"auto_pad": "SAME_LOWER", "strides": [2] * n},
}


@dataclass(frozen=True)
class Combination:
    """One cell of the matrix."""

    kind: int
    form: str
    spatial: int
    bias: bool
    zeros: str
    place: str

    def __str__(self) -> str:
        act, wt = KINDS[self.kind]
        bias = "bias" if self.bias else "none"
        return f"{act.__name__}-{wt.__name__}-{self.form}-{self.spatial}d-{bias}-{self.zeros}-{self.place}"

    def case(self) -> Case:
        rng = np.random.default_rng([self.kind, self.spatial, self.bias])
        attributes = PLACES[self.place](self.spatial)
        options = {"bias": self.bias, "zeros": ZEROS[self.zeros], "attributes": attributes}
        return convolution(rng, *KINDS[self.kind], self.form, self.spatial, "QLinearConv", **options)


MATRIX = [Combination(*cell) for cell in itertools.product(range(3), GROUPS, (1, 2, 3), (True, False), ZEROS, PLACES)]
SAMPLE = [MATRIX[index] for index in np.random.default_rng(6).choice(len(MATRIX), 60, replace=False)]


def hold(case: Case) -> ir.Model:
    """Assert that a model and its rewritten forms give the integers of the reference; return the most portable."""
    old, new = (families.rewrite(case.model, target, Latitude.EXACT).model for target in (OLD, NEW))
    for feeds in case.feeds:
        (expected,) = evaluate(case.model, feeds).values()
        (before,) = ort_cpu.run(runnable(case.model), feeds).values()
        np.testing.assert_array_equal(before, expected)
        for after in (old, new):
            (numpy_after,) = evaluate(after, feeds).values()
            np.testing.assert_array_equal(numpy_after, expected)
            for optimize in (False, True):
                (found,) = ort_cpu.run(exact(after), feeds, optimize=optimize).values()
                np.testing.assert_array_equal(found, expected)
    return old


def has_distinct_weights(model: ir.Model) -> bool:
    places = {"QLinearConv": 5, "ConvInteger": 3}
    found = [query.constant(query.input_(node, places[node.op_type])) for node in model.graph if node.op_type in places]
    return any(zeros is not None and np.unique(zeros).size > 1 for zeros in found)


def first(case: Case) -> tuple[ir.Model, dict[str, np.ndarray]]:
    return case.model, case.feeds[0]


@pytest.mark.parametrize("combination", SAMPLE, ids=str)
def test_a_convolution_is_bit_exact_before_and_after_rewriting(combination):
    assert not has_distinct_weights(hold(combination.case()))


@pytest.mark.slow
def test_every_combination_is_bit_exact_before_and_after_rewriting():
    for combination in MATRIX:
        assert not has_distinct_weights(hold(combination.case())), combination


@pytest.mark.parametrize(("act", "wt"), KINDS)
@pytest.mark.parametrize("form", GROUPS)
def test_conv_integer_runs_after_rewriting_though_onnxruntime_refuses_it_before(act, wt, form):
    case = convolution(np.random.default_rng(1), act, wt, form, 2, "ConvInteger")
    with pytest.raises(ModelError):
        ort_cpu.run(case.model, case.feeds[0])
    assert not has_distinct_weights(hold(case))


@pytest.mark.parametrize("zeros", ["uniform", "zero"])
def test_conv_integer_with_as_many_equal_zero_points_as_channels_runs_after_rewriting(zeros):
    case = convolution(np.random.default_rng(1), U8, I8, "dense", 2, "ConvInteger", zeros=ZEROS[zeros])
    with pytest.raises(ModelError):
        ort_cpu.run(case.model, case.feeds[0])
    hold(case)


@pytest.mark.parametrize("op", ["QLinearConv", "ConvInteger"])
def test_a_model_with_constants_of_no_known_type_has_a_form_that_runs(op):
    case = convolution(np.random.default_rng(1), U8, I8, "dense", 2, op)
    given = case.model.clone()
    for value in [value for node in given.graph for value in node.inputs if query.is_constant(value)]:
        constant = ir.node("Constant", [], attributes={"value": value.const_value}, name=f"{value.name}/node")
        given.graph.insert_before(given.graph[0], constant)
        value.replace_all_uses_with(constant.outputs[0])
    (found,), (expected,) = (
        ort_cpu.run(runnable(given, "1.26"), case.feeds[0]).values(),
        evaluate(*first(case)).values(),
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("form", GROUPS)
def test_an_old_runtime_does_not_get_to_fuse_what_it_refuses_even_where_no_integer_may_change(form):
    case = convolution(np.random.default_rng(4), U8, I8, form, 2, "Conv")
    done = families.rewrite(case.model, OLD, Latitude.EXACT)
    assert "T115" not in {violation.code for violation in validate(done.model, OLD, strict=False)}
    for optimize in (False, True):
        (found,) = ort_cpu.run(exact(done.model), case.feeds[0], optimize=optimize).values()
        (expected,) = evaluate(*first(case)).values()
        np.testing.assert_array_equal(found, expected)


def test_a_zero_point_of_activations_that_is_computed_goes_through_float_as_well():
    """As dynamic quantization writes it; what the zero point will be does not matter to 9 bits."""
    net, rng = Net(), np.random.default_rng(0)
    w, zeros = integers(rng, I8, (8, 1, 3, 3)), np.arange(-128, 128, 32).astype(I8)
    y = net.op("ConvInteger", "x", w, "z", zeros, group=8)
    feeds = {"x": integers(rng, U8, (1, 8, 6, 6)), "z": np.asarray(U8(200))}
    hold(Case("computed", net.model(feeds, y), [feeds], step=1.0))
    assert "Conv" in fired(depthwise.ConvIntegerThroughFloat(), net.model(feeds, y))


def test_without_vnni_int8_activations_that_floats_do_not_hold_get_four_small_weights():
    net, rng = Net(), np.random.default_rng(0)
    y = net.op("ConvInteger", "x", integers(rng, I8, (4, 300, 3, 3)), I8(3), np.array([-128, 127, 0, 7], I8))
    feeds = {"x": integers(rng, I8, (1, 300, 5, 5))}
    model = net.model(feeds, y)
    done = families.rewrite(model, load_target("cpu", vnni=False, ort="1.26")).model
    (node,) = (node for node in done.graph if node.op_type == "ConvInteger")
    weight = query.constant(node.inputs[1])
    assert weight.shape[1] == 4 * 300 and largest_pair(weight, 0) <= INT16_MAX
    (found,), (expected,) = ort_cpu.run(done, feeds).values(), evaluate(model, feeds).values()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("narrow", [True, False])
def test_without_vnni_what_floats_do_not_hold_gets_unsigned_weights(narrow):
    """Kernels for uint8 × uint8 do not saturate, on any machine."""
    net, rng = Net(), np.random.default_rng(0)
    w = rng.integers(-120, 121, (4, 300, 3, 3)).astype(I8) if narrow else integers(rng, I8, (4, 300, 3, 3))
    zeros = np.array([-5, 3, 0, 7] if narrow else [-128, 127, 0, 7], I8)
    y = net.op("ConvInteger", "x", w, U8(3), zeros)
    feeds = {"x": integers(rng, U8, (1, 300, 5, 5))}
    model = net.model(feeds, y)
    done = families.rewrite(model, load_target("cpu", vnni=False, ort="1.26"))
    rule = "absorb_zero_points" if narrow else "duplicate_conv_input"
    assert [item.rule for item in done.applications] == [rule]
    (node,) = (node for node in done.model.graph if node.op_type == "ConvInteger")
    assert query.constant(node.inputs[1]).dtype == U8 and int(query.constant(node.inputs[3])) == 128
    (found,), (expected,) = ort_cpu.run(done.model, feeds).values(), evaluate(model, feeds).values()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("form", "narrow", "rules"),
    [
        ("dense", False, {"duplicate_conv_input"}),
        ("group 2", False, {"duplicate_conv_input"}),
        ("depthwise", False, {"conv_through_float"}),
        ("multiplier 2", False, {"conv_through_float"}),
        ("dense", True, {"absorb_zero_points"}),
        ("depthwise", True, {"absorb_zero_points"}),
    ],
)
@pytest.mark.parametrize("op", ["QLinearConv", "Conv"])
def test_the_cpu_gets_the_cheapest_form(form, narrow, rules, op):
    case = convolution(np.random.default_rng(2), U8, I8, form, 2, op, narrow=narrow)
    done = families.rewrite(case.model, OLD)
    names = {rule.name for rule in FAMILIES["zero_points"]} - {"depthwise_to_qlinear", "refused_conv_to_qlinear"}
    assert {item.rule for item in done.applications} & names == rules
    assert not has_distinct_weights(done.model)


@pytest.mark.parametrize(("size", "channels", "is_kept"), [(8, 16, False), (56, 64, True)])
def test_what_is_small_runs_on_every_version_and_what_is_large_keeps_the_fast_kernel(size, channels, is_kept):
    rng, net = np.random.default_rng(0), Net()
    w, zeros = integers(rng, I8, (channels, channels, 3, 3)), integers(rng, I8, (channels,))
    scales, x = rng.uniform(0.005, 0.015, channels).astype(np.float32), integers(rng, U8, (1, channels, size, size))
    y = net.op("QLinearConv", "x", np.float32(0.02), U8(100), w, scales, zeros, np.float32(9), U8(130), pads=[1] * 4)
    model = net.model({"x": x}, y)
    kept = [has_distinct_weights(families.rewrite(model, target).model) for target in (OLD, ANY, NEW)]
    assert kept == [False, is_kept, True]


def test_rewriting_twice_changes_nothing():
    for form, op in itertools.product(GROUPS, ("QLinearConv", "ConvInteger", "Conv")):
        once = families.rewrite(convolution(np.random.default_rng(3), U8, U8, form, 2, op).model, OLD).model
        assert not families.rewrite(once, OLD).applications


def test_without_vnni_a_convolution_without_a_kernel_goes_through_float():
    case = convolution(np.random.default_rng(2), U8, I8, "dense", 2)
    old, new = (families.rewrite(case.model, load_target("cpu", vnni=False, ort=ort)) for ort in ("1.26", "1.27"))
    assert [item.rule for item in old.applications] == ["conv_through_float"]
    # The kernel of a newer one takes distinct zero points, and would saturate: its weights are unsigned.
    assert [item.rule for item in new.applications] == ["unsign_weight"]


@pytest.mark.parametrize("form", GROUPS)
def test_a_new_runtime_keeps_what_it_has_a_fast_kernel_for(form):
    case = convolution(np.random.default_rng(2), U8, I8, form, 2)
    assert has_distinct_weights(families.rewrite(case.model, NEW).model) is (GROUPS[form][0] < 8)
    integer = convolution(np.random.default_rng(2), U8, I8, form, 2, "ConvInteger")
    assert not has_distinct_weights(families.rewrite(integer.model, NEW).model)


@pytest.mark.parametrize(
    ("form", "target", "said"),
    [
        ("dense", NEW, ["stay in 1 QLinearConv"]),
        ("dense", OLD, ["duplicate_conv_input (1), because ONNX Runtime refuses them in ConvInteger and QLinearConv"]),
        ("depthwise", NEW, ["conv_through_float (1), because ONNX Runtime refuses them in ConvInteger, and"]),
        ("dense", ANY, ["duplicate_conv_input (1), because ONNX Runtime refuses them in ConvInteger and, in older"]),
    ],
)
def test_what_was_done_is_said(form, target, said):
    found = notes(families.rewrite(convolution(np.random.default_rng(2), U8, I8, form, 2).model, target), target)
    assert len(found) == len(said) and all(part in text for part, text in zip(said, found, strict=True))


@pytest.mark.parametrize(("text", "symmetric"), [("symmetric", True), ("asymmetric", False)])
def test_the_symmetry_of_weights_has_a_flag(text, symmetric):
    found = arguments.settings({"weight_symmetry": text, "config": None}, options.QUANT)
    assert found.quant.weight_symmetric is symmetric


@pytest.mark.parametrize(
    ("flags", "code"),
    [({"weight_symmetry": "odd"}, "S147"), ({"weight_symmetry": "symmetric", "weight_symmetric": False}, "S148")],
)
def test_a_symmetry_that_is_not_known_or_not_agreed_on_is_refused(flags, code):
    with pytest.raises(SettingsError) as error:
        arguments.settings({**flags, "config": None}, options.QUANT)
    assert error.value.code == code


def test_a_version_that_is_none_is_refused():
    with pytest.raises(SettingsError, match="not a version"):
        load_target("cpu", ort="latest")


class TestParts:
    @pytest.mark.parametrize("bits", [4, 8, 16])
    def test_every_difference_is_a_sum_of_parts_that_fit(self, bits):
        span = 2**bits - 1
        for weight in (np.arange(-span, span), np.arange(-span, span + 1)):
            parts = split(weight, bits)
            assert all(fits(part, bits) for part in parts)
            np.testing.assert_array_equal(sum(parts), weight)
            assert len(parts) == (3 if weight.max() == span else 2)

    @pytest.mark.parametrize(("weight", "inside"), [(127, True), (128, False), (-128, True), (-129, False)])
    def test_eight_bits_end_where_int8_does(self, weight, inside):
        assert fits(np.array([weight])) is inside

    def test_every_difference_is_a_sum_of_four_whose_pairs_do_not_saturate(self):
        every = np.arange(-255, 256)
        parts = split_small(every)
        assert len(parts) == 4 and (sum(parts) == every).all()
        assert all(largest_pair(np.stack([a, b]).T, 0) <= INT16_MAX for a, b in itertools.product(parts, parts))

    def test_copies_of_a_group_stand_together(self):
        assert copy_indices(2, 2, 2).tolist() == [0, 1, 0, 1, 2, 3, 2, 3]


class TestRefusals:
    def test_a_weight_that_is_computed_is_refused(self):
        net = Net()
        w, wz = integers(np.random.default_rng(0), U8, (4, 8, 3, 3)), np.arange(4, dtype=U8)
        y = net.op("ConvInteger", "x", "w", U8(3), wz)
        model = net.model({"x": np.zeros((1, 8, 6, 6), U8), "w": w}, y)
        assert refused(input_copies.DuplicateConvInput(), model) == "the weight is computed, not constant"
        (text,) = warnings(families.rewrite(model, NEW), NEW)
        assert "the weight is computed, not constant" in text

    def test_a_weight_that_is_computed_is_not_said_to_be_rewritten_for_an_older_runtime(self):
        net = Net()
        feeds = {"x": np.zeros((1, 8, 6, 6), U8), "w": np.zeros((4, 8, 3, 3), I8)}
        grid = np.full(4, 0.01, np.float32), np.arange(4, dtype=I8)
        model = net.model(feeds, net.op("QLinearConv", "x", X_SCALE, U8(3), "w", *grid, np.float32(1), U8(0)))
        done = families.rewrite(model, NEW)
        assert not notes(done, NEW) and not warnings(done, NEW)
        (text,) = warnings(families.rewrite(model, QNN), QNN)
        assert "qnn/v73 takes zero point 0 only" in text and "the weight is computed, not constant" in text

    def test_zero_points_that_are_computed_are_refused(self):
        net = Net()
        y = net.op("ConvInteger", "x", np.ones((4, 8, 3, 3), U8), U8(3), "wz")
        model = net.model({"x": np.zeros((1, 8, 6, 6), U8), "wz": np.zeros(4, U8)}, y)
        assert (
            refused(zero_points.AbsorbZeroPoints(), model) == "the zero points of the weight are computed, not constant"
        )

    def test_one_zero_point_for_all_channels_stays(self):
        case = convolution(np.random.default_rng(0), U8, U8, "dense", 2, zeros=ZEROS["uniform"])
        assert "the same zero point in every channel" in refused(input_copies.DuplicateConvInput(), case.model)

    @pytest.mark.parametrize(("taps", "goes"), [(258, True), (259, False)])
    def test_floats_hold_sums_below_two_to_the_24(self, taps, goes):
        net = Net()
        w = np.full((2, 1, taps), 255, U8)
        y = net.op("ConvInteger", "x", w, U8(0), np.array([0, 1], U8), group=2)
        model = net.model({"x": np.zeros((1, 2, 300), U8)}, y)
        rule = depthwise.ConvIntegerThroughFloat()
        if goes:
            assert fired(rule, model)
        else:
            assert refused(rule, model) == f"sums may reach {taps * 255 * 255}, beyond the whole numbers of float32"

    def test_dense_convolutions_do_not_go_through_float(self):
        case = convolution(np.random.default_rng(0), U8, U8, "dense", 2)
        assert "a copy of the input is faster" in refused(depthwise.ConvThroughFloat(), case.model)

    def test_a_weight_that_would_keep_less_than_40_db_is_not_requantized(self):
        """Small numbers beside a large one are lost on a grid that is half as fine."""
        net, weight, zeros = Net(), np.ones((400, 2), U8) * np.array([1, 2], U8), np.array([0, 1], U8)
        weight[0] = 255
        data, matrix = net.dequantize("x", 0.02, U8(3)), net.dequantize(weight, np.full(2, 0.01), zeros, axis=1)
        model = net.model({"x": np.zeros((1, 400), U8)}, net.op("MatMul", data, matrix))
        assert "dB (least channel" in refused(symmetric.RequantizeWeight(), model)
        assert fired(symmetric.DuplicateDequantizedInput(), model)


class TestBias:
    """Of a convolution whose sums come close to 2^24, beyond which float32 does not hold every whole number.

    The bias takes the sums back to where the grid of the output is, so that an error of one is seen there.
    """

    TAPS = 258
    LARGEST = TAPS * 255 * 255
    """The largest sum without a bias: just below 2^24."""

    def far(self, biases: np.ndarray) -> Case:
        """Depthwise, with sums of almost `LARGEST`; the last channel has another zero point, and smaller sums."""
        net, channels = Net(), len(biases) + 1
        weight, zeros = np.full((channels, 1, self.TAPS), 255, U8), np.zeros(channels, U8)
        zeros[-1] = 1
        x = np.full((1, channels, 1200), 255, U8)
        x[:, :, ::300] = 254
        levels = np.append(biases, biases[-1] + self.TAPS * 255).astype(np.int32)
        scales, one = np.full(channels, 0.17, np.float32), np.float32(1)
        y = net.op("QLinearConv", "x", one, U8(0), weight, scales, zeros, one, U8(255), levels, group=channels)
        return Case("far", net.model({"x": x}, y), [{"x": x}])

    def test_a_bias_that_floats_do_not_hold_is_added_to_the_integers(self):
        case = self.far(-(2**24) - np.arange(1, 200, 2))
        (expected,) = evaluate(case.model, case.feeds[0]).values()
        assert np.mean((expected > 0) & (expected < 255)) == 1 and np.unique(expected).size > 40
        hold(case)

    @pytest.mark.parametrize(("above", "inside"), [(-1, True), (0, False)])
    @pytest.mark.parametrize("sign", [1, -1])
    def test_the_bias_counts_among_what_floats_have_to_hold(self, above, inside, sign):
        case = self.far(np.array([sign * (2**24 - self.LARGEST + above)]))
        bias = case.model.graph.node(0).inputs[8]
        bias.const_value = ir.tensor(bias.const_value.numpy() * np.array([1, 0], np.int32), name=bias.name)
        left = fired(depthwise.ConvThroughFloat(), case.model)
        assert ("Add" not in left) is inside


class TestMatrices:
    @pytest.mark.parametrize("op", ["QLinearMatMul", "QGemm", "MatMulInteger", "MatMulIntegerToFloat"])
    def test_the_cpu_takes_a_zero_point_for_each_column(self, op):
        case = product(np.random.default_rng(0), U8, I8, op)
        names = {rule.name for rule in FAMILIES["zero_points"]}
        assert not names & {item.rule for item in families.rewrite(case.model, OLD).applications}
        (found,) = ort_cpu.run(exact(case.model), case.feeds[0]).values()
        (expected,) = evaluate(case.model, case.feeds[0]).values()
        np.testing.assert_array_equal(found, expected)


class TestValidation:
    @pytest.mark.parametrize("op", ["QLinearConv", "ConvInteger", "Conv"])
    @pytest.mark.parametrize("form", ["dense", "depthwise"])
    def test_a_runtime_that_refuses_distinct_zero_points_is_named_with_the_remedy(self, op, form):
        case = convolution(np.random.default_rng(0), U8, I8, form, 2, op)
        (violation,) = validate(case.model, OLD, strict=False)
        assert violation.code == "T115" and "differ by channel" in violation.found
        assert "intact rewrite --device cpu" in violation.fix
        assert bool(validate(case.model, NEW, strict=False)) is (op == "ConvInteger")

    def test_one_zero_point_is_taken(self):
        case = convolution(np.random.default_rng(0), U8, I8, "dense", 2, zeros=ZEROS["uniform"])
        assert not validate(case.model, OLD, strict=False)

    @pytest.mark.parametrize("form", GROUPS)
    def test_an_integer_operator_is_looked_at_as_between_grids(self, form):
        case = convolution(np.random.default_rng(0), U8, I8, form, 2)
        assert [violation.code for violation in validate(case.model, QNN, strict=False)] == ["T104"]


class TestNpu:
    def test_validation_names_the_rewrite(self):
        case = convolution(np.random.default_rng(0), U8, I8, "dense", 2, "Conv")
        (violation,) = validate(case.model, QNN, strict=False)
        assert violation.code == "T104" and "intact rewrite --device qnn" in violation.fix

    @pytest.mark.parametrize("form", GROUPS)
    @pytest.mark.parametrize("exact", [True, False])
    def test_a_convolution_becomes_one_that_the_npu_takes(self, form, exact):
        case = convolution(np.random.default_rng(0), U8, I8, form, 2, "Conv")
        done = families.rewrite(case.model, QNN, Latitude.EXACT if exact else Latitude.NEAR)
        shapes.infer_shapes(done.model)
        assert validate(done.model, QNN, strict=False) == ()
        rule = "duplicate_dequantized_input" if exact else "requantize_weight"
        assert rule in {item.rule for item in done.applications}
        said = notes(done, QNN)
        assert "takes zero point 0 only" in said[0]
        assert ["--near" in text for text in said[1:]] == [True] * exact

    def test_the_error_of_every_channel_is_reported(self):
        case = convolution(np.random.default_rng(0), U8, I8, "dense", 2, "Conv")
        (row,) = requantized(families.rewrite(case.model, QNN, Latitude.NEAR).model)
        assert len(row["weight_sqnr_db"]) == 12 and min(row["weight_sqnr_db"]) > 40

    @pytest.mark.parametrize(
        ("x", "rule"),
        [([31, 20], "requantize_weight"), ([20, 31], "duplicate_dequantized_input")],
        ids=["products that add up", "products that cancel out"],
    )
    def test_a_layer_that_keeps_less_than_40_db_of_what_it_computes_stays_exact(self, x, rule):
        net, rows = Net(), np.outer(np.random.default_rng(0).integers(1, 9, 32), x).astype(U8).reshape(1, -1)
        weight, zeros = np.tile(np.array([[255], [0]], U8), (32, 2)), np.array([100, 101], U8)
        matrix = net.dequantize(weight, np.full(2, 0.01), zeros, axis=1)
        model = net.model({"x": rows}, net.op("MatMul", net.dequantize("x", 0.02, U8(0)), matrix))
        rules = families.rules_for(QNN, Latitude.NEAR)
        lossy = exactness.lossy(model, rules, [{"x": rows}])
        assert all("on data the layer keeps" in reason for reason in lossy.values())
        done = rewriter.apply(model.clone(), exactness.except_at(rules, lossy))
        assert [item.rule for item in done.applications] == [rule]

    def test_a_layer_that_near_leaves_exact_is_not_said_to_be_spared_by_near(self):
        net, weight, zeros = Net(), np.ones((400, 2), U8) * np.array([1, 2], U8), np.array([0, 1], U8)
        weight[0] = 255
        data, matrix = net.dequantize("x", 0.02, U8(3)), net.dequantize(weight, np.full(2, 0.01), zeros, axis=1)
        model = net.model({"x": np.zeros((1, 400), U8)}, net.op("MatMul", data, matrix))
        said = [len(notes(families.rewrite(model, QNN, latitude), QNN)) for latitude in (Latitude.BUILD, Latitude.NEAR)]
        assert said == [2, 1]

    def test_weights_keep_their_grid_unless_asked(self):
        case = convolution(np.random.default_rng(0), U8, I8, "depthwise", 2, "Conv")
        done = families.rewrite(case.model, QNN)
        assert not requantized(done.model)
        assert "duplicate_dequantized_input" in {item.rule for item in done.applications}

    def test_rounding_keeps_the_sum_of_a_channel(self):
        rows = np.random.default_rng(0).normal(0, 30, (5, 27))
        moved = symmetric._rounded_with_sum(rows).sum(axis=1) - rows.sum(axis=1)
        assert np.abs(moved).max() <= 0.5


@pytest.mark.parametrize("version", ["1.26.0", "1.27.0", "1.100.2"])
def test_the_reference_is_right_in_every_version(version):
    for op in ("QLinearConv", "ConvInteger"):
        case = convolution(np.random.default_rng(0), I8, I8, "group 2", 2, op)
        model = runnable(case.model, version)
        assert (model is case.model) == (op == "QLinearConv" and version != "1.26.0")
        (found,), (expected,) = ort_cpu.run(model, case.feeds[0]).values(), evaluate(case.model, case.feeds[0]).values()
        np.testing.assert_array_equal(found, expected)


def test_a_claim_of_40_db_that_data_contradict_is_found():
    case = convolution(np.random.default_rng(0), U8, I8, "dense", 2, "Conv", to_grid=False)

    class Halve(symmetric.RequantizeWeight):
        """Conv(x, w) ≈ Conv(x, w) / 2, which is wrong."""

        def rewrite(self, op, node, x, w):
            return op.Mul(super().rewrite(op, node, x, w), op.constant(np.array(0.5, np.float32)))

    done = rewriter.apply(case.model.clone(), [Halve()])
    with pytest.raises(exactness.GateFailed, match=r"halve at .* dB of 40"):
        exactness.validate(case.model, done, [Halve()], case.feeds)


def asymmetric_cnn(
    folder: Path, activation: str = "uint16", net: Callable[[], onnx.ModelProto] = depthwise_cnn
) -> Path:
    """A MobileNet in miniature with a zero point for every channel of every weight."""
    model = net()
    onnx.save(model, folder / "model.onnx")
    np.savez(folder / "rows.npz", **data(model, 16))
    quant = {"weight_symmetric": False, "activation_type": activation, "load_path": str(folder / "rows.npz")}
    config = BuildConfig.from_dict({"quant": quant, "compile": {"device": "qnn"}})
    quantize(folder / "model.onnx", config=config, output=folder / "asymmetric.onnx")
    return folder / "asymmetric.onnx"


def test_the_quantizer_gives_each_channel_its_zero_point_where_a_rewrite_exists(tmp_path):
    model = io.load(asymmetric_cnn(tmp_path))
    weights = [
        query.constant(node.inputs[2])
        for conv in model.graph
        if conv.op_type in ("Conv", "Gemm") and (node := conv.inputs[1].producer()) is not None
    ]
    assert len(weights) == 12 and all(np.unique(zeros).size > 1 for zeros in weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "activation", "near", "least"),
    [
        (inverted_residual_cnn, "uint8", False, 35),
        (inverted_residual_cnn, "uint8", True, 35),
        (depthwise_cnn, "uint16", False, 50),
        (depthwise_cnn, "uint16", True, 35),
        # Of this net 37 dB are left where the CPU itself moves 2 in 1,000 integers of the input by one step.
        (depthwise_cnn, "uint8", False, 30),
    ],
)
def test_an_asymmetric_cnn_runs_on_the_npu_whole(tmp_path, net, activation, near, least):
    pytest.importorskip("onnxruntime_qnn")
    source, rows = asymmetric_cnn(tmp_path, activation, net), str(tmp_path / "rows.npz")
    config = BuildConfig.from_dict({"compile": {"device": "qnn", "arch": "v73"}, "test_path": rows})
    rewrite(source, config=config, output=tmp_path / "rewritten.onnx", rules="build")
    made = stages.build(tmp_path / "rewritten.onnx", config, tmp_path / "out")
    assert made.placement.partitions == 1 and not made.placement.cpu_nodes
    (accuracy,) = verify(source, tmp_path / "out" / "model.onnx", data=rows, config=config).accuracy
    assert accuracy.sqnr_db > least


RUNNER = """
import json, sys, pathlib, numpy as np, onnxruntime as ort
assert ort.__version__.startswith("1.26."), ort.__version__
folder, wrong, options = pathlib.Path(sys.argv[1]), [], ort.SessionOptions()
options.log_severity_level = 4
for path in sorted(folder.glob("*.onnx")):
    arrays = np.load(path.with_suffix(".npz"))
    try:
        (found,) = ort.InferenceSession(path, options).run(None, {"x": arrays["x"]})
    except Exception as error:
        wrong.append(f"{path.stem}: {error}")
        continue
    wrong += [] if np.array_equal(found, arrays["y"]) else [path.stem]
print(json.dumps(wrong))
"""


@pytest.mark.slow
def test_onnxruntime_1_26_runs_every_rewritten_combination(tmp_path):
    """In an environment of its own: it refuses every unrewritten one with distinct zero points."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    asked = [python, "-m", "pip", "install", "--quiet", "onnxruntime==1.26.0"]
    installed = subprocess.run(asked, capture_output=True, text=True, timeout=600)
    if installed.returncode:
        pytest.skip(f"onnxruntime 1.26.0 cannot be installed for {sys.version.split()[0]}: {installed.stderr[-200:]}")
    folder = tmp_path / "models"
    folder.mkdir()
    for number, combination in enumerate(MATRIX):
        case = combination.case()
        (expected,) = evaluate(case.model, case.feeds[0]).values()
        for target, name in ((OLD, "old"), (ANY, "any")):
            done = families.rewrite(case.model, target, Latitude.EXACT).model
            io.save(exact(done), folder / f"{number}-{name}.onnx")
            np.savez(folder / f"{number}-{name}.npz", x=case.feeds[0]["x"], y=expected)
    ran = subprocess.run([python, "-c", RUNNER, folder], capture_output=True, text=True, timeout=900, check=True)
    assert json.loads(ran.stdout) == []


@pytest.mark.parametrize(
    ("zeros", "y_zero", "reason"),
    [
        (I8([0, 5]), U8(3), None),
        (I8([5, 5]), U8(3), "the weight has the same zero point in every channel"),
        (I8([0, 5]), I8(3), "output is int8, unlike input"),
    ],
)
def test_a_refused_convolution_becomes_an_integer_one_only_if_it_could_be_one(zeros, y_zero, reason):
    net = Net()
    kernel = net.dequantize(np.ones((2, 3, 3), I8), np.full(2, 0.01), zeros, axis=0)
    y = net.quantize(net.op("Conv", net.dequantize("x", 0.02, U8(3)), kernel), 0.1, y_zero)
    model = net.model({"x": np.zeros((1, 3, 8), U8)}, y)
    rule = input_copies.RefusedConvToQLinear()
    if reason is None:
        assert fired(rule, model) == ["QLinearConv"]
    else:
        assert reason in refused(rule, model)
