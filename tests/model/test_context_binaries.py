"""Binaries that a compiled model names."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from intact.errors import ModelError
from intact.model import context_binaries


def compiled(folder, *further):
    """A model of partitions in a row: a main one whose binary lies there, and others, which name what is given."""
    (folder / "m.bin").write_bytes(b"binary")
    nodes = [
        helper.make_node(
            "EPContext",
            [f"t{place}"],
            [f"t{place + 1}"],
            name=f"npu_{place}",
            domain="com.microsoft",
            embed_mode=0,
            main_context=int(place == 0),
            **({"ep_cache_context": name} if name else {}),
        )
        for place, name in enumerate(("m.bin", *further))
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("t0", f"t{len(nodes)}")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "m.onnx")
    return folder / "m.onnx", ir.from_proto(onnx.load(folder / "m.onnx"))


def test_a_further_partition_is_in_the_binary_of_the_main_one(tmp_path):
    path, model = compiled(tmp_path, "", "")
    assert context_binaries.find(path, model) == {"m.bin": tmp_path / "m.bin"}
    context_binaries.check(path, model)


def test_a_name_counts_in_a_further_partition_too(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "secret").write_text("secret")
    path, model = compiled(tmp_path / "model", "../secret")
    with pytest.raises(ModelError, match="npu_1: its binary"):
        context_binaries.check(path, model)


def test_a_main_partition_has_to_name_its_binary(tmp_path):
    path, model = compiled(tmp_path)
    model.graph[0].attributes.pop("ep_cache_context")
    with pytest.raises(ModelError, match="npu_0: its binary '' is empty"):
        context_binaries.check(path, model)
