"""`--precision auto`: the goal is met at the least cost found, the plan of it works, and what cannot be had is said."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

from intact import pipeline
from intact.cli.main import app
from intact.config import BuildConfig, merge
from intact.errors import SettingsError
from intact.search import curve, mixed
from intact.targets.registry import load_target

# More than 8 bits give on these rows, some of which lie beyond what was seen.
GOAL = 30.0


def config(zoo, name="residual_cnn", **more) -> BuildConfig:
    quant = {"load_path": str(zoo.data(name)), "effort": "fast"}
    return BuildConfig.from_dict(merge({"precision": "auto", "quant": quant}, more))


@pytest.fixture(scope="module")
def built(zoo, tmp_path_factory):
    """A build for the CPU, where float helps with what is beyond the ranges that were seen."""
    folder = tmp_path_factory.mktemp("auto") / "out"
    return mixed.build(zoo.model("residual_cnn"), config(zoo, min_sqnr=GOAL), folder), folder


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ({}, "S106", "add --min-sqnr"),
        ({"min_sqnr": 30.0, "quant": {"weight_type": "int4"}}, "S108", "weight_type"),
        ({"min_sqnr": 30.0, "quant": {"activation_type": "uint16"}}, "S108", "activation_type"),
        ({"max_accuracy_drop": 0.5}, "S139", "labels"),
    ],
)
def test_a_search_without_a_goal_or_without_a_choice_is_refused_before_any_work(zoo, tmp_path, more, code, words):
    with pytest.raises(SettingsError, match=words) as error:
        mixed.build(tmp_path / "there is no such model.onnx", config(zoo, **more), tmp_path / "out")
    assert error.value.code == code


def test_what_quantizes_once_refuses_to_search(zoo, tmp_path):
    with pytest.raises(SettingsError, match="intact build"):
        pipeline.build(zoo.model("residual_cnn"), config(zoo, min_sqnr=GOAL), tmp_path / "out")


def test_the_goal_is_met_at_less_than_the_cost_of_float(built):
    result, _ = built
    assert result.passed and min(row.sqnr_db for row in result.accuracy) >= GOAL
    point = result.search.points[result.search.chosen]
    assert point.passed and 1.0 < point.cost < result.search.uniform["float"]
    assert set(point.groups) == {"w8a8", "float"}


def test_the_manifest_has_the_curve_and_the_report_draws_it(built):
    _, folder = built
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [stage["name"] for stage in manifest["stages"]][:4] == ["load", "optimize", "search", "quantize"]
    assert manifest["stages"][2]["assignments_tried"] >= 1
    found = manifest["search"]
    costs = [point["cost"] for point in found["points"]]
    assert costs == sorted(costs) and costs[0] == 1.0
    assert found["points"][found["chosen"]]["measured_db"] >= GOAL
    worst = [group["sqnr_db"] for group in found["worst"]]
    assert worst == sorted(worst)
    page = (folder / "report.html").read_text()
    assert '<svg class="curve"' in page and '<circle class="chosen"' in page and 'class="goal"' in page


def test_the_plan_of_a_mix_gives_the_same_model(built, zoo, tmp_path):
    _, folder = built
    quant = {"load_path": str(zoo.data("residual_cnn")), "plan": str(folder / "plan.toml")}
    again = pipeline.build(zoo.model("residual_cnn"), BuildConfig.from_dict({"quant": quant}), tmp_path / "out")
    assert again.config["quant"]["effort"] == "fast"
    for name in ("model.qdq.onnx", "model.onnx"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


def test_the_same_inputs_give_the_same_bytes(built, zoo, tmp_path):
    _, folder = built
    mixed.build(zoo.model("residual_cnn"), config(zoo, min_sqnr=GOAL), tmp_path / "out")
    for name in ("model.qdq.onnx", "model.onnx", "plan.toml"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


def test_a_goal_out_of_reach_leaves_the_best_with_status_1_and_says_what_to_try(zoo, tmp_path):
    model, data, out = zoo.model("residual_cnn"), zoo.data("residual_cnn"), tmp_path / "out"
    flags = ["--precision", "auto", "--min-sqnr", "400", "--data", str(data), "-o", str(out)]
    result = CliRunner().invoke(app, ["build", str(model), "--effort", "fast", *flags])
    assert result.exit_code == 1
    manifest = json.loads((out / "manifest.json").read_text())
    failed = [gate for gate in manifest["gates"] if not gate["passed"]]
    assert manifest["status"] == "failed" and "lower the limit" in failed[0]["fix"]
    assert (out / "model.onnx").is_file()


def test_a_goal_on_labels_is_met(zoo, tmp_path):
    with np.load(zoo.data("residual_cnn")) as arrays:
        rows = len(arrays[arrays.files[0]])
    np.save(tmp_path / "labels.npy", np.zeros(rows, np.int64))
    settings = config(zoo, max_accuracy_drop=0.0, labels=str(tmp_path / "labels.npy"))
    result = mixed.build(zoo.model("residual_cnn"), settings, tmp_path / "out")
    assert result.passed and [gate.name for gate in result.gates] == ["max_accuracy_drop"]


@pytest.mark.qnn
def test_a_mix_for_the_npu_is_one_partition_and_cheaper_than_16_bits(zoo, tmp_path):
    settings = config(zoo, "bert", min_sqnr=26.0, compile={"device": "qnn", "arch": "v73"})
    result = mixed.build(zoo.model("bert"), settings, tmp_path / "out")
    compiled = [row.sqnr_db for row in result.accuracy if row.form == "compiled"]
    assert result.passed and min(compiled) >= 26.0
    assert result.placement.partitions == 1 and not result.placement.cpu_nodes
    assert result.search.points[result.search.chosen].cost < result.search.uniform["w8a16"]


@pytest.mark.parametrize(
    ("norm", "readers", "moved"),
    [
        ("float", ("uint16", "uint16"), "uint16"),
        ("float", ("uint8", "uint16"), "float"),
        ("float", ("float", "uint8"), "float"),
        ("uint8", ("uint16", "uint16"), "uint8"),
    ],
)
def test_what_only_moves_values_in_float_has_the_type_of_all_that_reads_them(norm, readers, moved):
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 21]>
        agraph (float[1,4,8] x) => (float[1,4,8] y, float[1,4,8] z)
        { h = Sigmoid (x)  s = Transpose <perm = [0,2,1]> (h)  t = Transpose <perm = [0,2,1]> (s)
          y = Relu (t)  z = Tanh (t) }""")
    for node, name in zip(model.graph, "hstyz", strict=True):
        node.name = name
    types = {"h": norm, "s": norm, "t": norm, "y": readers[0], "z": readers[1]}
    begun = SimpleNamespace(model=model, target=load_target("qnn"))

    assert curve.moved_as_read(begun, types) == {**types, "s": moved, "t": moved}
