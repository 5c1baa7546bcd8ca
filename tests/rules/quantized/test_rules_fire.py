"""Every rule fires on a network of the zoo, or on one of its variants, as quantizers write it.

`tests/zoo/variants.py` has the networks in the forms of frameworks and people, `kinds.py` the hands of quantizers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from intact.backends import compiling
from intact.matching import rewriter
from intact.rules.proof import exactness
from intact.rules.quantized import families
from intact.rules.quantized.families import RULES, Latitude
from intact.runtime import host_cpu, ort_cpu
from intact.targets.registry import load_target
from tests.rules.quantized.kinds import Kind, quantized, rows, variant
from tests.rules.quantized.test_kinds import EVERY_KIND

CPU, NPU, ROCKCHIP = load_target("cpu", vnni=True), load_target("qnn"), load_target("rknn", soc="rk3588")
TO_QDQ, TO_QLINEAR = families.conversion("qdq"), families.conversion("qlinear")

# What runs on this version runs on every later one, and it has no kernel for zero points that differ by channel.
OLD_CPU = load_target("cpu", vnni=True, ort="1.26")

# One whose kernels for uint8 × int8 add pairs of products in 16 bits.
PLAIN_CPU = load_target("cpu", vnni=False)

# A CPU that multiplies matrices of integers into int32, and has no kernel that scales the product as well.
_BARE = CPU.rewrite.kernels - {
    ("", "QLinearMatMul"),
    ("com.microsoft", "QGemm"),
    ("com.microsoft", "MatMulIntegerToFloat"),
}
BARE_CPU = replace(CPU, rewrite=replace(CPU.rewrite, kernels=_BARE | {("", "MatMulInteger")}))

# Each model with the targets that it is rewritten for, one after the other.
WAYS = [
    (Kind("bert", "ort-qoperator", "int8", "int8", True), (TO_QDQ, CPU)),
    (variant("residual_cnn", "ort-qoperator", "int8", "int8", "symmetric"), (CPU, TO_QDQ, TO_QLINEAR)),
    (variant("residual_cnn", "ort-qdq", "int8", "int8"), (TO_QLINEAR,)),
    (variant("residual_cnn", "ort-qdq", "uint8", "int8", "products"), (CPU, TO_QDQ)),
    (variant("residual_cnn", "ort-qdq", "uint8", "int8", "mixed"), (CPU,)),
    (variant("residual_cnn", "ort-qdq", "uint8", "int8"), (PLAIN_CPU,)),
    (variant("residual_cnn", "intact", "uint8", "int8", "asymmetric"), (OLD_CPU,)),
    (variant("residual_cnn", "ort-qoperator", "uint8", "uint8"), (NPU,)),
    (variant("depthwise_cnn", "ort-qoperator", "uint8", "uint8", "asymmetric"), (TO_QDQ, CPU)),
    (variant("depthwise_cnn", "ort-qoperator", "uint8", "uint8", "reduced"), (BARE_CPU,)),
    (variant("depthwise_cnn", "ort-qoperator", "uint8", "int8", "products"), (CPU,)),
    (variant("depthwise_cnn", "intact", "int8", "int8", "symmetric"), (CPU,)),
    (variant("depthwise_cnn", "intact", "int8", "int8", "symmetric"), (ROCKCHIP,)),
    (variant("depthwise_cnn", "intact", "uint8", "int8", "for-qnn"), (TO_QLINEAR, TO_QDQ)),
    # A symmetric grid does not do the work of a Relu or Clip.
    (variant("depthwise_cnn", "intact", "int8", "int8", "symmetric"), (TO_QDQ, NPU)),
    (variant("depthwise_cnn", "ort-qoperator", "int8", "int8", "symmetric"), (TO_QDQ, NPU)),
    # Nor does one that ONNX Runtime writes in front of a Relu in integer operators.
    (variant("residual_cnn", "ort-qoperator", "int8", "int8", "symmetric"), (TO_QDQ, NPU)),
    (variant("bert", "intact", "uint8", "int8"), (TO_QDQ, NPU)),
    (variant("bert", "intact", "uint8", "int8", "for-qnn"), (CPU,)),
    (variant("bert", "ort-qdq", "uint8", "int8", "pairs"), (CPU,)),
    (variant("bert", "ort-qdq", "uint8", "int8", "pairs"), (NPU,)),
    (variant("bert", "ort-qdq", "uint8", "int8", "products"), (CPU,)),
    (variant("bert", "ort-qoperator", "uint8", "int8", "forced"), (NPU,)),
    (variant("bert", "ort-qoperator", "uint8", "int8", "products"), (TO_QDQ, CPU)),
    (variant("bert", "ort-dynamic", "uint8", "uint8", "asymmetric"), (NPU,)),
    (variant("bert", "ort-dynamic", "uint8", "uint8", "asymmetric"), (CPU,)),
    (variant("vit", "ort-qdq", "int8", "int8"), (CPU,)),
    (variant("vit", "ort-qdq", "uint8", "uint8", "asymmetric"), (CPU,)),
    (variant("vit", "ort-qdq", "uint8", "int8", "forced"), (NPU,)),
    (variant("vit", "ort-qdq", "uint8", "uint8", "reduced"), (NPU,)),
    (variant("vit", "ort-qoperator", "int8", "int8", "forced"), (TO_QDQ,)),
    (variant("vit", "ort-qoperator", "uint8", "uint8", "products"), (CPU,)),
]

# Why neither quantizer writes what these rules look for.
NOT_WRITTEN = {
    "ONNX Runtime has no kernel for a ConvInteger with several zero points, and its quantizer writes none": (
        "conv_integer_through_float",
        "unite_zero_points",
    ),
    "ONNX Runtime has no CPU kernel for QLinearReduceMean, and its quantizer writes none": ("reduce_mean_to_qdq",),
    "ONNX Runtime has no kernel for int8 beside uint8 weights, and its quantizer writes none": ("match_weight_sign",),
    "Quantizers put biases on grids: those that train on grids leave them in float": ("quantize_bias",),
    "Neither gives activations a scale for each channel; NNCF does, in front of depthwise layers": (
        "one_scale_for_channels",
        "fold_factor_into_depthwise",
    ),
}
ELSEWHERE = {name for names in NOT_WRITTEN.values() for name in names}

# It makes the second of two computed operands int8, which no kernel of a processor without VNNI multiplies rightly.
UNPROVEN = {"sign_second_operand"} if host_cpu.adds_pairs_in_16_bits() else set()


def rewritten(model, target, latitude, feeds):
    """The model for a target, after each rule keeps its claim and the runtime takes the result."""
    rules = [rule for rule in families.rules_for(target, latitude) if rule.name not in UNPROVEN]
    done = rewriter.apply(model.clone(), rules)
    exactness.validate(model, done, rules, feeds)
    ort_cpu.Session(done.model, optimize=True).run(feeds[0])
    return done


def fired(kind, ways, folder) -> set[str]:
    """The rules that fire on the way."""
    model, names, feeds = quantized(kind, folder), set(), rows(kind)[:1]
    for target in ways:
        exact = rewritten(model, target, Latitude.BUILD, feeds)
        names |= {item.rule for item in exact.applications}
        if target is NPU:
            names |= {item.rule for item in rewritten(model, target, Latitude.NEAR, feeds).applications}
        model = exact.model
    return names


def test_every_rule_fires_on_a_network_as_a_quantizer_writes_it(tmp_path):
    found = set()
    for index, (kind, ways) in enumerate(WAYS):
        folder = tmp_path / str(index)
        folder.mkdir()
        found |= fired(kind, ways, folder)
    assert found == {rule.name for rule in RULES} - ELSEWHERE - UNPROVEN


def test_no_reason_is_given_for_a_rule_that_is_not_there():
    assert {rule.name for rule in RULES} >= ELSEWHERE


@pytest.mark.qnn
@pytest.mark.parametrize("kind", [kind for kind, ways in WAYS if ways == (NPU,) and kind.is_static], ids=str)
def test_the_npu_takes_the_whole_of_what_fired_for_it(kind, tmp_path: Path):
    assert NPU.soc is not None
    for latitude in (Latitude.NEAR, Latitude.BUILD):
        done = families.rewrite(quantized(kind, tmp_path), NPU, latitude)
        compiled = compiling.compile(done.model, compiling.Device("qnn", 600, NPU.arch, NPU.soc.id), tmp_path)
        assert compiled.placement.npu_nodes and not compiled.placement.cpu_nodes


@pytest.mark.slow
@pytest.mark.parametrize("kind", EVERY_KIND, ids=str)
def test_the_reasons_hold_for_every_model(kind, tmp_path):
    model, names = quantized(kind, tmp_path), set()
    for ways in ((CPU,), (NPU,), (TO_QDQ, CPU), (CPU, TO_QDQ, TO_QLINEAR), (TO_QDQ, TO_QLINEAR, TO_QDQ)):
        given = model
        for target in ways:
            done = families.rewrite(given, target)
            names |= {item.rule for item in done.applications}
            given = done.model
    assert not names & ELSEWHERE
