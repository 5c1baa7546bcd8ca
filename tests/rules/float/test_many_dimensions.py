"""Operators over more dimensions than a target takes, written over fewer."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import query
from intact.rules.float import optimization
from intact.rules.float.many_dimensions import ReduceInThree, SplitInThree, TransposeInTurns
from intact.targets.registry import load_target
from intact.targets.validate import validate
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten

MOST = 5
RULES = [TransposeInTurns(MOST), SplitInThree(MOST), ReduceInThree(MOST)]


def written(shape) -> str:
    return f"float[{','.join(map(str, shape))}]"


def inner_dimensions(model: ir.Model) -> int:
    """The most dimensions between the first node and the last."""
    values = [value for node in model.graph for value in node.outputs if not value.is_graph_output()]
    return max(len(query.known_shape(value)) for value in values)


def turned(shape, perm):
    body = f"y = Transpose <perm = {list(perm)}> (x)"
    return body, f"({written(shape)} x) => ({written([shape[axis] for axis in perm])} y)"


@pytest.mark.parametrize(
    ("shape", "perm", "transposes"),
    [
        # The windows of an image: rows and columns of windows first, rows and columns of pixels behind them.
        ((2, 3, 2, 4, 2, 5), (0, 1, 3, 2, 4, 5), 1),
        ((2, 3, 2, 4, 2, 5), (0, 2, 4, 1, 3, 5), 2),
        ((1, 4, 2, 3, 2, 5), (3, 0, 4, 2, 1, 5), 1),
        ((2, 3, 2, 3, 2, 3), (5, 4, 3, 2, 1, 0), 5),
        ((2, 1, 3, 1, 2, 3), (5, 1, 0, 2, 3, 4), 1),
        ((2, 2, 3, 2, 2, 3, 2), (6, 0, 2, 1, 4, 3, 5), None),
    ],
)
def test_a_transpose_of_many_dimensions_is_one_of_few_or_several(shape, perm, transposes):
    body, signature = turned(shape, perm)
    result = rewritten(RULES, body, signature)
    found = [node for node in result.model.graph if node.op_type == "Transpose"]
    assert all(len(node.attributes["perm"].as_ints()) <= MOST for node in found)
    assert transposes is None or len(found) == transposes
    assert difference(given(body, signature), result.model) == 0


def test_every_order_of_six_axes_keeps_the_numbers():
    for perm in list(itertools.permutations(range(6)))[::7]:
        body, signature = turned((2, 3, 2, 1, 2, 3), perm)
        result = rewritten(RULES, body, signature)
        assert result.applications and difference(given(body, signature), result.model) == 0, perm


@pytest.mark.parametrize(
    ("body", "shapes"),
    [
        ("a, b, c = Split <axis = 0, num_outputs = 3> (x)", ["1,2,2,3,4,5"] * 3),
        ("a, b, c = Split <axis = -2> (x, sizes)", ["3,2,2,3,1,5", "3,2,2,3,1,5", "3,2,2,3,2,5"]),
    ],
)
def test_a_split_joins_what_it_leaves_alone(body, shapes):
    outputs = ", ".join(f"float[{shape}] {name}" for name, shape in zip("abc", shapes, strict=True))
    signature = f"(float[3,2,2,3,4,5] x) => ({outputs})"
    arrays = {"sizes": np.int64([1, 1, 2])} if "sizes" in body else {}
    result = rewritten(RULES, body, signature, **arrays)
    (split,) = [node for node in result.model.graph if node.op_type == "Split"]
    assert query.int_(split, "axis", 0) == 1 and query.known_constant(split.inputs[0].producer().inputs[1]).size == 3
    assert difference(given(body, signature, **arrays), result.model) == 0


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin", "ReduceMean", "ReduceSum"])
@pytest.mark.parametrize(
    ("axes", "keepdims", "shape"), [([2], 0, "2,2,3,4,5"), ([-1, 4], 1, "2,2,3,3,1,1"), ([0, 1], 0, "3,3,4,5")]
)
def test_a_reduction_joins_the_axes_that_go_and_those_that_stay(op, axes, keepdims, shape):
    body, arrays = f"y = {op} <keepdims = {keepdims}> (x, axes)", {"axes": np.int64(axes)}
    signature = f"(float[2,2,3,3,4,5] x) => (float[{shape}] y)"
    result = rewritten(RULES, body, signature, **arrays)
    assert ops(result.model) == ["Reshape", op, "Reshape"]
    assert difference(given(body, signature, **arrays), result.model) < 1e-6


@pytest.mark.parametrize(
    ("body", "signature", "arrays", "reason"),
    [
        (*turned((2, 3, 2, 4, 2), (0, 3, 1, 2, 4)), {}, "5 dimensions are not more than 5"),
        ("y = ReduceMax(x, axes)", "(float[2,2,3,3,4,5] x) => (float y)", {"axes": np.int64([1, 3])}, "axes [1, 3] do"),
        ("y = ReduceSum(x, axes)", "(float[2,2,3,3,4,5] x) => (float y)", {"axes": np.int64([])}, "axes [] do"),
        ("y = Transpose <perm = [1,0,2,3,4,5]> (x)", "(float[n,2,3,3,4,5] x) => (float y)", {}, "a shape is unknown"),
    ],
)
def test_it_refuses_with_a_reason(body, signature, arrays, reason):
    result = rewritten(RULES, body, signature, **arrays)
    assert result.applications == () and reason in result.refusals[0].reason


def test_windows_of_an_image_reach_a_device_that_takes_five_dimensions():
    body = """
        a = Reshape(x, cut)
        b = Transpose <perm = [0,2,4,1,3,5]> (a)
        c = Reshape(b, flat)
        d = Reshape(c, heads)
        e = Transpose <perm = [3,0,4,2,1,5]> (d)
        q, k, v = Split <axis = 0, num_outputs = 3> (e)
        y = Add(q, k)
        z = ReduceMax(v, axis)"""
    arrays = {"cut": [4, 4, 2, 4, 2, 12], "flat": [4, 64, 12], "heads": [4, 16, 4, 3, 2, 2], "axis": [2]}
    signature = "(float[4,8,8,12] x) => (float y, float z)"
    before = given(body, signature, **{name: np.int64(array) for name, array in arrays.items()})
    target = load_target("qnn")
    assert target.most_dimensions == MOST
    asked = optimization.rules_of(target, in_integers=True)
    after = optimization.optimize(before, ops=target.has, asked=asked).model
    moves = [node for node in after.graph if node.op_type in ("Transpose", "Split", "ReduceMax")]
    assert {len(query.known_shape(node.inputs[0])) for node in moves} <= set(range(MOST + 1))
    assert difference(before, after) == 0


def test_a_device_without_such_a_limit_asks_for_none_of_it():
    assert load_target("cpu").most_dimensions is None


@pytest.mark.parametrize(
    ("op", "shape", "refused"),
    [
        ("Relu", (2, 2, 2, 2, 2), False),
        ("Relu", (1, 2, 2, 2, 2, 2), True),
        ("Relu", (2, 2, 2, 2, 2, 2), True),
        ("Transpose <perm = [0,2,1,3,4,5]>", (1, 2, 2, 2, 2, 2), False),
        ("Transpose <perm = [0,2,1,3,4,5]>", (2, 2, 2, 2, 2, 2), True),
        ("Transpose <perm = [1,0,2,3,4,5]>", (1, 2, 2, 2, 2, 2), True),
    ],
)
def test_the_table_refuses_one_dimension_too_many(op, shape, refused):
    body = f"""q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) r = {op} (d)
        p = QuantizeLinear(r, s, z) y = DequantizeLinear(p, s, z)"""
    model = given(body, f"({written(shape)} x) => (float y)", s=np.float32(0.1), z=np.uint8(3))
    found = validate(model, load_target("qnn"), strict=False)
    assert [violation.code for violation in found] == (["T109"] if refused else [])
    assert not refused or "has 6 dimensions" in found[0].found
