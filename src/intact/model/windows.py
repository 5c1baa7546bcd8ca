"""The ends of the windows of a pool."""

from __future__ import annotations

import onnx_ir as ir

from intact.model import query


def may_stick_out(node: ir.Node) -> bool:
    """True if the last window of a pool reaches beyond the padding, as ceil_mode lets it, or may with unknown sizes."""
    shape, kernel = query.static_shape(node.inputs[0]), query.ints(node, "kernel_shape")
    if not query.int_(node, "ceil_mode", 0):
        return False
    if shape is None or query.string(node, "auto_pad", "NOTSET") != "NOTSET":
        return True
    count = len(kernel)
    pads, strides = query.ints(node, "pads") or (0,) * 2 * count, query.ints(node, "strides") or (1,) * count
    spread = query.ints(node, "dilations") or (1,) * count
    left = (
        (size + pads[axis] + pads[axis + count] - (kernel[axis] - 1) * spread[axis] - 1) % strides[axis]
        for axis, size in enumerate(shape[2:])
    )
    return any(left)
