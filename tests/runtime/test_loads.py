"""Loading of written models in a child process, which has another working directory than its caller."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest

from intact.runtime import loads
from intact.runtime.process import Reply

GOOD = '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { y = Neg(x) }'

pytestmark = pytest.mark.usefixtures("loads_in_a_child")


def test_relative_paths_are_those_of_the_caller(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(GOOD), "good.onnx")
    onnx.save(onnx.parser.parse_model(GOOD.replace("Neg", "NoSuchOperator")), "bad.onnx")
    found = loads.problems(Path("good.onnx"), Path("bad.onnx"))
    assert list(found) == [Path("bad.onnx")] and "NoSuchOperator" in found[Path("bad.onnx")]


def test_a_loader_that_is_ready_tells_the_same_as_one_that_is_started(tmp_path):
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    onnx.save(onnx.parser.parse_model(GOOD), good)
    onnx.save(onnx.parser.parse_model(GOOD.replace("Neg", "NoSuchOperator")), bad)
    with loads.loader() as ready:
        assert loads.problems(good, loader=ready) == {}
        assert loads.problems(bad, loader=ready) == loads.problems(bad) != {}


def test_a_model_that_kills_a_loader_is_refused_and_not_loaded_here(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(GOOD), path)
    with loads.loader() as ready:

        def dying(_job: str, request: Mapping[str, object]) -> Reply:
            return ready("tests.runtime.jobs:abort", request)

        assert "SIGABRT" in loads.problems(path, loader=dying)[path]
