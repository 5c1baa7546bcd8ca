"""A model in an older opset."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from intact.errors import ModelError
from intact.model.lowering import lowered
from tests.builder import from_text

SIGNATURE = "(float[1, 4] x) => (float[1, 4] y)"


def net(body, opset=21, constants=""):
    return from_text(SIGNATURE, body, opset=opset, constants=constants)


def test_a_model_whose_operators_the_older_opset_has_is_valid_in_it():
    given = net("y = Relu (x)")
    found = lowered(given, 19)
    assert (found.opset_imports[""], given.opset_imports[""]) == (19, 21)
    onnx.checker.check_model(ir.to_proto(found), full_check=True)


def test_a_model_in_an_opset_that_is_old_enough_stays_in_it():
    assert lowered(net("y = Relu (x)", opset=17), 19).opset_imports[""] == 17


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("y = Gelu (x)", r"y \(Gelu\)"),
        ("q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)", r"q \(QuantizeLinear\)"),
    ],
)
def test_an_operator_or_type_that_the_older_opset_lacks_is_named(body, found):
    with pytest.raises(ModelError, match=found):
        lowered(net(body, constants="float s = {0.1}, int16 z = {0}"), 19)
