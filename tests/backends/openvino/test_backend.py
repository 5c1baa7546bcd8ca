"""The model as OpenVINO gets it: a blob, the precision of its layers, and the numbers that it gives."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx_ir as ir
import pytest

from intact import environment
from intact.api.perf import perf
from intact.api.verify import verify
from intact.backends import compiling
from intact.backends.openvino import backend as openvino
from intact.backends.openvino import client as openvino_client
from intact.backends.openvino.client import ACCURATE, Plugin, PluginLayer, plugin_of
from intact.errors import ModelError, NotAvailable, SettingsError, TargetError, ToolchainError
from intact.events import Log
from intact.model import io
from intact.pipeline import loading, stages
from intact.reports.manifest import schema
from intact.results import PlacedLayer
from intact.runtime import ort_cpu
from intact.settings.config import BuildConfig
from tests.backends import qdq
from tests.quantization.models import model

SECONDS = 120.0


def build(folder, given=None, *, on_cpu=None, **settings):
    device = compiling.Device("openvino", SECONDS, **settings)
    return compiling.compile(given or qdq.cnn(), device, folder, on_cpu=on_cpu)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Plugin("CPU", ACCURATE)),
        ({"NUM_STREAMS": "1"}, Plugin("CPU", {**ACCURATE, "NUM_STREAMS": "1"})),
        ({"INFERENCE_PRECISION_HINT": "bf16"}, Plugin("CPU", {**ACCURATE, "INFERENCE_PRECISION_HINT": "bf16"})),
        ({"device": "GPU"}, Plugin("GPU", {})),
        ({"device": "NPU", "TURBO": "YES"}, Plugin("NPU", {"TURBO": "YES"})),
    ],
)
def test_options_name_the_device_and_keep_the_accuracy_of_the_cpu(options, expected):
    assert plugin_of(options) == expected


@pytest.mark.parametrize(
    ("made_of", "nodes"),
    [
        ([("conv", "u8")], ("conv",)),
        ([("y", "u8")], ("conv",)),
        ([("conv/WithoutBiases", "u8")], ("conv",)),
        ([("conv/transpose", "i8"), ("conv", "u8")], ("conv",)),
        ([("of_nobody", "f32")], None),
        ([("convolution", "f32")], None),
    ],
)
def test_a_layer_has_the_nodes_that_it_is_named_after(made_of, nodes):
    given = model("float[1,1,4,4] x", "float[1,1,4,4] y", "y = Conv(x, w)", w=np.ones((1, 1, 1, 1), np.float32))
    next(iter(given.graph)).name = "conv"
    layers = [PluginLayer("Convolution", "jit_I8", precision, (name,)) for name, precision in made_of]
    expected = () if nodes is None else (PlacedLayer("Convolution", "jit_I8", "u8", nodes),)
    assert openvino._placed(given, layers) == expected


@pytest.mark.parametrize(
    ("kernel", "precision", "expected"),
    [
        ("brgemm_avx512_I8", "u8", "u8"),
        ("brgemm_avx512_f32", "u8", "f32"),
        ("brgemm_avx512_amx_bf16", "bf16", "bf16"),
        ("unknown_I8", "i8", "i8"),
    ],
)
def test_a_layer_runs_in_the_precision_of_its_kernel_and_not_of_its_weight(kernel, precision, expected):
    assert PluginLayer("FullyConnected", kernel, precision, ()).computes_in == expected


@pytest.mark.openvino
def test_a_blob_is_written_with_its_model_and_its_layers_run_in_integers(tmp_path):
    compiled = build(tmp_path)
    assert compiled.path == tmp_path / "model.blob"
    assert compiled.files == (tmp_path / "model.blob", tmp_path / "model.onnx") and compiled.warnings == ()
    assert compiled.made_from == (tmp_path / "model.onnx",)
    assert compiled.runtime.endswith("CPU, INFERENCE_PRECISION_HINT=f32, DYNAMIC_QUANTIZATION_GROUP_SIZE=0")
    placement = compiled.placement
    assert (placement.place, placement.partitions, placement.cpu_nodes) == ("CPU", 1, ())
    ops = {node.name: node.op for node in placement.npu_nodes}
    convolutions = [layer for layer in placement.layers if any(ops[node] == "Conv" for node in layer.nodes)]
    assert convolutions and all(layer.precision in ("u8", "i8") for layer in convolutions)
    assert all(layer.kernel.endswith("I8") for layer in convolutions)


@pytest.mark.openvino
def test_it_computes_what_onnx_runtime_does_up_to_a_step_of_the_output(tmp_path):
    compiled, samples = build(tmp_path), qdq.images(2)
    outputs = compiling.run(compiled.path, samples, compiling.Device("openvino", SECONDS))
    session = ort_cpu.Session(tmp_path / "model.onnx")
    for sample, output in zip(samples, outputs, strict=True):
        expected = session.run(sample)["scores.d"]
        steps = np.unique(expected)
        step = np.diff(steps).min()
        assert list(output) == ["scores.d"]
        assert np.abs(output["scores.d"] - expected).max() <= step * 1.001


@pytest.mark.openvino
def test_two_compilations_give_the_same_bytes(tmp_path):
    first, second = (build(tmp_path / name).path.read_bytes() for name in ("a", "b"))
    assert first == second


@pytest.mark.openvino
def test_a_device_that_is_not_here_is_refused_with_those_that_are(tmp_path):
    with pytest.raises(NotAvailable, match=r"no device TPU on this machine\n.*CPU \(") as caught:
        build(tmp_path, ep_options={"device": "TPU"})
    assert caught.value.status == 5


@pytest.mark.openvino
@pytest.mark.parametrize(("options", "error"), [({"device": "TPU"}, NotAvailable), ({"vtcm_mb": "4"}, SettingsError)])
def test_a_build_says_so_before_any_work(float_model, monkeypatch, options, error):
    monkeypatch.setattr(loading, "start_loading", lambda *_: pytest.fail("work was done"))
    compile_ = {"device": "openvino", "ep_options": options}
    with pytest.raises(error):
        stages.build(float_model / "m.onnx", config(float_model, compile=compile_), float_model / "out")


@pytest.mark.openvino
def test_an_option_that_the_device_does_not_have_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"vtcm_mb.*\n.*NUM_STREAMS"):
        build(tmp_path, ep_options={"vtcm_mb": "4"})


@pytest.mark.openvino
def test_a_model_that_openvino_does_not_compile_is_the_targets_error(tmp_path):
    given = qdq.cnn()
    node = next(node for node in given.graph if node.op_type == "Conv")
    node.domain, given.graph.opset_imports["of.mine"] = "of.mine", 1
    with pytest.raises(TargetError, match=r"does not compile the model for CPU.*of\.mine"):
        build(tmp_path, given)


@pytest.mark.openvino
def test_nodes_that_the_table_refuses_are_compiled_all_the_same_and_it_says_so(tmp_path):
    (warning,) = build(tmp_path, on_cpu={"conv": "because"}).warnings
    assert "takes a model whole: conv" in warning


def test_without_the_package_a_build_names_the_extra(monkeypatch, float_model):
    def missing(package):
        raise environment.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(environment.metadata, "version", missing)
    with pytest.raises(NotAvailable, match="not installed"):
        stages.build(float_model / "m.onnx", config(float_model), float_model / "out")
    monkeypatch.undo()
    monkeypatch.setattr(openvino_client, "available", lambda: False)
    with pytest.raises(NotAvailable, match=r"intact\[openvino\]"):
        build(float_model / "direct")


@pytest.fixture
def float_model(tmp_path):
    """A Conv whose Relu is part of its grid, then a Softmax, which OpenVINO computes in float."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32), "b": np.zeros(4, np.float32)}
    body = "c = Conv(x, w, b)  r = Relu(c)  y = Softmax <axis = 1> (r)"
    built = model("float[1,3,8,8] x", "float[1,4,6,6] y", body, **weights)
    for node in built.graph:
        node.name = f"the_{node.op_type}"  # OpenVINO renames a node that is called like an output
    io.save(built, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=rng.standard_normal((12, 3, 8, 8)).astype(np.float32))
    return tmp_path


