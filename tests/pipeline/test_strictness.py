"""A build with nodes that the NPU does not take: refused whole, or gone through with those nodes on the CPU."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.errors import SettingsError
from intact.events import Log, Silence
from intact.model import io
from intact.pipeline import deployment, stages
from intact.pipeline import stages as pipeline
from intact.results import PlacedNode, Placement
from intact.settings.config import BuildConfig
from intact.targets.provider_placement import compute_nodes
from intact.targets.registry import load_target
from intact.targets.validate import Violations, left_to_cpu, validate
from intact.verification.gates import placement_gate
from tests.backends.probing.cases import model
from tests.targets.test_validate import LIMITS, two_products


def settings(arch, **more):
    return BuildConfig.from_dict({"compile": {"device": "qnn", "arch": f"v{arch}"}, **more})


@pytest.fixture
def products(tmp_path):
    io.save(two_products(), tmp_path / "products.onnx")
    return tmp_path / "products.onnx"


def beside_a_sound_one(name):
    """The model of a case, with a product of bytes beside it that every architecture takes."""
    built, node = model(name)
    other = two_products().graph
    kept = [n for n in other if n.name in ("cq", "cd", "dq", "dd", "n", "nq", "z")]
    values = [v for v in other.initializers.values() if v.name in ("s", "u")]
    inputs = [v for v in other.inputs if v.name in ("c", "d")]
    output = next(v for v in other.outputs if v.name == "z")
    other.remove(kept)
    built.graph.extend(kept)
    for value in values:
        del other.initializers[value.name]
        built.graph.register_initializer(value)
    for value in inputs:
        other.inputs.remove(value)
        built.graph.inputs.append(value)
    other.outputs.remove(output)
    built.graph.outputs.append(output)
    return built, node


@pytest.mark.qnn
def test_strict_refuses_and_publishes_nothing(products, tmp_path):
    with pytest.raises(Violations, match="v73") as caught:
        pipeline.build(products, settings(68), tmp_path / "out")
    assert caught.value.status == 4 and [v.node for v in caught.value.violations] == ["m"]
    assert not (tmp_path / "out").exists()


@pytest.mark.qnn
def test_lenient_leaves_the_node_on_the_cpu_and_says_why(products, tmp_path):
    built = pipeline.build(products, settings(68, strict=False), tmp_path / "out")
    compute = [node for node in built.placement.cpu_nodes if "Quantize" not in node.op and "Dequantize" not in node.op]
    assert [(node.name, node.op) for node in compute] == [("m", "MatMul")] and "v73" in compute[0].reason
    assert built.placement.partitions == 1 and "n" in {node.name for node in built.placement.npu_nodes}
    assert any("v73" in warning for warning in built.warnings)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    stages = {stage["name"]: stage for stage in manifest["stages"]}
    assert [violation["node"] for violation in stages["validate"]["violations"]] == ["m"]
    assert stages["analyze"]["npu_percent"] == 50.0
    assert min(row.sqnr_db or 99 for row in built.accuracy) > 30


def test_lenient_cannot_help_where_nothing_is_left():
    built, target = model("MatMul: both dynamic (uint16, int16 symmetric) -> uint16")[0], load_target("qnn", arch=68)
    with pytest.raises(Violations, match="no compute node is left"):
        left_to_cpu(built, target, validate(built, target, strict=False))


# A layer whose layout ONNX Runtime changes before the NPU refuses it, one that the NPU takes and computes wrongly, and
# one of each other kind of requirement. Rewriting itself makes weights per channel symmetric, and gives biases grids.
OFF = [("Conv (uint16, int16 constant symmetric, int32 constant) -> uint16", 68)]
MENDED = ("int8 constant channel,", "float constant)")
OFF += [past for code, _, past in LIMITS if code != "T111" and not any(part in past[0] for part in MENDED)]


def compiled(path, config, folder):
    """The stages of a build up to its compiler: running what it made shows nothing of where nodes are."""
    log = Log(Silence())
    rewritten = deployment.rewrite(stages.prepare(path, config, log), log)
    return deployment.compile(deployment.validate(rewritten, log), folder, log).compiled


@pytest.mark.qnn
@pytest.mark.parametrize(("name", "arch"), OFF)
def test_whatever_the_reason_the_node_stays_off_the_npu_and_the_rest_goes_there(name, arch, tmp_path):
    built, node = beside_a_sound_one(name)
    io.save(built, tmp_path / "model.onnx")
    placement = compiled(tmp_path / "model.onnx", settings(arch, strict=False), tmp_path).placement
    off = {placed.name: placed for placed in placement.cpu_nodes if "Linear" not in placed.op}
    assert set(off) == {node.name} and off[node.name].op == node.op_type and "[T1" in off[node.name].reason
    assert "n" in {placed.name for placed in placement.npu_nodes}


@pytest.mark.qnn
def test_a_refused_node_between_two_others_leaves_both_on_the_npu(tmp_path):
    weights = np.random.default_rng(0).normal(size=(2, 8, 8)).astype(np.float32) / 4
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "v"], ["a"], name="first"),
        onnx.helper.make_node("Sinh", ["a"], ["b"], name="between"),
        onnx.helper.make_node("MatMul", ["b", "w"], ["y"], name="last"),
    ]
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8]) for name in "xy"]
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in zip("vw", weights, strict=True)]
    graph = onnx.helper.make_graph(nodes, "chain", ports[:1], ports[1:], constants)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)]), tmp_path / "m.onnx")
    built = pipeline.build(tmp_path / "m.onnx", settings(73, strict=False), tmp_path / "out")
    assert {node.name for node in compute_nodes(built.placement.npu_nodes)} == {"first", "last"}
    assert [node.name for node in compute_nodes(built.placement.cpu_nodes)] == ["between"]
    assert all(row.sqnr_db is None or row.sqnr_db > 20 for row in built.accuracy)


@pytest.mark.qnn
def test_a_clipping_node_stays_with_the_node_that_it_belongs_to(tmp_path):
    built, node = beside_a_sound_one(OFF[0][0])
    relu = ir.Node("", "Relu", [node.outputs[0]], name="relu")
    relu.outputs[0].name, relu.outputs[0].dtype = "relu_output", ir.DataType.FLOAT
    quantize = node.outputs[0].consumers()[0]
    built.graph.insert_after(node, relu)
    quantize.replace_input_with(0, relu.outputs[0])
    zero = quantize.inputs[2]
    zero.const_value = ir.tensor(zero.const_value.numpy() * 0, name=zero.name)
    target = load_target("qnn", arch=68)
    off = left_to_cpu(built, target, validate(built, target, strict=False))
    assert off["relu"] == "it belongs to probed, which stays on the CPU"


@pytest.mark.parametrize(
    ("off", "least", "passed"), [(0, 100, True), (1, 100, False), (1, 75, True), (1, 75.1, False), (4, 1, False)]
)
def test_the_gate_counts_nodes_that_compute_and_names_those_that_are_off(off, least, passed):
    nodes = [PlacedNode(f"n{i}", "Conv", "because") for i in range(4)]
    conversions = tuple(PlacedNode(f"q{i}", "QuantizeLinear") for i in range(9))
    gate = placement_gate(Placement(tuple(nodes[off:]), (*nodes[:off], *conversions), 1), least)
    assert gate.passed is passed and gate.value == 25.0 * (4 - off)
    assert ("n0 (Conv): because" in gate.detail) == (off > 0) and "q0" not in gate.detail


@pytest.mark.qnn
@pytest.mark.parametrize(("least", "passed"), [(50.0, True), (100.0, False)])
def test_a_build_that_misses_its_placement_keeps_its_artifacts(products, tmp_path, least, passed):
    built = pipeline.build(products, settings(68, strict=False, require_npu=least), tmp_path / "out")
    assert built.passed is passed and (tmp_path / "out/model.onnx").exists()


def test_a_placement_gate_needs_an_npu(products, tmp_path):
    with pytest.raises(SettingsError, match="no NPU"):
        pipeline.build(products, BuildConfig(require_npu=100), tmp_path / "out")
