"""Where a pattern fits, and what its names bind to."""

from __future__ import annotations

import numpy as np
import pytest

from intact.matching.matcher import Matcher
from intact.matching.pattern import Pattern
from tests.model.small import model

GRID = "float s = {0.5}, float[1] s1 = {0.5}, float t = {0.25}, double sd = {0.5}, uint8 z = {3}, uint8[1] z1 = {3}"
BYTES = "(uint8[4] x) => (uint8[4] y)"


def matches(build, body, signature="(float[4] x, float[4] u) => (float[4] y)", constants="", at="y"):
    """Every match of the pattern with its root at the node called `at`."""
    nodes = {node.name: node for node in model(body, signature, constants).graph}
    return list(Matcher(Pattern(build)).matches(nodes[at]))


def bound(match):
    """The names of what a match bound."""
    return {name: getattr(item, "name", item) for name, item in match.bindings.items()}


def requantize(op, x, s, z):
    return op.QuantizeLinear(op.DequantizeLinear(x, s, z), s, z)


@pytest.mark.parametrize(
    ("scale", "zero_point", "fits"),
    [("s", "z", True), ("s1", "z1", True), ("t", "z", False)],
    ids=["the same value", "rank 1 and rank 0", "another value"],
)
def test_a_name_used_twice_matches_equal_constants(scale, zero_point, fits):
    body = f"a = DequantizeLinear(x, s, z)\n y = QuantizeLinear(a, {scale}, {zero_point})"
    assert bool(matches(requantize, body, BYTES, GRID)) is fits


def test_equal_numbers_of_another_type_are_another_constant():
    body = "a = Mul(x, s)\n b = Cast <to = 11> (a)\n y = Mul(b, sd)"
    found = matches(lambda op, x, s: op.Mul(op.Cast(op.Mul(x, s)), s), body, "(float[4] x) => (double[4] y)", GRID)
    assert not found


def test_a_name_used_twice_matches_the_same_value_only_where_it_is_not_constant():
    square = lambda op, x: op.Mul(x, x)
    assert matches(square, "y = Mul(x, x)")
    assert not matches(square, "y = Mul(x, u)")


@pytest.mark.parametrize(
    ("constant", "fits"),
    [("float c = {0.1}", True), ("float[1,1] c = {0.1}", True), ("double c = {0.1}", True), ("int64 c = {0}", False)],
)
def test_a_literal_matches_by_value_in_the_type_of_the_constant(constant, fits):
    dtype = constant.split()[0].split("[")[0]
    signature = f"({dtype}[4] x) => ({dtype}[4] y)"
    assert bool(matches(lambda op, x: op.Add(x, 0.1), "y = Add(x, c)", signature, constant)) is fits


@pytest.mark.parametrize(("rtol", "fits"), [(0.0, False), (1e-3, True)])
def test_a_literal_takes_a_tolerance(rtol, fits):
    build = lambda op, x: op.Mul(x, op.constant(1.4142, rtol=rtol))
    assert bool(matches(build, "y = Mul(x, c)", constants="float c = {1.4142135}")) is fits


def test_a_literal_may_be_an_array():
    build = lambda op, x: op.Add(x, np.array([1.0, 2.0, 3.0, 4.0]))
    assert matches(build, "y = Add(x, c)", constants="float[4] c = {1, 2, 3, 4}")
    assert not matches(build, "y = Add(x, c)", constants="float[4] c = {1, 2, 3, 5}")


@pytest.mark.parametrize("outer", ["y = Mul(b, x)", "y = Mul(x, b)"])
@pytest.mark.parametrize("inner", ["b = Add(a, c)", "b = Add(c, a)"])
@pytest.mark.parametrize("inmost", ["a = Mul(u, c)", "a = Mul(c, u)"])
def test_nested_commutative_ops_match_in_every_order(outer, inner, inmost):
    build = lambda op, x, u, c: op.Mul(x, op.Add(op.Mul(u, op.constant(c)), c))
    (match,) = matches(build, f"{inmost}\n{inner}\n{outer}", constants="float c = {2}")
    assert bound(match) == {"x": "x", "u": "u", "c": "c"}


