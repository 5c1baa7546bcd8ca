"""A model that is compiled already is taken as it is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from intact import pipeline
from intact.config import BuildConfig, CompileConfig
from intact.errors import ModelError


def context(folder, *, binary=True):
    node = helper.make_node(
        "EPContext", ["x"], ["y"], name="npu", domain="com.microsoft", embed_mode=0, ep_cache_context="m.bin"
    )
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "ctx.onnx")
    if binary:
        np.arange(9, dtype=np.uint8).tofile(folder / "m.bin")
    return folder / "ctx.onnx"


def test_a_compiled_model_is_published_with_its_binary_and_every_skipped_stage(tmp_path):
    config = BuildConfig(compile=CompileConfig(device="cpu"))
    built = pipeline.build(context(tmp_path), config, tmp_path / "out")
    skipped = {stage.name: stage.reason for stage in built.stages if stage.status == "skipped"}
    assert set(skipped) == {"quantize", "rewrite", "compile", "verify"} and "EPContext" in skipped["quantize"]
    assert (tmp_path / "out/m.bin").read_bytes() == (tmp_path / "m.bin").read_bytes()
    assert [artifact.path for artifact in built.artifacts] == ["model.onnx", "m.bin"]
    assert [node.name for node in built.placement.npu_nodes] == ["npu"]


def test_a_compiled_model_without_its_binary_is_refused(tmp_path):
    config = BuildConfig(compile=CompileConfig(device="cpu"))
    with pytest.raises(ModelError, match=r"m\.bin"):
        pipeline.build(context(tmp_path, binary=False), config, tmp_path / "out")
    assert not (tmp_path / "out").exists()
