"""Weights in blocks keep the form that a provider fuses."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.rules.quantized import families
from intact.targets.registry import load_target
from tests.backends.probing.cases import model

BLOCKS = "MatMul (uint16, int4 constant block symmetric) -> uint16"


@pytest.mark.parametrize("zero_point", [0, 3])
def test_the_scales_of_blocks_stay_unsigned_whatever_their_zero_points(zero_point):
    built, node = model(BLOCKS)
    zeros = node.inputs[1].producer().inputs[1].producer().inputs[2]
    zeros.const_value = ir.tensor(np.full(zeros.shape.numpy(), zero_point, np.uint8), name=zeros.name)
    done = families.rewrite(built, load_target("qnn")).model
    product = next(node for node in done.graph if node.op_type == "MatMul")
    scales = product.inputs[1].producer().inputs[1].producer()
    assert scales.inputs[0].dtype == ir.DataType.UINT8
    assert set(scales.inputs[2].const_value.numpy().tolist()) == {zero_point}
