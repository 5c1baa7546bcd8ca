"""Normalize messages before they are read: imports complete, each constant once, no type that cannot be held."""

from __future__ import annotations

from collections import Counter

import onnx

from intact.errors import ModelError
from intact.model import proto_check


def complete_imports(proto: onnx.ModelProto) -> None:
    """Import every domain that nodes use; only the default domain must have been imported by the file itself."""
    for holder, nodes in [(proto, proto.graph.node), *((function, function.node) for function in proto.functions)]:
        versions = proto_check.imports_of(holder.opset_import)
        used = {"" if node.domain == proto_check.DOMAIN_ALIAS else node.domain for node in proto_check.nodes_of(nodes)}
        if "" in used - versions.keys():
            raise ModelError(
                "M107",
                "the model does not say which opset its nodes belong to",
                allowed="an opset_import for the default domain",
                fix="export the model again; a file older than ONNX 1.0 cannot be read",
            )
        del holder.opset_import[:]
        for domain, version in {**dict.fromkeys(sorted(used), 1), **versions}.items():
            holder.opset_import.add(domain=domain, version=version)


def keep_last_constants(graph: onnx.GraphProto) -> tuple[str, ...]:
    """Of constants under one name keep the one that ONNX Runtime takes; return the names.

    It takes the last, and that of a Constant node before any initializer.
    """
    nodes = {at: node.output[0] for at, node in enumerate(graph.node) if _is_constant(node)}
    tensors = {at: tensor.name for at, tensor in enumerate(graph.initializer)}
    made, stored = ({name: at for at, name in places.items()} for places in (nodes, tensors))
    for at in [at for at, name in nodes.items() if made[name] != at][::-1]:
        del graph.node[at]
    for at in [at for at, name in tensors.items() if name in made or stored[name] != at][::-1]:
        del graph.initializer[at]
    counts = Counter([*nodes.values(), *tensors.values()])
    return tuple(name for name, count in counts.items() if count > 1)


def forget_maps(graph: onnx.GraphProto) -> None:
    """Remove the types of results that are maps, which cannot be represented; their operators imply them."""
    for info in (*graph.value_info, *graph.output):
        if proto_check.holds_map(info.type):
            info.ClearField("type")


def _is_constant(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and node.domain in ("", proto_check.DOMAIN_ALIAS) and len(node.output) == 1
