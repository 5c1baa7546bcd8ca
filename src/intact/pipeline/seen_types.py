"""Types and shapes of tensors that no rule infers, found by running the model once on made-up inputs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact import data
from intact.backends import compiling
from intact.errors import DataError, ModelError, some
from intact.model import normalize, query, shapes
from intact.pipeline import execution

_SHOWN = 3


def complete(model: ir.Model) -> tuple[str, ...]:
    """Write down, in place, what running shows; return a warning where the model cannot be run for it.

    ONNX infers nothing behind an operator of another domain, so that neither grids nor tables could be held against it.
    """
    unknown = [] if compiling.is_compiled(model) else _unknown(model)
    if not unknown:
        return ()
    try:
        rows = data.load(model, None, samples=1).calibration
        found = next(iter(execution.inside(model, [value.name or "" for value in unknown], rows)))
    except (ModelError, DataError) as problem:
        listed = some([value.name or "" for value in unknown], _SHOWN)
        return (f"the types of {listed} are not known, so that what reads them stays in float: {problem.message}",)
    for value in unknown:
        _describe(value, found[value.name or ""], fixed=not normalize.free_dims(model))
    shapes.infer_shapes(model)
    return ()


def _unknown(model: ir.Model) -> list[ir.Value]:
    """The tensors of the main graph whose type no rule tells."""
    outputs = [value for node in model.graph for value in node.outputs if value.name]
    return [value for value in outputs if value.type is None or query.rank(value) is None]


def _describe(value: ir.Value, seen: object, *, fixed: bool) -> None:
    """Note the type and shape of a tensor; where inputs have free dimensions, any of its own may be free too."""
    if not isinstance(seen, np.ndarray) or seen.dtype.hasobject:
        return
    value.type = value.type or ir.TensorType(ir.DataType.from_numpy(seen.dtype))
    value.shape = ir.Shape(seen.shape if fixed else [None] * seen.ndim)
