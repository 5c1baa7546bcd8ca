"""Loading of written models in a child process, which has another working directory than its caller."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from intact.runtime import loads

GOOD = '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { y = Neg(x) }'

pytestmark = pytest.mark.usefixtures("loads_in_a_child")


def test_relative_paths_are_those_of_the_caller(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(GOOD), "good.onnx")
    onnx.save(onnx.parser.parse_model(GOOD.replace("Neg", "NoSuchOperator")), "bad.onnx")
    found = loads.problems(Path("good.onnx"), Path("bad.onnx"))
    assert list(found) == [Path("bad.onnx")] and "NoSuchOperator" in found[Path("bad.onnx")]
