"""Q/DQ graphs as other exporters write them: integers on the CPU, whole on the NPU."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from intact.api.build import build
from intact.numbers.decibels import sqnr_db
from intact.pipeline import execution
from intact.settings.config import CompileConfig
from tests.builder import Net

RNG = np.random.default_rng(0)


class Dialect(Net):
    """A block of MobileNetV2 and a head between grids, written as one exporter writes grids and weights.

    `unsigned` activations are uint8 around 128, others int8 around 0. Biases are floats, as they are wherever a model
    was trained on grids, and no grid stands behind what only moves values.
    """

    unsigned = True

    def pair(self, value: str, scale: float) -> str:
        """Round a tensor to a grid."""
        grid = self.grid(scale)
        return self.op("DequantizeLinear", self.op("QuantizeLinear", value, *grid), *grid)

    def grid(self, scale: float) -> list[str]:
        return [self.constant(np.float32(scale)), self.constant(np.uint8(128) if self.unsigned else np.int8(0))]

    def weight(self, shape: tuple[int, ...]) -> str:
        """A weight with a scale for each output channel."""
        integers, scales = self.numbers(shape)
        return self.op("DequantizeLinear", integers, scales, np.zeros(shape[0], np.int8), axis=0)

    def numbers(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        scales = RNG.uniform(0.5, 1.5, shape[0]) / (100 * np.sqrt(np.prod(shape[1:])))
        return RNG.integers(-127, 128, shape).astype(np.int8), scales.astype(np.float32)

    def conv(self, x: str, shape: tuple[int, ...], **attributes: object) -> str:
        return self.op("Conv", x, self.weight(shape), self.bias(shape[0]), **attributes)

    def bias(self, size: int) -> np.ndarray:
        return RNG.normal(0, 0.1, size).astype(np.float32)

    def written(self, path, batch: int | str = 1):
        x = self.pair(self.input("x", [batch, 8, 8, 8]), 0.03)
        wide = self.pair(self.op("Relu", self.conv(x, (16, 8, 1, 1))), 0.02)
        deep = self.conv(wide, (16, 1, 3, 3), pads=[1] * 4, group=16)
        narrow = self.conv(self.pair(self.op("Relu", deep), 0.02), (8, 16, 1, 1))
        joined = self.pair(self.op("Add", x, self.pair(narrow, 0.02)), 0.04)
        pooled = self.pair(self.op("MaxPool", joined, kernel_shape=[8, 8]), 0.04)
        scores = self.op("Gemm", self.op("Flatten", pooled), self.weight((64, 8)), self.bias(64), transB=1)
        last = self.pair(scores, 0.03)
        output = onnx.helper.make_tensor_value_info(last, TensorProto.FLOAT, [batch, 64])
        onnx.save(self.proto(self.inputs, [output]), path)
        return path


class Trained(Dialect):
    """As torch 1.12 writes what was trained on grids: an idle Cast in every pair, copies of every scale."""

    def grid(self, scale: float) -> list[str]:
        return [self.op("Identity", name) for name in super().grid(scale)]

    def pair(self, value: str, scale: float) -> str:
        grid = self.grid(scale)
        same = self.op("Cast", self.op("QuantizeLinear", value, *grid), to=TensorProto.UINT8)
        return self.op("DequantizeLinear", same, *grid)


class Symmetric(Dialect):
    """As TensorRT's tools write it: int8 around 0 throughout, weights in float with a pair of their own."""

    unsigned = False

    def weight(self, shape: tuple[int, ...]) -> str:
        integers, scales = self.numbers(shape)
        floats = integers * scales.reshape(-1, *[1] * (len(shape) - 1))
        grid = [self.constant(scales), self.constant(np.zeros(shape[0], np.int8))]
        return self.op("DequantizeLinear", self.op("QuantizeLinear", floats, *grid, axis=0), *grid, axis=0)


class Faked(Symmetric):
    """As NNCF writes it: the same, with activations in uint8."""

    unsigned = True


