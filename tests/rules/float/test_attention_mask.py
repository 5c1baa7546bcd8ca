"""Masks of every form that exporters write become an indicator times a finite depth."""

from __future__ import annotations

import re

import numpy as np
import pytest

from intact.matching.rewriter import apply
from intact.rules.discovery import rules_of
from intact.rules.float import attention_mask
from intact.rules.float.masks import BIAS, FLOAT_DEPTH, MARK, mask_sites
from intact.rules.float.optimization import optimize
from intact.runtime import ort_cpu
from tests.model.small import ops
from tests.rules.float.before_after import given, rewritten

RULES = rules_of(attention_mask)

LOW = np.float32(np.finfo(np.float32).min)
INF = np.float32(-np.inf)
ZERO, ONE = np.float32(0), np.float32(1)
KEYS = 6
SIGNATURE = f"(float[1,2,4,{KEYS}] s, int64[1,{KEYS}] mask) => (float[1,2,4,{KEYS}] y)"
AXES = np.array([1, 2])
POSITIONS = np.stack([np.zeros(KEYS, np.int64), np.arange(KEYS)], -1).reshape(1, 1, 1, KEYS, 2)
TRUE = np.ones((1, 1, 4, 1), bool)
CAUSAL = np.tri(4, KEYS, 2, dtype=bool)

# The forms in which torch's exporters, new and old, write a mask; each ends in a Softmax.
FORMS = {
    "dynamo": (
        "b = Cast <to = 9> (mask)\n g = GatherND(b, at)\n a = And(yes, g)\n w = Where(a, zero, low)\n t = Add(s, w)",
        {"at": POSITIONS, "yes": TRUE, "zero": ZERO, "low": LOW},
    ),
    "legacy": (
        "b = Cast <to = 9> (mask)\n f = Flatten <axis = 2> (b)\n g = Gather <axis = 0> (f, at)\n"
        " h = Reshape(g, flat)\n r = Reshape(h, shape)\n c = Cast <to = 9> (r)\n a = And(yes, c)\n"
        " e = Expand(a, whole)\n w = Where(e, zero, low)\n t = Add(s, w)",
        {
            "at": np.arange(KEYS).reshape(1, 1, 1, KEYS),
            "flat": np.array([-1]),
            "shape": np.array([1, 1, 1, KEYS]),
            "whole": np.array([1, 1, 4, KEYS]),
            "yes": TRUE,
            "zero": np.float32([0]),
            "low": np.float32([-np.inf]),
        },
    ),
    "masked fill": (
        "u = Unsqueeze(mask, axes)\n e = Equal(u, none)\n t = Where(e, low, s)",
        {"axes": AXES, "none": np.int64(0), "low": np.float32(-1e9)},
    ),
    "masked fill of zeros": (
        "e = Equal(mask, none)\n w = Where(e, low, zeros)\n r = Reshape(w, shape)\n x = Expand(r, heads)\n"
        " t = Add(s, x)",
        {
            "none": np.int64(0),
            "low": INF,
            "zeros": np.zeros((1, KEYS), np.float32),
            "shape": np.array([1, 1, 1, KEYS]),
            "heads": np.array([1, 2, 1, 1]),
        },
    ),
    "scores unless masked": (
        "u = Unsqueeze(mask, axes)\n b = Cast <to = 9> (u)\n t = Where(b, s, low)",
        {"axes": AXES, "low": INF},
    ),
    "negation": (
        "u = Unsqueeze(mask, axes)\n b = Cast <to = 9> (u)\n n = Not(b)\n t = Where(n, low, s)",
        {"axes": AXES, "low": INF},
    ),
    "one minus mask": (
        "u = Unsqueeze(mask, axes)\n c = Cast <to = 1> (u)\n d = Sub(one, c)\n w = Mul(d, low)\n t = Add(w, s)",
        {"axes": AXES, "one": ONE, "low": LOW},
    ),
    "mask minus one": (
        "u = Unsqueeze(mask, axes)\n c = Cast <to = 1> (u)\n d = Sub(c, one)\n w = Mul(d, high)\n t = Add(s, w)",
        {"axes": AXES, "one": ONE, "high": np.float32(1e9)},
    ),
    "inverted mask filled": (
        "u = Unsqueeze(mask, axes)\n c = Cast <to = 1> (u)\n d = Sub(one, c)\n b = Cast <to = 9> (d)\n"
        " w = Where(b, low, d)\n t = Add(s, w)",
        {"axes": AXES, "one": ONE, "low": LOW},
    ),
    "position bias unless masked": (
        "u = Unsqueeze(mask, axes)\n b = Cast <to = 9> (u)\n w = Where(b, bias, low)\n t = Add(s, w)",
        {"axes": AXES, "low": LOW, "bias": np.linspace(-1, 1, 8 * KEYS, dtype=np.float32).reshape(1, 2, 4, KEYS)},
    ),
    "causal and padding": (
        "u = Unsqueeze(mask, axes)\n b = Cast <to = 9> (u)\n a = And(b, causal)\n w = Where(a, zero, low)\n"
        " t = Add(s, w)",
        {"axes": AXES, "causal": CAUSAL, "zero": ZERO, "low": LOW},
    ),
    "either": (
        "u = Unsqueeze(mask, axes)\n b = Cast <to = 9> (u)\n n = Not(b)\n a = Or(n, future)\n t = Where(a, low, s)",
        {"axes": AXES, "future": ~CAUSAL, "low": INF},
    ),
    "product of masks": (
        "u = Unsqueeze(mask, axes)\n m = Mul(u, u)\n b = Cast <to = 9> (m)\n n = Not(b)\n t = Where(n, low, s)",
        {"axes": AXES, "low": LOW},
    ),
    "causal": ("t = Where(causal, s, low)", {"causal": CAUSAL, "low": INF}),
    "constant": ("t = Add(s, k)", {"k": np.where(CAUSAL, ZERO, INF)}),
}
ENDS = {
    "softmax": "\n y = Softmax <axis = -1> (t)",
    "guard": "\n p = Softmax <axis = -1> (t)\n n0 = IsNaN(p)\n y = Where(n0, zero0, p)",
}
BOOLEAN = {"And", "Or", "Not", "Where", "GatherND", "Gather", "Equal", "IsNaN", "Expand"}


