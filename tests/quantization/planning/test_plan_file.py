"""A plan as a file: it reads back as itself, an edit decides, a name that is not there is an error."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
import tomli_w

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
