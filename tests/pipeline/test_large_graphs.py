"""Builds of graphs that are too large for ONNX Runtime's optimizers."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from intact.api.build import build
from intact.events import Silence
from intact.model import io
from intact.pipeline import deployment, verifying
from intact.runtime import loads, ort_cpu, pieces
from tests.builder import from_text


class Notes(Silence):
    """Keeps what is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


@pytest.mark.parametrize(("most", "optimized"), [(1, False), (1000, True)])
def test_beyond_a_limit_only_the_deployed_model_is_optimized_and_the_build_says_so(
    most, optimized, tmp_path, monkeypatch
):
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    text = "h = MatMul(x, w) g = Relu(h) y = MatMul(g, w)"
    io.save(from_text("(float[1,8] x) => (float[1,8] y)", text, weights={"w": weight}), tmp_path / "m.onnx")
    loaded = {}

    def watched(*paths, timeout=0.0, optimize=True):
        loaded.update(dict.fromkeys((path.name for path in paths), optimize))
        return {}

    monkeypatch.setattr(loads, "problems", watched)
    monkeypatch.setattr(ort_cpu, "MOST_OPTIMIZED", most)
    notes = Notes()
    build(tmp_path / "m.onnx", output=tmp_path / "out", device="cpu", effort="fast", events=notes)
    assert loaded == {"model.onnx": True, "model.qdq.onnx": optimized}
    assert any("without ONNX Runtime's optimizations" in text for text in notes.told) is not optimized


def test_beyond_a_further_limit_the_portable_model_is_not_loaded_as_a_whole_and_the_build_says_so(
    tmp_path, monkeypatch
):
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    io.save(
        from_text("(float[1,8] x) => (float[1,8] y)", "y = MatMul(x, w)", weights={"w": weight}), tmp_path / "m.onnx"
    )
    loaded = []
    monkeypatch.setattr(loads, "problems", lambda *paths, **_: loaded.extend(path.name for path in paths) or {})
    monkeypatch.setattr(deployment, "MOST_LOADED", 1)
    notes = Notes()
    build(tmp_path / "m.onnx", output=tmp_path / "out", device="cpu", effort="fast", events=notes)
    assert loaded == ["model.onnx"]
    assert any("model.qdq.onnx was loaded by ONNX Runtime in pieces" in text for text in notes.told)


@pytest.mark.parametrize("effort", ["fast", "normal"])
def test_a_build_that_runs_in_pieces_has_the_files_and_the_figures_of_one_that_does_not(effort, tmp_path, monkeypatch):
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    text = "a = MatMul(x, w) b = Relu(a) c = MatMul(b, w) d = Add(c, b) e = Relu(d) f = MatMul(e, w) y = Add(f, a)"
    io.save(from_text("(float[1,8] x) => (float[1,8] y)", text, weights={"w": weight}), tmp_path / "m.onnx")
    cut: list[int] = []
    opened = pieces.SessionInPieces.__init__

    def counted(self, model, found, *others):
        cut.append(len(found))
        opened(self, model, found, *others)

    monkeypatch.setattr(pieces.SessionInPieces, "__init__", counted)
    whole = build(tmp_path / "m.onnx", output=tmp_path / "whole", device="cpu", effort=effort)
    assert cut == []
    monkeypatch.setattr(pieces, "SHORTEST", 3)
    monkeypatch.setattr(pieces, "NODES", 2)
    monkeypatch.setattr(ort_cpu, "MOST_OPTIMIZED", 3)
    parts = build(tmp_path / "m.onnx", output=tmp_path / "parts", device="cpu", effort=effort)
    assert len(cut) >= 4 and max(cut) >= 3
    assert parts.accuracy == whole.accuracy
    for name in ("model.onnx", "model.qdq.onnx"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_of_very_many_layers_some_are_compared_one_by_one_with_the_same_figures_and_the_build_says_so(
    tmp_path, monkeypatch
):
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    text = "a = MatMul(x, w) b = Relu(a) c = MatMul(b, w) d = Add(c, b) e = Relu(d) f = MatMul(e, w) y = Add(f, a)"
    io.save(from_text("(float[1,8] x) => (float[1,8] y)", text, weights={"w": weight}), tmp_path / "m.onnx")
    whole = build(tmp_path / "m.onnx", output=tmp_path / "whole", device="cpu", effort="fast")
    known = {error.quantizer: error for error in whole.errors}
    assert len(known) >= 3
    monkeypatch.setattr(verifying, "MOST_COMPARED", 2)
    notes = Notes()
    some = build(tmp_path / "m.onnx", output=tmp_path / "some", device="cpu", effort="fast", events=notes)
    assert 0 < len(some.errors) <= 2 and all(known[error.quantizer] == error for error in some.errors)
    told = next(stage for stage in some.stages if stage.name == "verify").details
    assert (told["layers_compared"], told["layers"]) == (len(some.errors), len(known))
    assert any(f"{len(some.errors)} of {len(known)}" in text and "compared one by one" in text for text in notes.told)


@pytest.mark.parametrize(("effort", "every"), [("fast", 3), ("normal", 1)])
def test_of_the_rewrites_of_a_very_long_graph_some_are_held_to_their_claims_at_fast_effort_and_the_build_says_so(
    effort, every, tmp_path, monkeypatch
):
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    text = "".join(f"m{n} = MatMul({'x' if n == 0 else f'r{n - 1}'}, w) r{n} = Relu(m{n}) " for n in range(7))
    model = from_text("(float[1,8] x) => (float[1,8] y)", f"{text} y = MatMul(r6, w)", weights={"w": weight})
    io.save(model, tmp_path / "m.onnx")
    whole = build(tmp_path / "m.onnx", output=tmp_path / "whole", device="cpu", effort=effort)
    nodes = len(io.load(tmp_path / "whole" / "model.qdq.onnx").graph)
    monkeypatch.setattr(deployment, "MOST_HELD", -(-nodes // 3))
    notes = Notes()
    some = build(tmp_path / "m.onnx", output=tmp_path / "some", device="cpu", effort=effort, events=notes)
    before, after = (next(one for one in built.stages if one.name == "rewrite").details for built in (whole, some))
    fired = Counter(one["rule"] for one in json.loads((tmp_path / "some" / "manifest.json").read_text())["rewrites"])
    assert before["validated_rewrites"] == before["rewrites"] == after["rewrites"] == fired.total()
    assert after["validated_rewrites"] == sum(-(-count // every) for count in fired.values())
    said = f"{after['validated_rewrites']} of {after['rewrites']}, one in 3 of each rule, rewrites are held"
    assert any(said in text for text in notes.told) == (effort == "fast")
    assert some.accuracy == whole.accuracy
    for name in ("model.onnx", "model.qdq.onnx"):
        assert (tmp_path / "some" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
