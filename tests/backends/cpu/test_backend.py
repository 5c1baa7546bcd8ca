"""The model as the CPU gets it."""

from __future__ import annotations

import os

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from intact.backends import compiling
from intact.backends.cpu import backend
from intact.errors import ModelError, NotAvailable, SettingsError
from intact.model import io
from intact.runtime import idle_optimizers, loads, ort_cpu
from tests.backends import qdq


def build(model, folder, device="cpu", **settings):
    return compiling.compile(model, compiling.Device(device, 60, **settings), folder)


def test_the_model_is_saved_and_runs(tmp_path):
    compiled = build(qdq.cnn(), tmp_path / "new")
    assert compiled.path == tmp_path / "new" / "model.onnx"
    assert compiled.files == (compiled.path,)
    assert compiled.runtime.startswith("onnxruntime ")
    feeds = qdq.images(1)[0]
    expected = ort_cpu.run(qdq.cnn(), feeds)
    np.testing.assert_array_equal(ort_cpu.Session(compiled.path).run(feeds)["scores.d"], expected["scores.d"])


def test_compute_nodes_are_on_the_cpu_because_it_is_the_target(tmp_path):
    placement = build(qdq.cnn(), tmp_path).placement
    assert [node.op for node in placement.cpu_nodes] == ["Conv", "Relu", "MaxPool", "Flatten", "Gemm"]
    assert {node.reason for node in placement.cpu_nodes} == {"the target is the CPU"}
    assert (placement.npu_nodes, placement.partitions) == ((), 0)


def test_a_model_that_ort_refuses_is_a_bad_model(tmp_path):
    model = qdq.cnn()
    model.graph.node("the_relu").op_type = "Relou"
    with pytest.raises(ModelError, match=r"ONNX Runtime does not load .* No Op registered for Relou"):
        build(model, tmp_path)


def test_a_long_model_shares_its_constants_and_is_left_to_be_loaded_by_whoever_runs_it(tmp_path, monkeypatch):
    given = qdq.cnn()
    plain = build(given, tmp_path / "plain")
    monkeypatch.setattr(backend, "MOST_LOADED_TWICE", 1)
    monkeypatch.setattr(loads, "problems", lambda *_, **__: pytest.fail("it was loaded"))
    long = build(given, tmp_path / "long")
    assert (plain.loaded, long.loaded) == (True, False)
    before, after = (io.load(one.path).graph.initializers for one in (plain, long))
    assert len(after) < len(before) == len(given.graph.initializers)
    named = {info.name for info in onnx.load(long.path).graph.value_info}
    assert not named & set(after)  # types of constants stand with their tensors alone
    feeds = qdq.images(1)[0]
    found, expected = (ort_cpu.Session(one.path).run(feeds)["scores.d"] for one in (long, plain))
    np.testing.assert_array_equal(found, expected)


def test_a_long_model_is_optimized_but_for_what_finds_nothing_in_it(tmp_path, monkeypatch):
    opened, real = [], ort.InferenceSession

    def create(*arguments, disabled_optimizers=None, **options):
        opened.append(disabled_optimizers)
        return real(*arguments, disabled_optimizers=disabled_optimizers, **options)

    compiled, samples = build(qdq.cnn(), tmp_path), qdq.images(2)
    monkeypatch.setattr(backend, "MOST_LOADED_TWICE", 10)
    monkeypatch.setattr(ort_cpu.ort, "InferenceSession", create)
    found = [compiling.run(compiled.path, samples, compiling.Device("cpu", 60, nodes=nodes)) for nodes in (10, 11)]
    assert opened == [None, list(idle_optimizers.idle(compiled.path))]
    assert "ConstantSharing" in opened[1]
    assert not {"QDQSelectorActionTransformer", "QDQPropagationTransformer", "NhwcTransformer"} & set(opened[1])
    for short, long in zip(*found, strict=True):
        np.testing.assert_array_equal(short["scores.d"], long["scores.d"])


@pytest.mark.parametrize(("most_in_layout", "most_kept"), [(10, 1 << 28), (11, 0)])
def test_beyond_a_limit_the_layout_stays_as_it_is_and_small_files_keep_their_constants_with_the_same_numbers(
    most_in_layout, most_kept, tmp_path, monkeypatch
):
    opened, real, samples = [], ort_cpu._create, qdq.images(2)
    monkeypatch.setattr(backend, "MOST_IN_LAYOUT", 0)
    compiled = build(qdq.cnn(), tmp_path)
    assert "without NhwcTransformer, which takes long" in compiled.runtime
    monkeypatch.setattr(backend, "MOST_LOADED_TWICE", 10)
    monkeypatch.setattr(backend, "MOST_IN_LAYOUT", most_in_layout)
    monkeypatch.setattr(ort_cpu, "MOST_KEPT", most_kept)

    def create(path, options, left_out):
        opened.append((options.optimized_model_filepath, left_out))
        return real(path, options, left_out)

    monkeypatch.setattr(ort_cpu, "_create", create)
    found = [compiling.run(compiled.path, samples, compiling.Device("cpu", 60, nodes=nodes)) for nodes in (10, 11)]
    assert opened[0] == ("", ())
    assert opened[1][0] == (os.devnull if most_kept else "")
    assert ("NhwcTransformer" in opened[1][1]) == (most_in_layout == 10)
    for short, long in zip(*found, strict=True):
        np.testing.assert_array_equal(short["scores.d"], long["scores.d"])


def test_without_this_optimizer_equal_constants_stay_apart(tmp_path):
    constants = "<float[1] a = {2.0}, float[1] b = {2.0}>"
    text = f"g (float[4] x, float[4] y) => (float[4] p, float[4] q) {constants} {{ p = Mul(x, a) q = Mul(y, b) }}"
    given = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    kept = []
    for left_out in ((), ("ConstantSharing",)):
        options, saved = ort.SessionOptions(), tmp_path / f"{len(left_out)}.onnx"
        options.optimized_model_filepath, options.log_severity_level = str(saved), 4
        ort_cpu._create(given.SerializeToString(), options, left_out)
        kept.append(len(onnx.load(saved).graph.initializer))
    assert kept == [1, 2]


def test_provider_options_mean_nothing_on_the_cpu(tmp_path):
    with pytest.raises(SettingsError, match="vtcm_mb"):
        build(qdq.cnn(), tmp_path, ep_options={"vtcm_mb": "4"})


def test_a_device_without_a_compiler_is_not_available(tmp_path):
    with pytest.raises(NotAvailable, match="toaster") as caught:
        build(qdq.cnn(), tmp_path / "out", device="toaster")
    assert (caught.value.code, caught.value.status) == ("E110", 5)
    assert not (tmp_path / "out").exists()


def test_the_saved_model_runs_as_it_is_deployed(tmp_path):
    compiled = build(qdq.cnn(), tmp_path)
    samples = qdq.images(3)
    outputs = compiling.run(compiled.path, samples, compiling.Device("cpu", 60))
    session = ort_cpu.Session(compiled.path, optimize=True)
    for sample, output in zip(samples, outputs, strict=True):
        np.testing.assert_array_equal(output["scores.d"], session.run(sample)["scores.d"])
