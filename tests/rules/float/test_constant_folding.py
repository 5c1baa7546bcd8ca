"""What depends on no input is computed once, where that pays."""

from __future__ import annotations

import numpy as np
import pytest

from intact.model import query
from intact.rules.float import constant_folding
from tests.model.small import ops
from tests.rules.float.before_after import difference, given

ONE = "(float[2,3] x) => (float[2,3] y)"


def folded(body: str, signature: str = ONE, declared: str = "", **arrays: np.ndarray):
    result = given(body, signature, declared, **arrays)
    return result, constant_folding.fold(result)


def test_a_chain_of_constants_becomes_one():
    body = "a = Add(c, c)\n b = Exp(a)\n d = Unsqueeze(b, axes)\n y = Mul(x, d)"
    result, count = folded(body, declared="float[3] c = {1, 2, 3}, int64[1] axes = {0}")
    assert (ops(result), count) == (["Mul"], 3)
    assert list(result.graph.initializers) == ["d"]
    assert np.allclose(query.constant(result.graph[0].inputs[1]), np.exp([[2, 4, 6]]), rtol=1e-6)


def test_shapes_that_are_known_are_constants():
    body = """
        s = Shape(x)
        t = Shape <start = 1> (x)
        n = Size(x)
        u = Concat <axis = 0> (t, s)
        r = Reshape(x, flat)
        v = Reshape(r, s)
        m = Cast <to = 1> (n)
        y = Mul(v, m)
        w = Cast <to = 1> (u)"""
    signature = "(float[2,3] x) => (float[2,3] y, float[3] w)"
    before = given(body, signature, "int64[1] flat = {-1}")
    result, _ = folded(body, signature, "int64[1] flat = {-1}")
    assert sorted(ops(result)) == ["Cast", "Mul", "Reshape", "Reshape"]
    assert difference(before, result) == 0


def test_a_shape_with_a_free_dimension_stays():
    result, count = folded("s = Shape(x)\n y = Reshape(x, s)", "(float[N,3] x) => (float[N,3] y)")
    assert (ops(result), count) == (["Shape", "Reshape"], 0)


@pytest.mark.parametrize(
    "body",
    [
        "a = DequantizeLinear(q, s)\n y = Add(x, a)",
        "a = RandomNormal <shape = [2,3]> ()\n y = Add(x, a)",
        "a = Dropout(c)\n y = Add(x, a)",
        "y = Exp(c)",
        "a = com.microsoft.Gelu(c)\n y = Add(x, a)",
        "a = Expand(s, huge)\n b = ReduceSum(a)\n y = Add(x, b)",
    ],
    ids=["a dequantizer", "chance", "dropout", "a graph output", "another domain", "more than memory holds"],
)
def test_what_has_to_stay_stays(body):
    declared = "int8[3] q = {1, 2, 3}, float s = {0.5}, float[3] c = {1, 2, 3}, int64[1] huge = {1000000000000000}"
    signature = ONE if "y = Exp" not in body else "(float[2,3] x) => (float[3] y)"
    assert folded(body, signature, declared)[1] == 0


def test_a_sequence_of_constants_stays():
    body = "s = SequenceConstruct(w, w)  c = ConcatFromSequence <axis = 0> (s)  y = Add(x, c)"
    model, count = folded(body, "(float[4,3] x) => (float[4,3] y)", "float[2,3] w = {1, 1, 1, 1, 1, 1}")
    assert count == 0 and ops(model) == ["SequenceConstruct", "ConcatFromSequence", "Add"]


@pytest.mark.parametrize(("size", "count"), [(512 * 512, 1), (512 * 512 + 1, 0)], ids=["at the limit", "one past it"])
def test_a_constant_that_grows_beyond_a_mebibyte_is_left_to_the_runtime(size, count):
    signature = f"(float[{size}] x) => (float[{size}] y)"
    assert folded("a = Expand(c, s)\n y = Add(x, a)", signature, c=np.float32([2]), s=np.int64([size]))[1] == count


def test_a_large_constant_that_does_not_grow_is_folded():
    weight = np.ones((600, 500), np.float32)
    result, count = folded("t = Transpose(w)\n y = MatMul(x, t)", "(float[1,500] x) => (float[1,600] y)", w=weight)
    assert (ops(result), count) == (["MatMul"], 1)
    assert list(result.graph.initializers) == ["t"]


def test_what_follows_a_large_constant_stays_with_it():
    body = "a = Expand(c, s)\n b = ReduceSum(a)\n y = Mul(x, b)"
    arrays = {"c": np.float32([2]), "s": np.int64([1 << 20])}
    assert folded(body, "(float[4] x) => (float[4] y)", **arrays)[1] == 0


def test_a_size_that_only_the_result_tells_is_judged_all_the_same():
    body = "n = NonZero(k)\n a = Tile(n, many)\n b = ReduceMax(a)\n d = Cast <to = 1> (b)\n y = Mul(x, d)"
    result, count = folded(body, declared="float[4] k = {1, 0, 1, 1}, int64[2] many = {1, 100000}")
    assert (ops(result), count) == (["Tile", "ReduceMax", "Cast", "Mul"], 1)


def test_constants_of_bodies_are_folded_where_they_are():
    body = """
        y = If (c) < then_branch = g1 () => (float[2,3] p) { e = Exp(k)
                         p = Add(x, e) },
                     else_branch = g2 () => (float[2,3] q) { e = Neg(k)
                         q = Add(x, e) } >"""
    result, count = folded(body, "(float[2,3] x, bool c) => (float[2,3] y)", "float k = {1}")
    branches = list(query.bodies(result.graph[0]))
    assert count == 2
    assert [[node.op_type for node in branch] for branch in branches] == [["Add"], ["Add"]]
    values = [query.scalar(branch[0].inputs[1]) for branch in branches]
    assert values == pytest.approx([np.e, -1], rel=1e-6)
