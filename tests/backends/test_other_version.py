"""A library of another version is asked about the model; what it answers counts, and is kept."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from intact.backends import other_version
from intact.backends.probing import answers
from intact.errors import ToolchainError
from intact.model import normalize, shapes
from intact.results import PlacedNode, Placement
from intact.targets.registry import load_target
from intact.targets.validate import validate
from tests.builder import from_text

TARGET = load_target("qnn", arch=73)
NEW = "onnxruntime-qnn 9.9.0"


@pytest.fixture
def model():
    found = from_text(
        "(float[1,4] x) => (float[1,4] y)",
        """q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) r = Relu(d) p = QuantizeLinear(r, s, z)
        e = DequantizeLinear(p, s, z) h = Hardmax(e) t = QuantizeLinear(h, s, z) y = DequantizeLinear(t, s, z)""",
        weights={"s": np.float32(0.1), "z": np.uint8(3)},
    )
    normalize.name_nodes(found)
    shapes.infer_shapes(found)
    return found


@pytest.fixture
def library(monkeypatch, tmp_path):
    """Another version than the table's, which refuses what is in `refused`; `asked` counts the times."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    class Fake:
        asked, refused, error = 0, {}, None

        def place(self, model, target, *, timeout, toolchain=None):
            self.asked += 1
            if self.error:
                raise self.error
            names = [node.name for node in model.graph]
            off = tuple(PlacedNode(name, "?", self.refused[name]) for name in names if name in self.refused)
            return Placement(tuple(PlacedNode(name, "?") for name in names if name not in self.refused), off, 1)

    fake = Fake()
    monkeypatch.setattr(other_version, "place_live", fake.place)
    monkeypatch.setattr(
        other_version, "library_drift", lambda backend, toolchain=None: (answers.shipped(backend).library, NEW)
    )
    return fake


def judged(model):
    return other_version.of_this_version(model, TARGET, validate(model, TARGET, strict=False), timeout=10)


def test_the_version_of_the_table_is_not_asked(model, monkeypatch):
    monkeypatch.setattr(other_version, "library_drift", lambda backend, toolchain=None: None)
    found = validate(model, TARGET, strict=False)
    assert [violation.node for violation in found] == ["h"]
    assert other_version.of_this_version(model, TARGET, found, timeout=10) == other_version.VersionFacts(found)


def test_another_version_is_noticed(monkeypatch):
    library = type("Library", (), {"__str__": lambda self: NEW})()
    backend = type("Backend", (), {"library": library, "toolchain": None})()
    monkeypatch.setattr(other_version.installed, "find", lambda name: backend)
    monkeypatch.setattr(other_version, "shipped", lambda name: answers.Probed("onnxruntime-qnn 2.7.0", {}))
    assert other_version.library_drift("qnn") == ("onnxruntime-qnn 2.7.0", NEW)
    monkeypatch.setattr(other_version, "shipped", lambda name: answers.Probed(NEW, {}))
    assert other_version.library_drift("qnn") is None


def test_what_it_takes_is_no_violation_any_more_and_that_is_said(model, library):
    facts = judged(model)
    assert facts.violations == ()
    assert "was probed with onnxruntime-qnn 2.7.0" in facts.notes[0] and NEW in facts.notes[0]
    assert facts.notes[1] == f"{NEW} takes h, which the table refuses"


def test_what_it_refuses_is_a_violation_in_its_own_words_unless_the_table_has_better_ones(model, library):
    library.refused = {"r": "no such Relu", "h": "no"}
    found = {violation.node: violation for violation in judged(model).violations}
    assert set(found) == {"r", "h"}
    assert found["r"].code == "T117" and "no such Relu" in found["r"].found and NEW in found["r"].requirement
    assert found["h"].code == "T101"


def test_answers_are_kept_and_only_new_nodes_are_asked_about(model, library, tmp_path):
    library.refused = {"r": "no such Relu"}
    first = judged(model)
    again = judged(model)
    assert library.asked == 1 and again.violations == first.violations
    assert first.notes[0].endswith("it was asked about 2 of 2 nodes")
    assert again.notes[0].endswith("it was asked about 0 of 2 nodes, the others are in the user's cache")
    (path,) = tmp_path.rglob("*.json")
    assert "9.9.0-73" in path.name and "no such Relu" in json.loads(path.read_text()).values()
    path.write_text("{ torn")
    assert judged(model).violations == first.violations and library.asked == 2


def test_one_error_for_the_whole_model_is_no_answer_about_its_nodes(model, library, tmp_path):
    library.refused = dict.fromkeys((node.name for node in model.graph), "the compiler fails on the whole model")
    facts = judged(model)
    assert [violation.code for violation in facts.violations] == ["T101"], "the table's own"
    assert "takes nothing of the model (the compiler fails on the whole model)" in facts.notes[0]
    assert list(tmp_path.rglob("*.json")) == []


def test_a_cache_that_cannot_be_written_stops_nothing(model, library, tmp_path):
    (tmp_path / "intact").write_text("a file in the way")
    assert any("answers are not kept" in note for note in judged(model).notes)


def test_of_a_library_that_cannot_be_asked_documented_facts_count_and_the_rest_is_left_to_the_compiler(model, library):
    library.error = ToolchainError("E102", "it is too old")
    (probed,) = validate(model, TARGET, strict=False)
    documented = replace(probed, node="r", op="Relu", source="probed: some 2.7.0; documented: a page of the vendor")
    elsewhere = replace(probed, node="b leaves half precision", source="computed")
    facts = other_version.of_this_version(model, TARGET, [probed, documented, elsewhere], timeout=10)
    assert facts.violations == (documented, elsewhere)
    assert "cannot be asked (it is too old): only documented facts count" in facts.notes[0]
    assert facts.notes[1].endswith("left to the compiler: h (Hardmax)")


def test_of_a_library_that_cannot_be_asked_nothing_is_said_to_be_left_where_nothing_is(model, library):
    library.error = ToolchainError("E102", "it is too old")
    assert len(other_version.of_this_version(model, TARGET, [], timeout=10).notes) == 1
