"""The Hexagon compiler and simulator, as a build uses them."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from intact.backends import compiling
from intact.backends.qnn import backend as compile_qnn
from intact.backends.qnn import client as qnn_client
from intact.backends.qnn.client import Chip
from intact.errors import NotAvailable, SettingsError, TargetError, ToolchainError
from intact.model import io
from intact.runtime import ort_cpu
from tests.backends import qdq

ARCHES = (68, 69, 73, 75, 79, 81)

needs_qnn = [
    pytest.mark.qnn,
    pytest.mark.skipif(
        importlib.util.find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed (extra: qnn)"
    ),
]


def build(model, folder, arch=73, *, on_cpu=None, **settings):
    return compiling.compile(model, compiling.Device("qnn", 120, arch, **settings), folder, on_cpu=on_cpu)


def digests(compiled):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in compiled.files}


def sqnr_db(reference, values):
    noise = sum(float(np.square(r["scores.d"] - v["scores.d"]).sum()) for r, v in zip(reference, values, strict=True))
    return 10 * np.log10(sum(float(np.square(r["scores.d"]).sum()) for r in reference) / noise)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


class TestWithTheCompiler:
    pytestmark = needs_qnn

    @pytest.mark.parametrize("arch", ARCHES)
    def test_a_cnn_goes_whole_to_every_architecture_and_runs_there(self, arch, tmp_path):
        compiled = build(qdq.cnn(), tmp_path, arch)
        assert [file.name for file in compiled.files] == ["model.onnx", "model_qnn.bin"]
        assert [node.op_type for node in ir.load(compiled.path).graph] == ["EPContext"]
        assert compiled.placement.partitions == 1
        assert (compiled.placement.cpu_nodes, compiled.warnings) == ((), ())
        assert len(compiled.placement.npu_nodes) == len(list(qdq.cnn().graph))
        assert f"v{arch}" in compiled.runtime
        samples = qdq.images(8)
        session = ort_cpu.Session(qdq.cnn())
        simulated = qnn_client.run(compiled.path, samples, Chip(arch), timeout=120)
        assert sqnr_db([session.run(sample) for sample in samples], simulated) > 30

    def test_two_compilations_in_different_places_give_the_same_bytes(self, tmp_path, monkeypatch):
        results = []
        for place in ("here", "somewhere else"):
            (tmp_path / place).mkdir()
            monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / place))
            results.append([digests(build(m, tmp_path / place / m_name)) for m_name, m in self.models()])
        assert results[0] == results[1]

    @staticmethod
    def models():
        return [("whole", qdq.cnn()), ("in parts", qdq.cnn("Acos"))]

    def test_the_artifact_runs_from_another_folder(self, tmp_path):
        compiled = build(qdq.cnn(), tmp_path / "first")
        there = qnn_client.run(compiled.path, qdq.images(2), Chip(73), timeout=120)
        moved = (tmp_path / "first").rename(tmp_path / "second") / "model.onnx"
        here = qnn_client.run(moved, qdq.images(2), Chip(73), timeout=120)
        for before, after in zip(there, here, strict=True):
            np.testing.assert_array_equal(before["scores.d"], after["scores.d"])

    def test_a_quantized_model_runs_in_the_simulator_without_being_compiled_first(self, tmp_path):
        io.save(qdq.cnn(), tmp_path / "q.onnx")
        samples = qdq.images(4)
        session = ort_cpu.Session(qdq.cnn())
        simulated = qnn_client.run(tmp_path / "q.onnx", samples, Chip(73), timeout=120)
        assert sqnr_db([session.run(sample) for sample in samples], simulated) > 30

    def test_integers_can_be_inputs_and_outputs(self, tmp_path):
        compiled = build(qdq.integer_cnn(), tmp_path)
        assert (compiled.placement.partitions, compiled.placement.cpu_nodes) == (1, ())
        feeds = {"x": np.random.default_rng(0).integers(0, 256, (1, 3, qdq.SIDE, qdq.SIDE)).astype(np.uint8)}
        (simulated,) = qnn_client.run(compiled.path, [feeds], Chip(73), timeout=120)
        expected = ort_cpu.run(qdq.integer_cnn(), feeds)["scores.q"]
        assert simulated["scores.q"].dtype == np.uint8
        assert np.abs(simulated["scores.q"].astype(int) - expected.astype(int)).max() <= 2

    def test_weights_may_lie_outside_the_model(self, tmp_path, monkeypatch):
        monkeypatch.setattr(compile_qnn.io, "save", functools.partial(io.save, external_threshold=0))
        assert build(qdq.cnn(), tmp_path).placement.partitions == 1

    def test_one_refused_node_is_named_with_its_reason_and_splits_the_rest(self, tmp_path):
        compiled = build(qdq.cnn("Acos"), tmp_path)
        assert compiled.placement.partitions == 2
        (node,) = [
            node for node in compiled.placement.cpu_nodes if node.op not in ("QuantizeLinear", "DequantizeLinear")
        ]
        assert (node.name, node.op) == ("the_middle", "Acos")
        # A strict build refuses it; one that was told of it does not.
        assert compiled.unforeseen == (node,)
        assert build(qdq.cnn("Acos"), tmp_path / "told", on_cpu={"the_middle": "told"}).unforeseen == ()
        assert "not supported" in node.reason
        (warning,) = compiled.warnings
        assert warning.startswith("1 of 6 compute nodes stay on the CPU:\n  the_middle (Acos): ")
        on_npu = {node.name for node in compiled.placement.npu_nodes}
        assert {"the_conv", "the_pool", "the_scores"} <= on_npu
        assert "scores.d" in qnn_client.run(compiled.path, qdq.images(1), Chip(73), timeout=120)[0]

    def test_a_refused_node_whose_layout_was_changed_is_left_to_the_cpu(self, tmp_path):
        """ONNX Runtime alone fails there: it cannot change the layout back."""
        model = qdq.conv_before_wide_conv()
        compiled = build(model, tmp_path, 68)
        on_cpu = {node.name: node.reason for node in compiled.placement.cpu_nodes if node.op == "Conv"}
        assert on_cpu.keys() == {"the_conv"} and "Conv2d(UFIXED_POINT_16" in on_cpu["the_conv"]
        assert {node.name for node in compiled.unforeseen} == {"the_conv"}
        assert "the_first" in {node.name for node in compiled.placement.npu_nodes}
        (sample,) = qdq.images(1)
        (simulated,) = qnn_client.run(compiled.path, [sample], Chip(68), timeout=120)
        expected = ort_cpu.run(model, sample)
        # A step of the Conv of 8 bits, which is on the NPU, in all 27 products of the other.
        assert np.abs(simulated["conv.d"] - expected["conv.d"]).max() <= 27 * 0.03 * 0.1
        assert np.abs(expected["conv.d"]).max() > 0.5

    def test_a_product_of_int16_is_refused_on_v68_with_the_types_and_taken_on_v73(self, tmp_path):
        old, new = (build(qdq.two_matmuls(), tmp_path / str(arch), arch) for arch in (68, 73))
        (node,) = [node for node in old.placement.cpu_nodes if node.op == "MatMul"]
        assert node.name == "the_wide"
        assert "MatMul(SFIXED_POINT_16[1,4,8], SFIXED_POINT_16[1,8,4])" in node.reason
        assert new.placement.cpu_nodes == ()

    @pytest.mark.parametrize(
        ("model", "arch", "code", "words"),
        [
            (lambda: qdq.one_op("Acos"), 73, "T120", ["no compute node", "v73", "the_only (Acos)", "not supported"]),
            (lambda: qdq.cnn("Tan"), 73, "T121", ["finalize"]),
            (qdq.wide_conv, 68, "T120", ["the_conv (Conv)", "Conv2d(UFIXED_POINT_16", "SFIXED_POINT_16"]),
            (lambda: qdq.cnn(batch="N"), 73, "T122", ["free: N", "--dim N=1"]),
        ],
    )
    def test_what_the_npu_cannot_take_is_an_error_that_says_why(self, model, arch, code, words, tmp_path, temporary):
        with pytest.raises(TargetError) as caught:
            build(model(), tmp_path / "out", arch)
        assert (caught.value.code, caught.value.status) == (code, 4)
        for word in words:
            assert word in str(caught.value)
        assert not list((tmp_path / "out").iterdir())
        assert not list(temporary.iterdir())

    @pytest.mark.parametrize(
        ("settings", "error", "code", "word"),
        [
            ({"ep_options": {"backend_path": "/absent/libQnnHtp.so"}}, ToolchainError, "E106", "/absent/libQnnHtp.so"),
            ({"soc_id": 99999}, ToolchainError, "E106", "Failed to create device"),
            ({"arch": 74}, ToolchainError, "E107", "74"),
            ({"ep_options": {"htp_performance_mode": "warp"}}, ToolchainError, "E107", "performance mode"),
            ({"ep_options": {"vtcm_megabytes": "4"}}, SettingsError, "S129", "vtcm_megabytes"),
            ({"ep_options": {"htp_arch": "68"}}, SettingsError, "S128", "--arch"),
        ],
    )
    def test_a_provider_that_does_not_start_as_told_is_an_error(self, settings, error, code, word, tmp_path):
        with pytest.raises(error) as caught:
            build(qdq.cnn(), tmp_path / "out", **settings)
        assert caught.value.code == code
        assert word in str(caught.value)
        assert not list((tmp_path / "out").iterdir())

    @pytest.mark.parametrize("job", ["compile_context", "load_model"])
    def test_a_library_for_another_runtime_is_to_blame_and_not_the_model(self, job, tmp_path, monkeypatch):
        """onnxruntime-qnn 2.3.0 beside onnxruntime 1.31.1 says these words."""
        monkeypatch.chdir(tmp_path)
        jobs = importlib.import_module("intact.backends.qnn.job")

        def refuse(path, options):
            raise RuntimeError("SanityCheckOrtEp OrtEp has invalid ort_version_supported=0 (expected at least 22).")

        monkeypatch.setattr(jobs, "create", refuse)
        chip = {"arch": 73, "soc_id": None, "ep_options": {}, "verbose": False}
        order = {**chip, "model": "m.onnx", "folder": str(tmp_path), "fallback": False, "settings": {}, "context": None}
        with pytest.raises(ToolchainError) as caught:
            getattr(jobs, job)(order)
        assert caught.value.code == "E106" and "install a newer onnxruntime-qnn" in str(caught.value)

    def test_options_and_chip_reach_the_provider(self, tmp_path):
        plain = build(qdq.cnn(), tmp_path / "plain")
        chosen = build(qdq.cnn(), tmp_path / "chosen", soc_id=43, ep_options={"vtcm_mb": "2"})
        assert digests(plain) != digests(chosen)

    def test_a_damaged_binary_does_not_load(self, tmp_path):
        compiled = build(qdq.cnn(), tmp_path)
        (tmp_path / "model_qnn.bin").write_bytes(b"junk")
        with pytest.raises(ToolchainError, match="does not load") as caught:
            qnn_client.run(compiled.path, qdq.images(1), Chip(73), timeout=120)
        assert caught.value.code == "E108"

    def test_inputs_of_the_wrong_type_stop_the_simulator(self, tmp_path):
        compiled = build(qdq.cnn(), tmp_path)
        with pytest.raises(ToolchainError, match=r"tensor\(int64\)") as caught:
            qnn_client.run(compiled.path, [{"x": np.zeros((1, 3, 8, 8), np.int64)}], Chip(73), timeout=120)
        assert caught.value.code == "E109"

    def test_neither_terminal_nor_temporary_folder_sees_anything(self, tmp_path, temporary, capfd):
        compiled = build(qdq.cnn("Acos"), tmp_path / "out")
        qnn_client.run(compiled.path, qdq.images(1), Chip(73), timeout=120)
        assert capfd.readouterr() == ("", "")
        assert not list(temporary.iterdir())

    def test_versions_are_read_without_loading_the_vendor(self, monkeypatch):
        monkeypatch.delitem(sys.modules, "onnxruntime_qnn", raising=False)
        assert qnn_client.environment().keys() == {"onnxruntime", "onnxruntime-qnn", "qairt"}
        assert "onnxruntime_qnn" not in sys.modules


def test_without_the_package_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    with pytest.raises(NotAvailable) as caught:
        build(qdq.cnn(), tmp_path)
    assert (caught.value.code, caught.value.status) == ("E101", 5)
    assert "intact[qnn]" in (caught.value.fix or "")


class TestTheSimulator:
    def test_pieces_are_compiled_as_they_stand_as_a_build_compiles_them(self, monkeypatch):
        """ONNX Runtime's own optimizations could hide what the compiler gets wrong."""
        seen = {}
        monkeypatch.setattr(compile_qnn.qnn_client, "run", lambda *given, **more: seen.update(more) or [])
        device = compiling.Device("qnn", timeout=7, arch=75)
        assert compile_qnn.BACKEND.simulator.run(Path("piece.onnx"), [], device) == []
        assert seen == {"timeout": 7, "optimize": False}