def test_subtraction_does_not_commute():
    assert not matches(lambda op, x, c: op.Sub(op.constant(c), x), "y = Sub(x, c)", constants="float c = {2}")


def test_three_inputs_of_a_max_match_in_any_order():
    build = lambda op, x: op.Max(op.Relu(x), 0.0, op.Neg(x))
    assert matches(build, "a = Relu(x)\n b = Neg(x)\n y = Max(b, a, c)", constants="float c = {0}")


def test_the_operands_of_qlinear_add_swap_with_their_grids():
    build = lambda op, x, s, z, c, s2, z2, sy, zy: op.QLinearAdd(
        x, s, z, op.constant(c), s2, z2, sy, zy, _domain="com.microsoft"
    )
    body = "y = com.microsoft.QLinearAdd(c, s, z, x, t, z1, s, z)"
    found = [bound(match) for match in matches(build, body, BYTES, f"{GRID}, uint8 c = {{7}}")]
    assert found == [{"x": "x", "s": "t", "z": "z1", "c": "c", "s2": "s", "z2": "z", "sy": "s", "zy": "z"}]


def test_an_op_of_another_domain_is_another_op():
    assert not matches(lambda op, x: op.Gelu(x), "y = com.microsoft.Gelu(x)")
    assert matches(lambda op, x: op.Gelu(x, _domain="com.microsoft"), "y = com.microsoft.Gelu(x)")


@pytest.mark.parametrize(
    ("body", "bias"), [("y = Conv(x, w)", None), ("y = Conv(x, w, b)", "b")], ids=["absent", "present"]
)
def test_a_parameter_with_a_default_may_be_absent(body, bias):
    def build(op, x, w, b=None):
        return op.Conv(x, w, b)

    signature = "(float[1,1,4] x, float[1,1,1] w, float[1] b) => (float[1,1,4] y)"
    (match,) = matches(build, body, signature)
    assert bound(match)["b"] == bias


def test_an_input_that_the_pattern_does_not_mention_must_be_absent():
    signature = "(float[1,1,4] x, float[1,1,1] w, float[1] b) => (float[1,1,4] y)"
    assert not matches(lambda op, x, w: op.Conv(x, w), "y = Conv(x, w, b)", signature)


def test_none_stands_for_an_empty_input_in_the_middle():
    build = lambda op, x, hi: op.Clip(x, None, hi)
    assert matches(build, "y = Clip(x, , c)", constants="float c = {6}")
    assert not matches(build, "y = Clip(x, c, c)", constants="float c = {6}")


CONCAT = "(uint8[4] p, uint8[4] q, uint8[4] r) => (uint8[12] y)"


def concat_on_one_grid(op, x, s, z):
    return op.QuantizeLinear(op.Concat(op.each(op.DequantizeLinear(x, s, z, _name="dq")), _name="concat"), s, z)


def test_each_binds_a_tuple_and_shares_the_names_used_outside():
    body = """
        a = DequantizeLinear(p, s, z)
        b = DequantizeLinear(q, s1, z1)
        c = DequantizeLinear(r, s, z)
        d = Concat <axis = 0> (a, b, c)
        y = QuantizeLinear(d, s, z)"""
    (match,) = matches(concat_on_one_grid, body, CONCAT, GRID)
    assert [value.name for value in match.bindings["x"]] == ["p", "q", "r"]
    assert [node.name for node in match.bindings["dq"]] == ["a", "b", "c"]
    assert match.bindings["s"].name == "s"
    assert [node.name for node in match.covered()] == ["y", "d", "a", "b", "c"]


def test_each_needs_every_input_to_match():
    body = """
        a = DequantizeLinear(p, s, z)
        b = DequantizeLinear(q, t, z1)
        c = DequantizeLinear(r, s, z)
        d = Concat <axis = 0> (a, b, c)
        y = QuantizeLinear(d, s, z)"""
    assert not matches(concat_on_one_grid, body, CONCAT, GRID)


