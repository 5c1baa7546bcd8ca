"""`--precision auto`: the goal is met at the least cost found, the plan of it works, and what cannot be had is said."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

from intact.cli.main import app
from intact.errors import SettingsError
from intact.events import Log, Silence
from intact.model import io
from intact.pipeline import preparation, stages
from intact.search.mixed import cheapest, curve, precisions
from intact.settings.config import BuildConfig, merge
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
    return cheapest.build(zoo.model("residual_cnn"), config(zoo, min_sqnr=GOAL), folder), folder


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
        cheapest.build(tmp_path / "there is no such model.onnx", config(zoo, **more), tmp_path / "out")
    assert error.value.code == code


def test_what_quantizes_once_refuses_to_search(zoo, tmp_path):
    with pytest.raises(SettingsError, match="intact build"):
        stages.build(zoo.model("residual_cnn"), config(zoo, min_sqnr=GOAL), tmp_path / "out")


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
    assert '<div class="plot"' in page and '<span class="dot chosen"' in page and '<line class="goal"' in page


def test_the_plan_of_a_mix_gives_the_same_model(built, zoo, tmp_path):
    _, folder = built
    quant = {"load_path": str(zoo.data("residual_cnn")), "plan": str(folder / "plan.toml")}
    again = stages.build(zoo.model("residual_cnn"), BuildConfig.from_dict({"quant": quant}), tmp_path / "out")
    assert again.config["quant"]["effort"] == "fast"
    for name in ("model.qdq.onnx", "model.onnx"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


def test_the_same_inputs_give_the_same_bytes(built, zoo, tmp_path):
    _, folder = built
    cheapest.build(zoo.model("residual_cnn"), config(zoo, min_sqnr=GOAL), tmp_path / "out")
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
    result = cheapest.build(zoo.model("residual_cnn"), settings, tmp_path / "out")
    assert result.passed and [gate.name for gate in result.gates] == ["max_accuracy_drop"]


@pytest.mark.qnn
def test_a_mix_for_the_npu_is_one_partition_and_cheaper_than_16_bits(zoo, tmp_path):
    settings = config(zoo, "bert", min_sqnr=26.0, compile={"device": "qnn", "arch": "v73"})
    result = cheapest.build(zoo.model("bert"), settings, tmp_path / "out")
    compiled = [row.sqnr_db for row in result.accuracy if row.form == "compiled"]
    assert result.passed and min(compiled) >= 26.0
    assert result.placement.partitions == 1 and not result.placement.cpu_nodes
    assert result.search.points[result.search.chosen].cost < result.search.uniform["w8a16"]


def cost_of(begun, folder) -> float:
    """The cost of a build, from the model that it wrote."""
    return curve.curve_of(begun).bill(io.load(folder / "model.qdq.onnx")).cost


def no_dearer_than_one_precision(zoo, tmp_path, name, goal, precisions, compiled_for) -> None:
    """Build a model with `auto` and with each precision, and compare the costs of what was written."""
    settings = config(zoo, name, min_sqnr=goal, compile=compiled_for)
    result = cheapest.build(zoo.model(name), settings, tmp_path / "auto")
    begun = preparation.optimize(preparation.begin(zoo.model(name), settings, Log(Silence()))[0], Log(Silence()))
    point = result.search.points[result.search.chosen]
    assert result.passed and point.cost == pytest.approx(cost_of(begun, tmp_path / "auto"), abs=1e-6)
    costs = {}
    for precision in precisions:
        asked = settings.model_copy(update={"precision": precision})
        built = stages.build(zoo.model(name), asked, tmp_path / precision)
        if built.passed:
            costs[precision] = cost_of(begun, tmp_path / precision)
    assert costs and point.cost <= min(costs.values()) + 1e-6
    assert next(stage for stage in result.stages if stage.name == "search").details["builds"] <= 12


@pytest.mark.parametrize("goal", [15.0, 20.0])
def test_no_precision_throughout_that_meets_the_goal_costs_less_on_a_cpu(zoo, tmp_path, goal):
    no_dearer_than_one_precision(zoo, tmp_path, "residual_cnn", goal, ("uint8", "int8"), {"device": "cpu"})


@pytest.mark.qnn
@pytest.mark.slow
@pytest.mark.parametrize(("name", "goal"), [("residual_cnn", GOAL), ("bert", 30.0), ("bert", 34.0)])
def test_no_precision_throughout_that_meets_the_goal_costs_less_on_an_npu(zoo, tmp_path, name, goal):
    compiled_for = {"device": "qnn", "arch": "v73"}
    no_dearer_than_one_precision(zoo, tmp_path, name, goal, ("uint8", "int8", "w8a16", "int16"), compiled_for)


@pytest.mark.qnn
def test_half_precision_is_taken_where_nothing_cheaper_does(zoo, tmp_path, monkeypatch):
    # Mixes with float nodes may do as well: without them only half precision throughout is left.
    plain = curve.curve_of
    monkeypatch.setattr(cheapest, "curve_of", lambda *given: replace(found := plain(*given), front=found.front[:1]))
    settings = config(zoo, min_sqnr=50.0, compile={"device": "qnn", "arch": "v73"})
    result = cheapest.build(zoo.model("residual_cnn"), settings, tmp_path / "out")
    point = result.search.points[result.search.chosen]
    assert result.passed and point.groups == {"float": sum(point.groups.values())}
    assert result.config["quant"]["activation_type"] == "float16" and not (tmp_path / "out" / "plan.toml").exists()
    assert point.cost == result.search.uniform["float"]


@pytest.mark.parametrize("precision", ["uint8", "w8a16", "int16"])
def test_a_model_as_written_costs_what_its_levels_cost(zoo, precision):
    settings = config(zoo, min_sqnr=GOAL, compile={"device": "qnn", "arch": "v73"})
    begun = preparation.optimize(
        preparation.begin(zoo.model("residual_cnn"), settings, Log(Silence()))[0], Log(Silence())
    )
    found = curve.curve_of(begun)
    uniform = next(u for u in found.uniform if u.precision == precision)
    changed = curve.settings(begun, found.found, uniform)
    quant = changed.quant.model_copy(update={"rescue": False})
    prepared = preparation.quantize(replace(begun, config=changed.model_copy(update={"quant": quant})), Log(Silence()))
    assert found.bill(prepared.model).cost == pytest.approx(uniform.cost, rel=1e-9)
    # Another type for one node is on the bill, whoever gave it.
    first = found.found.groups[0].nodes[0]
    other = "uint8" if precision != "uint8" else "uint16"
    quant = quant.model_copy(update={"types": {first: other}})
    prepared = preparation.quantize(replace(begun, config=changed.model_copy(update={"quant": quant})), Log(Silence()))
    changed_cost = found.bill(prepared.model).cost
    assert changed_cost < uniform.cost if precision != "uint8" else changed_cost > uniform.cost


def test_layers_that_optimizing_made_anew_are_on_the_bill_in_the_types_that_they_have(zoo):
    settings = config(zoo, "bert", min_sqnr=GOAL, compile={"device": "rknn", "soc": "rk3588"})
    begun = preparation.optimize(preparation.begin(zoo.model("bert"), settings, Log(Silence()))[0], Log(Silence()))
    found = curve.curve_of(begun)
    uniform = next(u for u in found.uniform if u.precision == "int8")
    prepared = preparation.quantize(replace(begun, config=curve.settings(begun, found.found, uniform)), Log(Silence()))
    written = found.bill(prepared.model)
    assert written.groups == {"w8a8": len(found.found.groups)}
    assert written.cost == pytest.approx(uniform.cost, rel=1e-9)


@pytest.mark.parametrize(
    ("device", "names"), [("cpu", ["uint8", "int8"]), ("qnn", ["uint8", "int8", "int16", "w8a16", "fp16"])]
)
def test_precisions_throughout_are_those_that_the_costs_of_the_target_price(device, names):
    target = load_target(device)
    settings = BuildConfig.from_dict({"precision": "auto", "compile": {"device": device}, "quant": {}})
    found = precisions.throughout(target, settings)
    assert list(found) == names
    for name, position in found.items():
        level = target.costs.levels[position]
        assert level.name == {"uint8": "w8a8", "int8": "w8a8", "fp16": "float"}.get(name, name)


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
