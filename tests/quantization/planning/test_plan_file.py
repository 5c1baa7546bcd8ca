"""A plan as a file: it reads back as itself, an edit decides, a name that is not there is an error."""

from __future__ import annotations

import os
import tomllib

import numpy as np
import onnx
import pytest
import tomli_w

import intact
from intact.errors import SettingsError
from intact.quantization import quantizing
from intact.quantization.planning import plan_file
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.quantization.models import model, rows

W = np.random.default_rng(0).standard_normal((4, 3, 1, 1)).astype(np.float32)
TARGET = load_target("qnn")
CONFIG = QuantConfig()


@pytest.fixture
def net():
    return model("float[1,3,4,4] x", "float[1,4,4,4] y", "c = Conv(x, w)  y = Sigmoid(c)", w=W)


@pytest.fixture
def written(net, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(plan_file.to_text(quantizing.plan(net, TARGET, CONFIG), TARGET, CONFIG))
    return path


def change(path, *keys, value):
    values = tomllib.loads(path.read_text())
    place = values
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_text(tomli_w.dumps(values))


def test_a_plan_that_nobody_changed_changes_nothing(net, written):
    found = plan_file.edits(written, net, TARGET, CONFIG)
    assert (dict(found.types), dict(found.overrides)) == ({}, {})


@pytest.mark.parametrize(
    ("keys", "value", "types", "overrides"),
    [
        (("nodes", "y"), "uint16", {"y": "uint16"}, {}),
        (("nodes", "y"), "float", {"y": "float"}, {}),
        (("grids", "x", "method"), "percentile", {}, {"x": {"method": "percentile"}}),
        (("grids", "x", "range"), {"low": -1.0, "high": 2.0}, {}, {"x": {"low": -1.0, "high": 2.0}}),
        (("weights", "c:1", "per_channel"), False, {}, {"w": {"per_channel": False}}),
    ],
)
def test_an_edit_becomes_a_type_or_an_override(net, written, keys, value, types, overrides):
    change(written, *keys, value=value)
    found = plan_file.edits(written, net, TARGET, CONFIG)
    assert dict(found.types) == types
    asked = {name: override.model_dump(exclude_unset=True) for name, override in found.overrides.items()}
    assert asked == overrides


def test_a_node_that_is_taken_out_stays_in_float(net, written):
    values = tomllib.loads(written.read_text())
    del values["nodes"]["y"]
    written.write_text(tomli_w.dumps(values))
    config = QuantConfig(plan=str(written))
    result = quantizing.quantize(net, TARGET, config, rows({"x": (1, 3, 4, 4)}))
    assert list(result.plan.nodes) == ["c"]


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("nodes", "z"), "uint8", "no node 'z'"),
        (("grids", "xx"), {"dtype": "uint8"}, "no grid 'xx'; did you mean x"),
        (("weights", "c:2"), {"dtype": "int8"}, "no weight 'c:2'"),
        (("version",), 2, "version 2"),
    ],
)
def test_what_matches_nothing_is_an_error(net, written, keys, value, words):
    change(written, *keys, value=value)
    with pytest.raises(SettingsError, match=words):
        plan_file.edits(written, net, TARGET, CONFIG)


