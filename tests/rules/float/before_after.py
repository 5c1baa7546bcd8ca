"""A model before and after rules, and whether both compute the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from intact.matching.rewriter import Rewritten, Rule, apply
from intact.model import shapes
from intact.runtime import ort_cpu
from tests.model.small import model


def rewritten(rules: Sequence[Rule], body: str, signature: str, constants: str = "", **arrays: np.ndarray) -> Rewritten:
    """The model after `rules`; `arrays` are initializers."""
    before = given(body, signature, constants, **arrays)
    return apply(before, rules)


def given(body: str, signature: str, constants: str = "", **arrays: np.ndarray) -> ir.Model:
    """The model as written, with shapes inferred."""
    result = model(body, signature, constants)
    for name, array in arrays.items():
        free = next(value for value in _inputs(result) if value.name == name)
        free.const_value = ir.tensor(array, name=name)
        free.type, free.shape = ir.TensorType(free.const_value.dtype), ir.Shape(array.shape)
        result.graph.register_initializer(free)
    shapes.infer_shapes(result)
    return result


def _inputs(result: ir.Model) -> list[ir.Value]:
    return [value for node in result.graph for value in node.inputs if value is not None]


def difference(before: ir.Model, after: ir.Model, seed: int = 0, scale: float = 2.0) -> float:
    """The largest difference of any output, on random inputs, relative to the largest value of that output."""
    rng = np.random.default_rng(seed)
    feeds = {value.name: _random(rng, value, scale) for value in before.graph.inputs}
    expected, found = ort_cpu.run(before, feeds), ort_cpu.run(after, feeds)
    assert expected.keys() == found.keys()
    assert all(expected[name].shape == found[name].shape for name in expected)
    return max(float(np.abs(found[name] - array).max() / np.abs(array).max()) for name, array in expected.items())


def _random(rng: np.random.Generator, value: ir.Value, scale: float) -> np.ndarray:
    shape = value.shape.numpy()
    floats = value.dtype.is_floating_point()
    return (scale * rng.standard_normal(shape) if floats else rng.integers(0, 2, shape)).astype(value.dtype.numpy())
