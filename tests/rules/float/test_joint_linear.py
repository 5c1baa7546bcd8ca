"""Linear layers whose columns are parts that go separate ways, for targets that multiply matrices only."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import normalize, upgrade
from intact.pipeline.preparation import optimize_for
from intact.rules.float.joint_linear import PartJointLinear
from intact.settings.config import QuantConfig
from intact.targets.registry import known_backends, load_target
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten
from tests.zoo.transformer import vit

RULES = [PartJointLinear()]
SIGNATURE = "(float[6, 8] x) => (float[2, 2, 3, 4] q, float[2, 2, 3, 4] k, float[2, 2, 3, 4] v)"
INTS = "int64[5] s = {2, 3, 3, 2, 4}, int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2}"
ENDS = ", int64[1] e0 = {0}, int64[1] e1 = {1}, int64[1] e2 = {2}, int64[1] e3 = {3}"
TURNED = "r = Reshape(m, s)\n t = Transpose <perm = [2, 0, 3, 1, 4]> (r)\n "
GATHERED = "q = Gather(t, i0)\n k = Gather(t, i1)\n v = Gather(t, i2)"
SLICED = "f = Slice(t, e0, e1, e0)\n g = Slice(t, e1, e2, e0)\n h = Slice(t, e2, e3, e0)\n "
SLICED += "q = Squeeze(f, e0)\n k = Squeeze(g, e0)\n v = Squeeze(h, e0)"
PRODUCT = "m = Gemm(x, w, b)\n "


def drawn(**shapes):
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("taken", [GATHERED, SLICED])
@pytest.mark.parametrize(
    ("product", "arrays"),
    [
        (PRODUCT, drawn(w=(8, 24), b=(24,))),
        (PRODUCT, drawn(w=(8, 24), b=(1, 24))),
        ("m = Gemm(x, w)\n ", drawn(w=(8, 24))),
        ("m = Gemm <transB = 1, alpha = 0.5> (x, w, b)\n ", drawn(w=(24, 8), b=(24,))),
    ],
)
def test_each_part_gets_a_product_of_its_own_and_the_numbers_stay(product, arrays, taken):
    case = product + TURNED + taken, SIGNATURE, INTS + ENDS
    found = rewritten(RULES, *case, **arrays)
    assert ops(found.model).count("Gemm") == 3 and not {"Gather", "Slice"} & set(ops(found.model))
    assert [application.rule for application in found.applications] == ["part_joint_linear"] * 3
    assert difference(given(*case, **arrays), found.model) < 1e-6


@pytest.mark.parametrize(
    ("body", "signature", "reason"),
    [
        (
            PRODUCT + TURNED + "q = Gather(t, i0)\n k = Gather(t, i0)\n v = Gather(t, i2)",
            SIGNATURE,
            "two readers take the same part",
        ),
        (
            PRODUCT + TURNED + "q = Gather(t, i0)\n k = Slice(t, e1, e3, e0)",
            "(float[6, 8] x) => (float[2, 2, 3, 4] q, float[2, 2, 2, 3, 4] k)",
            "a reader takes something else than one part",
        ),
        (
            PRODUCT + "r = Reshape(m, s)\n t = Transpose <perm = [3, 0, 2, 1, 4]> (r)\n q = Gather(t, i0)",
            "(float[6, 8] x) => (float[2, 3, 3, 4] q)",
            "a reader takes something else than one part",
        ),
        (
            PRODUCT + TURNED + "q = Gather(t, i0)\n y = Relu(m)",
            "(float[6, 8] x) => (float[2, 2, 3, 4] q, float[6, 24] y)",
            None,
        ),
    ],
)
def test_products_whose_parts_stay_together_are_refused(body, signature, reason):
    found = rewritten(RULES, body, signature, INTS + ENDS, **drawn(w=(8, 24), b=(24,)))
    assert ops(found.model).count("Gemm") == 1 and not found.applications
    assert reason in [*(refusal.reason for refusal in found.refusals), None]


def test_a_bias_that_is_computed_is_refused():
    signature = "(float[6, 8] x, float[24] b) => (float[2, 2, 3, 4] q)"
    found = rewritten(RULES, PRODUCT + TURNED + "q = Gather(t, i0)", signature, INTS, **drawn(w=(8, 24)))
    assert found.refusals[0].reason == "graph input 'b' is not one constant for each column of constant 'w'"


@pytest.mark.parametrize("device", known_backends())
def test_attention_of_a_vision_transformer_is_parted_where_integers_need_it_alone(device):
    before = normalize.normalize(upgrade.upgrade(ir.from_proto(vit())).model)
    found = optimize_for(before, load_target(device), QuantConfig())
    parted = [item for item in found.applications if item.rule == "part_joint_linear"]
    assert len(parted) == (6 if device == "rknn" else 0)
    assert difference(before, found.model, scale=1.0) < 1e-5
