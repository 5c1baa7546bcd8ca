"""Quantized models with one fault planted in them, and the names that the fault goes by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper


@dataclass(frozen=True)
class Fault:
    """A faulty model in a file, its node, and the tensors that name the place."""

    path: Path
    node: str
    tensors: frozenset[str]


def spoiled_grid(source: Path, path: Path, op: str, index: int, *, factor: float = 1.0, shift: int = 0) -> Fault:
    """The grid behind one node with another scale, or with a zero point that is moved, for writer and readers."""
    model, node = _model_and_node(source, op, index)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    quantize = next(n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == node.output[0])
    readers = [n for n in model.graph.node if quantize.output[0] in n.input]
    zero_point = constants[quantize.input[2]]
    limits = np.iinfo(zero_point.dtype)
    moved = np.clip(int(zero_point) + shift, limits.min, limits.max)
    _use(model, f"{node.name}_scale", np.float32(constants[quantize.input[1]] * factor), [quantize, *readers], 1)
    _use(model, f"{node.name}_zero_point", np.asarray(moved, zero_point.dtype), [quantize, *readers], 2)
    onnx.save(model, path)
    names = {quantize.input[0], quantize.output[0], *(reader.output[0] for reader in readers)}
    return Fault(path, node.name, frozenset(names))


def spoiled_weight(source: Path, path: Path, op: str, index: int, factor: float) -> Fault:
    """The weight of one node with another scale."""
    model, node = _model_and_node(source, op, index)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    weight = next(n for n in model.graph.node if n.output[0] in node.input and n.input[0] in constants)
    _use(model, f"{node.name}_scale", np.asarray(constants[weight.input[1]] * factor, np.float32), [weight], 1)
    onnx.save(model, path)
    return Fault(path, node.name, frozenset(node.output))


def narrowed_gelu(source: Path, path: Path, index: int) -> Fault:
    """A Gelu that reads 16 bits and writes 8, which the compiler for v68 accepts node by node and fails on."""
    model, node = _model_and_node(source, "Gelu", index)
    quantize = next(n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == node.output[0])
    grid = ("narrow_scale", "narrow_zero_point")
    pair = [
        helper.make_node("QuantizeLinear", [node.output[0], *grid], ["narrow_quantized"], name="narrow_Q"),
        helper.make_node("DequantizeLinear", ["narrow_quantized", *grid], ["narrow_dequantized"], name="narrow_DQ"),
    ]
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.02), grid[0]))
    model.graph.initializer.append(numpy_helper.from_array(np.uint8(128), grid[1]))
    place = list(model.graph.node).index(quantize)
    quantize.input[0] = "narrow_dequantized"
    for new in reversed(pair):
        model.graph.node.insert(place, new)
    onnx.save(model, path)
    return Fault(path, node.name, frozenset(node.output))


def renamed(source: Path, path: Path) -> Path:
    """The same model with a new name for every tensor but its inputs and outputs, and for every node."""
    model = onnx.load(source)
    kept = {value.name for value in (*model.graph.input, *model.graph.output)} | {""}
    for number, node in enumerate(model.graph.node):
        node.name = f"n{number}"
        for names in (node.input, node.output):
            names[:] = [name if name in kept else f"renamed/{name}" for name in names]
    for tensor in model.graph.initializer:
        tensor.name = f"renamed/{tensor.name}"
    del model.graph.value_info[:]
    onnx.save(model, path)
    return path


def _model_and_node(source: Path, op: str, index: int) -> tuple[onnx.ModelProto, onnx.NodeProto]:
    model = onnx.load(source)
    del model.graph.value_info[:]
    return model, [node for node in model.graph.node if node.op_type == op][index]


def _use(model: onnx.ModelProto, name: str, array: np.ndarray, nodes: list[onnx.NodeProto], slot: int) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    for node in nodes:
        node.input[slot] = name
