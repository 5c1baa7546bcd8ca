"""Float networks as exporters write them, grown node by node with seeded weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.builder import Net


class SeededNet(Net):
    """A network whose values have an exporter's names, and whose weights are drawn."""

    node_name: ClassVar[str] = "/{op}_{number}"
    output_name: ClassVar[str] = "/{op}_{number}_output_0"
    constant_name: ClassVar[str] = "const_{number}"
    opsets: ClassVar[Mapping[str, int]] = {"": 17}
    ir_version: ClassVar[int] = 8

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name)
        self.rng = np.random.default_rng(seed)
        self.outputs: list[onnx.ValueInfoProto] = []

    def output(self, value: str, name: str, shape: Sequence[int]) -> None:
        """An output of the graph, which has a name of its own."""
        self.nodes.append(helper.make_node("Identity", [value], [name], name=f"/{name}"))
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def const(self, values: object, dtype: type = np.float32) -> str:
        """An initializer with these values."""
        return self.constant(np.asarray(values, dtype))

    def normal(self, shape: tuple[int, ...], scale: object = 1.0, mean: float = 0.0) -> str:
        """A weight drawn from a normal distribution."""
        return self.const(mean + self.rng.standard_normal(shape) * scale)

    def spread(self, channels: int, sigma: float = 0.35) -> np.ndarray:
        """One positive factor for each channel, as far apart as trained layers have them."""
        return np.exp(self.rng.normal(0.0, sigma, channels))

    def linear(self, x: str, width_in: int, width_out: int, gain: float = 1.0) -> str:
        """x @ W + b as torch exports nn.Linear on rank 3: MatMul, then Add with the bias first."""
        scale = gain * self.spread(width_out) / np.sqrt(width_in)
        product = self.op("MatMul", x, self.normal((width_in, width_out), scale))
        return self.op("Add", self.normal((width_out,), 0.1), product)

    def gemm(self, x: str, width_in: int, width_out: int) -> str:
        """nn.Linear on rank 2, as torch exports it: Gemm with a transposed weight."""
        scale = self.spread(width_out)[:, None] / np.sqrt(width_in)
        weight = self.normal((width_out, width_in), scale)
        return self.op("Gemm", x, weight, self.normal((width_out,), 0.1), alpha=1.0, beta=1.0, transB=1)

    def checked(self) -> onnx.ModelProto:
        """The model, after ONNX has checked it."""
        model = self.proto(self.inputs, self.outputs)
        model.producer_name = "zoo"
        onnx.checker.check_model(model, full_check=True)
        return model
