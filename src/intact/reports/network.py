"""The layers of a deployed model for the map of the report: every node that computes, its types, and what it reads."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from intact.model import census, query
from intact.results import MappedLayer


def layers_of(model: ir.Model) -> tuple[MappedLayer, ...]:
    """The nodes of the main graph that compute on numbers, in order; `reads` are places in this order."""
    types = {found.node: found for found in census.types_of(model)}
    nodes = [node for node in model.graph if node.name in types]
    places = {node: place for place, node in enumerate(nodes)}
    return tuple(_layer(node, types[node.name or ""], places) for node in nodes)


def _layer(node: ir.Node, types: census.NodeTypes, places: dict[ir.Node, int]) -> MappedLayer:
    reads = tuple(sorted({places[source] for source in _sources(node, places)}))
    quantizers = [reader for reader in query.consumers(node.outputs[0]) if reader.op_type == "QuantizeLinear"]
    scale, zero_point = _grid(quantizers[0]) if quantizers else (None, None)
    grid = (scale, zero_point, (quantizers[0].name or "") if quantizers else "")
    return MappedLayer(types.node, types.op, types.activations, types.weights, reads, *grid)


def _grid(quantizer: ir.Node) -> tuple[float | None, int | None]:
    """The scale and the zero point that a tensor is brought to, if it is one scale."""
    scale = query.scalar(query.input_(quantizer, 1))
    if scale is None:
        return None, None
    zero_point = query.scalar(query.input_(quantizer, 2))
    return float(scale), 0 if zero_point is None else int(zero_point)


def _sources(node: ir.Node, places: dict[ir.Node, int]) -> Iterator[ir.Node]:
    """The layers that a node reads from, through all that computes nothing."""
    waiting = [value.producer() for value in node.inputs if value is not None]
    seen: set[ir.Node] = set()
    while waiting:
        source = waiting.pop(0)
        if source is None or source in seen:
            continue
        seen.add(source)
        if source in places:
            yield source
        else:
            waiting += [value.producer() for value in source.inputs if value is not None]
