"""Builds on the simulator of a device that is wrong about a layer: another form is taken, or the CPU, and said."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from intact.backends import lessons
from intact.model import io
from intact.pipeline import stages
from intact.pipeline.stages import BuildOptions
from intact.search.builds import build_any
from intact.search.mending import learning, mender, steering
from intact.search.mending.other_forms import REMEDIES
from intact.settings.config import BuildConfig

# With uneven pads the device computes something else, which is known since it was found by hand.
DECONVOLVE = helper.make_node("ConvTranspose", ["x", "w"], ["y"], "deconvolve", pads=[1, 0, 1, 1, 0, 1])
CONVOLVE = helper.make_node("Conv", ["y", "k"], ["z"], "convolve")


def written(path, nodes, output, shape):
    rng = np.random.default_rng(1)
    weights = {"w": rng.standard_normal((2, 3, 3, 3, 3)), "k": rng.standard_normal((5, 3, 3, 3, 3))}
    read = {name for node in nodes for name in node.input}
    constants = [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items() if name in read]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 5, 6])
    graph = helper.make_graph(
        nodes, "g", [x], [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)], constants
    )
    io.save(ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)), path)
    return path


def settings(folder, **more):
    rng = np.random.default_rng(2)
    np.savez(folder / "d.npz", x=rng.standard_normal((24, 2, 4, 5, 6)).astype(np.float32))
    quant = {"load_path": str(folder / "d.npz"), "effort": "fast"}
    return BuildConfig.from_dict({"precision": "w8a16", "compile": {"device": "qnn"}, "quant": quant, **more})


def kept(build):
    return next(row.sqnr_db for row in build.accuracy if row.form == "compiled")


@pytest.mark.qnn
def test_a_build_takes_the_mended_form_and_says_so(tmp_path, monkeypatch):
    path, config = written(tmp_path / "m.onnx", [DECONVOLVE], "y", [1, 3, 4, 7, 6]), settings(tmp_path)
    plain = stages.build(path, config, tmp_path / "plain", BuildOptions())
    foreseen = build_any(path, config, tmp_path / "foreseen")
    learnt = tmp_path / "learnt.json"
    # The table knows of it, so that builds need not look for it; here they do.
    monkeypatch.setattr(learning, "steer", lambda *_: None)
    built = build_any(path, config, tmp_path / "mended", learnt=learnt)

    assert plain.verdict == "broken" and kept(plain) < 6
    assert built.verdict == "good" and kept(built) > 33
    assert foreseen.accuracy == built.accuracy and "mend" not in [stage.name for stage in foreseen.stages]
    assert any("since the device is wrong about it otherwise" in text for text in foreseen.warnings)
    (told,) = [stage for stage in built.stages if stage.name == "mend"]
    assert "deconvolve" in told.details["done"][0]
    assert [stage.name for stage in built.stages].count("verify") == 1
    assert not built.placement.cpu_nodes

    (lesson,) = lessons.read(learnt)
    assert "ConvTranspose" in lesson.operator and lesson.wrong_db < 6 < 33 < lesson.right_db
    again = build_any(path, config, tmp_path / "again", learnt=learnt)
    assert "mend" not in [stage.name for stage in again.stages]
    assert again.accuracy == built.accuracy and any("earlier build learnt" in text for text in again.warnings)


@pytest.mark.qnn
def test_what_no_form_helps_goes_to_the_cpu_where_that_is_allowed(tmp_path, monkeypatch):
    path = written(tmp_path / "m.onnx", [DECONVOLVE, CONVOLVE], "z", [1, 5, 2, 5, 4])
    monkeypatch.setattr(steering, "steer", lambda *_: None)
    monkeypatch.setattr(mender, "REMEDIES", ())

    refused = build_any(path, settings(tmp_path), tmp_path / "strict")
    assert refused.verdict == "broken" and kept(refused) < 6 and not refused.placement.cpu_nodes
    (advice,) = [text for text in refused.warnings if "--no-strict computes it on the CPU" in text]
    assert advice.startswith("deconvolve (ConvTranspose) keeps -")

    built = build_any(path, settings(tmp_path, strict=False), tmp_path / "loose")
    assert built.verdict == "good" and kept(built) > 33
    on_cpu = {node.name: node.reason for node in built.placement.cpu_nodes}
    assert "keeps -" in on_cpu["deconvolve"] and "convolve" in {node.name for node in built.placement.npu_nodes}
    assert any(text.startswith("mended for qnn/v73: deconvolve") and "the CPU" in text for text in built.warnings)
    # What is right on the NPU stays there.
    monkeypatch.setattr(mender, "REMEDIES", REMEDIES)
    mended = build_any(path, settings(tmp_path, strict=False), tmp_path / "mended")
    assert mended.verdict == "good" and not mended.placement.cpu_nodes
