"""A model as a protobuf message with some tensors in place of its own, written without a copy of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import onnx
import onnx_ir as ir


def is_flat(model: ir.Model) -> bool:
    """True if all constants of a model are initializers of its one graph, so that `of` can replace them all."""
    if model.functions:
        return False
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)
    return not any(item.type in kinds for node in model.graph for item in node.attributes.data.values())


def of(model: ir.Model, tensors: Mapping[ir.Value, ir.TensorProtocol], *, described: bool = True) -> onnx.ModelProto:
    """The message of a model, with these tensors for those initializers of its main graph.

    Where it is not `described`, types and shapes of initializers are not repeated beside their tensors.
    """
    constants = {
        name: _Constant(value, tensors.get(value, value.const_value), described)
        for name, value in model.graph.initializers.items()
    }
    return ir.serde.serialize_model(_Seen(model, graph=_SeenGraph(model.graph, initializers=constants)))


class _Seen:
    """Something with other values for some of its attributes."""

    def __init__(self, item: object, **others: object) -> None:
        self._item = item
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._item, name)


class _SeenGraph(_Seen):
    """A graph with other values for some of its attributes."""

    _item: ir.Graph

    def __iter__(self) -> Iterator[ir.Node]:
        return iter(self._item)

    def __len__(self) -> int:
        return len(self._item)


class _Constant(_Seen):
    """An initializer with another tensor."""

    def __init__(self, value: ir.Value, tensor: ir.TensorProtocol | None, described: bool) -> None:
        unsaid: dict[str, object] = (
            {} if described else {"type": None, "shape": None, "metadata_props": {}, "doc_string": None}
        )
        super().__init__(value, const_value=tensor, **unsaid)
