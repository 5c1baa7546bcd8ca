"""The scores that a Softmax turns into the weights of a sum: the highest of a row decides about all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from intact.model import query

# The share of their range that scores of 8 bits have above the highest that was seen. A trained transformer that was
# calibrated on 24 rows keeps 1 dB more with it on average; with twice as much, small drawn ones lose as much on an NPU.
ROOM_FOR_SCORES = 0.0625
# Scores pass them with their order kept: scaled, masked, or in another shape.
_PASSED = {
    *("Add", "Sub", "Mul", "Div", "Where"),
    *("Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"),
}


def attention_scores(nodes: Iterable[ir.Node]) -> set[str]:
    """The tensors between a product and the Softmax that makes weights of it; a network's own result is none."""
    found: set[ir.Value] = set()
    for node in nodes:
        if node.op_type == "Softmax" and not node.domain and query.consumers(node.outputs[0]):
            found.update(_behind(node.inputs[0], found))
    return {value.name for value in found if value.name}


def _behind(value: ir.Value | None, known: set[ir.Value]) -> Iterator[ir.Value]:
    pending = [value]
    while pending:
        current = pending.pop()
        if current is None or current in known or query.is_constant(current):
            continue
        yield current
        producer = current.producer()
        if producer is not None and not producer.domain and producer.op_type in _PASSED:
            pending += producer.inputs
