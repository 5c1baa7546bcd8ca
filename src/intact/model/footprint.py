"""The memory that a run of a model asks for, worked out from shapes before anything runs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from intact.errors import ModelError
from intact.model import io, normalize, query, shapes
from intact.model.copying import copied
from intact.records import dataclass

# All tensors of a run together: a file of some hundred bytes has no use for more than the first, and no architecture
# makes more of its weights and inputs than the second.
LEAST_BYTES = 3 << 28
MOST_GROWTH = 1 << 14

TRUST = "INTACT_TRUST_MODELS"
"""The variable of the environment that lifts the limits, for a model that is meant to be as it is."""

Shape = tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class Footprint:
    """A model without what its file says about inner shapes, and the bytes of each result, where known."""

    model: ir.Model
    sizes: Mapping[ir.Value, int]
    unknown: tuple[ir.Value, ...]
    loops: bool

    @property
    def is_known(self) -> bool:
        """True if shapes alone decide the size of every result, and no values do."""
        return not self.unknown and not self.loops


def of(model: ir.Model, *, unclaimed: bool = False) -> Footprint:
    """Work out what a run of `model` makes, with every free dimension of its inputs taken as 1.

    `unclaimed` says that its file claims nothing about inner shapes: those that are known follow from the inputs.
    """
    copy = model if unclaimed and shapes.are_settled(model) else _inferred(model)
    sizes = {value: _bytes(value) for value in _results(copy)}
    known = {value: size for value, size in sizes.items() if size is not None}
    loops = any(node.op_type == "Loop" for node in query.all_nodes(copy))
    return Footprint(copy, known, tuple(value for value in sizes if value not in known), loops)


def _inferred(model: ir.Model) -> ir.Model:
    """A copy with the shapes that follow from the inputs, whatever the file claims."""
    copy = copied(model)
    _forget_shapes(copy)
    # A model whose shapes do not fit together may still run: what is not known is tried out.
    with contextlib.suppress(ModelError):
        copy = normalize.inline_functions(copy)
        shapes.infer_shapes(copy)
    return copy


def claims_shapes(given: ir.Model) -> bool:
    """True if a file says something about shapes of what its nodes compute, beside those of its outputs."""
    results = (value for node in query.all_nodes(given) for value in node.outputs if not value.is_graph_output())
    return bool(given.functions) or any(value.shape is not None for value in results)


def activations(model: ir.Model) -> int:
    """Bytes of all that one sample makes, as far as shapes tell, with every free dimension taken as 1."""
    return sum(_size(value, _fixed(value.shape)) or 0 for value in _results(model) if value.shape is not None)


def _fixed(shape: ir.Shape) -> Shape:
    return tuple(size if isinstance(size, int) else 1 for size in shape)


def completed(found: Footprint, told: Mapping[str, Shape]) -> Footprint:
    """`found` with shapes that another has worked out, by the name of the tensor."""
    more = {value: _size(value, told.get(value.name or "", (None,))) for value in found.unknown}
    sizes = {**found.sizes, **{value: size for value, size in more.items() if size is not None}}
    return Footprint(found.model, sizes, tuple(value for value in found.unknown if value not in sizes), found.loops)


def check(found: Footprint) -> None:
    """Refuse a model whose tensors take far more memory than anything of its size has a use for."""
    total, most = sum(found.sizes.values()), allowed_bytes(found.model)
    if total <= most:
        return
    largest = max(found.sizes, key=lambda value: found.sizes[value])
    raise ModelError(
        "M134",
        f"a run makes tensors of {gigabytes(total)}, {gigabytes(found.sizes[largest])} of them in the result of "
        f"{query.describe(largest)}",
        allowed=f"{gigabytes(most)}: {gigabytes(LEAST_BYTES)}, or {MOST_GROWTH} times the weights and inputs",
        fix=f"export the model again; if it is meant to be so, {TRUST}=1 lifts the limit",
    )


def allowed_bytes(model: ir.Model) -> int:
    """The most memory that the tensors of a run may take."""
    inputs = (_bytes(value) for value in model.graph.inputs)
    return max(LEAST_BYTES, MOST_GROWTH * (io.size_of_weights(model) + sum(filter(None, inputs))))


def gigabytes(count: int) -> str:
    """A number of bytes for a message."""
    return f"{count / 2**30:.2f} GiB"


def _forget_shapes(model: ir.Model) -> None:
    """Fix free dimensions, and drop what the file claims about results: nothing keeps it from being wrong."""
    for node in query.all_nodes(model):
        for value in node.outputs:
            value.type, value.shape = None, None
    for value in model.graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape(size if isinstance(size, int) and size >= 0 else 1 for size in value.shape)


def _results(model: ir.Model) -> Iterator[ir.Value]:
    for node in query.all_nodes(model):
        yield from (value for value in node.outputs if value.name)


def _bytes(value: ir.Value) -> int | None:
    return _size(value, None if value.shape is None else _dims(value.shape))


def _dims(shape: Iterable[int | ir.SymbolicDim]) -> Shape:
    return tuple(size if isinstance(size, int) else None for size in shape)


def _size(value: ir.Value, shape: Shape | None) -> int | None:
    """Bytes of a tensor, of the widest type where none is known; None for a size that is not, as of texts and lists."""
    dims = [size for size in shape or () if isinstance(size, int)]
    dtype = ir.DataType.COMPLEX128 if value.type is None else value.type.dtype
    listed = value.type is not None and not isinstance(value.type, ir.TensorType)
    if shape is None or len(dims) < len(shape) or listed or dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return None
    return -(-math.prod(dims) * dtype.bitwidth // 8)
