"""A model that is compiled already is taken as it is, if its device loads it."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import intact
from intact.errors import ModelError
from intact.pipeline import stages
from intact.pipeline.stages import BuildOptions
from intact.settings.config import BuildConfig, CompileConfig


def junk(folder, *, binary=True, name="m.bin"):
    """A compiled model whose binary is no binary."""
    node = helper.make_node(
        "EPContext",
        ["x"],
        ["y"],
        name="npu",
        domain="com.microsoft",
        embed_mode=0,
        ep_cache_context=name,
        source="QNN",
        main_context=1,
    )
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "ctx.onnx")
    if binary:
        np.arange(9, dtype=np.uint8).tofile(folder / "m.bin")
    return folder / "ctx.onnx"


@pytest.fixture(scope="module")
def compiled(zoo, tmp_path_factory):
    """What a build for the NPU deployed."""
    folder = tmp_path_factory.mktemp("compiled") / "out"
    values = {"precision": "uint8", "compile": {"device": "qnn"}}
    quant = {"load_path": str(zoo.data("residual_cnn")), "effort": "fast"}
    stages.build(
        zoo.model("residual_cnn"), BuildConfig.from_dict({**values, "quant": quant}), folder, BuildOptions(verify=False)
    )
    return folder / "model.onnx"


@pytest.mark.qnn
def test_a_compiled_model_is_published_with_its_binary_and_every_skipped_stage(compiled, tmp_path):
    built = stages.build(compiled, BuildConfig(compile=CompileConfig(device="qnn")), tmp_path / "out")
    skipped = {stage.name: stage.reason for stage in built.stages if stage.status == "skipped"}
    assert set(skipped) == {"quantize", "rewrite", "compile", "verify"} and "EPContext" in skipped["quantize"]
    binary = compiled.with_name("model_qnn.bin").read_bytes()
    assert (tmp_path / "out/model_qnn.bin").read_bytes() == binary
    assert [artifact.path for artifact in built.artifacts] == ["model.onnx", "model_qnn.bin"]
    assert built.placement.npu_nodes and built.verdict == "unverified"


@pytest.mark.qnn
def test_gates_on_a_compiled_model_that_cannot_be_compared_fail(compiled, tmp_path):
    config = BuildConfig(compile=CompileConfig(device="qnn"), min_sqnr=30.0, require_npu=100.0)
    built = stages.build(compiled, config, tmp_path / "out")
    assert built.verdict == "failed" and any("min_sqnr" in reason for reason in built.verdict_reasons)


@pytest.mark.parametrize("device", ["cpu", pytest.param("qnn", marks=pytest.mark.qnn)])
def test_a_compiled_model_that_its_device_does_not_load_is_refused(device, tmp_path):
    config = BuildConfig(compile=CompileConfig(device=device), min_sqnr=30.0)
    with pytest.raises(ModelError, match="does not load it") as error:
        stages.build(junk(tmp_path), config, tmp_path / "out")
    assert error.value.code == "M163" and not (tmp_path / "out").exists()


def test_a_compiled_model_without_its_binary_is_refused(tmp_path):
    config = BuildConfig(compile=CompileConfig(device="cpu"))
    with pytest.raises(ModelError, match=r"m\.bin"):
        stages.build(junk(tmp_path, binary=False), config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def a_link(folder, secret):
    (folder / "m.bin").symlink_to(secret)
    return "m.bin"


def a_hard_link(folder, secret):
    (folder / "m.bin").hardlink_to(secret)
    return "m.bin"


def a_device(folder, _):
    (folder / "m.bin").symlink_to("/dev/zero")
    return "m.bin"


def a_pipe(folder, _):
    os.mkfifo(folder / "m.bin")
    return "m.bin"


def a_climb(_, secret):
    return f"../{secret.name}"


def an_absolute_path(_, secret):
    return str(secret)


@pytest.mark.parametrize("command", [intact.build, intact.compile], ids=["build", "compile"])
@pytest.mark.parametrize("escape", [a_link, a_hard_link, a_device, a_pipe, a_climb, an_absolute_path])
def test_a_binary_outside_the_folder_of_the_model_is_never_read(escape, command, tmp_path):
    folder, secret = tmp_path / "model", tmp_path / "secret"
    folder.mkdir()
    secret.write_text("secret")
    path = junk(folder, binary=False, name=escape(folder, secret))
    with pytest.raises(ModelError) as error:
        command(path, device="cpu", output=tmp_path / "out")
    assert error.value.code in ("M113", "M114") and "its binary" in error.value.message
    assert not (tmp_path / "out").exists()


def test_every_command_refuses_it_when_it_reads_the_model(tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "m.bin").symlink_to("/etc/hostname")
    with pytest.raises(ModelError, match="leads out of the folder"):
        intact.load(junk(tmp_path, binary=False))


@pytest.mark.parametrize("name", ["model.onnx", "manifest.json", "report.html"])
def test_a_binary_does_not_take_the_place_of_what_a_build_writes(name, tmp_path):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ModelError, match=name) as error:
        intact.build(junk(tmp_path, binary=False, name=name), device="cpu", output=tmp_path / "out")
    assert error.value.code == "M160"


def test_a_compiled_part_in_a_function_is_refused(tmp_path):
    text = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
    g (float[4] x) => (float[4] y) { y = own.f <where = "/etc/hostname"> (x) }
    <domain: "own", opset_import: ["": 21, "com.microsoft": 1]> f <where> (a) => (b) {
        b = com.microsoft.EPContext <embed_mode = 0, ep_cache_context: string = @where> (a)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="the function f") as error:
        intact.load(tmp_path / "m.onnx")
    assert error.value.code == "M165"
