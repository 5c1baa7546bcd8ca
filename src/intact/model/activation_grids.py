"""The grids of activations in a quantized model: each QuantizeLinear with the DequantizeLinear nodes behind it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.model import edit, query
from intact.model.copying import copied
from intact.model.cutting import Cutter
from intact.model.node_encodings import encoding_of, has_encoding
from intact.numbers.encoding import Encoding, round_to_grid


@dataclass(frozen=True, slots=True)
class ActivationGrid:
    """The grid that one QuantizeLinear puts a tensor on, and how the nodes behind it read it.

    `tensor` is what is quantized; `base` is the computed tensor behind it, another one where grids follow each other.
    `float_name` is what that is called in the model without grids: an output has its name behind the grid here.
    """

    quantize: str
    tensor: str
    base: str
    float_name: str
    write: Encoding
    reads: tuple[Encoding, ...]

    @property
    def dtype(self) -> str:
        """The type of its integers."""
        return self.write.dtype

    def rounded(self, value: np.ndarray) -> np.ndarray:
        """A tensor as its readers see it; where they differ, as the one sees it that is furthest from it."""
        seen = [round_to_grid(value, self.write, read) for read in self.reads or (self.write,)]
        with np.errstate(over="ignore", invalid="ignore"):
            return max(seen, key=lambda found: float(np.sum(np.square(found - value, dtype=np.float64))))

    def range(self) -> tuple[float, float]:
        """The least and the greatest value that its readers can see."""
        low, high = (self.reads[0] if self.reads else self.write).ends()
        return float(low.min()), float(high.max())

    def levels(self) -> float:
        """The number of steps that the type has."""
        least, greatest = self.write.limits
        return float(greatest - least)


def grids_of(model: ir.Model) -> list[ActivationGrid]:
    """Every grid of an activation with a constant scale, in the order of the model."""
    return [_grid(node) for node in model.graph if _puts_on_grid(node)]


def base_of(value: ir.Value) -> ir.Value:
    """The computed tensor behind a value that only went through grids."""
    producer = value.producer()
    while producer is not None and _reads_grid(producer):
        quantize = _writer(producer)
        assert quantize is not None and quantize.inputs[0] is not None, "a grid has a writer"
        value = quantize.inputs[0]
        producer = value.producer()
    return value


def unrounded(model: ir.Model, tensors: Collection[str] | None = None) -> ir.Model:
    """A copy of a quantized model in which activations, all or these, are not rounded; its weights are."""
    result = copied(model)
    _leave_unrounded(result, tensors)
    return result


@contextmanager
def left_unrounded(model: ir.Model, tensors: Collection[str]) -> Iterator[None]:
    """Let these activations of a quantized model be without rounding for as long as the block lasts."""
    changed = _leave_unrounded(model, tensors)
    try:
        yield
    finally:
        for user, index, value in changed:
            user.replace_input_with(index, value)


def _leave_unrounded(model: ir.Model, tensors: Collection[str] | None) -> list[tuple[ir.Node, int, ir.Value]]:
    """Let the readers of grids read what is before the grid; return each with the input and what it was."""
    changed = []
    for node in list(model.graph):
        if not _reads_grid(node):
            continue
        quantize = _writer(node)
        assert quantize is not None and quantize.inputs[0] is not None, "a grid has a writer"
        if tensors is None or quantize.inputs[0].name in tensors:
            for user, index in tuple(node.outputs[0].uses()):
                changed.append((user, index, node.outputs[0]))
                user.replace_input_with(index, quantize.inputs[0])
    return changed


@dataclass(frozen=True, slots=True)
class LayersApart:
    """A quantized model in which every layer reads graph inputs in the place of tensors on grids.

    `feeds` are these inputs, each with the computed tensor that it stands for. `results` are the outputs: each is a
    tensor as its grid leaves it, by the name of the grid's QuantizeLinear.
    """

    model: ir.Model
    feeds: dict[str, str]
    results: dict[str, str]


def layers_apart(model: ir.Model, known: Collection[str], only: Collection[str] | None = None) -> LayersApart:
    """A copy of a quantized model whose layers depend on these tensors from outside, and not on each other.

    `only` names QuantizeLinear nodes: there are no others then than the layers before these.
    """
    result = copied(model) if only is None else _layers_before(model, known, only)
    names = edit.Names(result)
    inputs: dict[str, ir.Value] = {}
    seen: dict[str, ir.Value] = {}
    grids = [(node, _writer(node), base_of(node.outputs[0])) for node in result.graph if _reads_grid(node)]
    for node, quantize, base in grids:
        assert quantize is not None, "a grid has a writer"
        behind, name = node.outputs[0], base.name or ""
        if only is None or quantize.name in only:
            seen.setdefault(quantize.name or "", behind)
        if name not in known:
            continue
        if name not in inputs:
            scale = quantize.inputs[1]
            assert scale is not None and scale.dtype is not None, "the scale of a grid is a constant"
            dtype = ir.TensorType(scale.dtype)
            inputs[name] = ir.Value(name=names.take(f"{name}_float"), shape=base.shape, type=dtype)
        for user, index in list(behind.uses()):
            user.replace_input_with(index, inputs[name])
    result.graph.inputs.extend(inputs.values())
    result.graph.outputs[:] = list(seen.values())
    edit.prune(result)
    feeds = {value.name or "": name for name, value in inputs.items()}
    if only is not None:
        result.graph.inputs[:] = [value for value in result.graph.inputs if value.uses()]
        # What is read beside its grid comes from outside, too.
        left = [value.name or "" for value in result.graph.inputs]
        feeds = {name: feeds.get(name, name) for name in left if name in feeds or name in known}
    return LayersApart(result, feeds, {name: value.name or "" for name, value in seen.items()})


def _layers_before(model: ir.Model, known: Collection[str], only: Collection[str]) -> ir.Model:
    """The nodes that compute these grids from the known tensors before them."""
    grids = [(node, _writer(node)) for node in model.graph if _reads_grid(node)]
    wanted = [(node, quantize) for node, quantize in grids if quantize is not None and quantize.name in only]
    own = {base_of(node.outputs[0]).name for node, _ in wanted}
    outputs = [node.outputs[0].name or "" for node, _ in wanted]
    return Cutter(model).piece(outputs, {name for name in known if name not in own})


def _puts_on_grid(node: ir.Node) -> bool:
    if node.op_type != "QuantizeLinear" or query.is_constant(node.inputs[0]):
        return False
    return has_encoding(node)


def _writer(node: ir.Node) -> ir.Node | None:
    return node.inputs[0].producer() if node.inputs[0] is not None else None


def _reads_grid(node: ir.Node) -> bool:
    """True if a DequantizeLinear reads what a QuantizeLinear wrote, both with constant scales."""
    if node.op_type != "DequantizeLinear":
        return False
    writer = _writer(node)
    return writer is not None and _puts_on_grid(writer) and has_encoding(node)


def _grid(node: ir.Node) -> ActivationGrid:
    source, write = node.inputs[0], encoding_of(node)
    assert source is not None and write is not None, "only inputs on grids with constant scales are read"
    readers = [reader for reader in node.outputs[0].consumers() if _reads_grid(reader)]
    base = base_of(source)
    behind = [reader.outputs[0] for reader in readers if base is source and reader.outputs[0].is_graph_output()]
    return ActivationGrid(
        quantize=node.name or "",
        tensor=source.name or "",
        base=base.name or "",
        float_name=(behind[0] if behind else base).name or "",
        write=write,
        reads=tuple(read for read in map(encoding_of, readers) if read is not None),
    )
