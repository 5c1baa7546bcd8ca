"""Models of which nothing can be quantized: built in float where that runs, refused with the reason elsewhere."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest

from intact.api.build import build
from intact.api.quantize import quantize
from intact.errors import TargetError
from intact.model import io
from tests.builder import from_text

RNG = np.random.default_rng(0)
W = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)
R = RNG.standard_normal((1, 16, 4)).astype(np.float32)
K = np.array([3])

MODELS = {
    "nothing to quantize": (
        "(float[1,16] x) => (float[1,3] y, int64[1,3] i)",
        "s = Sigmoid(x)  y, i = TopK(s, k)",
        {"k": K},
        "Sigmoid",
    ),
    "weights as inputs": (
        "(float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y)",
        "y = Conv(x, w)",
        {},
        "its weight w is an input",
    ),
    "computed weights": (
        "(float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y)",
        "v = Neg(w)  y = Conv(x, v)",
        {},
        "its weight v is computed",
    ),
    "recurrent only": (
        "(float[5,1,3] x, float[1,16,3] w) => (float[5,1,1,4] y)",
        "y = LSTM<hidden_size = 4>(x, w, r)",
        {"r": R},
        "LSTM",
    ),
}


def saved(name, folder):
    signature, body, weights, reason = MODELS[name]
    io.save(from_text(signature, body, weights=weights), folder / "given.onnx")
    return folder / "given.onnx", reason


@pytest.fixture(params=MODELS, ids=lambda name: name.replace(" ", "_"))
def given(request, tmp_path):
    return saved(request.param, tmp_path)


def quantize_stage(folder):
    record = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return next(stage for stage in record["stages"] if stage["name"] == "quantize")


@pytest.mark.parametrize("device", ["cpu", "openvino"])
def test_it_is_built_in_float_and_says_why(given, device, tmp_path):
    if device == "openvino":
        pytest.importorskip("openvino")
    path, reason = given
    built = build(path, output=tmp_path / "out", device=device, precision="uint8")
    stage = quantize_stage(tmp_path / "out")
    assert stage["status"] == "skipped" and reason in stage["reason"]
    assert any("nothing is quantized" in warning and reason in warning for warning in built.warnings)
    assert (built.verdict, built.calibration_kind) == ("good", "none")
    assert {row.form for row in built.accuracy} == {"compiled"}
    assert (tmp_path / "out" / "report.html").is_file() and not (tmp_path / "out" / "model.qdq.onnx").exists()


def test_what_is_built_for_the_cpu_computes_what_was_given(given, tmp_path):
    path, _ = given
    build(path, output=tmp_path / "out", device="cpu", precision="uint8")
    sessions = [onnxruntime.InferenceSession(file) for file in (path, tmp_path / "out" / "model.onnx")]
    feeds = {v.name: RNG.standard_normal(v.shape).astype(np.float32) for v in sessions[0].get_inputs()}
    before, after = (session.run(None, feeds) for session in sessions)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_model_without_weights_to_pack_is_built_too(given, tmp_path):
    built = build(given[0], output=tmp_path / "out", device="cpu", precision="w4")
    assert built.verdict == "good" and quantize_stage(tmp_path / "out")["status"] == "skipped"


def test_a_model_in_half_precision_stays_in_it(tmp_path):
    model = from_text("(float16[1,3,8,8] x) => (float16[1,4,6,6] y)", "y = Conv(x, w)", weights={"w": W.astype("f2")})
    io.save(model, tmp_path / "half.onnx")
    built = build(tmp_path / "half.onnx", output=tmp_path / "out", device="cpu", precision="uint8")
    assert built.verdict == "good" and "half precision" in quantize_stage(tmp_path / "out")["reason"]
    assert onnx.load(tmp_path / "out" / "model.onnx").graph.input[0].type.tensor_type.elem_type == 10


@pytest.mark.parametrize("name", ["weights as inputs", "recurrent only"])
def test_an_npu_refuses_it_with_the_reason(name, tmp_path):
    pytest.importorskip("onnxruntime_qnn")
    path, reason = saved(name, tmp_path)
    with pytest.raises(TargetError, match=reason) as refused:
        build(path, output=tmp_path / "out", device="qnn", precision="uint8")
    assert refused.value.code == "T110" and not (tmp_path / "out").exists()


def test_an_npu_that_may_computes_it_in_half_precision_and_says_so(tmp_path):
    pytest.importorskip("onnxruntime_qnn")
    path, reason = saved("weights as inputs", tmp_path)
    built = build(path, output=tmp_path / "out", device="qnn", precision="w8a16", strict=False)
    assert built.verdict == "good" and not built.placement.cpu_nodes
    assert any("computes in half precision" in text and reason in text for text in built.warnings)
    assert quantize_stage(tmp_path / "out")["status"] == "skipped"


def test_an_npu_that_has_no_such_operator_names_what_its_compiler_says(tmp_path):
    pytest.importorskip("onnxruntime_qnn")
    io.save(from_text("(float[1,1,4,4] x) => (float[1,1,4,4] y)", "y = Erf(x)"), tmp_path / "m.onnx")
    with pytest.raises(TargetError, match="`Erf` are not supported by QNN EP") as refused:
        build(tmp_path / "m.onnx", output=tmp_path / "out", device="qnn", precision="w8a16", strict=False)
    assert refused.value.code == "T120"


def test_quantize_refuses_it_because_its_output_would_not_be_quantized(given, tmp_path):
    path, reason = given
    with pytest.raises(TargetError, match=reason):
        quantize(path, output=tmp_path / "q.onnx", device="cpu", precision="uint8")
    assert not (tmp_path / "q.onnx").exists()


def test_a_model_that_gives_a_sequence_is_built_and_compared(tmp_path):
    model = from_text("(float[2,3] x) => (seq(float[2,3]) y)", "n = Neg(x)  y = SequenceConstruct(x, n)")
    io.save(model, tmp_path / "sequence.onnx")
    built = build(tmp_path / "sequence.onnx", output=tmp_path / "out", device="cpu", precision="uint8")
    assert built.verdict == "good"
    assert [row.output for row in built.accuracy] == ["y.length", "y[0]", "y[1]"]


def test_no_optimize_leaves_the_graph_as_it_is(tmp_path):
    model = from_text("(float[2,3] x) => (float[2,3] y)", "a = Identity(x)  b = Identity(a)  y = Softmax(b)")
    io.save(model, tmp_path / "m.onnx")
    for optimize, nodes in ((True, ["Softmax"]), (False, ["Identity", "Identity", "Softmax"])):
        out = tmp_path / str(optimize)
        built = build(tmp_path / "m.onnx", output=out, device="cpu", precision="uint8", optimize=optimize)
        assert [node.op_type for node in onnx.load(out / "model.onnx").graph.node] == nodes
        stage = next(stage for stage in built.stages if stage.name == "optimize")
        assert (stage.status, built.verdict) == ("ran" if optimize else "skipped", "good")


def test_a_sequence_as_input_is_built_for_the_cpu(tmp_path):
    signature, body = "(seq(float[3]) x, float[3] z) => (float[3] y)", "s = SequenceInsert(x, z)  y = SequenceAt(s, k)"
    io.save(from_text(signature, body, weights={"k": np.array(0)}), tmp_path / "given.onnx")
    built = build(tmp_path / "given.onnx", output=tmp_path / "out", device="cpu", precision="uint8")
    assert built.verdict == "good"
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    first, other = np.ones(3, np.float32), np.zeros(3, np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": [first, other], "z": other})[0], first)


def scores_by_name(folder):
    """A classifier as scikit-learn's converter ends it: a sequence of maps from classes to scores."""
    scores = onnx.helper.make_map_type_proto(
        onnx.TensorProto.STRING, onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    )
    infos = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 4])]
    results = [onnx.helper.make_value_info("y", onnx.helper.make_sequence_type_proto(scores))]
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["s"]),
        onnx.helper.make_node("ZipMap", ["s"], ["y"], domain="ai.onnx.ml", classlabels_strings=["cat", "dog"]),
    ]
    weight = onnx.numpy_helper.from_array(RNG.standard_normal((4, 2)).astype(np.float32), "w")
    graph = onnx.helper.make_graph(nodes, "g", infos, results, [weight])
    imports = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=imports, ir_version=8), folder / "given.onnx")
    return folder / "given.onnx"