class Clipped(Dialect):
    """As Brevitas writes it: a Clip between Q and DQ keeps integers in a narrower range."""

    def pair(self, value: str, scale: float) -> str:
        grid = self.grid(scale)
        narrow = self.op("Clip", self.op("QuantizeLinear", value, *grid), np.uint8(1), np.uint8(255))
        return self.op("DequantizeLinear", narrow, *grid)

    def weight(self, shape: tuple[int, ...]) -> str:
        integers, scales = self.numbers(shape)
        narrow = self.op("Clip", integers, np.int8(-127), np.int8(127))
        return self.op("DequantizeLinear", narrow, scales, np.zeros(shape[0], np.int8), axis=0)


class Unzeroed(Dialect):
    """As PyTorch 2 writes weights: no zero points where they are 0, constants as nodes."""

    def grid(self, scale: float) -> list[str]:
        numbers = (np.float32(scale), np.uint8(128))
        return [self.op("Constant", value=onnx.numpy_helper.from_array(number)) for number in numbers]

    def weight(self, shape: tuple[int, ...]) -> str:
        integers, scales = self.numbers(shape)
        return self.op("DequantizeLinear", integers, scales, axis=0)


class ChannelsLast(Dialect):
    """As converters from TFLite write it: every convolution between two Transposes."""

    def conv(self, x: str, shape: tuple[int, ...], **attributes: object) -> str:
        last = self.op("Transpose", x, perm=[0, 2, 3, 1])
        first = self.op("Transpose", last, perm=[0, 3, 1, 2])
        return super().conv(first, shape, **attributes)


DIALECTS = [Dialect, Trained, Symmetric, Faked, Clipped, Unzeroed, ChannelsLast]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_foreign_export_becomes_integers_on_the_cpu(dialect, tmp_path):
    built = build(dialect().written(tmp_path / "given.onnx"), output=tmp_path / "out", device="cpu")
    operators = [node.op_type for node in onnx.load(tmp_path / "out" / "model.onnx").graph.node]
    assert operators.count("QLinearConv") == 3 and "QGemm" in operators and not {"Conv", "Gemm"} & {*operators}
    (row,) = (row for row in built.accuracy if row.form == "compiled")
    assert built.verdict == "good" and (row.identical or row.sqnr_db > 35)


def without_activation_grids(model: onnx.ModelProto) -> onnx.ModelProto:
    """The function that the exporter rounded: every pair of Q and DQ on an activation is left out."""
    made = {name: node for node in model.graph.node for name in node.output}
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for node in result.graph.node:
        if node.op_type != "DequantizeLinear":
            continue
        source = node.input[0]
        while source in made and made[source].op_type != "QuantizeLinear":
            source = made[source].input[0] if made[source].input else ""
        if source in made and made[source].input[0] not in {tensor.name for tensor in model.graph.initializer}:
            rounded = made[source].input[0]
            node.ClearField("input")
            node.ClearField("attribute")
            node.op_type = "Identity"
            node.input.append(rounded)
    return result


@pytest.mark.qnn
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_foreign_export_is_whole_on_the_npu_within_a_decibel_of_the_cpu(dialect, tmp_path):
    given = dialect().written(tmp_path / "given.onnx", batch="batch")
    built = build(given, output=tmp_path / "out", device="qnn", arch="v73", dim={"batch": 1})
    assert built.placement.partitions == 1 and not built.placement.cpu_nodes
    rows = [{"x": RNG.standard_normal((1, 8, 8, 8)).astype(np.float32)} for _ in range(16)]
    plain = onnxruntime.InferenceSession(without_activation_grids(onnx.load(given)).SerializeToString())
    rounded = onnxruntime.InferenceSession(given)
    deployed = execution.runner(tmp_path / "out" / "model.onnx", CompileConfig(device="qnn", arch="v73"))
    exact, cpu = (np.stack([session.run(None, row)[0] for row in rows]) for session in (plain, rounded))
    npu = np.stack([next(iter(found.values())) for found in deployed.outputs(rows)])
    kept = [sqnr_db(float(np.sum(exact**2)), float(np.sum((exact - found) ** 2))) for found in (cpu, npu)]
    assert 20 < kept[0] < 60 and kept[1] > kept[0] - 1
