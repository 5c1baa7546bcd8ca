"""Scales of normalizations become uint8, and say why they do not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.matching import rewriter
from intact.rules.quantized.norms import UnsignNormScale
from tests.builder import Net
from tests.rules.proof.harness import fired, refused

LEVELS, ZERO = np.int8([-128, 0, 5, 127]), np.int8(-3)


def norm(levels=LEVELS, scale=0.5, zero=ZERO, x=np.uint8):
    """LayerNormalization(DQ(x), DQ(levels)); a text stands for an input of the model."""
    net = Net()
    real = net.dequantize("x", 0.1, x(0))
    net.op("LayerNormalization", real, net.dequantize(levels, scale, zero, axis=0), axis=-1, _output="y")
    inputs = {"x": np.zeros((1, 4), x), **({levels: LEVELS} if isinstance(levels, str) else {})}
    return net.model(inputs, "y")


def test_the_scale_of_a_normalization_is_the_same_in_uint8():
    assert fired(UnsignNormScale(), norm()) == ["DequantizeLinear", "DequantizeLinear", "LayerNormalization"]
    done = rewriter.apply(norm().clone(), [UnsignNormScale()]).model
    scale = next(node for node in done.graph if node.op_type == "LayerNormalization").inputs[1]
    levels, _, zero = scale.producer().inputs
    assert (levels.dtype, zero.dtype) == (ir.DataType.UINT8, ir.DataType.UINT8)
    assert levels.const_value.numpy().tolist() == [0, 128, 133, 255] and zero.const_value.numpy() == 125


REFUSES = [
    (norm(LEVELS.view(np.uint8), zero=np.uint8(3)), "the scale is uint8, not int8"),
    (norm(x=np.int8), "the activations are int8, not unsigned"),
    (norm("levels"), "the scale is computed, not constant"),
    (norm(scale=np.full(4, 0.5), zero=np.zeros(4, np.int8)), "scale has 4 numbers, not one constant scale"),
]


@pytest.mark.parametrize(("model", "reason"), REFUSES)
def test_a_scale_stays_and_says_why(model, reason):
    assert reason in refused(UnsignNormScale(), model)
