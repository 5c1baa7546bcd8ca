"""What is left out of a session would have found nothing: the optimized graph is the same without it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from bench.big_graphs import GRAPHS
from intact.matching import rewriter
from intact.model import io, shapes
from intact.quantization import quantizing
from intact.rules.quantized import families
from intact.runtime import idle_optimizers
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.builder import Net

CPU = load_target("cpu")


def optimized(path, left_out=()):
    """The graph that ONNX Runtime runs, without the names that it makes up."""
    options, result = ort.SessionOptions(), path.with_suffix(".optimized.onnx")
    options.optimized_model_filepath, options.log_severity_level = str(result), 4
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(left_out) or None)
    found = onnx.load(result).graph
    return [(node.domain, node.op_type, tuple(node.input), tuple(node.output)) for node in found.node]


def deployed(given, path):
    """A model on grids, in the form that the CPU takes."""
    model = ir.from_proto(given)
    shapes.infer_shapes(model)
    sizes = [size if isinstance(size, int) else 1 for size in model.graph.inputs[0].shape]
    rows = [{model.graph.inputs[0].name: np.random.default_rng(0).standard_normal(sizes, np.float32)}]
    quantized = quantizing.quantize(model, CPU, QuantConfig.from_dict({"effort": "fast"}), rows).model
    io.save(rewriter.apply(quantized, families.rules_for(CPU)).model, path)
    return path


@pytest.mark.parametrize("kind", GRAPHS)
def test_a_large_graph_is_optimized_in_the_same_way_without_them(kind, tmp_path):
    path = deployed(GRAPHS[kind](60), tmp_path / "model.onnx")
    left_out = [name for name in idle_optimizers.idle(path) if name != idle_optimizers.SHARING]
    assert len(left_out) > 20
    assert optimized(path, left_out) == optimized(path)


OPERATORS = {
    "TransposeOptimizer": lambda net: net.op("Transpose", net.op("Relu", net.op("Transpose", "x", perm=[1, 0]))),
    "MatMulAddFusion": lambda net: net.op("Add", net.op("MatMul", "x", np.ones((8, 4), np.float32)), np.ones(4, "f")),
    "NhwcTransformer": lambda net: net.op(
        "MaxPool", net.op("Reshape", "x", np.int64([1, 1, 8, 8])), kernel_shape=[2, 2]
    ),
    "GatherToSliceFusion": lambda net: net.op("Gather", "x", np.int64([1, 2])),
    "QDQSelectorActionTransformer": lambda net: net.dequantize(net.quantize("x", 0.1, np.uint8(3)), 0.1, np.uint8(3)),
    "QDQPropagationTransformer": lambda net: net.quantize(net.op("Transpose", "x", perm=[1, 0]), 0.1, np.uint8(3)),
    idle_optimizers.EQUAL_NODES: lambda net: net.op("Mul", net.op("Sigmoid", "x"), net.op("Sigmoid", "x")),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_one_that_could_find_something_stays(name, tmp_path):
    net, path = Net(), tmp_path / "model.onnx"
    io.save(net.model({"x": np.zeros((8, 8), np.float32)}, OPERATORS[name](net)), path)
    left_out = idle_optimizers.idle(path)
    assert name not in left_out and idle_optimizers.SHARING in left_out
