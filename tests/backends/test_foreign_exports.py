"""Q/DQ graphs as other exporters write them, whole on the NPU."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from intact.api.build import build
from tests.builder import Net

RNG = np.random.default_rng(0)


def qat_export() -> Net:
    """A convolution as torch 1.12 writes it after training: an idle Cast in every pair, copies of every scale."""
    net = Net()
    net.input("x", [1, 3, 8, 8])
    grid = [net.op("Identity", net.constant(np.float32(0.03))), net.op("Identity", net.constant(np.uint8(128)))]
    wide = [net.op("Identity", net.constant(np.float32(0.1))), grid[1]]

    def pair(value: str, places: list[str]) -> str:
        same = net.op("Cast", net.op("QuantizeLinear", value, *places), to=TensorProto.UINT8)
        return net.op("DequantizeLinear", same, *places)

    weight = RNG.integers(-128, 128, (8, 3, 3, 3)).astype(np.int8)
    scale = net.op("Identity", net.constant(np.full(8, 0.01, np.float32)))
    w = net.op("DequantizeLinear", weight, scale, np.zeros(8, np.int8), axis=0)
    net.last = pair(net.op("Relu", net.op("Conv", pair("x", grid), w, pads=[1] * 4)), wide)
    return net


def test_a_qat_export_with_idle_casts_is_whole_on_the_npu(tmp_path):
    pytest.importorskip("onnxruntime_qnn")
    net = qat_export()
    output = onnx.helper.make_tensor_value_info(net.last, TensorProto.FLOAT, [1, 8, 8, 8])
    onnx.save(net.proto(net.inputs, [output]), tmp_path / "qat.onnx")
    built = build(tmp_path / "qat.onnx", output=tmp_path / "out", device="qnn")
    assert built.placement.partitions == 1 and not built.placement.cpu_nodes
    figures = {row.form: row for row in built.accuracy}
    assert figures["rewritten"].identical and figures["compiled"].sqnr_db > 35