def test_a_model_that_ends_with_maps_is_quantized_and_still_does(tmp_path):
    given = scores_by_name(tmp_path)
    built = build(given, output=tmp_path / "out", device="cpu", precision="uint8")
    assert built.verdict == "good" and "y[0][cat]" in {row.output for row in built.accuracy}
    row = {"x": RNG.standard_normal((2, 4)).astype(np.float32)}
    before, after = (onnxruntime.InferenceSession(p).run(None, row)[0] for p in (given, tmp_path / "out/model.onnx"))
    assert [set(scores) for scores in after] == [{"cat", "dog"}] * 2
    assert after[0]["cat"] == pytest.approx(before[0]["cat"], abs=0.1)


TRAINING = {"ratio": np.float32(0.5), "on": np.array(True)}


@pytest.mark.parametrize("body", ["d = Dropout(x, ratio, on)", "r = RandomUniformLike(x)  d = Add(x, r)"])
def test_a_model_that_draws_random_numbers_is_built_and_not_judged(body, tmp_path):
    # Opset 18 has the axes of a ReduceMax elsewhere: what an upgrade leaves as it is needs no run to compare.
    body = f"{body}  y = ReduceMax<axes = [1]>(d)"
    model = from_text("(float[2,8] x) => (float[2,1] y)", body, weights=TRAINING)
    model.opset_imports[""] = 17
    io.save(model, tmp_path / "given.onnx")
    built = build(tmp_path / "given.onnx", output=tmp_path / "out", device="cpu", precision="uint8")
    assert built.verdict == "unverified" and "random numbers are drawn" in built.verdict_reasons[0]
    assert any("upgrade to a newer opset was not checked" in warning for warning in built.warnings)
