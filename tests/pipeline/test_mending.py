"""A build whose compiled form misses much is built again in the form that a mender finds, if that is better."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import onnx
import pytest

from intact.errors import ModelError
from intact.model import io
from intact.pipeline import deployment, mending, stages
from intact.pipeline.mending import Mended
from intact.pipeline.stages import BuildOptions
from intact.settings.config import BuildConfig
from tests.zoo import cnn

DONE = "the layer is computed in another order"


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mending")
    onnx.save(cnn.depthwise_cnn(), folder / "m.onnx")
    shape = [d.dim_value or 1 for d in onnx.load(folder / "m.onnx").graph.input[0].type.tensor_type.shape.dim]
    rows = np.random.default_rng(0).standard_normal((16, *shape[1:])).astype(np.float32)
    np.savez(folder / "d.npz", **{onnx.load(folder / "m.onnx").graph.input[0].name: rows})
    quant = {"load_path": str(folder / "d.npz"), "effort": "fast"}
    return folder / "m.onnx", BuildConfig.from_dict({"precision": "uint8", "quant": quant})


def renamed(model, rows, target, config, goal_db=0.0):
    """The same model under another name, which is seen in the files."""
    found = model.clone()
    found.graph.name = "mended"
    return Mended(found, (DONE,))


def build(given, output, monkeypatch, shortfalls, mender=renamed, recaller=None):
    found = itertools.chain(shortfalls, itertools.repeat(shortfalls[-1]))
    monkeypatch.setattr(mending, "shortfalls", lambda accuracy: [lost for lost in (next(found),) if lost])
    path, config = given
    return stages.build(path, config, output, BuildOptions(mender=mender, recaller=recaller))


@pytest.fixture(scope="module")
def plain(given, tmp_path_factory):
    """A build that nobody mends, and its folder."""
    folder = tmp_path_factory.mktemp("plain") / "out"
    with pytest.MonkeyPatch.context() as patch:
        return build(given, folder, patch, [0.0]), folder


def digest(folder):
    return hashlib.sha256((folder / "model.onnx").read_bytes()).hexdigest()


def names(built):
    return [stage.name for stage in built.stages]


def test_a_better_form_is_written_and_said_and_each_stage_is_recorded_once(given, tmp_path, monkeypatch):
    built = build(given, tmp_path / "out", monkeypatch, [9.0, 2.0])
    assert any(DONE in text for text in built.warnings)
    assert io.load(tmp_path / "out" / "model.onnx").graph.name == "mended"
    assert len(set(names(built))) == len(names(built))
    (told,) = [stage for stage in built.stages if stage.name == "mend"]
    assert told.details["done"] == [DONE]


def refuse_other_forms(monkeypatch):
    whole = deployment.compile

    def compile_(validated, folder, log):
        if validated.before.rewritten.model.graph.name == "mended":
            raise ModelError("M130", "the compiler does not take this form")
        return whole(validated, folder, log)

    monkeypatch.setattr(deployment, "compile", compile_)


@pytest.mark.parametrize("case", ["no better", "refused", "nothing found"])
def test_otherwise_the_first_form_is_written_as_if_nobody_had_tried(case, given, plain, tmp_path, monkeypatch):
    mender = (lambda *_: None) if case == "nothing found" else renamed
    if case == "refused":
        refuse_other_forms(monkeypatch)
    built = build(given, tmp_path / "out", monkeypatch, [9.0, 9.0], mender)
    untried, folder = plain
    assert digest(tmp_path / "out") == digest(folder)
    (missed,) = [text for text in built.warnings if "misses 9.0 dB" in text]
    assert [text for text in built.warnings if text != missed] == list(untried.warnings)
    assert [name for name in names(built) if name != "mend"] == names(untried)


def test_a_mender_that_fails_is_told_and_stops_nothing(given, tmp_path, monkeypatch):
    def mender(*_):
        raise ModelError("M130", "the simulator does not load it")

    built = build(given, tmp_path / "out", monkeypatch, [9.0], mender)
    assert any("the simulator does not load it" in text for text in built.warnings)


def test_a_right_build_asks_nobody(given, tmp_path, monkeypatch):
    def mender(*_):
        raise AssertionError("there is nothing to mend")

    assert "mend" not in names(build(given, tmp_path / "out", monkeypatch, [0.0], mender))


def test_a_form_that_was_learnt_is_taken_at_once_and_said(given, tmp_path, monkeypatch):
    built = build(given, tmp_path / "out", monkeypatch, [0.0], mender=None, recaller=renamed)
    assert io.load(tmp_path / "out" / "model.onnx").graph.name == "mended"
    assert any(DONE in text for text in built.warnings) and "mend" not in names(built)


def test_a_form_that_was_learnt_and_is_refused_now_is_left_alone(given, plain, tmp_path, monkeypatch):
    refuse_other_forms(monkeypatch)
    built = build(given, tmp_path / "out", monkeypatch, [0.0], mender=None, recaller=renamed)
    untried, folder = plain
    assert digest(tmp_path / "out") == digest(folder)
    assert (built.warnings, names(built)) == (untried.warnings, names(untried))