def test_each_takes_the_inputs_that_are_left():
    build = lambda op, x, rest: op.node(("Reshape", "Clip"), x, op.each(rest), _name="node")
    (match,) = matches(build, "y = Clip(x, c, d)", constants="float c = {0}, float d = {6}")
    assert [value.name for value in match.bindings["rest"]] == ["c", "d"]


def test_alternatives_are_tried_in_order():
    build = lambda op, x: op.Neg(op.any_of(op.Relu(x, _name="relu"), op.Abs(x, _name="absolute"), x))
    kinds = {
        "a = Relu(x)\n y = Neg(a)": {"x": "x", "relu": "a"},
        "a = Abs(x)\n y = Neg(a)": {"x": "x", "absolute": "a"},
        "a = Exp(x)\n y = Neg(a)": {"x": "a"},
    }
    for body, expected in kinds.items():
        assert bound(matches(build, body)[0]) == expected


def test_an_alternative_may_be_the_root_or_absence():
    build = lambda op, x, lo: op.any_of(op.Relu(x), op.Clip(x, op.constant(lo), op.any_of(None, 6.0)))
    constants = "float c = {0}, float d = {6}"
    for body in ("y = Relu(x)", "y = Clip(x, c)", "y = Clip(x, c, d)"):
        assert matches(build, body, constants=constants)
    assert Pattern(build).keys == {("", "Relu"), ("", "Clip")}


@pytest.mark.parametrize(
    ("attributes", "fits"),
    [({"axis": 1}, True), ({"axis": 0}, False), ({"axis": lambda axis: axis in (None, 1)}, True)],
)
def test_attributes_match_by_value_or_by_a_test(attributes, fits):
    signature = "(float[2,2] x) => (float[2,2] y)"
    build = lambda op, x: op.Softmax(x, _attrs=attributes)
    assert bool(matches(build, "y = Softmax <axis = 1> (x)", signature)) is fits


def test_an_attribute_of_several_integers_matches_a_list():
    build = lambda op, x: op.Transpose(x, _attrs={"perm": [1, 0]})
    signature = "(float[2,2] x) => (float[2,2] y)"
    assert matches(build, "y = Transpose <perm = [1, 0]> (x)", signature)
    assert not matches(build, "y = Transpose <perm = [0, 1]> (x)", signature)


SPLIT = "(float[4] x) => (float[2] y, float[2] v)"


def test_several_outputs_of_a_node_match_by_position():
    def build(op, x):
        first, second = op.outputs(op.Split(x, _name="split"), 2)
        return op.Relu(first), op.Neg(second)

    body = "a, b = Split <num_outputs = 2> (x)\n y = Relu({})\n v = Neg({})"
    (match,) = matches(build, body.format("a", "b"), SPLIT)
    assert [value.name for value in match.replaced] == ["y", "v"]
    assert not matches(build, body.format("b", "a"), SPLIT)


def split_of_relu(op, x, rest=None):
    return op.every_output(op.Split(op.Relu(x), op.each(rest), _name="split"))


@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_every_output_of_a_node_is_replaced_however_many_there_are(count, explain):
    names = [f"y{number}" for number in range(count)]
    signature = f"(float[8] x) => ({', '.join(f'float[n{name}] {name}' for name in names[:2])})"
    body = f"a = Relu(x)\n {', '.join(names)} = Split <num_outputs = {count}> (a)"
    root = model(body, signature).graph[1]
    (match,) = Matcher(Pattern(split_of_relu), explain=explain).matches(root)
    assert [value.name for value in match.replaced] == names
    assert match.bindings["split"] is root


def test_what_comes_before_a_node_of_many_outputs_may_not_be_used_elsewhere():
    body = "v = Relu(x)\n y, b = Split <num_outputs = 2> (v)"
    assert not matches(split_of_relu, body, "(float[4] x) => (float[2] y, float[4] v)")


def every_output_of_two(op, x):
    return op.every_output(op.Split(x)), op.Neg(x)


def every_output_inside(op, x):
    return op.Neg(op.every_output(op.Split(x)))


