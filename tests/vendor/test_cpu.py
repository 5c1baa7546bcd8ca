"""ORT sessions in this process."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from intact.errors import ModelError
from intact.vendor import cpu

X = np.array([[-1, 2, 3]], np.float32)
W = np.array([10, 20, 30], np.float32)


def model(op="Relu"):
    nodes = [helper.make_node(op, ["x"], ["a"], name="first"), helper.make_node("Add", ["a", "w"], ["y"], name="last")]
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3])
    graph = helper.make_graph(nodes, "g", [value("x")], [value("y")], [numpy_helper.from_array(W, "w")])
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def saved(folder):
    ir.save(model(), folder / "m.onnx", external_data="m.data", size_threshold_bytes=0)
    return folder / "m.onnx"


@pytest.mark.parametrize("optimize", [False, True])
def test_a_model_runs_on_named_inputs_and_gives_named_outputs(optimize):
    outputs = cpu.run(model(), {"x": X}, optimize=optimize)
    assert list(outputs) == ["y"]
    np.testing.assert_array_equal(outputs["y"], np.maximum(X, 0) + W)


def test_any_tensor_can_be_an_output_and_the_model_stays_as_it_was():
    given = model()
    outputs = cpu.run(given, {"x": X}, outputs=["y", "a", "w"])
    assert list(outputs) == ["y", "a", "w"]
    np.testing.assert_array_equal(outputs["a"], np.maximum(X, 0))
    np.testing.assert_array_equal(outputs["w"], W)
    assert [value.name for value in given.graph.outputs] == ["y"]


def test_only_the_tensors_that_were_asked_for_come_back():
    assert list(cpu.run(model(), {"x": X}, outputs=["a"])) == ["a"]


@pytest.mark.parametrize("form", ["path", "model with weights outside", "too large for one message"])
def test_every_form_of_a_model_gives_the_same_numbers(form, tmp_path, monkeypatch):
    path = saved(tmp_path)
    if form == "too large for one message":
        monkeypatch.setattr(cpu, "_LARGEST_IN_MEMORY", 0)
    session = cpu.Session(path if form == "path" else ir.load(path), threads=1)
    np.testing.assert_array_equal(session.run({"x": X})["y"], np.maximum(X, 0) + W)
    np.testing.assert_array_equal(cpu.Session(path, outputs=["a"]).run({"x": X})["a"], np.maximum(X, 0))


def test_a_session_knows_its_inputs_and_outputs():
    session = cpu.Session(model())
    assert session.inputs == (cpu.Port("x", "tensor(float)", ("N", 3)),)
    assert session.outputs == (cpu.Port("y", "tensor(float)", ("N", 3)),)


@pytest.mark.parametrize(
    ("act", "code", "words"),
    [
        (lambda: cpu.Session(model("Relou")), "M130", "ORT refuses the model: This is an invalid model"),
        (lambda: cpu.run(model(), {"x": X.astype(np.int64)}), "M131", "expected: (tensor(float))"),
        (lambda: cpu.run(model(), {}), "M131", "['x']"),
    ],
)
def test_what_ort_refuses_is_an_error_of_ours_and_nothing_is_printed(act, code, words, capfd):
    with pytest.raises(ModelError) as caught:
        act()
    assert (caught.value.code, caught.value.status) == (code, 3)
    assert words in str(caught.value)
    assert capfd.readouterr() == ("", "")
