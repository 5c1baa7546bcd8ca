"""`intact debug`: planted faults are named, sound models are not accused, and the repro shows the fault alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from typer.testing import CliRunner

from intact.api.convert import convert
from intact.api.debug import debug
from intact.api.quantize import quantize
from intact.backends.base import Device
from intact.cli.main import app
from intact.errors import ModelError, NotAvailable, SettingsError
from intact.model import io
from intact.pipeline import stages
from intact.pipeline.stages import BuildOptions
from intact.search.debug import device
from intact.settings.config import BuildConfig
from tests.search.debug.faults import narrowed_gelu, renamed, spoiled_grid, spoiled_weight


def config(device: str = "qnn", precision: str = "uint8", data: Path | None = None, **compile_settings: object):
    quant = {"load_path": str(data)} if data is not None else {}
    return BuildConfig.from_dict(
        {"precision": precision, "quant": quant, "compile": {"device": device, **compile_settings}}
    )


class Quantized:
    """Quantized zoo models in files, each made when it is first asked for."""

    def __init__(self, zoo, folder: Path) -> None:
        self.zoo, self.folder = zoo, folder

    def __call__(self, name: str, device: str = "qnn", precision: str = "uint8") -> Path:
        path = self.folder / f"{name}-{device}-{precision}.onnx"
        if not path.exists():
            quantize(self.zoo.model(name), config=config(device, precision, self.zoo.data(name)), output=path)
        return path


@pytest.fixture(scope="module")
def quantized(zoo, tmp_path_factory):
    return Quantized(zoo, tmp_path_factory.mktemp("quantized"))


def compared(zoo, name: str, candidate: Path, **more: object) -> dict:
    return debug(zoo.model(name), candidate, config=BuildConfig(), data=str(zoo.data(name)), **more)


@pytest.mark.parametrize(
    ("index", "fault"),
    [
        (0, {"factor": 0.02}),
        (3, {"factor": 0.02}),
        (6, {"factor": 50.0}),
        (7, {"shift": 120}),
        (13, {"factor": 0.02}),
        (15, {"shift": -120}),
    ],
)
def test_a_spoiled_grid_of_a_transformer_is_named(zoo, quantized, tmp_path, index, fault):
    planted = spoiled_grid(quantized("bert"), tmp_path / "bad.onnx", "MatMul", index, **fault)
    first = compared(zoo, "bert", planted.path).first
    assert first.node == planted.node and first.tensor in planted.tensors and first.cause == "grid"


@pytest.mark.parametrize(("index", "factor"), [(1, 50.0), (5, 0.02), (8, 2.0), (15, 50.0)])
def test_a_spoiled_weight_of_a_transformer_is_named(zoo, quantized, tmp_path, index, factor):
    planted = spoiled_weight(quantized("bert"), tmp_path / "bad.onnx", "MatMul", index, factor)
    first = compared(zoo, "bert", planted.path).first
    assert first.node == planted.node and first.tensor in planted.tensors and first.cause == "weights"


@pytest.mark.parametrize(("op", "index"), [("Conv", 1), ("Conv", 4), ("Gemm", 0)])
def test_a_spoiled_weight_of_a_convolutional_network_is_named(zoo, quantized, tmp_path, op, index):
    planted = spoiled_weight(quantized("depthwise_cnn"), tmp_path / "bad.onnx", op, index, 0.02)
    assert compared(zoo, "depthwise_cnn", planted.path).first.node == planted.node


def test_a_fault_that_later_layers_hide_is_told_apart(zoo, quantized, tmp_path):
    """The weight of a gate, whose sigmoid is flat: no output notices."""
    planted = spoiled_weight(quantized("depthwise_cnn"), tmp_path / "bad.onnx", "Conv", 3, 0.02)
    result = compared(zoo, "depthwise_cnn", planted.path)
    assert result.first is None and planted.node in [layer.node for layer in result.undone]


def test_of_two_faults_the_first_is_named_and_both_are_counted(zoo, quantized, tmp_path):
    later = spoiled_grid(quantized("bert"), tmp_path / "later.onnx", "MatMul", 14, factor=0.02)
    both = spoiled_weight(later.path, tmp_path / "both.onnx", "MatMul", 6, 50.0)
    result = compared(zoo, "bert", both.path)
    assert result.first.node == both.node
    assert len(result.parted) == 2 and set(result.parted) & later.tensors


@pytest.mark.parametrize("device", ["cpu", "qnn"])
@pytest.mark.parametrize("precision", ["uint8", "w8a16", "w4a16"])
@pytest.mark.parametrize("name", ["bert", "vit", "depthwise_cnn"])
def test_a_sound_model_is_not_accused(zoo, quantized, name, precision, device):
    """Though masks are less deep in it than in the reference, and channels are scaled to be undone later."""
    result = compared(zoo, name, quantized(name, device, precision))
    assert result.first is None and result.layers
    own = [layer.own_db for layer in result.layers]
    assert own == sorted(own)


def test_a_model_does_not_part_ways_with_itself(zoo):
    assert compared(zoo, "vit", zoo.model("vit")).layers == []


def test_tensors_are_paired_by_structure_where_names_are_lost(zoo, quantized, tmp_path):
    planted = spoiled_weight(quantized("vit"), tmp_path / "bad.onnx", "MatMul", 3, 50.0)
    place = [node.name for node in onnx.load(planted.path).graph.node].index(planted.node)
    path = renamed(planted.path, tmp_path / "renamed.onnx")
    assert compared(zoo, "vit", path).first.node == f"n{place}"


def test_a_model_of_integer_operators_is_compared_as_well(zoo, quantized, tmp_path):
    planted = spoiled_grid(quantized("depthwise_cnn"), tmp_path / "bad.onnx", "Add", 0, factor=0.02)
    integers = tmp_path / "integers.onnx"
    convert(planted.path, to="qlinear", config=BuildConfig(), output=integers)
    assert any(node.op_type == "QLinearConv" for node in onnx.load(integers).graph.node)
    first = compared(zoo, "depthwise_cnn", integers).first
    assert first.cause == "grid" and planted.tensors & {first.tensor, first.node.split("_QuantizeLinear")[0]}


def test_two_quantized_models_with_the_same_fault_do_not_part_ways(zoo, quantized, tmp_path):
    planted = spoiled_grid(quantized("vit"), tmp_path / "bad.onnx", "MatMul", 2, factor=0.02)
    result = debug(planted.path, planted.path, config=BuildConfig(), data=str(zoo.data("vit")))
    assert result.first is None


def sqnr_of(folder: Path) -> float:
    inputs = np.load(folder / "inputs.npz")
    values = []
    for name in ("reference.onnx", "model.onnx"):
        session = ort.InferenceSession(folder / name, providers=["CPUExecutionProvider"])
        feeds = {port.name: inputs[port.name] for port in session.get_inputs()}
        values.append(session.run(None, feeds)[0].astype(np.float64))
    return float(10 * np.log10(np.sum(values[0] ** 2) / np.sum((values[0] - values[1]) ** 2)))


def test_the_repro_shows_the_fault_alone(zoo, quantized, tmp_path):
    planted = spoiled_grid(quantized("bert"), tmp_path / "bad.onnx", "MatMul", 6, factor=0.02)
    folder = tmp_path / "repro"
    result = compared(zoo, "bert", planted.path, output=folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "compare.py",
        "inputs.npz",
        "model.onnx",
        "reference.onnx",
    ]
    assert sqnr_of(folder) == pytest.approx(result.first.own_db, abs=1.0)
    computing = [n.op_type for n in onnx.load(folder / "model.onnx").graph.node if "uantizeLinear" not in n.op_type]
    assert computing == ["MatMul"]


def test_the_command_exits_with_1_and_names_the_layer(zoo, quantized, tmp_path):
    planted = spoiled_grid(quantized("vit"), tmp_path / "bad.onnx", "MatMul", 2, factor=0.02)
    arguments = ["debug", str(zoo.model("vit")), str(planted.path), "--data", str(zoo.data("vit"))]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 1 and f"part ways at {planted.node}" in told.stdout
    as_json = CliRunner().invoke(app, [*arguments, "--json"])
    assert as_json.exit_code == 1 and json.loads(as_json.stdout)["first"]["tensor"] in planted.tensors


def test_the_command_exits_with_0_where_nothing_parts_ways(zoo, quantized):
    told = CliRunner().invoke(
        app, ["debug", str(zoo.model("vit")), str(quantized("vit")), "--data", str(zoo.data("vit"))]
    )
    assert told.exit_code == 0 and "nothing parts ways" in told.stdout


def test_models_with_other_inputs_are_refused(zoo):
    with pytest.raises(ModelError, match="take 3 and 1 inputs"):
        debug(zoo.model("bert"), zoo.model("vit"), config=BuildConfig())


def test_one_model_needs_a_device_and_grids(zoo):
    with pytest.raises(SettingsError, match="no device"):
        debug(zoo.model("vit"), None, config=BuildConfig())
    with pytest.raises(SettingsError, match="not quantized"):
        debug(zoo.model("vit"), None, config=config())
    with pytest.raises(NotAvailable, match="no simulator"):
        debug(zoo.model("vit"), None, config=config("cpu"))


@pytest.mark.qnn
def test_the_simulator_agrees_with_the_cpu_unit_by_unit(zoo, quantized):
    result = debug(quantized("vit"), None, config=config(), data=str(zoo.data("vit")))
    assert result.kind == "device" and result.first is None
    assert result.compared > 20 and min(layer.own_db for layer in result.layers) > 30


@pytest.mark.qnn
def test_a_compiled_candidate_is_compared_by_its_quantized_model(zoo, quantized, tmp_path):
    compiled = tmp_path / "compiled"
    stages.build(quantized("depthwise_cnn"), config(), compiled, BuildOptions(verify=False))
    result = debug(
        quantized("depthwise_cnn"),
        compiled / "model.onnx",
        data=str(zoo.data("depthwise_cnn")),
    )
    assert result.kind == "device" and result.first is None


@pytest.mark.qnn
def test_what_fails_to_compile_without_a_name_is_named(zoo, quantized, tmp_path):
    planted = narrowed_gelu(quantized("bert", precision="w8a16"), tmp_path / "bad.onnx", 1)
    folder = tmp_path / "repro"
    result = debug(planted.path, None, config=config(arch="v68"), output=folder)
    first = result.first
    assert (result.kind, first.node, first.nodes) == ("compile", planted.node, [planted.node])
    assert first.pattern == "Gelu(uint16) -> uint8" and "1002" in first.error
    alone = debug(folder / "model.onnx", None, config=config(arch="v68"))
    assert alone.first.pattern == first.pattern and alone.compiled == 1


def tiny_softmax(path):
    """A Softmax that the simulator gets wrong: its input has steps of 1e-7."""
    step, zero = 1e-7, 32768
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["q"], name="q"),
        helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["d"], name="d"),
        helper.make_node("Softmax", ["d"], ["s"], name="softmax"),
        helper.make_node("QuantizeLinear", ["s", "unit", "none"], ["sq"], name="sq"),
        helper.make_node("DequantizeLinear", ["sq", "unit", "none"], ["y"], name="y"),
    ]
    constants = {"step": np.float32(step), "zero": np.uint16(zero), "unit": np.float32(1 / 65536), "none": np.uint16(0)}
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8, 16]) for name in "xy"]
    stored = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "tiny", ends[:1], ends[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    values = np.random.default_rng(0).uniform(-step * zero, step * zero, (2, 8, 16)).astype(np.float32)
    np.savez(path.with_suffix(".npz"), x=values)


@pytest.mark.qnn
def test_the_repro_of_a_device_is_a_script_that_needs_the_package_of_the_vendor_alone(tmp_path):
    tiny_softmax(tmp_path / "m.onnx")
    result = debug(tmp_path / "m.onnx", config=config(data=tmp_path / "m.npz"), output=tmp_path / "repro")
    assert (result.kind, result.first.op) == ("device", "Softmax") and result.first.own_db < 25
    text = (tmp_path / "repro" / "reproduce.py").read_text()
    assert "intact" not in text and "reproduce.py" in (tmp_path / "repro" / "README.md").read_text()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    hidden = "import runpy, sys; sys.modules['intact'] = None; runpy.run_path(sys.argv[1])"
    command = [sys.executable, "-c", hidden, str(tmp_path / "repro" / "reproduce.py")]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300)
    assert ran.returncode == 0, ran.stderr
    (told,) = [line for line in ran.stdout.splitlines() if line.startswith("SQNR:")]
    assert float(told.split()[1]) == pytest.approx(result.first.own_db, abs=1.5)


CHIP = Device("qnn", timeout=60, arch=73)


class _Joiner:
    """A simulator that is right about single units, and wrong about models that have these two nodes."""

    def __init__(self, *nodes: str) -> None:
        self.nodes, self.runs = nodes, 0

    def run(self, path, samples, device):
        self.runs += 1
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        wrong = all(any(node.name.endswith(name) for node in onnx.load(path).graph.node) for name in self.nodes)
        names = [value.name for value in session.get_outputs()]
        return [
            {name: value * (3 if wrong else 1) for name, value in zip(names, session.run(names, row), strict=True)}
            for row in samples
        ]


def test_a_fault_that_units_have_only_together_is_named(zoo, quantized, monkeypatch):
    path = quantized("residual_cnn")
    rows = [{"image": row} for row in np.split(np.load(zoo.data("residual_cnn"))["image"][:2], 2)]
    nodes = [node.name for node in onnx.load(path).graph.node if node.op_type == "Conv"]
    joiner = _Joiner(nodes[1], nodes[2])
    monkeypatch.setattr(device, "UNITS_AT_ONCE", 1)
    comparison = device.DeviceComparison(io.load(path), rows, joiner, CHIP)

    assert not any(error.parted for error in comparison.errors())
    (found,) = comparison.together()
    assert found is not None and found.parted and found.unit.nodes[0] == nodes[2]


def test_a_model_that_is_right_as_a_whole_has_no_such_fault(zoo, quantized):
    joiner = _Joiner("there is no such node")
    rows = [{"image": np.load(zoo.data("residual_cnn"))["image"][:1]}]
    comparison = device.DeviceComparison(io.load(quantized("residual_cnn")), rows, joiner, CHIP)
    assert list(comparison.together()) == []
    assert joiner.runs == 1