@pytest.mark.parametrize("text", ["version = ", "version = 1", ""])
def test_what_is_no_plan_is_refused(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"plan\.toml"):
        plan_file.read_plan(path)


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("nodes", "y"), "banana", r"nodes\.y = .banana.: Input should be .*uint8"),
        (("nodes", "y"), 3, r"nodes\.y = 3"),
        (("nodes",), ["y"], r"nodes = "),
        (("settings",), 3, r"settings = 3"),
        (("settings", "metod"), "mse", r"unknown key metod; did you mean method"),
        (("settings", "load_path"), "x.npz", r"load_path is a setting of a run"),
        (("grids",), "x", r"grids = 'x'"),
        (("grids", "x"), "uint8", r"grids\.x"),
        (("grids", "x", "dtype"), "banana", r"grids\.x\.dtype = 'banana'"),
        (("grids", "x", "symetric"), True, r"unknown key symetric; did you mean symmetric"),
        (("grids", "x", "symmetric"), "yes", r"grids\.x\.symmetric = 'yes'"),
        (("grids", "x", "range"), {"low": "a", "high": 1.0}, r"grids\.x\.range\.low = 'a'"),
        (("grids", "x", "range"), {"low": 1.0}, r"grids\.x\.range\.high: Field required"),
        (("grids", "x", "range"), {"low": 2.0, "high": 1.0}, r"low \(2\.0\) is above high"),
        (("grids", "x", "range"), {"low": float("nan"), "high": 1.0}, r"finite number"),
        (("grids", "x", "tensors"), "x", r"grids\.x\.tensors = 'x'"),
        (("grids", "x", "tensors"), ["xx"], r"no tensor 'xx'"),
        (("weights", "c:1", "dtype"), "float", r"weights\.c:1\.dtype = 'float'"),
        (("weights", "c:1", "tensor"), "v", r"weights\.c:1\.tensor was changed"),
        (("target",), "qnn", r"target = 'qnn'"),
        (("target", "device"), 3, r"target\.device = 3"),
        (("more",), 3, r"unknown key more"),
    ],
)
def test_what_a_plan_cannot_say_is_an_error_with_file_key_and_reason(net, written, keys, value, words):
    change(written, *keys, value=value)
    with pytest.raises(SettingsError, match=words) as error:
        plan_file.edits(written, net, TARGET, CONFIG)
    assert str(written) in error.value.message and error.value.code in ("S173", "S174", "S175")


def test_a_grid_that_an_operator_dictates_cannot_be_changed(net, written):
    [name] = [name for name, row in tomllib.loads(written.read_text())["grids"].items() if "fixed" in row]
    change(written, "grids", name, "fixed", value={"scale": 3.0, "zero_point": 0})
    with pytest.raises(SettingsError, match="give a range instead") as error:
        plan_file.edits(written, net, TARGET, CONFIG)
    assert error.value.code == "S175"


@pytest.mark.parametrize(
    ("keys", "value"), [(("nodes", "y"), "banana"), (("grids", "x", "metod"), "mse"), (("settings", "metod"), "mse")]
)
def test_an_error_names_the_line(net, written, keys, value):
    change(written, *keys, value=value)
    wrong = keys[-1] if keys[0] != "nodes" else 'y = "banana"'
    line = next(number for number, text in enumerate(written.read_text().splitlines(), 1) if text.startswith(wrong))
    with pytest.raises(SettingsError, match=rf"plan\.toml:{line}: "):
        plan_file.edits(written, net, TARGET, CONFIG)


def test_a_plan_made_from_an_edited_plan_has_the_edits(tmp_path):
    path = tmp_path / "net.onnx"
    node = onnx.helper.make_node("Relu", ["x"], ["y"], name="r")
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", ports[:1], ports[1:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10), path)
    intact.plan(path, device="qnn", precision="uint8", output=tmp_path / "a.toml")
    change(tmp_path / "a.toml", "nodes", "r", value="uint16")
    change(tmp_path / "a.toml", "grids", "x", "range", value={"low": -1.0, "high": 3.0})
    intact.plan(path, device="qnn", plan=tmp_path / "a.toml", output=tmp_path / "b.toml")
    values = tomllib.loads((tmp_path / "b.toml").read_text())
    assert values["nodes"] == {"r": "uint16"}
    assert values["grids"]["x"]["range"] == {"low": -1.0, "high": 3.0}


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a" + ".a" * 5000 + " = 1"])
def test_a_file_that_is_nested_without_end_is_refused(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"plan\.toml"):
        plan_file.read_plan(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "plan.toml")
    with pytest.raises(SettingsError, match="not an ordinary file"):
        plan_file.read_plan(tmp_path / "plan.toml")
