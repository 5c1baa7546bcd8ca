"""Operators that only move elements merge, or go where they do nothing."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.discovery import rules_of
from intact.rules.float import moves
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten

RULES = rules_of(moves)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


X = "(float[1,4,6] x) => "
CASES = {
    "merge_reshapes": (
        "a = Reshape(x, p)\n y = Flatten <axis = 2> (a)",
        X + "(float[6,4] y)",
        {"p": ints(2, 3, 4)},
        ["Reshape"],
    ),
    "drop_reshape": ("a = Reshape(x, p)\n y = Relu(a)", X + "(float[1,4,6] y)", {"p": ints(1, -1, 6)}, ["Relu"]),
    "drop_reshape of expand": ("a = Expand(x, p)\n y = Relu(a)", X + "(float[1,4,6] y)", {"p": ints(4, 1)}, ["Relu"]),
    "merge_transposes": (
        "a = Transpose <perm = [1,2,0]> (x)\n y = Transpose <perm = [0,2,1]> (a)",
        X + "(float[4,1,6] y)",
        {},
        ["Transpose"],
    ),
    "merge_transposes by default": (
        "a = Transpose(x)\n y = Transpose <perm = [1,2,0]> (a)",
        X + "(float[4,1,6] y)",
        {},
        ["Transpose"],
    ),
    "drop_transpose": ("a = Transpose <perm = [0,1,2]> (x)\n y = Relu(a)", X + "(float[1,4,6] y)", {}, ["Relu"]),
    "merge_reshaped_transpose": (
        "a = Reshape(x, p)\n b = Transpose <perm = [0,2,1]> (a)\n y = Reshape(b, q)",
        "(float[1,3,4,6] x) => (float[1,3,6,4] y)",
        {"p": ints(-1, 4, 6), "q": ints(1, 3, 6, 4)},
        ["Transpose"],
    ),
    "gather_in_order": (
        "y = GatherND(x, p)",
        "(float[1,6] x) => (float[1,1,6] y)",
        {"p": np.stack([np.zeros(6, np.int64), np.arange(6)], -1).reshape(1, 1, 6, 2)},
        ["Reshape"],
    ),
    "gather_in_order along an axis": (
        "y = Gather <axis = 1> (x, p)",
        "(float[2,6] x) => (float[2,1,6] y)",
        {"p": np.arange(6).reshape(1, 6)},
        ["Reshape"],
    ),
    "gather_in_order repeated": (
        "y = GatherND(x, p)",
        "(float[6] x) => (float[3,6] y)",
        {"p": np.broadcast_to(np.arange(6)[None, :, None], (3, 6, 1)).copy()},
        ["Reshape", "Expand"],
    ),
    "drop_cast": ("a = Cast <to = 1> (x)\n y = Relu(a)", X + "(float[1,4,6] y)", {}, ["Relu"]),
    "drop_slice": (
        "a = Slice(x, p, q)\n y = Relu(a)",
        X + "(float[1,4,6] y)",
        {"p": ints(0, 0), "q": ints(9, 9)},
        ["Relu"],
    ),
    "drop_concat": ("a = Concat <axis = 1> (x)\n y = Relu(a)", X + "(float[1,4,6] y)", {}, ["Relu"]),
    "drop_expand": (
        "a = Expand(x, p)\n y = Sub(z, a)",
        "(float[4,1] x, float[2,4,6] z) => (float[2,4,6] y)",
        {"p": ints(2, 4, 1)},
        ["Sub"],
    ),
    "delay_expand": (
        "a = Expand(x, p)\n y = Sub(c, a)",
        "(float[4,1] x) => (float[2,4,3] y)",
        {"p": ints(2, 4, 3), "c": np.float32(5)},
        ["Sub", "Expand"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_fires_and_keeps_the_numbers(case):
    body, signature, arrays, expected = CASES[case]
    result = rewritten(RULES, body, signature, **arrays)
    assert case.split()[0] in {item.rule for item in result.applications}
    assert ops(result.model) == expected
    assert difference(given(body, signature, **arrays), result.model) == 0


@pytest.mark.parametrize(
    ("rule", "body", "signature", "arrays", "reason"),
    [
        (
            "merge_reshapes",
            "a = Unsqueeze(x, p)\n y = Unsqueeze(a, p)",
            "(float[N,4] x) => (float[1,1,N,4] y)",
            {"p": ints(0)},
            "the shape of Unsqueeze 'y' is unknown",
        ),
        (
            "drop_reshape",
            "y = Reshape(x, p)",
            X + "(float[4,6] y)",
            {"p": ints(4, 6)},
            "the shape changes from [1,4,6] to [4,6]",
        ),
        ("drop_transpose", "y = Transpose(x)", X + "(float[6,4,1] y)", {}, "axes change places: [2, 1, 0]"),
        (
            "merge_reshaped_transpose",
            "a = Reshape(x, p)\n b = Transpose <perm = [1,0]> (a)\n y = Reshape(b, q)",
            X + "(float[1,6,4] y)",
            {"p": ints(8, 3), "q": ints(1, 6, 4)},
            "the reshapes do more than to add and remove axes of size 1",
        ),
        (
            "gather_in_order",
            "y = Gather <axis = 1> (x, p)",
            X + "(float[1,2,6] y)",
            {"p": ints(0, 1)},
            "elements change places, or some are left out",
        ),
        (
            "gather_in_order",
            "y = GatherND(x, p)",
            "(float[3] x) => (float[3] y)",
            {"p": ints(2, 1, 0).reshape(3, 1)},
            "elements change places, or some are left out",
        ),
        (
            "gather_in_order",
            "y = GatherND <batch_dims = 1> (x, p)",
            "(float[1,2] x) => (float[1,2] y)",
            {"p": ints(0, 1).reshape(1, 2, 1)},
            "it has batch dimensions",
        ),
        ("drop_cast", "y = Cast <to = 11> (x)", X + "(double[1,4,6] y)", {}, "the type changes from FLOAT"),
        (
            "drop_slice",
            "y = Slice(x, p, q, a, s)",
            X + "(float[1,4,6] y)",
            {"p": ints(-1), "q": ints(-9), "a": ints(2), "s": ints(-1)},
            "it reverses an axis",
        ),
        (
            "drop_concat",
            "y = Concat <axis = 0> (x)",
            X + "(float[1,4,6] y)",
            {},
            "graph output 'y' and graph input 'x' need a name each",
        ),
        (
            "drop_expand",
            "a = Expand(x, p)\n y = Add(z, a)",
            "(float[4,1] x, float[4,6] z) => (float[2,4,6] y)",
            {"p": ints(2, 4, 1)},
            "graph input 'z' does not bring graph input 'x' to the shape [2,4,6]",
        ),
        (
            "delay_expand",
            "a = Expand(x, p)\n y = Add(a, c)",
            "(float[4,1] x) => (float[4,3] y)",
            {"p": ints(4, 3), "c": np.ones((4, 1), np.float32)},
            "constant 'c' is not one number",
        ),
    ],
)
def test_it_refuses_with_a_reason(rule, body, signature, arrays, reason):
    result = rewritten(RULES, body, signature, **arrays)
    assert (rule, reason) in {(item.rule, item.reason) for item in result.refusals}


def test_a_transpose_whose_rank_is_unknown_is_left_alone():
    result = rewritten(RULES, "a = Transpose(x)\n y = Transpose(a)", "(float x) => (float y)")
    assert "the rank is unknown" in {item.reason for item in result.refusals}
