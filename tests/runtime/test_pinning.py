"""Nodes that are hidden from a compiler for fixed shapes compute the same, and nothing else changes for others."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import normalize, query, shapes
from intact.pipeline import execution
from intact.runtime import pinning

TEXT = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[2,6] x) => (float[2,3] first, float[2,3] second) <int64[2] parts = {3, 3}, float[1] c = {2}> {
    a = Mul(c, x)
    p, second = Split<axis = 1>(a, parts)
    first = Relu(p)
}"""


@pytest.fixture
def model() -> ir.Model:
    found = ir.from_onnx_text(TEXT)
    normalize.name_nodes(found)
    shapes.infer_shapes(found)
    return found


@pytest.mark.parametrize("op", ["Mul", "Split", "Relu"])
def test_its_shapes_are_unknown_and_its_numbers_the_same(model, op):
    rows = [{"x": np.arange(-6, 6, dtype=np.float32).reshape(2, 6)}]
    (before,) = execution.run(model, rows)
    (name,) = [node.name for node in model.graph if node.op_type == op]
    pinning.hide(model, [name])
    shapes.infer_shapes(model)

    (node,) = [node for node in model.graph if node.op_type == op]
    (read,) = [value for value in node.inputs if value is not None and not query.is_constant(value)]
    assert all(query.static_shape(value) is None for value in (read, *node.outputs))
    (after,) = execution.run(model, rows)
    assert list(after) == list(before) == ["first", "second"]
    for output, expected in before.items():
        np.testing.assert_array_equal(after[output], expected)
    others = [
        value for other in model.graph for value in other.outputs if other.op_type in {"Mul", "Split", "Relu"} - {op}
    ]
    assert others and all(query.static_shape(value) is not None for value in others)


def test_what_has_no_shape_to_hide_is_left(model):
    pinning.hide(model, ["no such node"])
    assert [node.op_type for node in model.graph] == ["Mul", "Split", "Relu"]
