"""Two models whose tensors are paired: what each layer reads, on which grids it is, and how closely it has to agree."""

from __future__ import annotations

import onnx_ir as ir

from intact.model import activation_grids, query
from intact.model.activation_grids import ActivationGrid
from intact.model.cutting import Cutter
from intact.search.debug.layers import AGREED_DB, PARTED_DB
from intact.search.debug.pairing import pair

_SHAPES = ("Expand", "Flatten", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
MOVEMENTS = frozenset((*_SHAPES, "Cast", "Concat", "Gather", "Identity"))
# Weights of b bits give about 6 b - 8 dB; a layer has parted ways 10 dB below that.
DB_PER_BIT, ALLOWANCE_DB = 6.0, 18.0


class PairedModels:
    """A reference and a candidate; `pairs` maps tensors of the candidate to their counterparts, in its order.

    A candidate of a float reference is compared without rounding activations, and its grids by themselves. Where the
    reference has grids too, both are compared as they are. `whole` is the candidate as it is given.
    """

    def __init__(self, reference: ir.Model, candidate: ir.Model) -> None:
        has_grids = bool(activation_grids.grids_of(reference))
        self.reference = Cutter(reference)
        self.whole = Cutter(candidate)
        self.candidate = self.whole if has_grids else Cutter(activation_grids.unrounded(candidate))
        self.pairs = pair(reference, candidate)
        self.matches = set(self.pairs.values())
        self.read = {name: self.candidate.behind([name], self.pairs) for name in self.pairs}
        self.grids: dict[str, list[ActivationGrid]] = {}
        for grid in () if has_grids else activation_grids.grids_of(candidate):
            self.grids.setdefault(grid.base, []).append(grid)
        self.outputs = {activation_grids.base_of(value).name or "" for value in candidate.graph.outputs}

    def inputs_of(self, tensor: str) -> dict[str, str]:
        """The tensors that a layer reads, with their counterparts."""
        return {name: self.pairs[name] for name in self.read[tensor]}

    def base(self, tensor: str) -> str:
        """The tensor that was put on a grid, for what the grid made of it."""
        return activation_grids.base_of(self.whole.values[tensor]).name or ""

    def seen(self, tensor: str) -> str:
        """The tensor that readers see: the output of the node that reads its grid, or the tensor itself."""
        writers = [node for node in self.whole.values[tensor].consumers() if node.op_type == "QuantizeLinear"]
        readers = [reader for node in writers for reader in node.outputs[0].consumers()]
        return next((node.outputs[0].name or "" for node in readers if node.op_type == "DequantizeLinear"), tensor)

    def is_number(self, name: str) -> bool:
        """True unless a tensor holds text."""
        value = self.candidate.values[name]
        return value.dtype is None or value.dtype != ir.DataType.STRING

    def computes(self, name: str) -> bool:
        """True if a node computes a tensor rather than moves it: what only moves it hides nothing."""
        producer = self.candidate.values[name].producer()
        return producer is not None and producer.op_type not in MOVEMENTS

    def limit(self, name: str, usual: float) -> float:
        """The SQNR from which on a layer agrees: `usual`, or less where its weights have few bits."""
        bits = [_bits(node) for node in self.candidate.nodes_behind([name], self.pairs)]
        gap = AGREED_DB - PARTED_DB if usual == AGREED_DB else 0.0
        return min(usual, DB_PER_BIT * min(bits, default=32) - ALLOWANCE_DB + gap)


def _bits(node: ir.Node) -> int:
    """The width of the integers that a node dequantizes constants from; 32 for any other node."""
    value = node.inputs[0] if node.op_type == "DequantizeLinear" else None
    tensor = query.constant_tensor(value)
    return 32 if tensor is None else tensor.dtype.bitwidth
