"""Messages of models, written without a copy."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import external, message
from tests.builder import from_text


@pytest.fixture
def model():
    weights = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(4, np.float32)}
    return from_text("(float[2,3] x) => (float[2,4] y)", "p = MatMul(x, w) y = Add(p, b)", weights=weights)


def test_it_is_the_message_that_a_copy_has(model):
    assert message.of(model, {}) == ir.serde.serialize_model(model.clone())


def test_another_tensor_stands_in_the_message_and_the_model_keeps_its_own(model):
    value = model.graph.initializers["w"]
    own = value.const_value
    found = message.of(model, {value: external.hollow(own, "w")})
    stored = {tensor.name: tensor for tensor in found.graph.initializer}
    assert stored["w"].external_data[0].value == external.NO_CONTENT.name and stored["b"].raw_data
    assert value.const_value is own


def test_constants_need_not_be_described_twice(model):
    plain, short = (message.of(model, {}, described=said).graph for said in (True, False))
    assert {info.name for info in plain.value_info} - {info.name for info in short.value_info} >= {"w", "b"}
    assert list(plain.initializer) == list(short.initializer) and list(plain.node) == list(short.node)


def test_constants_in_bodies_and_attributes_are_not_within_reach(model):
    assert message.is_flat(model)
    constant = ir.node("Constant", [], {"value": ir.tensor([1.0])}, name="constant")
    model.graph.insert_before(model.graph[0], constant)
    assert not message.is_flat(model)


def _with_everything() -> ir.Model:
    """A model that has all that values, nodes and tensors may have beside names, types and shapes."""
    model = from_text(
        "(float[N,3] x) => (float[N,4] y, float[N,4] z)",
        "p = MatMul(x, w) q = Add(p, b) y, mask = Dropout(q, ratio) r = Relu(q) z = Clip(r, , top)",
        weights={
            "w": np.arange(12, dtype=np.float32).reshape(3, 4),
            "b": np.ones(4, np.float32),
            "ratio": np.array(0.5, np.float32),
            "top": np.array(6, np.float32),
        },
    )
    first, second, third, *_ = model.graph
    first.doc_string, second.metadata_props["from"] = "a product", "here"
    third.outputs[1].name = ""
    values = {value.name: value for node in model.graph for value in node.outputs}
    values["p"].metadata_props["kept"] = "yes"
    values["q"].type, values["q"].shape = ir.TensorType(ir.DataType.FLOAT, denotation="TENSOR"), ir.Shape([None, 4])
    values["r"].type, values["r"].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["N", 4], denotations=["B", None])
    half = ir.Value(name="half", const_value=ir.tensor(np.ones(2, np.float16), name="half", doc_string="unused"))
    narrow = ir.tensor(np.array([1, -2, 3], np.int8), dtype=ir.DataType.INT4, name="narrow")
    for value in (half, ir.Value(name="narrow", const_value=narrow)):
        model.graph.register_initializer(value)
    return model


@pytest.mark.parametrize("annotated", [False, True])
def test_its_bytes_are_those_of_the_library(annotated):
    model = _with_everything()
    if annotated:
        model.graph.initializers["w"].meta[message.ANNOTATION] = {"SCALE_TENSOR": "s"}
    expected, found = ir.serde.serialize_model(model.clone()), message.of(model, {})
    assert bool(expected.graph.quantization_annotation) is annotated
    assert found.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)
