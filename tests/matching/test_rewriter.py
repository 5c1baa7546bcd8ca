"""What the engine does with rules: fixpoint, order, names, origins, refusals."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.matching.explanation import doubts, explain
from intact.matching.order import Order
from intact.matching.rewriter import BOUNDED, EXACT, WITHIN_ONE_STEP, LocalRule, Rule, apply, could_fire
from intact.model import query
from intact.results import Application, Refusal
from intact.runtime import ort_cpu
from tests.model.small import model, ops

GRID = "float s = {0.5}, float[1] s1 = {0.5}, float t = {0.25}, uint8 z = {3}, uint8[1] z1 = {3}"
BYTES = "(uint8[4] x) => (uint8[4] y)"
TWO = "(float[4] x, float[4] u) => (float[4] y)"


class DropSelfRequantize(Rule):
    """Q(DQ(x, s, z), s, z) = x."""

    exactness = EXACT

    def pattern(self, op, x, s, z):
        return op.QuantizeLinear(op.DequantizeLinear(x, s, z, _shared=True), s, z)

    def rewrite(self, op, x, **_):
        return x


class CancelNegations(Rule):
    """−(−x) = x."""

    exactness = EXACT

    def pattern(self, op, x):
        return op.Neg(op.Neg(x))

    def rewrite(self, op, x):
        return x


class MergeScales(Rule):
    """(x·a)·b = x·(a·b)."""

    exactness = BOUNDED

    def pattern(self, op, x, a, b):
        return op.Mul(op.Mul(x, op.constant(a)), op.constant(b))

    def check(self, a, b):
        product = query.scalar(a) * query.scalar(b)
        return None if abs(product) < 1e38 else f"{product:g} is no float32"

    def rewrite(self, op, x, a, b):
        return op.Mul(x, op.constant(query.constant(a) * query.constant(b), "scale"))


class SwapParts(Rule):
    """Both outputs of a Split of −x are those of a Split of x, negated."""

    exactness = EXACT

    def pattern(self, op, x, sizes):
        return op.outputs(op.Split(op.Neg(x), sizes), 2)

    def rewrite(self, op, x, sizes):
        return [op.Neg(part) for part in op.outputs("Split", 2, x, sizes)]


class ExpandRelu(Rule):
    """Relu(x) = Max(x, 0) as two nodes."""

    exactness = EXACT

    def pattern(self, op, x):
        return op.Relu(x)

    def rewrite(self, op, x):
        return op.Max(op.Identity(x), op.constant(np.float32(0), "zero"))


class MergeTwins(Rule):
    """Two quantizers of one value on one grid are one."""

    exactness = EXACT

    def pattern(self, op, x, s, z):
        return op.QuantizeLinear(x, s, z), op.QuantizeLinear(x, s, z)

    def rewrite(self, op, x, s, z):
        merged = op.QuantizeLinear(x, s, z)
        return merged, merged


class Flip(Rule):
    """Relu(x) = Abs(x): wrong, and Flop undoes it."""

    exactness = EXACT

    def pattern(self, op, x):
        return op.Relu(x)

    def rewrite(self, op, x):
        return op.Abs(x)


class Flop(Rule):
    """Abs(x) = Relu(x)."""

    exactness = EXACT

    def pattern(self, op, x):
        return op.Abs(x)

    def rewrite(self, op, x):
        return op.Relu(x)


ALL = (DropSelfRequantize(), CancelNegations(), MergeScales(), ExpandRelu())


def test_a_rule_is_named_after_its_class_and_prints_its_claim():
    assert DropSelfRequantize.name == "drop_self_requantize"
    assert [str(claim) for claim in (EXACT, WITHIN_ONE_STEP, BOUNDED)] == ["exact", "within one step", "bounded"]


def test_an_application_is_recorded_with_its_claim():
    result = apply(model("a = Neg(x)\n b = Neg(a)\n y = Relu(b)"), [CancelNegations()])
    assert result.applications == (Application("cancel_negations", "b", "exact"),)
    assert ops(result.model) == ["Relu"]


def test_rewriting_goes_on_until_nothing_matches():
    body = "a = Neg(x)\n b = Neg(a)\n c = Neg(b)\n d = Neg(c)\n e = Neg(d)\n y = Relu(e)"
    assert ops(apply(model(body), [CancelNegations()]).model) == ["Neg", "Relu"]


@pytest.mark.parametrize(
    ("body", "factor", "fires"),
    [
        pytest.param("a = Mul(x, c)\n y = Mul(a, c)", "2", True, id="matches"),
        pytest.param("a = Mul(x, c)\n y = Mul(a, c)", "1e30", False, id="has a doubt"),
        pytest.param("a = Mul(x, c)\n y = Neg(a)", "2", False, id="does not match"),
    ],
)
def test_a_rule_that_would_fire_is_known_without_firing(body, factor, fires):
    subject = model(body, constants=f"float c = {{{factor}}}")
    before = ops(subject)
    assert could_fire(subject, [MergeScales()]) is fires
    assert ops(subject) == before
    assert bool(apply(subject, [MergeScales()]).applications) is fires


def test_a_match_that_an_earlier_rewrite_makes_possible_is_found():
    body = "a = Mul(x, c)\n b = Neg(a)\n d = Neg(b)\n y = Mul(d, c)"
    result = apply(model(body, constants="float c = {2}"), [MergeScales(), CancelNegations()])
    assert [item.rule for item in result.applications] == ["cancel_negations", "merge_scales"]
    assert ops(result.model) == ["Mul"]


class CeilToNegation(LocalRule):
    """⌈x⌉ = −x stands for any rule whose new node lets another rule fire later."""

    exactness = EXACT

    def pattern(self, op, x):
        return op.Ceil(x)

    def rewrite(self, op, x):
        return op.Neg(x)


class LocalCancelNegations(CancelNegations):
    """−(−x) = x, which need not be asked again."""

    is_local = True


class JoinExponential(LocalRule):
    """exp(max(|x|, 0)) = cosh(x) stands for any rule with a node in its middle at which no rule starts."""

    exactness = EXACT

    def pattern(self, op, x):
        return op.Exp(op.Relu(op.Abs(x)))

    def rewrite(self, op, x):
        return op.Cosh(x)


def test_a_late_change_reaches_a_root_through_nodes_at_which_no_rule_starts():
    body = "a = Abs(x)\n b = Neg(a)\n c = Ceil(b)\n d = Relu(c)\n y = Exp(d)"
    result = apply(model(body), [CeilToNegation(), LocalCancelNegations(), JoinExponential()])
    assert ops(result.model) == ["Cosh"]


def test_a_use_that_disappears_lets_its_neighbour_match():
    class DropRelu(Rule):
        """Max(Relu(x), x) = Relu(x)."""

        exactness = EXACT

        def pattern(self, op, x):
            return op.Max(op.Relu(x, _shared=True), op.Identity(op.Relu(x, _shared=True)))

        def rewrite(self, op, x):
            return op.Abs(x)

    class ReluNeg(Rule):
        """Neg(Relu(x)) = Min(−x, …) stands for any rule that wants the Relu to itself."""

        exactness = EXACT

        def pattern(self, op, x):
            return op.Neg(op.Relu(x))

        def rewrite(self, op, x):
            return op.Exp(x)

    body = "r = Relu(x)\n v = Neg(r)\n i = Identity(r)\n y = Max(r, i)"
    result = apply(model(body, "(float[4] x) => (float[4] y, float[4] v)"), [ReluNeg(), DropRelu()])
    assert sorted(ops(result.model)) == ["Abs", "Exp"]


def test_a_graph_output_keeps_its_name():
    result = apply(model("a = Relu(x)\n b = Neg(a)\n y = Neg(b)"), [CancelNegations()]).model
    assert [value.name for value in result.graph.outputs] == ["y"]
    assert [node.name for node in result.graph] == ["a"]
    assert np.array_equal(ort_cpu.run(result, {"x": np.float32([-1, 0, 1, 2])})["y"], [0, 0, 1, 2])


def test_a_graph_output_that_would_be_a_graph_input_is_a_copy_of_it():
    result = apply(model("a = Neg(x)\n y = Neg(a)"), [CancelNegations()]).model
    assert ops(result) == ["Identity"]
    assert [value.name for value in (*result.graph.inputs, *result.graph.outputs)] == ["x", "y"]


def test_two_graph_outputs_that_become_one_value_keep_both_names():
    body = "v = Relu(x)\n a = Neg(v)\n y = Neg(a)"
    result = apply(model(body, "(float[4] x) => (float[4] y, float[4] v)"), [CancelNegations()]).model
    assert [value.name for value in result.graph.outputs] == ["y", "v"]
    outputs = ort_cpu.run(result, {"x": np.float32([-1, 0, 1, 2])})
    assert np.array_equal(outputs["y"], outputs["v"])


def test_a_replaced_value_keeps_its_name_type_and_metadata():
    given_model = model("a = Relu(x)\n y = Neg(a)")
    given_model.graph[0].outputs[0].metadata_props["note"] = "kept"
    given_model.graph[0].outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    value = apply(given_model, [ExpandRelu()]).model.graph[-1].inputs[0]
    assert (value.name, value.dtype, value.metadata_props["note"]) == ("a", ir.DataType.FLOAT, "kept")


def test_new_names_derive_from_the_root_and_are_the_same_every_time():
    body = "a = Relu(x)\n b = Relu(a)\n y = Neg(b)"
    runs = [apply(model(body), [ExpandRelu()]).model for _ in range(2)]
    names = [[node.name for node in run.graph] for run in runs]
    assert names[0] == names[1] == ["a/Identity", "a", "b/Identity", "b", "y"]
    assert list(runs[0].graph.initializers) == ["a/zero", "b/zero"]


def test_a_new_name_avoids_those_of_the_model():
    body = "q = Identity(x)\n a = Relu(q)\n y = Neg(a)"
    taken = model(body)
    taken.graph[0].name = "a/Identity"
    assert [node.name for node in apply(taken, [ExpandRelu()]).model.graph] == ["a/Identity", "a/Identity_1", "a", "y"]


def test_origins_are_those_of_the_given_model_through_several_rewrites():
    body = "a = Mul(x, c)\n b = Mul(a, c)\n d = Mul(b, c)\n y = Relu(d)"
    given_model = model(body, constants="float c = {2}")
    given_model.graph[2].metadata_props["layer"] = "3"
    result = apply(given_model, [MergeScales()]).model
    assert set(query.origin(result.graph[0])) == {"a", "b", "d"}
    assert result.graph[0].metadata_props["layer"] == "3"
    assert query.origin(result.graph[1]) == ("y",)


def test_a_shared_node_stays_for_its_other_users():
    body = "a = DequantizeLinear(x, s, z)\n b = QuantizeLinear(a, s1, z1)\n v = Relu(a)\n y = Identity(b)"
    shared = apply(model(body, "(uint8[4] x) => (uint8[4] y, float[4] v)", GRID), [DropSelfRequantize()]).model
    assert ops(shared) == ["DequantizeLinear", "Relu", "Identity"]
    alone = apply(model(body.replace("v = Relu(a)", ""), BYTES, GRID), [DropSelfRequantize()]).model
    assert ops(alone) == ["Identity"]


def test_initializers_that_nothing_uses_any_more_are_removed():
    body = "a = DequantizeLinear(x, s, z)\n b = QuantizeLinear(a, s1, z1)\n y = Identity(b)"
    result = apply(model(body, BYTES, "float s = {0.5}, uint8 z = {3}, float s1 = {0.5}, uint8 z1 = {3}"), ALL).model
    assert list(result.graph.initializers) == []


def test_a_domain_that_a_rule_brings_in_is_imported():
    class ToContrib(Rule):
        """Relu(x) = com.microsoft.Gelu(x) stands for any move to another domain."""

        exactness = BOUNDED

        def pattern(self, op, x):
            return op.Relu(x)

        def rewrite(self, op, x):
            return op.Gelu(x, _domain="com.other")

    assert apply(model("y = Relu(x)"), [ToContrib()]).model.opset_imports["com.other"] == 1


def test_a_refusal_carries_its_reason_once():
    body = "a = Mul(x, c)\n y = Mul(a, c)"
    result = apply(model(body, constants="float c = {1e30}"), [MergeScales()])
    assert result.refusals == (Refusal("merge_scales", "y", "1e+60 is no float32"),)
    assert result.applications == ()


def test_a_refusal_is_dropped_where_its_node_goes_away():
    class DropAll(Rule):
        """x·c stands for anything else that fires here."""

        exactness = EXACT

        def pattern(self, op, x, c):
            return op.Mul(x, op.constant(c))

        def rewrite(self, op, x):
            return op.Abs(x)

    body = "a = Mul(x, c)\n y = Mul(a, c)"
    assert apply(model(body, constants="float c = {1e30}"), [MergeScales(), DropAll()]).refusals == ()


def test_another_order_of_the_inputs_is_tried_where_the_first_is_refused():
    class TakeSecond(Rule):
        """u·v with v from a Relu, as a check alone can tell."""

        exactness = EXACT

        def pattern(self, op, u, v):
            return op.Mul(u, v)

        def check(self, v):
            producer = v.producer()
            return None if producer is not None and producer.op_type == "Relu" else "no Relu"

        def rewrite(self, op, u, v):
            return op.Sub(u, v)

    result = apply(model("a = Relu(x)\n y = Mul(a, x)"), [TakeSecond()])
    assert [value.name for value in result.model.graph[1].inputs] == ["x", "a"]


def test_rules_that_undo_each_other_are_named():
    with pytest.raises(AssertionError, match="rewriting does not end: flip fired"):
        apply(model("y = Relu(x)"), [Flip(), Flop()])


def test_a_rule_that_reads_what_it_replaces_is_named():
    class Wrap(Rule):
        """Relu(x) = Abs(Relu(x)), written so that it never ends."""

        exactness = EXACT

        def pattern(self, op, x):
            return op.Relu(x, _name="relu")

        def rewrite(self, op, relu):
            return op.Abs(relu.outputs[0])

    with pytest.raises(AssertionError, match="wrap: a new node reads a value that it replaces"):
        apply(model("y = Relu(x)"), [Wrap()])


IF = """
    r = Abs(x)
    y = If (c) <
        then_branch = g1 () => (float[4] p) { a = Neg(r)
            p = Neg(a) },
        else_branch = g2 () => (float[4] q) { b = Mul(x, k)
            d = Relu(b)
            q = Mul(d, k) }
    >"""


def test_bodies_of_if_are_rewritten_too():
    signature = "(float[4] x, bool c) => (float[4] y)"
    result = apply(model(IF, signature, "float k = {2}"), ALL).model
    bodies = [[node.op_type for node in body] for body in query.bodies(result.graph[-1])]
    assert bodies == [["Identity"], ["Mul", "Identity", "Max", "Mul"]]
    for taken, expected in ((True, [1, 0, 1, 2]), (False, [0, 0, 4, 8])):
        feeds = {"x": np.float32([-1, 0, 1, 2]), "c": np.array(taken)}
        assert np.array_equal(ort_cpu.run(result, feeds)["y"], np.float32(expected))


def test_a_match_does_not_reach_out_of_a_body():
    body = """
        a = Neg(x)
        y = If (c) < then_branch = g1 () => (float[4] p) { p = Neg(a) },
                     else_branch = g2 () => (float[4] q) { q = Relu(x) } >"""
    assert apply(model(body, "(float[4] x, bool c) => (float[4] y)"), [CancelNegations()]).applications == ()


def test_twins_are_merged_where_the_first_stands():
    body = """
        q = QuantizeLinear(x, s, z)
        y = DequantizeLinear(q, s, z)
        r = QuantizeLinear(x, s1, z1)
        v = DequantizeLinear(r, s, z)"""
    result = apply(model(body, "(float[4] x) => (float[4] y, float[4] v)", GRID), [MergeTwins()])
    assert ops(result.model) == ["QuantizeLinear", "DequantizeLinear", "DequantizeLinear"]
    assert (result.model.graph[0].name, result.model.graph[0].outputs[0].name) == ("q", "q")
    assert_sorted(result.model)


class Pair(Rule):
    """Relu(x·c), Relu(u·c) as one op of both: may only stand where both inputs exist."""

    exactness = EXACT

    def pattern(self, op, x, u, c):
        return op.Mul(x, c), op.Div(u, op.Mul(x, c))

    def rewrite(self, op, x, u, c):
        both = op.Sub(x, c)
        return both, op.Add(u, both)


def test_several_roots_are_refused_where_an_input_comes_after_the_first():
    early = "e = Relu(u)\n y = Mul(x, c)\n m = Neg(y)\n v = Div(e, y)"
    late = "y = Mul(x, c)\n m = Neg(y)\n e = Relu(m)\n v = Div(e, y)"
    signature = "(float[4] x, float[4] u) => (float[4] y, float[4] v, float[4] m)"
    accepted = apply(model(early, signature, "float c = {2}"), [Pair()])
    assert ops(accepted.model) == ["Relu", "Sub", "Add", "Neg"]
    assert_sorted(accepted.model)
    refused = apply(model(late, signature, "float c = {2}"), [Pair()])
    assert refused.refusals[0].reason == "'e' is computed after 'y', which is to be merged with what needs it"


@pytest.mark.parametrize(
    ("node", "reasons"),
    [
        ("b", ["1e+60 is no float32"]),
        ("y", ["1e+60 is no float32"]),
        ("a", ["does not match: expected Neg, found graph input 'x'"]),
    ],
)
def test_explain_says_why_each_rule_with_a_place_for_the_node_does_not_fire(node, reasons):
    rules = [CancelNegations(), MergeScales()]
    found = explain(model("a = Neg(x)\n b = Mul(a, c)\n y = Mul(b, c)", constants="float c = {1e30}"), rules, node)
    assert [item.reason for item in found] == reasons


def test_doubts_are_where_rules_match_with_none_for_those_that_would_fire():
    body = "a = Neg(x)\n b = Neg(a)\n m = Mul(b, c)\n y = Mul(m, c)"
    found = doubts(model(body, constants="float c = {1e30}"), [CancelNegations(), MergeScales()])
    assert [(rule.name, node, why) for rule, node, why in found] == [
        ("cancel_negations", "b", None),
        ("merge_scales", "y", "1e+60 is no float32"),
    ]


def assert_sorted(result: ir.Model) -> None:
    seen = set()
    for node in result.graph:
        assert all(value.producer() is None or value.producer() in seen for value in node.inputs if value is not None)
        seen.add(node)


CHAIN = st.lists(st.sampled_from(["Neg", "Relu", "Mul", "QDQ", "QDQ1", "QDQt", "Identity"]), min_size=1, max_size=14)


def chain(steps: list[str], branch: int) -> ir.Model:
    """A chain of steps from x to y, with a second output taken after `branch` steps."""
    lines, last = [], "x"
    for number, step in enumerate(steps):
        if number == branch:
            lines.append(f"v = Abs({last})")
        out = f"a{number}"
        if step.startswith("QDQ"):
            grid = {"QDQ": "s, z", "QDQ1": "s1, z1", "QDQt": "t, z"}[step]
            lines += [f"q{number} = QuantizeLinear({last}, {grid})", f"{out} = DequantizeLinear(q{number}, {grid})"]
        else:
            lines.append(f"{out} = Mul({last}, c)" if step == "Mul" else f"{out} = {step}({last})")
        last = out
    if branch >= len(steps):
        lines.append(f"v = Abs({last})")
    body = "\n".join([*lines, f"y = Identity({last})"])
    return model(body, "(float[4] x) => (float[4] y, float[4] v)", f"{GRID}, float c = {{0.5}}")


@settings(max_examples=40)
@given(steps=CHAIN, branch=st.integers(0, 14))
def test_rewriting_twice_changes_nothing_and_keeps_the_numbers(steps, branch):
    before = chain(steps, branch)
    result = apply(before.clone(), ALL)
    assert_sorted(result.model)
    assert apply(result.model, ALL).applications == ()
    feeds = {"x": np.float32([-3.3, -0.5, 0.7, 41.0])}
    expected, found = ort_cpu.run(before, feeds), ort_cpu.run(result.model, feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, err_msg=name)


class Absorb(Rule):
    """min(max(x, k), x) = x."""

    exactness = EXACT

    def pattern(self, op, x, k):
        return op.Min(op.Max(x, k), x)

    def rewrite(self, op, x):
        return x


def ladder(rungs: int) -> ir.Model:
    """Each max feeds the next one, so that only the last can be absorbed until what follows it is gone."""
    lines = ["b0 = Relu(x)"]
    for rung in range(rungs):
        lines += [f"m{rung} = Max(x, b{rung})", f"y{rung} = Min(m{rung}, x)", f"b{rung + 1} = Neg(m{rung})"]
    ends = ", ".join(f"y{rung}" for rung in range(rungs))
    return model("\n".join([*lines[:-1], f"y = Sum({ends})"]))


def test_a_cascade_towards_the_inputs_costs_no_sweep_for_each_step():
    short, long = apply(ladder(10), [Absorb()]), apply(ladder(100), [Absorb()])
    assert len(long.applications) == 100
    assert ops(long.model) == ["Sum"]
    assert long.attempts <= 10.5 * short.attempts


def test_a_check_that_looks_far_is_asked_again_after_the_last_change():
    class AloneOnly(Rule):
        """Relu(x) = Abs(x) where the graph has nothing else but the end."""

        exactness = EXACT

        def pattern(self, op, x):
            return op.Relu(x, _name="relu")

        def check(self, relu):
            return None if len(relu.graph) == 2 else "not alone"

        def rewrite(self, op, x):
            return op.Abs(x)

    result = apply(
        model("a = Relu(x)\n e = Neg(u)\n f = Neg(e)\n y = Add(a, f)", TWO), [AloneOnly(), CancelNegations()]
    )
    assert ops(result.model) == ["Abs", "Add"]
    assert result.refusals == ()


def rule_at(op_type: str) -> Rule:
    class Elsewhere(Rule):
        """Roots at an op that the model does not have."""

        exactness = EXACT

        def pattern(self, op, x):
            return op.node(op_type, op.Relu(x))

        def rewrite(self, op, x):
            return x

    return Elsewhere()


def test_rules_rooted_elsewhere_are_never_tried():
    rules = [rule_at(f"Op{number}") for number in range(20)]
    assert apply(chain(["Neg", "Relu"] * 10, 30), rules).attempts == 0


def test_attempts_grow_linearly_with_the_graph():
    def attempts(length: int) -> int:
        return apply(chain(["QDQ", "QDQ1", "Neg", "Neg"] * length, 10**6), ALL).attempts

    assert attempts(200) <= 10.5 * attempts(20)


def test_several_outputs_of_one_node_are_replaced_together():
    text = "a = Neg(x)\n b, c = Split(a, k)\n y = Sub(b, c)"
    before = model(text, "(float[4] x) => (float[2] y)", "int64[2] k = {2, 2}")
    result = apply(before.clone(), [SwapParts()])
    assert ops(result.model) == ["Split", "Neg", "Neg", "Sub"]
    feeds = {"x": np.float32([1, 2, 3, 5])}
    assert np.array_equal(ort_cpu.run(before, feeds)["y"], ort_cpu.run(result.model, feeds)["y"])


class SplitFirst(Rule):
    """Split(−x) = −x₁, −x₂, … with x₁, x₂, … = Split(x)."""

    exactness = EXACT

    def pattern(self, op, x, sizes):
        return op.every_output(op.Split(op.Neg(x), sizes, _name="split"))

    def rewrite(self, op, x, sizes, split):
        return [op.Neg(part) for part in op.outputs_like(split, x, sizes)]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_every_output_of_a_node_is_replaced_at_once(count):
    parts = [f"p{number}" for number in range(count)]
    text = f"a = Neg(x)\n {', '.join(parts)} = Split(a, k)\n y = Concat <axis = 0> ({', '.join(reversed(parts))})"
    sizes = [2, *[1] * (count - 1)]
    signature = f"(float[{sum(sizes)}] x) => (float[{sum(sizes)}] y)"
    before = model(text, signature, f"int64[{count}] k = {{{', '.join(map(str, sizes))}}}")
    result = apply(before.clone(), [SplitFirst()])
    assert ops(result.model) == ["Split", *["Neg"] * count, "Concat"]
    assert [value.name for value in result.model.graph[-1].inputs] == parts[::-1]
    feeds = {"x": np.arange(sum(sizes), dtype=np.float32)}
    assert np.array_equal(ort_cpu.run(before, feeds)["y"], ort_cpu.run(result.model, feeds)["y"])


def test_a_node_with_fewer_outputs_than_a_pattern_does_not_match():
    before = model("a = Neg(x)\n y = Split(a, k)", "(float[4] x) => (float[4] y)", "int64[1] k = {4}")
    assert apply(before, [SwapParts()]).applications == ()


def test_positions_stay_apart_however_often_something_is_put_before_one_node():
    """Spans are halved until they are too narrow for floats; then all nodes are counted again."""
    subject = model("a = Neg(x)\n y = Neg(a)")
    order, place = Order(subject), subject.graph[1]
    for _ in range(200):
        node = ir.Node("", "Neg", [subject.graph.inputs[0]])
        subject.graph.insert_before(place, [node])
        order.insert_before(place, [node])
    positions = [order._position(node) for node in subject.graph]
    assert positions == sorted(set(positions)) and len(positions) == 202


class NegateByProduct(Rule):
    """−x = x·(−1)."""

    exactness = EXACT

    def pattern(self, op, x):
        return op.Neg(x)

    def rewrite(self, op, x):
        return op.Mul(x, op.constant(np.array(-1, np.float32), "minus"))


def test_a_scalar_that_rules_build_again_is_one_initializer():
    result = model("a = Neg(x)\n b = Abs(a)\n y = Neg(b)")
    apply(result, [NegateByProduct()])
    assert ops(result) == ["Mul", "Abs", "Mul"]
    assert list(result.graph.initializers) == ["a/minus"]