def feeds(rows: int = 8):
    rng = np.random.default_rng(0)
    for _ in range(rows):
        mask = rng.integers(0, 2, (1, KEYS))
        mask[0, 0] = 1
        yield {"s": 8 * rng.standard_normal((1, 2, 4, KEYS)).astype(np.float32), "mask": mask}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("form", FORMS)
def test_a_mask_becomes_arithmetic_and_keeps_the_weights(form, end):
    body, arrays = FORMS[form]
    if end == "guard":
        arrays = {**arrays, "zero0": ZERO}
    before = given(body + ENDS[end], SIGNATURE, **arrays)
    after = optimize(before).model
    assert BOOLEAN.isdisjoint(ops(after))
    assert all(np.isfinite(value.const_value.numpy()).all() for value in after.graph.initializers.values())
    (site,) = mask_sites(after)
    assert site.depth == FLOAT_DEPTH
    for row in feeds():
        np.testing.assert_allclose(ort_cpu.run(after, row)["y"], ort_cpu.run(before, row)["y"], rtol=0, atol=1e-6)
    assert optimize(after).applications == ()


def test_a_mask_that_all_layers_share_stays_shared():
    body = """
        b = Cast <to = 9> (mask)
        g = GatherND(b, at)
        a = And(yes, g)
        w = Where(a, zero, low)
        t1 = Add(s, w)
        p1 = Softmax(t1)
        t2 = Add(p1, w)
        y = Softmax(t2)"""
    after = optimize(given(body, SIGNATURE, **FORMS["dynamo"][1])).model
    assert ops(after) == ["Cast", "Reshape", "Sub", "Mul", "Add", "Softmax", "Add", "Softmax"]
    (site,) = mask_sites(after)
    assert site.scores == ("t1", "t2")
    (marked,) = [node for node in after.graph if node.metadata_props.get(MARK) == BIAS]
    assert marked.op_type == "Mul"


@pytest.mark.parametrize(
    ("body", "rule", "reason"),
    [
        ("y = Where(b, s, little)", "fill_unless_live", "constant 'little' is not one number below −1000"),
        ("y = Where(b, s, low)", "fill_unless_live", "the result has other uses than a Softmax"),
        ("t = Where(b, low, s)\n y = Relu(t)", "fill_masked", "the result has other uses than a Softmax"),
        ("w = Mul(c, low)\n y = Add(s, w)", "bound_mask", "the result has other uses than a Softmax"),
        ("w = Mul(s, low)\n y = Softmax(w)", "bound_mask", "the result is not added to scores"),
        ("r = Relu(s)\n w = Mul(r, low)\n y = Softmax(w)", "bound_mask", "Relu 'r' is not known to hold 0 and 1 only"),
        (
            "d = Sub(s, little)\n w = Mul(d, high)\n y = Softmax(w)",
            "bound_mask",
            "Sub 'd' is not known to hold 0 and -1 only",
        ),
        ("w = Mul(s, little)\n y = Softmax(w)", "bound_mask", "the factor is not one number beyond ±1000"),
        ("y = Add(s, k)", "bound_constant_mask", "the result has other uses than a Softmax"),
        ("t = Add(s, few)\n y = Softmax(t)", "bound_constant_mask", "constant 'few' has no element below −1000"),
        (
            "t = Mul(s, k)\n p = Softmax(t)\n n = IsNaN(p)\n y = Where(n, zero, p)",
            "drop_nan_guard",
            "constant 'k' holds −∞, and could make a row −∞ throughout",
        ),
    ],
)
def test_it_refuses_with_a_reason(body, rule, reason):
    arrays = {
        "low": LOW,
        "high": np.float32(1e9),
        "little": np.float32(-9),
        "few": np.full((1, KEYS), np.float32(-9)),
        "k": np.full((1, KEYS), INF),
        "zero": ZERO,
    }
    used = {name: array for name, array in arrays.items() if re.search(rf"\b{name}\b", body)}
    head = "u = Unsqueeze(mask, axes)\n b = Cast <to = 9> (u)\n c = Cast <to = 1> (u)\n"
    result = rewritten(RULES, head + body, SIGNATURE, axes=AXES, **used)
    assert (rule, reason) in {(item.rule, item.reason) for item in result.refusals}


def test_token_ids_are_not_taken_for_a_mask():
    body = "e = Gather(table, mask)\n pads = Equal(mask, none)\n t = Where(pads, low, e)\n y = Softmax(t)"
    arrays = {"table": np.ones(9, np.float32), "none": np.int64(0), "low": LOW}
    signature = f"(int64[1,{KEYS}] mask) => (float[1,{KEYS}] y)"
    result = optimize(given(body, signature, **arrays))
    assert "Equal" in ops(result.model)
    reason = "graph input 'mask' also indexes Gather 'e', so that it is no mask of 0 and 1"
    assert reason in {item.reason for item in result.refusals}


def test_a_guard_against_nan_goes_where_nothing_is_masked():
    body = "p = Softmax(s)\n n = IsNaN(p)\n y = Where(n, zero, p)"
    before = given(body, SIGNATURE, zero=ZERO)
    assert ops(apply(before, RULES).model) == ["Softmax"]