def config(folder, precision="uint8", **values):
    quant = {"load_path": str(folder / "d.npz")}
    values = {"precision": precision, "quant": quant, "compile": {"device": "openvino"}} | values
    return BuildConfig.from_dict(values)


@pytest.mark.openvino
@pytest.mark.parametrize(
    ("precision", "least", "conv"),
    # OpenVINO moves signed activations to unsigned ones.
    [("fp32", 100, "f32"), ("fp16", 50, "f32"), ("uint8", 25, "u8"), ("int8", 25, "u8")],
)
def test_a_build_verifies_the_blob_and_writes_down_where_each_node_runs(float_model, precision, least, conv):
    built = stages.build(float_model / "m.onnx", config(float_model, precision), float_model / "out")
    written = json.loads((float_model / "out/manifest.json").read_text())
    assert {"model.blob": "deployable model", "model.onnx": "what the deployable model was made from"}.items() <= {
        item["path"]: item["kind"] for item in written["artifacts"]
    }.items()
    row = next(row for row in built.accuracy if row.form == "compiled")
    assert row.runtime.startswith("openvino ") and (row.sqnr_db is None or row.sqnr_db > least)
    precisions = {node: layer["precision"] for layer in written["placement"]["layers"] for node in layer["nodes"]}
    ops = {node["op"]: node["name"] for node in written["placement"]["npu_nodes"]}
    assert precisions[ops["Conv"]] == conv
    assert [layer["precision"] for layer in written["placement"]["layers"] if layer["kind"] == "Softmax"] == ["f32"]
    page = (float_model / "out/report.html").read_text()
    assert "The whole model runs on the CPU" in page and "model.blob" in page and "import_model" in page


