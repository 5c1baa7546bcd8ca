"""Operators of decoders that ONNX Runtime fuses are taken apart, with the numbers of its own kernels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.matching.rewriter import apply
from intact.rules.discovery import rules_of
from intact.rules.float import fused_decoder
from intact.runtime import ort_cpu
from tests.builder import contrib_model
from tests.model.small import ops

RULES = rules_of(fused_decoder)
RNG = np.random.default_rng(0)
ROWS, PAST, WIDTH = 5, 3, 16


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


ANGLES = np.outer(np.arange(16), 0.5 ** np.arange(8))
WEIGHTS = {
    "g8": 1 + 0.1 * floats(8),
    "v8": floats(8),
    "cosines": np.cos(ANGLES).astype(np.float32),
    "sines": np.sin(ANGLES).astype(np.float32),
    "start": np.array([2]),
    "prompt": np.array([ROWS - 1], np.int32),
    "prompt_total": np.array(ROWS, np.int32),
    "behind": np.array([PAST + ROWS - 1], np.int32),
    "behind_total": np.array(PAST + ROWS, np.int32),
    "key_past": floats(1, 2, PAST, WIDTH),
    "value_past": floats(1, 2, PAST, WIDTH),
}
X = "(float[1,5,8] x"
HEADS = "(float[1,5,32] x"
GROUP = "com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2"
QKV = "(float[1,5,64] q, float[1,5,32] k, float[1,5,32] v"
ROTATION = "y = com.microsoft.RotaryEmbedding(x, p, cosines, sines)"
SUMS = "s = ReduceSum(p) t = ReduceSum(r) u = Add(s, t) y = Add(a, u)"
CASES = {
    "norm": (X, "y = SimplifiedLayerNormalization <epsilon = 0.1> (x, g8)"),
    "norm of a sum": (X, "y = com.microsoft.SkipSimplifiedLayerNormalization(x, x, g8)"),
    "norm and sum": (
        X,
        'n, "", "", s = com.microsoft.SkipSimplifiedLayerNormalization(x, x, g8, v8) y = Mul(n, s)',
    ),
    "rotation": (HEADS + ", int64[1,5] p", ROTATION),
    "rotation from a start": (HEADS, "y = com.microsoft.RotaryEmbedding(x, start, cosines, sines)"),
    "rotation of heads": (
        "(float[2,3,5,16] x, int64[2,5] p",
        ROTATION,
    ),
    "groups": (QKV, f'y = {GROUP}> (q, k, v, "", "", prompt, prompt_total)'),
    "groups with a scale": (QKV, f'y = {GROUP}, scale = 0.2> (q, k, v, "", "", prompt, prompt_total)'),
    "groups in one": ("(float[1,5,128] q", f'y = {GROUP}> (q, "", "", "", "", prompt, prompt_total)'),
    "groups that rotate": (
        QKV,
        f'a, p, r = {GROUP}, do_rotary = 1> (q, k, v, "", "", prompt, prompt_total, cosines, sines) {SUMS}',
    ),
    "groups behind a past": (
        QKV,
        f"a, p, r = {GROUP}, do_rotary = 1> "
        f"(q, k, v, key_past, value_past, behind, behind_total, cosines, sines) {SUMS}",
    ),
}


def given(signature: str, body: str) -> ir.Model:
    return contrib_model(signature, body, WEIGHTS)


def feeds(model: ir.Model) -> dict[str, np.ndarray]:
    shapes = {value.name: tuple(value.shape.numpy()) for value in model.graph.inputs}
    places = {
        name: RNG.permutation(16)[: np.prod(shape)].reshape(shape) for name, shape in shapes.items() if name == "p"
    }
    return {name: floats(*shape) for name, shape in shapes.items()} | places


@pytest.mark.parametrize("name", CASES)
def test_a_fused_operator_is_taken_apart_and_computes_the_same(name):
    before = given(*CASES[name])
    after = apply(given(*CASES[name]), RULES)
    assert len(after.applications) == 1
    assert not {"SimplifiedLayerNormalization", "GroupQueryAttention", "RotaryEmbedding"} & set(ops(after.model))
    row = feeds(before)
    expected, found = ort_cpu.run(before, row)["y"], ort_cpu.run(after.model, row)["y"]
    np.testing.assert_allclose(found, expected, atol=5e-6, rtol=1e-5)


def test_padding_behind_a_prompt_changes_nothing_that_counts():
    """Three of five rows count: they see what is before them, however long the others say that they are."""
    body = f'y = {GROUP}> (q, k, v, "", "", n, prompt_total)'
    before, after = given(f"{QKV}, int32[1] n", body), apply(given(f"{QKV}, int32[1] n", body), RULES)
    assert len(after.applications) == 1
    row = {name: array for name, array in feeds(before).items() if name != "n"}
    expected = ort_cpu.run(before, {**row, "n": np.array([2], np.int32)})["y"]
    found = ort_cpu.run(after.model, {**row, "n": np.array([2], np.int32)})["y"]
    np.testing.assert_allclose(found[:, :3], expected[:, :3], atol=5e-6)


@pytest.mark.parametrize(
    ("signature", "body", "reason"),
    [
        (
            f"{QKV}, int32[1] n",
            f"y = {GROUP}> (q, k, v, key_past, value_past, n, behind_total)",
            "the lengths of its past are not constants, or differ from the past that it has",
        ),
        (
            QKV,
            f'y = {GROUP}, softcap = 2.0> (q, k, v, "", "", prompt, prompt_total)',
            "it has a bias, a window, a cap, or rotates neighbours",
        ),
        (
            QKV,
            f'y = {GROUP}, local_window_size = 2> (q, k, v, "", "", prompt, prompt_total)',
            "it has a bias, a window, a cap, or rotates neighbours",
        ),
        (
            HEADS + ", int64[1,5] p",
            "y = com.microsoft.RotaryEmbedding <interleaved = 1> (x, p, cosines, sines)",
            "it rotates neighbours, a part of each head, or packed batches",
        ),
        (
            HEADS + ", int64[1] p",
            ROTATION,
            "its first position is computed",
        ),
        ("(float[N,5,8] x, int64[1,5] p", ROTATION, "the shapes of what it reads are not known"),
        (X, "n, d = SimplifiedLayerNormalization(x, g8) y = Add(n, d)", "its mean or deviation is used"),
    ],
)
def test_others_stay_whole_and_say_why(signature, body, reason):
    done = apply(given(signature, body), RULES)
    assert not done.applications
    assert {item.reason for item in done.refusals} == {reason}
