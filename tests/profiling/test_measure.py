"""Real models timed beside each other; only what does not depend on the machine is asserted."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from intact import data
from intact.api.perf import perf
from intact.errors import ModelError, SettingsError
from intact.model import io
from intact.profiling import measure


def model(path, layers, dtype=TensorProto.FLOAT, name="x"):
    """Multiplications of a large matrix, one after another."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [256, 256], np.full(256 * 256, 0.01, np.float32))
    nodes = [helper.make_node("Cast", [name], ["t0"], to=TensorProto.FLOAT)]
    nodes += [helper.make_node("MatMul", [f"t{i}", "w"], [f"t{i + 1}"]) for i in range(layers)]
    ports = [helper.make_tensor_value_info(n, t, [128, 256]) for n, t in ((name, dtype), (f"t{layers}", 1))]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def rows():
    return [{"x": np.ones((128, 256), np.float32)}]


def test_a_model_of_forty_times_the_work_is_slower_and_the_operator_is_named(tmp_path, rows):
    one, many = model(tmp_path / "one.onnx", 1), model(tmp_path / "many.onnx", 40)
    found = measure.measure([one, many], rows, threads=1, rounds=15)
    first, second = found.models
    assert (found.rounds, found.threads, first.latency.ratio_to_first) == (15, 1, 1.0)
    assert second.latency.ratio_to_first > 2 and second.latency.is_slower
    assert second.blame[0].ops == ("MatMul",) and first.blame == ()
    assert [(row.op, row.count) for row in second.ops if row.op == "MatMul"] == [("MatMul", 40)]
    assert sum(row.share for row in second.ops) == pytest.approx(1)
    assert (first.bytes, second.bytes) == (one.stat().st_size, many.stat().st_size)
    assert first.peak_bytes is None or first.peak_bytes > first.used_bytes > first.bytes


def test_memory_is_that_of_the_model_and_not_of_whoever_measures(tmp_path, rows):
    ballast = np.ones(60_000_000)  # half a gigabyte in this process
    (found,) = measure.measure([model(tmp_path / "m.onnx", 1)], rows, rounds=1).models
    if found.peak_bytes is None:
        pytest.skip("this system does not say")
    assert found.peak_bytes < ballast.nbytes


def test_a_model_in_a_cache_of_links_is_timed_as_any_other(tmp_path):
    """As Hugging Face keeps them: the names are links to files that are called after their content."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    for folder in (blobs, snapshot):
        folder.mkdir(parents=True)
    whole = io.load(model(tmp_path / "m.onnx", 2))
    for number, file in enumerate(io.save(whole, tmp_path / "model.onnx", external_threshold=0)):
        file.rename(blobs / f"{number}abc")
        (snapshot / file.name).symlink_to(blobs / f"{number}abc")
    found = perf(snapshot / "model.onnx", rounds=2).measurement.models[0]
    assert found.latency.p50 > 0 and found.bytes > 256 * 256 * 4 and found.nodes


def test_a_model_with_inputs_of_another_type_gets_the_same_values_cast(tmp_path, rows):
    times = measure.time_models([model(tmp_path / "u.onnx", 1, TensorProto.UINT8)], rows, rounds=2)
    assert times.shape == (2, 1) and (times > 0).all()


def test_a_model_with_another_input_is_refused(tmp_path, rows):
    with pytest.raises(ModelError, match="has no input 'z'"):
        measure.time_models([model(tmp_path / "z.onnx", 1, name="z")], rows, rounds=1)


def compiled(path):
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft")
    ports = [helper.make_tensor_value_info(name, 1, [1]) for name in "xy"]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(helper.make_graph([node], "g", ports[:1], ports[1:]), opset_imports=imports), path)
    return path


def test_a_compiled_model_is_refused_because_a_simulator_has_no_latency(tmp_path):
    with pytest.raises(SettingsError, match="its time is not latency") as caught:
        perf(model(tmp_path / "a.onnx", 1), compiled(tmp_path / "c.onnx"))
    assert caught.value.status == 2


def test_rows_of_data_are_used_in_turn(tmp_path):
    path = model(tmp_path / "a.onnx", 1)
    np.savez(tmp_path / "d.npz", x=np.zeros((8, 128, 256), np.float32))
    assert len(data.load(io.load(path), str(tmp_path / "d.npz"), samples=8).test) == 4
    timed = perf(path, data=str(tmp_path / "d.npz"), rounds=2)
    found, gate = timed.measurement, timed.gate
    assert gate is None and len(found.models) == 1
