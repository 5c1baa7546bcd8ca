"""Keeps nodes of a model on the CPU, by ONNX Runtime's own means: an annotation that says which provider gets a node.

Leaving a node in a form that the NPU refuses is not enough: where the NPU's layout differs, ONNX Runtime changes a
node for the NPU before the NPU is asked, and cannot change it back.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from intact.model import query

_KEY, _LAYER = "layer_ann", "intact_cpu"
# By the provider's name: on a machine that only simulates the NPU, `cpu` would mean the simulator.
SETTING = ("session.layer_assignment_settings", f"CPUExecutionProvider(={_LAYER})")
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


def pin(model: ir.Model, names: Collection[str]) -> None:
    """Annotate the nodes with these names, and the conversions that only they need."""
    pinned = {node for node in query.all_nodes(model) if node.name in names}
    nodes = list(query.all_nodes(model))
    for node in nodes:
        if node.op_type == _QUANTIZE and _producer(node) in pinned:
            pinned.add(node)
    for node in reversed(nodes):
        if node.op_type in (_QUANTIZE, _DEQUANTIZE) and _is_needed_only_by(node, pinned):
            pinned.add(node)
    for node in pinned:
        node.metadata_props[_KEY] = _LAYER


def _producer(node: ir.Node) -> ir.Node | None:
    return node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None


def _is_needed_only_by(node: ir.Node, pinned: set[ir.Node]) -> bool:
    """True if a conversion stands between pinned nodes, or between one and the outside of the graph."""
    readers = node.outputs[0].consumers()
    source = _producer(node)
    if any(reader not in pinned for reader in readers):
        return False
    if node.op_type == _QUANTIZE or not readers:
        # The integers of a computed tensor come from where it was computed, and results leave as they were.
        return source in pinned if not readers else source is None or source in pinned
    return True
