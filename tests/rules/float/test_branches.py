"""An If that is decided gives way to its branch; any other stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.rules.float import optimization
from intact.rules.float.branches import inline, select
from intact.runtime import ort_cpu
from tests.model.small import ops
from tests.rules.float.before_after import difference, given

SIGNATURE = "(float[2,3] x) => (float[2,3] y)"
EITHER = """If ({condition}) <then_branch = t () => (float[2,3] p) {{ p = Exp(x) }},
                              else_branch = e () => (float[2,3] q) {{ n = Neg(x) q = Abs(n) }}>"""


@pytest.mark.parametrize(("condition", "expected"), [(True, ["Exp"]), (False, ["Neg", "Abs"])])
def test_the_branch_that_runs_takes_the_place(condition, expected):
    text = f"y = {EITHER.format(condition='c')}"
    model = given(text, SIGNATURE, c=np.array(condition))
    (done,) = inline(model)
    assert (done.rule, done.node, done.exactness) == ("inline_branch", "y", "exact")
    assert ops(model) == expected
    assert difference(given(text, SIGNATURE, c=np.array(condition)), model) == 0


def test_a_condition_that_an_input_decides_stays():
    model = given(f"y = {EITHER.format(condition='c')}", "(float[2,3] x, bool c) => (float[2,3] y)")
    assert inline(model) == () and ops(model) == ["If"]


def test_folding_decides_and_what_follows_is_decided_in_turn():
    """The inner condition depends on a shape that is known only once the outer If is gone."""
    inner = """If (r) <then_branch = t2 () => (float[2,3] a) { a = Identity(m) },
                       else_branch = e2 () => (float[2,3] b) { b = Neg(m) }>"""
    text = f"""s = Equal(k, l)
               m = {EITHER.format(condition="s")}
               d = Shape(m) f = Gather(d, zero) r = Equal(f, two)
               v = {inner}
               y = Relu(v)"""
    arrays = {"k": np.array(16000), "l": np.array(8000), "zero": np.array(0), "two": np.array(2)}
    before = given(text, SIGNATURE, **arrays)
    optimized = optimization.optimize(before)
    assert ops(optimized.model) == ["Neg", "Abs", "Relu"]
    assert [item.node for item in optimized.applications if item.rule == "inline_branch"] == ["m", "v"]
    assert difference(before, optimized.model) == 0


def test_constants_and_bodies_of_a_branch_move_with_it_and_a_returned_input_is_copied():
    text = """y, z = If (c) <then_branch = t () => (float[2,3] p, float[2,3] x2)
                <float w = {2.5}>
                { p = If (u) <then_branch = t2 () => (float[2,3] i) { i = Mul(x, w) },
                              else_branch = e2 () => (float[2,3] j) { j = Div(x, w) }>
                  x2 = Identity(x) },
              else_branch = e () => (float[2,3] q, float[2,3] q2) { q = Neg(x) q2 = Neg(q) }>"""
    signature = "(float[2,3] x, bool u) => (float[2,3] y, float[2,3] z)"
    model = given(text, signature, c=np.array(True))
    assert len(inline(model)) == 1
    assert ops(model) == ["If", "Identity"] and "w" in model.graph.initializers
    assert [value.name for value in model.graph.outputs] == ["y", "z"]
    assert difference(given(text, signature, c=np.array(True)), model) == 0


def test_a_branch_that_returns_a_value_of_the_outside_still_gives_it():
    text = """a = Exp(x)
              y = If (c) <then_branch = t () => (float[2,3] p) { p = Identity(a) },
                          else_branch = e () => (float[2,3] q) { q = Neg(x) }>"""
    model = given(text, SIGNATURE, c=np.array(True))
    branch = model.graph[1].attributes["then_branch"].as_graph()
    outer = model.graph[0].outputs[0]
    branch.outputs[0] = outer  # exporters write branches without a node of their own
    branch.remove(branch[0])
    assert len(inline(model)) == 1
    assert [value.name for value in model.graph.outputs] == ["y"]
    assert difference(given(text, SIGNATURE, c=np.array(True)), model) == 0
    assert isinstance(model, ir.Model)


OPEN = "(float[2,3] x, bool c) => (float[2,3] y)"
INDEXED = """If (c) <then_branch = t () => (float[2,3] p) { p = Gather(x, i) },
                     else_branch = e () => (float[2,3] q) { q = Neg(x) }>"""


@pytest.mark.parametrize("condition", [True, False])
def test_both_branches_are_computed_and_the_condition_takes_one(condition):
    """The branch that does not count overflows, and nothing of it is seen."""
    text = f"y = {EITHER.format(condition='c')}"
    model = given(text, OPEN)
    (done,) = select(model)
    assert (done.rule, done.node, done.exactness) == ("select_branch", "y", "exact")
    assert sorted(ops(model)) == ["Abs", "Exp", "Neg", "Where"]
    feeds = {"x": np.float32([[-3, 0, 2], [1, -500, -1e30 if condition else 1e30]]), "c": np.array(condition)}
    expected = ort_cpu.run(given(text, OPEN), feeds)["y"]
    np.testing.assert_array_equal(ort_cpu.run(model, feeds)["y"], expected)


@pytest.mark.parametrize(
    ("text", "signature"),
    [
        (INDEXED, "(float[2,3] x, int64[2] i, bool c) => (float[2,3] y)"),
        (INDEXED.replace("Gather(x, i)", "RandomNormalLike(x)"), OPEN),
        (EITHER.format(condition="c"), OPEN.replace("[2,3]", "[N,3]")),
        (EITHER.format(condition="c"), OPEN.replace("float", "double")),
    ],
)
def test_branches_that_could_fail_or_are_not_known_stay(text, signature):
    body = f"y = {text}"
    wide = body.replace("float[", "double[") if "double" in signature else body
    model = given(wide.replace("[2,3]", "[N,3]") if "N" in signature else wide, signature)
    assert select(model) == () and ops(model) == ["If"]


@pytest.mark.parametrize(
    ("lacking", "expected"), [({"If"}, ["Exp", "Neg", "Abs", "Where"]), ({"If", "Where"}, ["If"]), (set(), ["If"])]
)
def test_only_a_device_without_control_flow_computes_both(lacking, expected):
    model = given(f"y = {EITHER.format(condition='c')}", OPEN)
    assert ops(optimization.optimize(model, ops=lambda _, op: op not in lacking).model) == expected
    assert ops(optimization.optimize(model).model) == ["If"]


def test_a_choice_between_optionals_and_sequences_stays_a_branch():
    """They have the type and the shape of what is in them, and Where takes tensors only."""
    text = """y = If (c) <then_branch = t () => (seq(float[2,3]) p) { p = SequenceConstruct(x) },
                          else_branch = e () => (seq(float[2,3]) q) { q = SequenceConstruct(x, x) }>"""
    model = given(text, "(float[2,3] x, bool c) => (seq(float[2,3]) y)")
    assert select(model) == () and ops(model) == ["If"]
