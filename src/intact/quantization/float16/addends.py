"""Raises constants that are too small for half precision and are added to far larger numbers, as in x / (mean + 1e-6).

They keep a division from being one by zero, and the least number with all digits of half precision does that as well:
it changes the sums that were seen by no more than rounding them does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from intact.model import edit, query
from intact.model.copying import copied
from intact.quantization.calibration.sketch import Sketch
from intact.quantization.float16.keep import LEAST_NORMAL

# Rounding to the 11 digits of half precision changes a number by up to this part of it.
ROUNDING = 2.0**-11


def raise_addends(model: ir.Model, sketches: Mapping[ir.Value, Sketch]) -> tuple[ir.Model, tuple[str, ...]]:
    """The model with such constants raised, and the names of the nodes that add them; itself where there are none."""
    found = {node.name: index for node in model.graph for index in _too_small(node, sketches)}
    if not found:
        return model, ()
    result = copied(model)
    names = edit.Names(result)
    for node in [node for node in result.graph if node.name in found]:
        index = found[node.name]
        value = node.inputs[index]
        array = None if value is None else query.constant(value)
        assert value is not None and array is not None, "only constants are too small here"
        raised = np.where(array == 0, array, np.copysign(np.maximum(np.abs(array), LEAST_NORMAL), array))
        node.replace_input_with(index, edit.add_initializer(result.graph, raised, names.take(f"{value.name}_raised")))
    edit.prune(result)
    return result, tuple(name or "" for name in found)


def _too_small(node: ir.Node, sketches: Mapping[ir.Value, Sketch]) -> Iterator[int]:
    """The index of a constant that is added and too small, where all sums that were seen are far from zero."""
    total = sketches.get(node.outputs[0]) if node.domain == "" and node.op_type in ("Add", "Sub") else None
    if total is None or not total.count or max(total.low, -total.high) * ROUNDING < LEAST_NORMAL:
        return
    for index, value in enumerate(node.inputs):
        seen = sketches.get(value) if value is not None and query.is_constant(value) else None
        if seen is not None and 0 < max(-seen.low, seen.high) < LEAST_NORMAL:
            yield index
