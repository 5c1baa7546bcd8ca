"""A Gemm loses its factors and its transposed input where that cannot show."""

from __future__ import annotations

import numpy as np
import pytest

from intact.matching import rewriter
from intact.rules.discovery import rules_of
from intact.rules.proof import exactness
from intact.rules.quantized import families, gemm
from intact.targets.registry import load_target
from tests.builder import Net
from tests.rules.proof.harness import Case, every_level, fired, integers, prove, refused

U8, I8, F32 = np.uint8, np.int8, np.float32
RNG = np.random.default_rng(0)
WEIGHT = RNG.integers(-40, 40, (12, 10)).astype(I8)
X = F32(0.02), U8(128)
BYTES, TURNED = np.zeros((7, 12), U8), np.zeros((12, 7), U8)
FLOATS = np.arange(10, dtype=F32)


def plain_gemm(*, bias=None, like=BYTES, a_scale=X[0], **attributes):
    net = Net()
    a = net.dequantize("a", a_scale, np.full(np.shape(a_scale), 128, U8), axis=0)
    return net.model({"a": like}, net.op("Gemm", a, net.dequantize(WEIGHT, F32(0.01), I8(0)), bias, **attributes))


DQ2 = ["DequantizeLinear", "DequantizeLinear"]
FIRES = [
    (gemm.FoldGemmFactors, plain_gemm(alpha=0.5), [*DQ2, "Gemm"]),
    (gemm.FoldGemmFactors, plain_gemm(beta=0.5, bias=np.ones(10, F32)), [*DQ2, "DequantizeLinear", "Gemm"]),
    (gemm.FoldGemmTranspose, plain_gemm(like=TURNED, transA=1), [*DQ2, "Gemm", "Transpose"]),
]
REFUSES = [
    (gemm.FoldGemmFactors, plain_gemm(), "alpha and beta are 1 already"),
    (gemm.FoldGemmFactors, plain_gemm(alpha=-1.0), "alpha is -1.0, and a scale has to be positive"),
    (gemm.FoldGemmFactors, plain_gemm(alpha=2.0, bias=np.ones((7, 10), F32)), "not one number for each of 10 channels"),
    (
        gemm.FoldGemmTranspose,
        plain_gemm(like=TURNED, transA=1, a_scale=np.full(12, 0.02, F32)),
        "12 numbers, not one constant scale",
    ),
]


@pytest.mark.parametrize(("rule", "model", "left"), FIRES, ids=lambda item: getattr(item, "__name__", None))
def test_a_gemm_becomes_a_plain_one(rule, model, left):
    assert sorted(fired(rule(), model)) == sorted(left)


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES, ids=lambda item: getattr(item, "__name__", None))
def test_a_gemm_that_would_change_stays_and_says_why(rule, model, reason):
    assert reason in refused(rule(), model)


def test_every_rule_is_tested_to_fire_and_to_refuse():
    assert {type(rule) for rule in rules_of(gemm)} == {row[0] for row in FIRES} == {row[0] for row in REFUSES}


@pytest.mark.parametrize("target", [load_target("cpu", vnni=True), load_target("qnn")], ids=["cpu", "qnn"])
@pytest.mark.parametrize("levels", [3, 128])
def test_a_bias_that_moves_by_half_a_step_of_the_sums_keeps_the_claim_however_small_the_sums_are(target, levels):
    net = Net()
    a, weight = net.dequantize("a", *X), net.dequantize(WEIGHT[:2], F32(0.01), I8(0))
    model = net.model({"a": BYTES[:, :2]}, net.op("Gemm", a, weight, FLOATS * F32(1e-4), alpha=2.0, beta=0.5))
    rules, rows = (
        families.rules_for(target),
        [{"a": integers(RNG, I8, (7, 2)).clip(-levels, min(levels, 127)).astype(U8) + U8(128)}],
    )
    done = rewriter.apply(model.clone(), rules)
    assert "fold_gemm_factors" in {item.rule for item in done.applications}
    assert exactness.validate(model, done, rules, rows).checked


def test_a_transposed_operand_keeps_its_grid():
    net, x = Net(), every_level(np.uint8, (16, 16))
    weight = net.dequantize(np.eye(16, dtype=np.int8), 0.5, np.int8(0))
    net.op("Gemm", net.dequantize("x", 0.25, np.uint8(7)), weight, transA=1)
    assert prove(gemm.FoldGemmTranspose(), Case("grid", net.model({"x": x}, "t2"), [{"x": x}], step=1e-6)) > 0
