"""Networks of the size that people deploy: reduced here, the same code as in full size."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from tests.zoo import data
from tests.zoo.large import bert_base, mobilenet_v2, resnet50, vit_small

SMALL = {
    "resnet50": lambda: resnet50(image=64, depths=(1, 2, 1, 1), width=16, classes=10),
    "mobilenet_v2": lambda: mobilenet_v2(image=64, width=0.25, classes=10),
    "vit_small": lambda: vit_small(image=64, layers=2, width=48, heads=3, classes=10),
    "bert_base": lambda: bert_base(tokens=16, layers=2, width=48, heads=3, vocabulary=50),
}
FULL = {"resnet50": (resnet50, 25.5e6), "mobilenet_v2": (mobilenet_v2, 3.5e6), "vit_small": (vit_small, 22e6)}


@cache
def built(name):
    return SMALL[name]()


def run(model, feeds, names=None):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options).run(names, feeds)


@pytest.mark.parametrize("name", SMALL)
def test_two_samples_have_different_and_finite_outputs(name):
    arrays = data(built(name), rows=2)
    first, second = (run(built(name), {key: array[row : row + 1] for key, array in arrays.items()}) for row in (0, 1))
    for one, other in zip(first, second, strict=True):
        assert np.isfinite(one).all()
        assert np.abs(one - other).max() > 0.01


@pytest.mark.parametrize("name", SMALL)
def test_a_builder_gives_the_same_bytes_twice(name):
    assert SMALL[name]().SerializeToString() == built(name).SerializeToString()


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2"])
def test_normalized_values_have_the_mean_and_deviation_that_the_layer_names(name):
    model = onnx.ModelProto()
    model.CopyFrom(built(name))
    norms = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(node.output[0]) for node in norms)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    rows = data(model, rows=4)["image"]
    samples = [run(model, {"image": rows[row : row + 1]}, [node.output[0] for node in norms]) for row in range(4)]
    for index, node in enumerate(norms):
        values = np.concatenate([sample[index] for sample in samples])
        gamma, beta = (constants[key] for key in node.input[1:3])
        np.testing.assert_allclose(values.mean((0, 2, 3)), beta, rtol=0, atol=0.001)
        np.testing.assert_allclose(values.std((0, 2, 3)), gamma, rtol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_in_full_size_a_network_has_as_many_weights_as_its_model(name):
    build, weights = FULL[name]
    counted = sum(np.prod(tensor.dims) for tensor in build().graph.initializer)
    assert counted == pytest.approx(weights, rel=0.02)
