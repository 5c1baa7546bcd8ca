"""Writes a resolved plan into the graph as QuantizeLinear and DequantizeLinear nodes. Decides nothing."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.model import edit, query, upgrade
from intact.model.copying import copied, shape_of
from intact.model.garbage_pause import no_collection
from intact.numbers import encoding as arithmetic
from intact.numbers.encoding import Encoding
from intact.quantization import blocks
from intact.quantization.calibration.resolve import Resolved
from intact.results import QuantPlan

# The opset from which on Q and DQ take a type, where it is newer than the one that models are raised to.
_FIRST_OPSETS = {"int2": 25}


def insert(model: ir.Model, plan: QuantPlan, resolved: Resolved) -> ir.Model:
    """A copy of `model` with one Q/DQ pair on every planned tensor, and integer constants behind a DQ."""
    with no_collection():
        result = copied(model)
        _write(result, plan, resolved)
        edit.prune(result)
    _raise_opset(result, resolved)
    return result


def _write(result: ir.Model, plan: QuantPlan, resolved: Resolved) -> None:
    writer = _GridWriter(result, plan, resolved)
    for name in plan.nodes:
        writer.constants_of(name)
    for name in plan.tensors:
        if name not in plan.conversions:
            writer.pair(name)
    for name in plan.conversions:
        writer.convert(name)


def _raise_opset(model: ir.Model, resolved: Resolved) -> None:
    """Import the opset that defines every type in use."""
    dtypes = {encoding.dtype for encoding, _ in resolved.constants.values()}
    upgrade.import_at_least(model, max((_FIRST_OPSETS.get(dtype, 0) for dtype in dtypes), default=0))


class _GridWriter:
    """The graphs in the making, with the constants that several nodes share.

    Integers cross into a body of If or Loop, and are dequantized there: ONNX Runtime's fusions crash where a body reads
    from a DQ outside.
    """

    def __init__(self, model: ir.Model, plan: QuantPlan, resolved: Resolved) -> None:
        self.plan = plan
        self.resolved = resolved
        self.names = edit.Names(model)
        self.quantized = set(plan.nodes)
        self._nodes: dict[str | None, ir.Node] = {node.name: node for node in query.all_nodes(model)}
        self.values = query.values(model)
        self._converted = {use for c in plan.conversions.values() for use in c.readers}
        self._parameters: dict[tuple[object, ...], tuple[ir.Value, ir.Value]] = {}
        self._stored: dict[tuple[object, ...], ir.Value] = {}
        self._dequantized: dict[tuple[object, ...], ir.Value] = {}

    def constants_of(self, name: str) -> None:
        """Give a node the integer form of its weights, biases and constant operands."""
        node = self._nodes[name]
        for index in self.plan.uses[name]:
            value = node.inputs[index]
            assert value is not None and value.name, "only present inputs are planned"
            if (node.name or "", index) in self.resolved.constants:
                encoding, integers = self.resolved.constants[node.name or "", index]
            elif value.const_value is not None:
                encoding = self.resolved.tensors[self.plan.entry(value.name, node.name or "", index)]
                integers = arithmetic.quantize(value.const_value.numpy(), encoding, precision=np.float64)
            else:
                continue
            node.replace_input_with(index, self._constant(value, encoding, integers, _graph_of(node)))

    def _constant(self, value: ir.Value, encoding: Encoding, integers: np.ndarray, graph: ir.Graph) -> ir.Value:
        """The integers where the constant was, once, and a DQ in the graph that reads them."""
        name = value.name or ""
        key = (name, *_key(encoding))
        if key not in self._stored:
            assert value.graph is not None, f"{name!r} is an initializer"
            self._stored[key] = edit.add_initializer(
                value.graph, _tensor(integers, encoding.dtype), self.names.take(f"{name}_quantized")
            )
        if (graph, *key) not in self._dequantized:
            self._dequantized[graph, *key] = self._dequantize(self._stored[key], encoding, name, graph)
        return self._dequantized[graph, *key]

    def pair(self, name: str) -> None:
        """Put Q and DQ behind a tensor. Quantized nodes read from it; others do where its producer is quantized."""
        value = self.values[name]
        if value.const_value is not None:
            return
        encoding = self.resolved.tensors[name]
        producer, home = value.producer(), value.graph
        assert home is not None, f"{name!r} is in a graph"
        readers = [
            (node, i) for node, i in value.uses() if self._reads(node, i) and (node.name, i) not in self._converted
        ]
        everyone = producer is not None and producer.name in self.quantized
        uses = list(value.uses()) if everyone else readers
        is_returned = everyone and value.is_graph_output()
        if not uses and not is_returned:
            return
        quantize = self._quantize(value, encoding, name, home, producer)
        graphs = dict.fromkeys([*([home] if is_returned else []), *(_graph_of(node) for node, _ in uses)])
        for graph in sorted(graphs, key=lambda graph: graph is not home):
            after = quantize if graph is home else None
            dequantized = self._dequantize(quantize.outputs[0], encoding, name, graph, after)
            for node, index in (use for use in uses if use[0].graph is graph):
                node.replace_input_with(index, dequantized)
            if is_returned and graph is home:
                edit.replace_value(value, dequantized, self.names)
                quantize.replace_input_with(0, value)

    def convert(self, entry: str) -> None:
        """Put a second pair on a tensor, behind the first where it has one, for readers that want another type."""
        conversion = self.plan.conversions[entry]
        if self.values[conversion.tensor].const_value is not None:
            return
        encoding, name = self.resolved.tensors[entry], conversion.tensor
        readers = [(self._nodes[node], index) for node, index in conversion.readers]
        for graph in dict.fromkeys(_graph_of(node) for node, _ in readers):
            uses = [(node, index) for node, index in readers if node.graph is graph]
            value = uses[0][0].inputs[uses[0][1]]
            assert value is not None, "a converted input is present"
            quantize = self._quantize(value, encoding, name, graph, value.producer() if value.graph is graph else None)
            dequantized = self._dequantize(quantize.outputs[0], encoding, name, graph, quantize)
            for node, index in uses:
                node.replace_input_with(index, dequantized)

    def _quantize(
        self, value: ir.Value, encoding: Encoding, name: str, graph: ir.Graph, after: ir.Node | None
    ) -> ir.Node:
        quantize = self._node("QuantizeLinear", [value, *self._grid(encoding, name, graph)], encoding, name)
        quantize.outputs[0].dtype = ir.DataType[encoding.dtype.upper()]
        quantize.outputs[0].shape = value.shape
        edit.place(graph, quantize, after)
        return quantize

    def _reads(self, node: ir.Node, index: int) -> bool:
        return index in self.plan.uses.get(node.name or "", ())

    def _dequantize(
        self, value: ir.Value, encoding: Encoding, name: str, graph: ir.Graph, after: ir.Node | None = None
    ) -> ir.Value:
        scale, zero_point = self._grid(encoding, name, graph)
        node = self._node("DequantizeLinear", [value, scale, zero_point], encoding, name)
        node.outputs[0].dtype = ir.DataType.FLOAT
        node.outputs[0].shape = value.shape
        edit.place(graph, node, after or scale.producer())
        return node.outputs[0]

    def _node(self, op: str, inputs: list[ir.Value], encoding: Encoding, name: str) -> ir.Node:
        # Operators take one scale as a scalar, whatever the axis; the attribute is there only where it means something.
        attributes = {"axis": encoding.axis} if encoding.axis is not None else {}
        attributes |= {"block_size": encoding.block_size} if encoding.block_size else {}
        node = ir.node(op, inputs, attributes, name=self.names.take(f"{name}_{op}"))
        suffix = "quantized" if op == "QuantizeLinear" else "dequantized"
        node.outputs[0].name = self.names.take(f"{name}_{suffix}")
        return node

    def _grid(self, encoding: Encoding, name: str, graph: ir.Graph) -> tuple[ir.Value, ir.Value]:
        """Scale and zero point as initializers, the same ones for every tensor of the graph on this grid."""
        key = (graph, *_key(encoding))
        if key not in self._parameters:
            if encoding.block_size:
                scale = self._block_scales(encoding, name, graph)
            else:
                scale = edit.add_initializer(graph, np.asarray(encoding.scale), self.names.take(f"{name}_scale"))
            zero_point = edit.add_initializer(
                graph, _tensor(encoding.zero_point, encoding.dtype), self.names.take(f"{name}_zero_point")
            )
            self._parameters[key] = (scale, zero_point)
        return self._parameters[key]

    def _block_scales(self, encoding: Encoding, name: str, graph: ir.Graph) -> ir.Value:
        """The scales of blocks: unsigned integers times one scale per channel, without a zero point."""
        assert encoding.axis is not None, "blocks lie along an axis"
        steps, multiples = blocks.factors(encoding)
        inputs = [
            edit.add_initializer(graph, multiples, self.names.take(f"{name}_block_scale_quantized")),
            edit.add_initializer(graph, steps, self.names.take(f"{name}_channel_scale")),
        ]
        attributes = {"axis": 1 - encoding.axis}
        node = ir.node("DequantizeLinear", inputs, attributes, name=self.names.take(f"{name}_block_scale"))
        node.outputs[0].name = self.names.take(f"{name}_block_scale_dequantized")
        node.outputs[0].dtype, node.outputs[0].shape = ir.DataType.FLOAT, inputs[0].shape
        edit.place(graph, node, None)
        return node.outputs[0]


def _graph_of(node: ir.Node) -> ir.Graph:
    assert isinstance(node.graph, ir.Graph), f"{node.name!r} is in a graph"
    return node.graph


def _key(encoding: Encoding) -> tuple[object, ...]:
    return encoding.dtype, encoding.axis, encoding.block_size, encoding.scale.tobytes(), encoding.zero_point.tobytes()


def _tensor(integers: np.ndarray, dtype: str) -> ir.TensorProtocol:
    kind = ir.DataType[dtype.upper()]
    return ir.Tensor(integers.astype(kind.numpy(), copy=False), dtype=kind, shape=shape_of(integers.shape))
