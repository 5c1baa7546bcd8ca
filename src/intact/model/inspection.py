"""The content of a model, told without changing or running it."""

from __future__ import annotations

from collections import Counter
from typing import TypedDict

import onnx_ir as ir

from intact.model import io, normalize, query


class PortFacts(TypedDict):
    """An input or output; a free dimension is its name, or ? where it has none."""

    name: str | None
    dtype: str | None
    shape: list[int | str] | None


class ModelFacts(TypedDict):
    """The facts that `inspect` finds."""

    ir_version: int
    opsets: dict[str, int]
    producer: str
    inputs: list[PortFacts]
    outputs: list[PortFacts]
    free_dims: list[str]
    nodes: int
    operators: dict[str, int]
    weight_bytes: int
    nonfinite_weights: list[str]


def inspect(model: ir.Model) -> ModelFacts:
    """Facts about a model as it is in its file: ports, operators, weights, free dimensions."""
    return {
        "ir_version": model.ir_version,
        "opsets": dict(model.opset_imports),
        "producer": f"{model.producer_name or 'unknown'} {model.producer_version or ''}".strip(),
        "inputs": [_port(value) for value in model.graph.inputs if value.name not in model.graph.initializers],
        "outputs": [_port(value) for value in model.graph.outputs],
        "free_dims": normalize.free_dims(model),
        "nodes": sum(1 for _ in query.all_nodes(model)),
        "operators": dict(Counter(_op(node) for node in query.all_nodes(model)).most_common()),
        "weight_bytes": io.size_of_weights(model),
        "nonfinite_weights": io.nonfinite_weights(model),
    }


def _port(value: ir.Value) -> PortFacts:
    shape: list[int | str] | None
    shape = None if value.shape is None else [d if isinstance(d, int) else str(d.value or "?") for d in value.shape]
    return {"name": value.name, "dtype": value.dtype.name.lower() if value.dtype else None, "shape": shape}


def _op(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type
