"""Windows that reach beyond the padding are those whose last step does not come out even."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from intact.model import windows


def pool(size, **attributes):
    x = ir.Value(name="x", shape=ir.Shape([1, 4, size, size]))
    given = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "ceil_mode": 1} | attributes
    return ir.node("AveragePool", [x], attributes=given)


@pytest.mark.parametrize(
    ("node", "beyond"),
    [
        (pool(8), True),
        (pool(9), False),
        (pool(8, ceil_mode=0), False),
        (pool(9, pads=[0, 0, 1, 1]), True),
        (pool(8, strides=[1, 1]), False),
        (pool(9, dilations=[2, 2]), False),
        (pool(8, dilations=[2, 2], pads=[0] * 4), True),
        (pool(None), True),
    ],
)
def test_a_window_beyond_the_padding_is_seen(node, beyond):
    assert windows.may_stick_out(node) == beyond