@pytest.mark.parametrize("build", [every_output_of_two, every_output_inside])
def test_every_output_is_the_only_root_of_a_pattern(build):
    with pytest.raises(AssertionError, match="the only root"):
        Pattern(build)


def test_a_second_root_is_found_through_what_they_share():
    twins = lambda op, x, s, z: (op.QuantizeLinear(x, s, z), op.QuantizeLinear(x, s, z))
    signature = "(float[4] x) => (uint8[4] y, uint8[4] v)"
    body = "y = QuantizeLinear(x, s, z)\n v = QuantizeLinear(x, {}, z1)"
    (match,) = matches(twins, body.format("s1"), signature, GRID)
    assert [value.name for value in match.replaced] == ["y", "v"]
    assert not matches(twins, body.format("t"), signature, GRID)


OTHER_USE = "(uint8[4] x) => (uint8[4] y, float[4] v)"


@pytest.mark.parametrize(
    "body",
    [
        "a = DequantizeLinear(x, s, z)\n y = QuantizeLinear(a, s, z)\n v = Relu(a)",
        "v = DequantizeLinear(x, s, z)\n y = QuantizeLinear(v, s, z)",
    ],
    ids=["another node", "a graph output"],
)
def test_an_interior_value_may_be_used_elsewhere_only_where_it_is_shared(body):
    shared = lambda op, x, s, z: op.QuantizeLinear(op.DequantizeLinear(x, s, z, _shared=True), s, z)
    assert not matches(requantize, body, OTHER_USE, GRID)
    assert matches(shared, body, OTHER_USE, GRID)


def test_an_interior_value_may_be_used_twice_inside_the_match():
    square = lambda op, x: op.Mul(op.Relu(x), op.Relu(x))
    assert matches(square, "a = Relu(x)\n y = Mul(a, a)")
    assert matches(square, "a = Relu(x)\n b = Relu(x)\n y = Mul(a, b)")


def test_one_pattern_used_twice_is_one_node():
    def build(op, x):
        relu = op.Relu(x)
        return op.Mul(relu, op.Neg(relu))

    assert matches(build, "a = Relu(x)\n b = Neg(a)\n y = Mul(a, b)")
    assert not matches(build, "a = Relu(x)\n c = Relu(x)\n b = Neg(c)\n y = Mul(a, b)")


def test_a_pattern_met_again_before_its_reader_is_one_node():
    def build(op, x):
        relu = op.Relu(x, _shared=True)
        return op.Sub(op.Neg(relu), relu)

    assert matches(build, "a = Relu(x)\n b = Neg(a)\n y = Sub(b, a)")
    assert not matches(build, "a = Relu(x)\n c = Relu(x)\n b = Neg(c)\n y = Sub(b, a)")


def test_a_matcher_binds_the_names_that_are_wanted():
    nodes = model("a = DequantizeLinear(x, s, z)\n y = QuantizeLinear(a, s, z)", BYTES, GRID).graph
    (match,) = Matcher(Pattern(requantize), wanted={"x"}).matches(nodes[1])
    assert bound(match) == {"x": "x"}


def test_an_overridable_initializer_is_not_a_constant():
    signature = "(float[4] x, float c) => (float[4] y)"
    assert not matches(lambda op, x, c: op.Mul(x, op.constant(c)), "y = Mul(x, c)", signature, "float c = {2}")


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("a = Relu(x)\n y = QuantizeLinear(a, s, z)", "expected DequantizeLinear, found Relu 'a'"),
        (
            "b = Cast <to = 2> (x)\n a = DequantizeLinear(b, t, z)\n y = QuantizeLinear(a, s, z)",
            "expected the same value or equal constants for 's', found constant 't' and constant 's'",
        ),
    ],
)
def test_the_deepest_failure_is_kept_for_explanations(body, failure):
    nodes = {node.name: node for node in model(body, "(float[4] x) => (uint8[4] y)", GRID).graph}
    matcher = Matcher(Pattern(requantize), explain=True)
    assert list(matcher.matches(nodes["y"])) == []
    assert matcher.failure == failure
