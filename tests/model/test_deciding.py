"""Nodes that decide a branch, a count or a shape: scalars and vectors on the way to it, and nothing of the network."""

from __future__ import annotations

import numpy as np
import pytest

from intact.data import demands
from intact.model.deciding import SLOTS, deciding
from tests.quantization.models import model

LOOP = """v, y = Loop(n, c, a) <body = b (int64 i, bool on, float s) => (bool again, float next, float out)
            { next = Add(s, d)  again = Less(next, e)  out = Neg(s) }>"""
CASES = {
    "the count of a loop": (
        "float a, float d, float e, bool c",
        f"m = Div(e, d)  r = Ceil(m)  n = Cast<to=7>(r)  q = Exp(d)  {LOOP}  z = Mul(y, q)",
        {"m", "r", "n", "next", "again"},
    ),
    "a shape": ("float[2] a", "s = Mul(a, a)  t = Cast<to=7>(s)  z = ConstantOfShape(t)", {"s", "t"}),
    "a branch": (
        "float a, float[2,2] x",
        """t = Abs(a)  b = Greater(t, k)
           z = If(b) <then_branch = p () => (float[2,2] u) { u = Exp(x) },
                      else_branch = q () => (float[2,2] g) { g = Neg(x) }>""",
        {"t", "b"},
    ),
    "a count that another branch gives": (
        "float a, bool c",
        """n = If(c) <then_branch = p () => (float u) { u = Exp(a) },
                      else_branch = q () => (float g) { g = Neg(a) }>
           z = Range(k, n, k)""",
        {"u", "g"},
    ),
    "no more than the edge of the network": (
        "float[2,2] x",
        "h = Exp(x)  f = ReduceMax<keepdims=0>(h)  b = Greater(f, k)  t = Cast<to=7>(b)  z = Range(o, t, o)",
        {"b", "t"},
    ),
    "a product with weights is the network": (
        "float[2] x",
        "h = MatMul(x, w)  f = ReduceMax<keepdims=0>(h)  z = Range(k, f, k)",
        {"f"},
    ),
    "the size of a tensor is none of its values": (
        "float[2] x",
        "h = Exp(x)  f = Shape(h)  z = ConstantOfShape(f)",
        set(),
    ),
    "the operator of another domain": (
        "float[2] a, float[2] x",
        "s = Exp(a)  z = com.microsoft.BiasGelu(x, s)",
        set(),
    ),
}
CONSTANTS = {"k": np.float32(1), "o": np.array(1), "w": np.eye(2, dtype=np.float32)}


@pytest.mark.parametrize(("inputs", "body", "expected"), CASES.values(), ids=CASES)
def test_what_decides_is_found_and_nothing_else(inputs, body, expected):
    used = {name: array for name, array in CONSTANTS.items() if any(end in body for end in (f"{name},", f"{name})"))}
    found = deciding(model(inputs, "z", body, **used))
    assert {node.outputs[0].name for node in found} == expected


def test_every_slot_for_which_values_are_made_up_decides():
    assert {op: set(slots) for op, slots in demands._DECIDES.items()}.items() <= {
        op: set(slots) for op, slots in SLOTS.items()
    }.items()
