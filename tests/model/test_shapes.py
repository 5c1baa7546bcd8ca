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


def test_what_an_output_declares_is_not_believed_where_all_else_is_known() -> None:
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    shapes.infer_shapes(model)
    again = ir.from_proto(ir.to_proto(model))
    again.graph.outputs[0].shape = ir.Shape([2, 2])
    shapes.infer_shapes(again)
    assert again.graph.outputs[0].shape == (3, 2)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [("[2,2]", [3, 2]), ("[6]", [3, 2]), ("[a,b]", [3, 2]), ("", [3, 2]), ("[3,2]", [3, 2])],
)
def test_an_output_has_the_shape_that_its_operators_give_whatever_it_declares(declared, expected) -> None:
    model = ir.from_proto(onnx.parser.parse_model(TEXT.replace("(y)", f"(float{declared} y)")))
    model.graph.outputs[0].shape = model.graph.outputs[0].shape if declared else None
    shapes.infer_shapes(model)
    assert model.graph.outputs[0].shape == ir.Shape(expected)


@pytest.mark.parametrize(("declared", "expected"), [("[2,5]", [2, 5]), ("[n,5]", ["n", 5])])
def test_a_declared_size_stays_where_none_follows(declared, expected) -> None:
    body = f"(float[k,p] x) => (float{declared} y) {{ y = Relu(x) }}"
    model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {body}'))
    shapes.infer_shapes(model)
    assert model.graph.outputs[0].shape == ir.Shape(expected)


def test_where_little_is_unknown_only_that_is_inferred(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = " ".join(f"a{n + 1} = Relu(a{n})" for n in range(30))
    text = f'<ir_version: 10, opset_import: ["": 21]> g (float[2,3] a0) => (float[2,3] y) {{ {steps} y = Neg(a30) }}'
    model = ir.from_proto(onnx.parser.parse_model(text))
    shapes.infer_shapes(model)
    lost = model.graph.node(7).outputs[0]
    lost.type, lost.shape = None, None
    sizes: list[int] = []
    inferred = onnx.shape_inference.infer_shapes

    def counted(proto: onnx.ModelProto, **others: bool) -> onnx.ModelProto:
        sizes.append(len(proto.graph.node))
        return inferred(proto, **others)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", counted)
    shapes.infer_shapes(model)
    assert sizes == [1] and (lost.dtype, lost.shape) == (ir.DataType.FLOAT, ir.Shape([2, 3]))


def test_what_a_part_does_not_tell_is_inferred_from_the_whole() -> None:
    steps = " ".join(f"a{n + 1} = Relu(a{n})" for n in range(30))
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[2,3] a0) => (float[6,1] y)
    <int64[2] one_six = {{6, 1}}> {{ {steps} s = Neg(one_six) t = Neg(s) b = Reshape(a30, t) y = Neg(b) }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    shapes.infer_shapes(model)
    expected = [(node.outputs[0].dtype, node.outputs[0].shape) for node in model.graph]
    lost = model.graph.node(32).outputs[0]
    lost.type, lost.shape = None, None
    shapes.infer_shapes(model)
    assert [(node.outputs[0].dtype, node.outputs[0].shape) for node in model.graph] == expected