@pytest.mark.openvino
def test_the_deployed_model_reads_unsigned_activations_only(float_model):
    # Signed ones have integer kernels on some processors alone: with AMX a Conv is computed in float.
    stages.build(float_model / "m.onnx", config(float_model, "int8"), float_model / "out")
    written = {name: io.load(float_model / f"out/{name}").graph for name in ("model.qdq.onnx", "model.onnx")}
    types = {
        name: {node.outputs[0].dtype for node in graph if node.op_type == "QuantizeLinear"}
        for name, graph in written.items()
    }
    assert types == {"model.qdq.onnx": {ir.DataType.INT8}, "model.onnx": {ir.DataType.UINT8}}


@pytest.mark.openvino
def test_verify_and_perf_take_the_blob_of_a_build(float_model):
    folder, original = float_model / "out", float_model / "m.onnx"
    built = stages.build(original, config(float_model, max_latency_ratio=1e6), folder)
    assert [gate.name for gate in built.gates] == ["max_latency_ratio"] and built.passed
    found = verify(original, folder / "model.blob", data=str(float_model / "d.npz"))
    assert found.models[0].form == "compiled" and found.models[0].runtime.startswith("openvino ")
    assert found.accuracy[0].sqnr_db == next(row.sqnr_db for row in built.accuracy if row.form == "compiled")
    timed = perf(original, folder / "model.blob", data=str(float_model / "d.npz"), threads=1, rounds=3).measurement
    first, second = timed.models
    assert first.runtime.startswith("onnxruntime ") and second.runtime.startswith("openvino ")
    assert timed.rounds == 3 and second.latency.p50 > 0 and second.bytes == (folder / "model.blob").stat().st_size
    assert "Convolution" in {row.op for row in second.ops}
    swapped = perf(folder / "model.blob", original, rounds=1).measurement
    assert [model.path for model in swapped.models] == [str(folder / "model.blob"), str(original)]


@pytest.mark.openvino
def test_integers_at_the_ports_are_verified_as_floats(float_model):
    compile_ = {"device": "openvino", "io": "quantized"}
    built = stages.build(float_model / "m.onnx", config(float_model, compile=compile_), float_model / "out")
    assert built.io[0]["dtype"] == "uint8"
    plain = stages.build(float_model / "m.onnx", config(float_model), float_model / "plain")
    assert built.accuracy[-1].form == "compiled"
    assert built.accuracy[-1].sqnr_db == pytest.approx(plain.accuracy[-1].sqnr_db, abs=0.5)


@pytest.mark.openvino
def test_a_blob_away_from_its_build_is_refused(float_model):
    stages.build(float_model / "m.onnx", config(float_model), float_model / "out")
    alone = float_model / "alone.blob"
    shutil.copy(float_model / "out/model.blob", alone)
    for use in (verify, perf):
        with pytest.raises(ModelError, match="keep the files of a build together"):
            use(float_model / "m.onnx", alone)
    (float_model / "out/model.onnx").unlink()
    with pytest.raises(ModelError, match="does not lie beside it"):
        verify(float_model / "m.onnx", float_model / "out/model.blob")


@pytest.mark.openvino
def test_a_file_that_is_no_blob_is_an_error_and_no_crash(tmp_path):
    io.save(qdq.cnn(), tmp_path / "model.onnx")
    (tmp_path / "model.blob").write_bytes(b"not a blob")
    with pytest.raises(ToolchainError, match="does not load it"):
        compiling.run(tmp_path / "model.blob", qdq.images(1), compiling.Device("openvino", SECONDS))


