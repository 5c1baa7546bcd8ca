"""The place of a model's nodes from the layers that Rockchip's compiler made of them.

A layer bears the name of a node, or one that begins with the name of a node or of a tensor (`y_mm_tp_rs` is what turns
the product whose result is `y` back into its shape). A node that no layer names is part of one: a Relu of the Conv
before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from intact.backends.rknn.log import CompiledLayer
from intact.backends.rknn.readable import CLIPPING, goes_to_grids
from intact.model import query
from intact.results import PlacedLayer, PlacedNode, Placement
from intact.targets import provider_placement

NPU = "NPU"
ON_CPU = "the compiler computes it on the CPU"
# Beside integers the compiler lists floats for the NPU of any chip, and joins some to layers in integers. Of chips
# without half precision it says itself that "Conv not supported 'float16' dtype at rv1103/rv1106", and of a whole model
# "not support do_quantization = False" (rknn-toolkit2 2.5.0): there the numbers that a node has decide.
NO_HALVES = "it computes in float, and the chip has no half precision, whatever the compiler lists"
_CONVERTING = provider_placement.CONVERSIONS
# Layers that bring values to another form or shape. One that the compiler adds moves what a node has computed.
_MOVES = ("Reshape", "Transpose", "exDataConvert", "exNorm_transpose", "Split", "Concat", "Slice", "Flatten", "Squeeze")
# Words behind the name of the tensor that a mean reads: others stand behind what a node writes.
_OF_READER = re.compile(r"_gavg(_|$)")
_END = re.compile(r"(.+)[_#\-/:.](?!.*[_#\-/:.]).*")


def placement(model: ir.Model, layers: Sequence[CompiledLayer], *, halves: bool = True) -> Placement:
    """The nodes of a model on the NPU and on the CPU, with the layers that were made of them.

    On a chip without `halves` nothing that is on no grid is on the NPU, whatever the compiler says.
    """
    ops = provider_placement.node_ops(model)
    names = _Names(model)
    made = [(layer, names.node_of(layer.name)) for layer in layers]
    on_cpu = {node for layer, node in made if node is not None and _is_on_cpu(layer, node)}
    held = _held(model, [node for _, node in made])
    reasons = dict.fromkeys(on_cpu, ON_CPU)
    if not halves:
        reasons = dict.fromkeys(_in_float(model), NO_HALVES) | reasons
    placed = tuple(
        PlacedLayer(layer.kind, layer.place, layer.type, nodes, layer.cycles, layer.moved_bytes)
        for (layer, _), nodes in zip(made, held, strict=True)
    )
    return Placement(
        npu_nodes=tuple(PlacedNode(name, op) for name, op in ops.items() if name not in reasons),
        cpu_nodes=tuple(PlacedNode(name, op, reasons[name]) for name, op in ops.items() if name in reasons),
        partitions=_pieces([layer for layer, node in made if node is None or layer.place == NPU or node in on_cpu]),
        layers=placed,
    )


def _held(model: ir.Model, named: Sequence[str | None]) -> list[tuple[str, ...]]:
    """The nodes of each layer: the one that it is named after, and those that are part of it.

    A node that no layer names is part of the last layer that it reads from: a sum of two convolutions is computed with
    the second. One that reads from none is part of the first that reads from it.
    """
    held = [[] if name is None else [name] for name in named]
    place = {name: number for number, name in enumerate(named) if name is not None}
    reads = {
        node.name or "": [producer.name or "" for producer in _producers(node)]
        for node in query.all_nodes(model)
        if node.op_type not in (*_CONVERTING, "Constant")
    }
    for node, producers in reads.items():
        before = [place[producer] for producer in producers if producer in place]
        if before and node not in place:
            place[node] = max(before)
            held[place[node]].append(node)
    for node, producers in reversed(reads.items()):
        for producer in producers if node in place else ():
            if producer not in place:
                place[producer] = place[node]
                held[place[producer]].append(producer)
    return [tuple(nodes) for nodes in held]


def _producers(node: ir.Node) -> list[ir.Node]:
    """The nodes whose results a node reads, grids aside."""
    found = [value.producer() for value in node.inputs if value is not None]
    sources = [_computing(producer) for producer in found if producer is not None]
    return [source for source in sources if source.op_type not in _CONVERTING]


def _in_float(model: ir.Model) -> list[str]:
    """The nodes that read or write floats on no grid; one that a quantizer clips for is part of the node before it."""
    nodes = [node for node in query.all_nodes(model) if node.op_type not in (*_CONVERTING, "Constant")]
    return [node.name or "" for node in nodes if not (_reads_grids(node) and all(map(goes_to_grids, node.outputs)))]


def _reads_grids(node: ir.Node) -> bool:
    read = [value for value in node.inputs if value is not None and not query.is_constant(value)]
    sources = [(value, value.producer()) for value in read if query.is_float(value)]
    return all(source is not None and (_is_grid(source) or _clips(node, source)) for _, source in sources)


def _is_grid(node: ir.Node) -> bool:
    return node.op_type == "DequantizeLinear"


def _clips(node: ir.Node, source: ir.Node) -> bool:
    """True if a node does to the result of another no more than the quantizer behind it does."""
    return node.op_type in CLIPPING and len(source.outputs[0].uses()) == 1 and _reads_grids(source)


def _is_on_cpu(layer: CompiledLayer, node: str) -> bool:
    """True if a layer computes its node there; what the compiler adds to move values has another name than it."""
    return layer.place != NPU and (layer.name == node or layer.kind not in _MOVES)


def _pieces(layers: Sequence[CompiledLayer]) -> int:
    """Count the pieces in which the NPU gets the model: layers stand in the order in which they run."""
    places = [layer.place == NPU for layer in layers]
    return sum(here and not before for before, here in zip([False, *places], places, strict=False))


class _Names:
    """The nodes of a model by their names, by those of the tensors that they write, and by what they read."""

    def __init__(self, model: ir.Model) -> None:
        nodes = [node for node in query.all_nodes(model) if node.op_type != "Constant"]
        self.nodes = {node.name or "": node.name or "" for node in nodes}
        self.writers: dict[str, str] = {}
        self.readers: dict[str, str] = {}
        for node in nodes:
            own = _computing(node).name or ""
            self.writers |= {value.name or "": own for value in node.outputs}
        for node in nodes:
            if node.op_type not in provider_placement.CONVERSIONS:
                self.readers |= {name: node.name or "" for value in node.inputs for name in _names_of(value)}

    def node_of(self, layer: str) -> str | None:
        """The node that a layer was made of; None where its name tells nothing."""
        name: str | None = layer
        while name:
            if name in self.nodes:
                return self.nodes[name]
            found = self._of_tensor(name, layer)
            if found is not None:
                return found
            shorter = _END.fullmatch(name)
            name = shorter[1] if shorter else None
        return None

    def _of_tensor(self, name: str, layer: str) -> str | None:
        known: Mapping[str, str] = self.readers if _OF_READER.match(layer[len(name) :]) else self.writers
        return known.get(name)


def _computing(node: ir.Node) -> ir.Node:
    """The node whose result a conversion brings to or from a grid; any other node itself."""
    while node.op_type in provider_placement.CONVERSIONS:
        value = node.inputs[0]
        producer = None if value is None else value.producer()
        if producer is None:
            return node
        node = producer
    return node


def _names_of(value: ir.Value | None) -> list[str]:
    """The names of a value, and of the same value before its grid."""
    found: list[str] = []
    while value is not None:
        found.append(value.name or "")
        producer = value.producer()
        value = producer.inputs[0] if producer is not None and producer.op_type in _CONVERTING else None
    return found
