"""ORT sessions in this process."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from intact.errors import ModelError
from intact.model import io
from intact.runtime import ort_cpu
from tests.builder import from_text

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
    outputs = ort_cpu.run(model(), {"x": X}, optimize=optimize)
    assert list(outputs) == ["y"]
    np.testing.assert_array_equal(outputs["y"], np.maximum(X, 0) + W)


def test_any_tensor_can_be_an_output_and_the_model_stays_as_it_was():
    given = model()
    outputs = ort_cpu.run(given, {"x": X}, outputs=["y", "a", "w"])
    assert list(outputs) == ["y", "a", "w"]
    np.testing.assert_array_equal(outputs["a"], np.maximum(X, 0))
    np.testing.assert_array_equal(outputs["w"], W)
    assert [value.name for value in given.graph.outputs] == ["y"]


def test_only_the_tensors_that_were_asked_for_come_back():
    assert list(ort_cpu.run(model(), {"x": X}, outputs=["a"])) == ["a"]


@pytest.mark.parametrize("form", ["path", "model with weights outside"])
def test_every_form_of_a_model_gives_the_same_numbers(form, tmp_path):
    path = saved(tmp_path)
    session = ort_cpu.Session(path if form == "path" else ir.load(path), threads=1)
    np.testing.assert_array_equal(session.run({"x": X})["y"], np.maximum(X, 0) + W)
    np.testing.assert_array_equal(ort_cpu.Session(path, outputs=["a"]).run({"x": X})["a"], np.maximum(X, 0))


# Enough of them that even halves are left out of a message.
COUNT = 8192
LARGE = np.arange(COUNT, dtype=np.float32)


def product(weight, *, users=("w",), dtype=np.float32, is_input=False, in_branch=False):
    """y = x · w, with a weight that is used by name, not at all, from a branch, or as the default of an input."""
    tensor = lambda name: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [COUNT])
    nodes = [helper.make_node("Mul", ["x", user], ["y"]) for user in users] or [helper.make_node("Neg", ["x"], ["y"])]
    if in_branch:
        branch = lambda op: helper.make_graph([helper.make_node(op, ["x", "w"], [op])], op, [], [tensor(op)])
        nodes = [helper.make_node("If", ["yes"], ["y"], then_branch=branch("Mul"), else_branch=branch("Add"))]
    constants = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array(True), "yes")]
    inputs = [tensor("x"), *([tensor("w")] if is_input else [])]
    graph = helper.make_graph(nodes, "g", inputs, [tensor("y")], constants)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (product(LARGE), LARGE * 2),
        (product(LARGE, in_branch=True), LARGE * 2),
        (product(LARGE, is_input=True), LARGE * 2),
        (product(LARGE, users=()), np.full(COUNT, -2, np.float32)),
        (product(LARGE.astype(np.float16), dtype=np.float16), (LARGE * 2).astype(np.float16)),
        (product(LARGE.astype(np.int64), dtype=np.int64), (LARGE * 2).astype(np.int64)),
        (product(LARGE[::-1]), LARGE[::-1] * 2),
    ],
    ids=["read", "read in a branch", "default of an input", "unused", "float16", "int64", "reversed"],
)
def test_large_weights_are_read_where_they_are(given, expected, optimize):
    message, weights = io.without_weights(given)
    assert len(message) < LARGE.nbytes and list(weights) == (["w"] if given.graph.initializers["w"].uses() else [])
    x = np.full(COUNT, 2, expected.dtype)
    np.testing.assert_array_equal(ort_cpu.run(given, {"x": x}, optimize=optimize)["y"], expected)


def test_weights_outlive_the_model_that_they_came_with():
    session = ort_cpu.Session(product(LARGE.copy()))
    gc.collect()
    np.testing.assert_array_equal(session.run({"x": np.full(COUNT, 2, np.float32)})["y"], LARGE * 2)


def test_a_run_writes_over_the_results_of_the_one_before_but_not_over_those_of_a_twin():
    session = ort_cpu.Session(product(LARGE))
    twin = session.twin()
    first, other, last = (
        opened.run_over({"x": np.full(COUNT, factor, np.float32)})["y"]
        for opened, factor in ((session, 2), (twin, 3), (session, 4))
    )
    assert first is last
    np.testing.assert_array_equal(last, LARGE * 4)
    np.testing.assert_array_equal(other, LARGE * 3)


def test_a_number_without_axes_stays_one_from_run_to_run():
    one = helper.make_tensor_value_info("x", TensorProto.FLOAT, [])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [one], [])
    graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, []))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = ort_cpu.Session(ir.from_proto(proto))
    for number in (2, 3):
        (found,) = session.run_over({"x": np.array(number, np.float32)}).values()
        assert (found.shape, found) == ((), -number)


def test_a_session_knows_its_inputs_and_outputs():
    session = ort_cpu.Session(model())
    assert session.inputs == (ort_cpu.SessionPort("x", "tensor(float)", ("N", 3)),)
    assert session.outputs == (ort_cpu.SessionPort("y", "tensor(float)", ("N", 3)),)


@pytest.mark.parametrize(
    ("act", "code", "words"),
    [
        (lambda: ort_cpu.Session(model("Relou")), "M130", "ORT refuses the model: This is an invalid model"),
        (lambda: ort_cpu.run(model(), {"x": X.astype(np.int64)}), "M131", "expected: (tensor(float))"),
        (lambda: ort_cpu.run(model(), {}), "M131", "['x']"),
    ],
)
def test_what_ort_refuses_is_an_error_of_ours_and_nothing_is_printed(act, code, words, capfd):
    with pytest.raises(ModelError) as caught:
        act()
    assert (caught.value.code, caught.value.status) == (code, 3)
    assert words in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform != "linux", reason="only there memory is counted so")
def test_a_session_of_a_large_model_asks_for_no_more_memory_than_one_copy_of_its_weights(tmp_path):
    """A limit on memory counts what was asked for, touched or not."""
    width = 2048
    weights = {name: np.ones((width, width), np.float32) for name in "abcd"}
    body = "p = MatMul(x, a) q = MatMul(p, b) r = MatMul(q, c) y = MatMul(r, d)"
    given = from_text(f"(float[1, {width}] x) => (float[1, {width}] y)", body, weights=weights)
    ir.save(given, tmp_path / "m.onnx", external_data="m.data")
    outside = io.load(tmp_path / "m.onnx")

    def asked_for() -> int:
        status = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))

    before = asked_for()
    session = ort_cpu.Session(outside, optimize=True, outputs=["p", "y"], threads=1, prepack=False)
    assert asked_for() - before < 1.5 * sum(array.nbytes for array in weights.values())
    assert session.run({"x": np.ones((1, width), np.float32)})["y"][0, 0] == np.float32(width) ** 4


def test_an_optimized_session_computes_with_what_its_optimizers_made_of_a_weight():
    weight = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
    x = np.random.default_rng(1).standard_normal((128, 64)).astype(np.float32)
    text = "a = Transpose<perm = [1, 0]>(x) b = Add(a, w) c = Relu(b) y = Transpose<perm = [1, 0]>(c)"
    model = from_text("(float[128,64] x) => (float[128,64] y)", text, weights={"w": weight})
    assert weight.nbytes >= io.COPIED_BYTES, "so that it is handed over"
    for optimize in (False, True):
        np.testing.assert_array_equal(
            ort_cpu.run(model, {"x": x}, optimize=optimize)["y"], np.maximum(x.T + weight, 0).T
        )


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says what a process holds on Linux only")
def test_a_session_that_does_not_pack_weights_holds_no_copy_of_them_at_any_moment():
    weight = np.ones((4096, 4096), np.float32)
    model = from_text("(float[1,4096] x) => (float[1,4096] y)", "y = MatMul(x, w)", weights={"w": weight})
    model.graph.initializers["w"].const_value = ir.Tensor(weight)  # not as bytes of a message, which may lie askew
    ort_cpu.run(product(LARGE), {"x": LARGE})  # what is loaded once
    Path("/proc/self/clear_refs").write_text("5")  # the greatest size so far is forgotten
    before = of_status("VmHWM")
    ort_cpu.Session(model, prepack=False).run({"x": weight[:1]})
    assert of_status("VmHWM") - before < weight.nbytes / 2


def of_status(name: str) -> int:
    """Bytes that the system says of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
