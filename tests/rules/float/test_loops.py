"""A Loop of known, small length is written out for a device without control flow; any other stays."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.float import loops, optimization
from intact.rules.float.loops import unroll
from tests.model.small import ops
from tests.rules.float.before_after import difference, given

SIGNATURE = "(float[2,3] x) => (float[2,3] y, float[n,2,3] ys)"
LOOP = """y, ys = Loop (n, {condition}, x) <body = l (int64 i, bool go, float[2,3] s)
            => (bool more, float[2,3] d, float[2,3] o)
            <float[3] w = {{0.5, 1.5, -1}}>
            {{ more = Identity({more}) f = Cast <to = 1> (i) p = Mul(s, w) q = Add(p, f) d = Add(q, x) o = Neg(d) }}>"""


def loop(condition: str = "", more: str = "go", count: int = 3, **arrays: np.ndarray):
    return given(LOOP.format(condition=condition, more=more), SIGNATURE, n=np.array(count), **arrays)


@pytest.mark.parametrize("count", [1, 3, loops.MOST])
def test_iterations_are_written_out_one_after_the_other(count):
    model = loop(count=count)
    (done,) = unroll(model)
    assert (done.rule, done.node, done.exactness) == ("unroll_loop", "y", "exact")
    assert "Loop" not in ops(model) and ops(model).count("Mul") == count
    assert [value.name for value in model.graph.outputs] == ["y", "ys"]
    assert difference(loop(count=count), model) == 0


def test_a_condition_that_is_true_changes_nothing():
    model = loop(condition="yes", yes=np.array(True))
    assert len(unroll(model)) == 1
    assert difference(loop(condition="yes", yes=np.array(True)), model) == 0


@pytest.mark.parametrize(
    "model",
    [
        loop(count=loops.MOST + 1),
        loop(count=0),
        loop(condition="no", no=np.array(False)),
        given(
            """y, ys = Loop (n, , x) <body = l (int64 i, bool go, float[2,3] s)
                 => (bool more, float[2,3] d, float[2,3] o) <int64 one = {1}>
                 { more = Less(i, one) d = Add(s, x) o = Neg(d) }>""",
            SIGNATURE,
            n=np.array(3),
        ),
    ],
    ids=["too long", "never runs", "ended before", "ends itself"],
)
def test_another_loop_stays(model):
    assert unroll(model) == () and "Loop" in ops(model)


def test_a_length_that_an_input_decides_stays():
    signature = "(float[2,3] x, int64 n) => (float[2,3] y, float[m,2,3] ys)"
    assert unroll(given(LOOP.format(condition="", more="go"), signature)) == ()


def test_only_devices_without_control_flow_get_copies():
    text, arrays = LOOP.format(condition="", more="go"), {"n": np.array(3)}
    assert "Loop" in ops(optimization.optimize(given(text, SIGNATURE, **arrays)).model)
    unrolled = optimization.optimize(given(text, SIGNATURE, **arrays), ops=lambda *_: True).model
    assert "Loop" not in ops(unrolled) and difference(given(text, SIGNATURE, **arrays), unrolled) < 1e-6


def test_a_loop_within_a_loop_is_written_out_first():
    text = """y = Loop (n, , x) <body = l (int64 i, bool go, float[2,3] s) => (bool more, float[2,3] d)
        { more = Identity(go)
          d = Loop (n, , s) <body = k (int64 j, bool on, float[2,3] t) => (bool on2, float[2,3] u)
                { on2 = Identity(on) u = Add(t, x) }> }>"""
    signature, arrays = "(float[2,3] x) => (float[2,3] y)", {"n": np.array(2)}
    unrolled = optimization.optimize(given(text, signature, **arrays), ops=lambda *_: True).model
    assert ops(unrolled) == ["Add"] * 4 and difference(given(text, signature, **arrays), unrolled) < 1e-6
