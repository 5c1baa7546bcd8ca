"""What a build learns is done at once where the same operator comes again, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from intact.backends import lessons
from intact.errors import SettingsError
from intact.model import normalize, shapes
from intact.pipeline.mending import Mended, TakenForm
from intact.search.builds import build_any
from intact.search.mending import learning, mender
from intact.search.mending.learning import Learner
from intact.settings.config import BuildConfig, CompileConfig
from intact.targets.registry import load_target

TARGET, CONFIG = load_target("qnn", arch="v73"), CompileConfig(device="qnn")
LIBRARY = "a-library 1.0"
TEXT = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[1,{size}] x) => (float[1,{size}] y)
<float s = {{0.001}}, uint16 z = {{32768}}, float t = {{0.00001}}, uint16 u = {{0}}> {{
  a = QuantizeLinear(x, s, z)
  b = DequantizeLinear(a, s, z)
  h = {op}(b)
  q = QuantizeLinear(h, t, u)
  y = DequantizeLinear(q, t, u)
}}"""


def model_of(op="Sigmoid", size=4) -> ir.Model:
    model = ir.from_onnx_text(TEXT.format(op=op, size=size))
    normalize.name_nodes(model)
    shapes.infer_shapes(model)
    return model


def rows(size=4):
    return [{"x": np.linspace(-3, 3, size, dtype=np.float32)[None]}]


@pytest.fixture
def learner(tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "installed_library", lambda backend, toolchain: LIBRARY)
    return Learner(tmp_path / "learnt.json")


@pytest.fixture
def learnt(learner, monkeypatch):
    """A learner whose file knows that a Sigmoid of four numbers needs wider steps."""
    taken = TakenForm("h", "widen_inputs", 12.0, 70.0, alone=True)
    monkeypatch.setattr(mender, "mend", lambda model, *_: Mended(model, ("it was mended",), (taken,)))
    assert learner.mend(model_of(), rows(), TARGET, CONFIG).done == ("it was mended",)
    return learner


def test_what_helped_is_kept_with_figures_and_the_version_of_the_library(learnt):
    (lesson,) = lessons.read(learnt.place)
    assert "Sigmoid" in lesson.operator and "1x4" in lesson.operator and "uint16" in lesson.operator
    assert (lesson.remedy, lesson.wrong_db, lesson.right_db) == ("widen_inputs", 12.0, 70.0)
    assert (lesson.library, lesson.arch, lesson.behind) == (LIBRARY, 73, "")


def test_the_same_operator_gets_that_form_at_once(learnt):
    found = learnt.recall(model_of(), rows(), TARGET, CONFIG)
    assert "16 times as wide" in found.done[0] and str(learnt.place) in found.done[0]
    kinds = [node.op_type for node in found.model.graph]
    assert kinds.count("QuantizeLinear") == 3 and kinds.count("Sigmoid") == 1


@pytest.mark.parametrize("case", ["another operator", "another shape", "another architecture", "another library"])
def test_another_one_does_not(case, learnt, monkeypatch):
    model, target = model_of(), TARGET
    if case == "another operator":
        model = model_of("Tanh")
    if case == "another shape":
        model = model_of(size=8)
    if case == "another architecture":
        target = load_target("qnn", arch="v75")
    if case == "another library":
        monkeypatch.setattr(learning, "installed_library", lambda backend, toolchain: "a-library 1.1")
    assert learnt.recall(model, rows(8 if case == "another shape" else 4), target, CONFIG) is None


def test_a_fault_of_operators_together_is_recalled_behind_the_same_ones_only(learnt):
    (lesson,) = lessons.read(learnt.place)
    lessons.keep([replace(lesson, behind="Conv", remedy="separate")], learnt.place)
    found = learnt.recall(model_of(), rows(), TARGET, CONFIG)
    assert len(found.done) == 1 and "16 times as wide" in found.done[0]


def test_a_search_over_precisions_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="builds many times") as refused:
        build_any(tmp_path / "m.onnx", BuildConfig(precision="auto"), tmp_path / "out", learnt=tmp_path / "learnt.json")
    assert refused.value.code == "S208"