@pytest.mark.openvino
def test_a_cpu_is_no_npu_whatever_it_takes(float_model):
    built = stages.build(float_model / "m.onnx", config(float_model, require_npu=1), float_model / "out")
    (gate,) = built.gates
    assert not gate.passed and "compiled for the CPU, not for an NPU" in gate.detail


@pytest.mark.parametrize("precision", ["w8a16", "w4a16", "int16"])
def test_a_precision_whose_grids_openvino_drops_is_refused(float_model, precision):
    with pytest.raises(
        SettingsError, match=f"{precision} makes no sense on openvino.*\n(.*\n)*.*drops Q/DQ nodes of 16"
    ):
        stages.build(float_model / "m.onnx", config(float_model, precision), float_model / "out")


@pytest.mark.openvino
@pytest.mark.parametrize("precision", ["w8", "w4"])
def test_packed_weights_are_multiplied_with_floats_as_onnx_runtime_does(tmp_path, precision):
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(0, 0.3, (64, 16)).astype(np.float32)}
    io.save(model("float[4,64] x", "float[4,16] y", "y = MatMul(x, w)", **weights), tmp_path / "m.onnx")
    asked = BuildConfig.from_dict({"precision": precision, "compile": {"device": "openvino"}})
    built = stages.build(tmp_path / "m.onnx", asked, tmp_path / "out")
    plain, compiled = (row for row in built.accuracy if row.form in ("quantized", "compiled"))
    assert compiled.sqnr_db == pytest.approx(plain.sqnr_db, abs=0.01)
    (layer,) = built.placement.layers
    assert layer.precision == "f32"


@pytest.mark.openvino
def test_a_model_of_qlinear_operators_is_brought_to_the_form_that_openvino_reads(float_model):
    # Of uint8 weights, which a CPU without VNNI gets, OpenVINO makes float layers.
    on_cpu = config(float_model, compile={"device": "cpu", "assume_vnni": True})
    stages.build(float_model / "m.onnx", on_cpu, float_model / "cpu")
    given = float_model / "cpu/model.onnx"
    assert "QLinearConv" in {node.op_type for node in io.load(given).graph}
    built = stages.build(given, BuildConfig.from_dict({"compile": {"device": "openvino"}}), float_model / "out")
    assert built.accuracy[-1].form == "compiled" and "u8" in {layer.precision for layer in built.placement.layers}


@pytest.mark.openvino
@pytest.mark.vnni
@pytest.mark.parametrize("name", ["residual_cnn", "depthwise_cnn", "bert", "vit"])
def test_the_zoo_is_as_accurate_as_its_quantized_model_on_the_cpu(zoo, name, tmp_path):
    quant = {"load_path": str(zoo.data(name)), "effort": "fast"}
    asked = BuildConfig.from_dict({"precision": "uint8", "quant": quant, "compile": {"device": "openvino"}})
    built = stages.build(zoo.model(name), asked, tmp_path / "out")
    figures = {(row.form, row.output): row.sqnr_db for row in built.accuracy}
    for (form, output), found in figures.items():
        if form == "compiled":
            assert found > figures["quantized", output] - 1, output
    assert {"u8", "f32"} <= {layer.precision for layer in built.placement.layers}


@pytest.mark.openvino
@pytest.mark.parametrize(
    ("vnni", "options", "warned"), [(False, {}, True), (True, {}, False), (False, {"device": "GPU"}, False)]
)
def test_a_cpu_without_vnni_is_warned_of_products_that_may_saturate(zoo, vnni, options, warned):
    quant = {"load_path": str(zoo.data("residual_cnn")), "effort": "fast", "samples": 2}
    compile_for = {"device": "openvino", "assume_vnni": vnni, "ep_options": options}
    asked = BuildConfig.from_dict({"precision": "uint8", "quant": quant, "compile": compile_for})
    prepared = stages.prepare(zoo.model("residual_cnn"), asked, log := Log())
    found = [text for text in log.warnings if "may saturate in openvino on a CPU without VNNI" in text]
    assert bool(found) is warned
    weights = [node.inputs[0].dtype.name for node in prepared.model.graph if node.inputs and node.inputs[0].const_value]
    assert "INT8" in weights


def test_the_manifests_schema_describes_layers():
    assert {"kind", "kernel", "precision", "nodes", "cycles", "moved_bytes"} == set(
        schema()["$defs"]["PlacedLayer"]["properties"]
    )
