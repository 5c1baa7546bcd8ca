"""Inferring types and shapes: what onnx cannot infer stays unknown."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from intact.model import shapes

TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[2,3] x) => (y) { a = Relu(x) y = Transpose(a) }'


def test_every_shape_that_follows_is_written_down() -> None:
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    shapes.infer_shapes(model)
    assert [node.outputs[0].shape for node in model.graph] == [ir.Shape([2, 3]), ir.Shape([3, 2])]


@pytest.mark.parametrize("problem", [onnx.shape_inference.InferenceError, RuntimeError, ValueError, IndexError])
def test_a_model_that_onnx_stumbles_over_stays_as_it_is(monkeypatch, problem: type[Exception]) -> None:
    def stumble(*_: object, **__: object) -> None:
        raise problem("no")

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", stumble)
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    shapes.infer_shapes(model)
    assert [node.outputs[0].shape for node in model.graph] == [None, None]


def test_nothing_is_inferred_where_all_is_known_and_everything_where_one_value_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    shapes.infer_shapes(model)
    value = model.graph.node(0).outputs[0]
    inferred = onnx.shape_inference.infer_shapes
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", lambda *_, **__: pytest.fail("it was inferred"))
    shapes.infer_shapes(model)
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", inferred)
    for unknown in (None, ir.Shape(["N", 3])):
        value.shape = unknown
        shapes.infer_shapes(model)
        assert value.shape == (2, 3)
