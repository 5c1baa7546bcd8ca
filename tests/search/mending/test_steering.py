"""A node that meets a condition of the atlas is asked about, and gets another form where it is wrong as it stands."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import normalize, shapes
from intact.pipeline import execution
from intact.search.mending import steering
from intact.search.mending.steering import avoid, steer, suspected
from intact.settings.config import CompileConfig
from intact.targets.registry import load_target
from tests.search.mending.test_mender import WrongAt
from tests.targets.test_doubts import TWOS, deconvolution

QNN, CONFIG = load_target("qnn"), CompileConfig(device="qnn")
HEAD = '<ir_version: 10, opset_import: ["": 21]>\nagraph (float[1,64] x) => (float[1,64] y)\n'


def elu(step: float) -> ir.Model:
    """An Elu that reads steps of 16 bits, behind a layer of its own."""
    model = ir.from_onnx_text(f"""{HEAD}
<float r = {{{step * 16}}}, float s = {{{step}}}, float t = {{{step * 2}}}, uint16 z = {{32768}}>
{{
  a = QuantizeLinear(x, r, z)
  b = DequantizeLinear(a, r, z)
  c = Neg(b)
  d = QuantizeLinear(c, s, z)
  e = DequantizeLinear(d, s, z)
  h = Elu(e)
  q = QuantizeLinear(h, t, z)
  y = DequantizeLinear(q, t, z)
}}""")
    normalize.name_nodes(model)
    shapes.infer_shapes(model)
    return model


def rows_for(step: float) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": (rng.uniform(-1, 1, (1, 64)) * 30000 * step).astype(np.float32)} for _ in range(2)]


@pytest.fixture
def atlas(tmp_path):
    """A target with one condition: an Elu with steps between 1e-3 and 2e-3."""
    condition = {
        "op": "Elu",
        "operands": "(uint16) -> uint16",
        "boxes": [{"between": {"scale of input 0": [1e-3, 2e-3]}}],
    }
    row = {"condition": condition, "where": "there", "worst_db": 0.0, "usual_db": 80.0, "archs": [73]}
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "lib-1.json").write_text(json.dumps({"library": "lib 1", "wrong": [row]}))
    return replace(QNN, wrong=tmp_path / "wrong")


def reads_step(below: float):
    """Tells models in which an Elu reads smaller steps than this."""

    def is_wrong(model: ir.Model) -> bool:
        nodes = [node for node in model.graph if node.op_type == "Elu"]
        return any(float(node.inputs[0].producer().inputs[1].const_value.numpy()) < below for node in nodes)

    return is_wrong


def test_what_meets_a_condition_and_is_wrong_gets_another_form(atlas, monkeypatch):
    simulator = WrongAt(reads_step(5e-3))
    monkeypatch.setattr(steering, "simulator_of", lambda target: simulator)
    model = elu(1.5e-3)
    found = avoid(model, rows_for(1.5e-3), atlas, CONFIG)
    assert found is not None and len(found.done) == 1
    assert "steps 16 times as wide" in found.done[0] and "known to be wrong" in found.done[0]
    (before, _), (after, _) = (execution.run(one, rows_for(1.5e-3)) for one in (model, found.model))
    np.testing.assert_allclose(after["y"], before["y"], atol=16 * 1.5e-3)


@pytest.mark.parametrize(("step", "wrong_below", "runs"), [(1.5e-3, 0.0, 1), (3e-3, 5e-3, 0)])
def test_what_is_right_or_meets_none_stays_and_costs_one_run_or_none(step, wrong_below, runs, atlas, monkeypatch):
    simulator = WrongAt(reads_step(wrong_below))
    monkeypatch.setattr(steering, "simulator_of", lambda target: simulator)
    assert avoid(elu(step), rows_for(step), atlas, CONFIG) is None
    assert simulator.runs == runs


def test_what_is_wrong_alone_and_right_where_it_stands_stays(atlas, monkeypatch):
    simulator = WrongAt(lambda model: not any(node.op_type == "Neg" for node in model.graph))
    monkeypatch.setattr(steering, "simulator_of", lambda target: simulator)
    assert avoid(elu(1.5e-3), rows_for(1.5e-3), atlas, CONFIG) is None
    assert simulator.runs == 2


def test_another_architecture_does_not_have_it(atlas):
    assert suspected(elu(1.5e-3), atlas) == {"Elu_0"}
    assert suspected(elu(1.5e-3), replace(atlas, arch=75)) == set()
    assert suspected(elu(1.5e-3), replace(atlas, wrong=None)) == set()


def test_rules_of_the_table_come_first_and_both_are_told(atlas, monkeypatch):
    told = []
    monkeypatch.setattr(steering, "avoid", lambda model, *_: told.append(model) or None)
    model = deconvolution([1, 0, 0, 1, 0, 0], TWOS)
    found = steer(model, [], atlas, CONFIG)
    assert found is not None and told[0] is found.model and "zeros in its kernel" in found.done[0]


@pytest.mark.qnn
def test_a_region_of_the_shipped_atlas_is_avoided_on_the_simulator():
    step = 1.2
    found = steer(elu(step), rows_for(step), QNN, CONFIG)
    assert found is not None and "Elu" in found.done[0] and "known to be wrong" in found.done[0]
    assert steer(elu(1e-4), rows_for(1e-4), QNN, CONFIG) is None
