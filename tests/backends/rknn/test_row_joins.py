"""Rows that are joined in four dimensions are those that are joined in three."""

from __future__ import annotations

import numpy as np
import pytest

from intact.backends.rknn.backend import BACKEND
from intact.backends.rknn.readable import readable
from intact.model import query
from intact.pipeline import execution
from intact.runtime import ort_cpu
from intact.settings.config import BuildConfig
from intact.targets.registry import load_target
from tests.builder import Net

ZERO = np.int8(0)
GRIDS = (0.05, 0.03)


def joined(counts, *, inside=True, behind=True, axis=1, reader="Softmax", columns=2):
    """Rows of as many counts, on grids or not, joined onto a grid or not, and something that reads them."""
    net, parts = Net(), []
    for number, count in enumerate(counts):
        x = net.input(f"x{number}", (1, columns, count, 1))
        x = net.qdq(net.op("Conv", x, np.ones((columns, columns, 1, 1), np.float32)), GRIDS[number % 2], ZERO)
        x = net.op("Reshape", net.op("Transpose", x, perm=[0, 2, 3, 1]), np.array([1, count, columns]))
        parts.append(net.qdq(x, GRIDS[number % 2], ZERO) if inside else net.op("Neg", x))
    x = net.op("Concat", *parts, axis=axis)
    x = net.qdq(x, 0.06, ZERO) if behind else x
    return net.normalized(x if reader is None else net.op(reader, x))


def concat(model):
    (found,) = [node for node in query.all_nodes(model) if node.op_type == "Concat"]
    return found


@pytest.mark.parametrize("reader", ["Softmax", None])
@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_the_same_rows_come_in_four_dimensions(inside, behind, reader):
    model = joined((6, 3, 1), inside=inside, behind=behind, reader=reader)
    found = readable(model, halves=True)
    assert all(query.rank(value) == 4 for value in (*concat(found).inputs, *concat(found).outputs))
    row = {value.name: np.random.default_rng(0).standard_normal(value.shape.numpy()) for value in model.graph.inputs}
    row = {name: array.astype(np.float32) for name, array in row.items()}
    before, after = (ort_cpu.run(form, row) for form in (model, found))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    reshapes = [node for node in query.all_nodes(found) if node.op_type == "Reshape" and "rows" in (node.name or "")]
    on_integers = [query.is_float(node.inputs[0]) is False for node in reshapes]
    # Behind a grid and a Softmax of rows, the Reshape is behind both.
    assert on_integers == [inside] * 3 + [behind and reader is None]


@pytest.mark.parametrize("axis", [0, 2, -1])
def test_what_is_joined_along_another_axis_stays(axis):
    model = joined((4, 4), axis=axis)
    assert query.rank(concat(readable(model)).outputs[0]) == 3


def test_a_row_that_is_a_constant_stays_where_it_is():
    net = Net()
    x = net.op("Concat", np.ones((1, 1, 4), np.float32), net.input("x", (1, 3, 4)), axis=1)
    assert query.rank(concat(readable(net.normalized(net.op("Relu", x)))).outputs[0]) == 3


@pytest.mark.rknn
def test_the_compiler_stores_no_table_of_rows_and_columns(tmp_path):
    """For 1,500 rows it would have four megabytes, in half precision."""
    settings = BuildConfig.from_dict({"compile": {"device": "rknn"}}).compile
    device = execution.device_of(load_target("rknn", soc="rk3588"), settings)
    compiled = BACKEND.compile(joined((1200, 240, 60), behind=False), device, tmp_path, {})
    assert compiled.path.stat().st_size < 1 << 20
