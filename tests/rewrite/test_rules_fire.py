"""Every rule fires: on models of the zoo as quantizers write them, or on a model of its own where none writes that.

`tests/rewrite/cases` has the models of the second kind, and `test_harness.py` proves what the rules do to them.
"""

from __future__ import annotations

import pytest

from intact import rewrite
from intact.rewrite import RULES, exactness
from intact.targets.registry import load_target
from intact.vendor import cpu
from tests.rewrite.test_matrix import MATRIX, Kind, quantized, rows

CPU, NPU = load_target("cpu", vnni=True), load_target("qnn")
TO_QDQ, TO_QLINEAR = rewrite.conversion("qdq"), rewrite.conversion("qlinear")

# Each model with the targets that it is rewritten for, one after the other.
WAYS = [
    (Kind("vit", "ort-qoperator", "int8", "int8", True), (TO_QDQ, CPU)),
    (Kind("depthwise_cnn", "intact", "uint8", "uint8", True), (CPU, TO_QDQ, TO_QLINEAR)),
    (Kind("bert", "ort-qoperator", "int8", "int8", True), (CPU,)),
    (Kind("vit", "intact", "uint8", "int8", True), (CPU, TO_QDQ, TO_QLINEAR)),
    (Kind("residual_cnn", "ort-qoperator", "uint8", "uint8", True), (NPU,)),
]

# Why no model of the matrix has what these rules look for.
NOT_IN_THE_MATRIX = {
    "both quantizers give a tensor one grid, so that none follows another": (
        "skip_requantize",
        "merge_requantize",
        "fold_requantize",
    ),
    "both quantizers fold constants of this kind into weights before they quantize": (
        "fold_arithmetic_into_conv",
        "fold_norm_into_conv",
        "fold_scale_into_quantize",
        "fold_gemm_factors",
        "fold_gemm_transpose",
        "transpose_weight",
    ),
    "where a quantizer leaves them, ranges were calibrated: no grid covers what a convolution could reach": (
        "fold_arithmetic",
        "fold_norm",
        "fold_qlinear_add",
        "fold_qlinear_mul",
    ),
    "no model adds a constant next to Q or DQ": (
        "fold_shift_into_dequantize",
        "fold_shift_into_quantize",
        "sub_to_add",
    ),
    "no model has the operator": (
        "pad_integers",
        "quantize_before_pad",
        "split_integers_in_two",
        "split_integers_in_three",
        "split_integers_in_four",
        "leaky_relu_to_qlinear",
        "leaky_relu_to_qdq",
        "average_pool_to_qlinear",
        "average_pool_to_qdq",
        "where_to_qlinear",
        "where_to_qdq",
        "reduce_mean_to_qdq",
        "interpolate_to_qdq",
    ),
    "a grid that ends where Relu or Clip does absorbs it: calibration finds such grids": (
        "relu_to_integer_clip",
        "clip_to_integer_clip",
        "clip_to_qdq",
    ),
    "parts of a Concat have grids of their own": ("concat_integers", "concat_integers_to_qdq", "unsign_concat"),
    "both quantizers write Q and DQ on either side of an operator that moves values": ("unsign_before_move",),
    "products of the zoo are Gemm, or MatMul with what is added in float": (
        "qlinear_matmul_to_qgemm",
        "matmul_add_to_qgemm",
        "mat_mul_to_fully_connected",
    ),
    "no table asks for it: both kernels exist wherever one does": ("qlinear_matmul_to_integer",),
    "both quantizers give the channels of a convolution one zero point, and columns of a matrix nine bits": (
        "absorb_zero_points",
        "absorb_dequantized",
        "conv_through_float",
        "conv_integer_through_float",
        "depthwise_to_qlinear",
        "duplicate_conv_input",
        "duplicate_mat_mul_input",
    ),
}
ELSEWHERE = {name for names in NOT_IN_THE_MATRIX.values() for name in names}


def fired(kind, ways, folder) -> set[str]:
    """The rules that fire on the way, after each keeps its claim and the runtime takes every result."""
    model, names = quantized(kind, folder), set()
    for target in ways:
        for near in (True, False):
            done = rewrite.rewrite(model, target, near=near)
            exactness.validate(model, done, rewrite.rules_for(target, near=near), rows(kind)[:1])
            cpu.Session(done.model, optimize=True).run(rows(kind)[0])
            names |= {item.rule for item in done.applications}
        model = done.model
    return names


def test_every_rule_fires_on_a_model_of_the_zoo_or_could_not(tmp_path):
    found = set()
    for index, (kind, ways) in enumerate(WAYS):
        folder = tmp_path / str(index)
        folder.mkdir()
        found |= fired(kind, ways, folder)
    assert found == {rule.name for rule in RULES} - ELSEWHERE


def test_no_reason_is_given_for_a_rule_that_is_not_there():
    assert {rule.name for rule in RULES} >= ELSEWHERE


@pytest.mark.slow
@pytest.mark.parametrize("kind", MATRIX, ids=str)
def test_the_reasons_hold_for_every_model(kind, tmp_path):
    model, names = quantized(kind, tmp_path), set()
    for ways in ((CPU,), (NPU,), (TO_QDQ, CPU), (CPU, TO_QDQ, TO_QLINEAR), (TO_QDQ, TO_QLINEAR, TO_QDQ)):
        given = model
        for target in ways:
            done = rewrite.rewrite(given, target)
            names |= {item.rule for item in done.applications}
            given = done.model
    assert not names & ELSEWHERE
