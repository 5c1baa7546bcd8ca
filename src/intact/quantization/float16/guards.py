"""Raises constants that only keep a number from zero, as in x / (mean + 1e-6), to what half precision holds.

They keep a division from being one by zero, and the least number with all digits of half precision does that as well:
it changes the sums that were seen by no more than rounding them does. A lower bound, as in x / max(norm, 1e-12), may be
raised to it where all that was seen is larger.
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


def raise_guards(model: ir.Model, sketches: Mapping[ir.Value, Sketch]) -> tuple[ir.Model, tuple[str, ...]]:
    """The model with such constants raised, and the names of the nodes that read them; itself where there are none."""
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
        division = _to_length_one(node)
        if division is not None:
            _normalize(division, names)
    edit.prune(result)
    return result, tuple(name or "" for name in found)


def _to_length_one(bound: ir.Node) -> ir.Node | None:
    """The Div of x / max(‖x‖, ε) over the last axis, of which `bound` is the maximum; None where it is none."""
    division = query.only_consumer(bound.outputs[0])
    if bound.op_type not in ("Clip", "Max") or division is None or division.op_type != "Div":
        return None
    lengths = (value.producer() for value in bound.inputs if value is not None)
    length = next((node for node in lengths if node is not None and node.op_type == "ReduceL2"), None)
    x = division.inputs[0]
    if length is None or x is None or x is not length.inputs[0] or division.inputs[1] is not bound.outputs[0]:
        return None
    axes, rank = query.constant(query.input_(length, 1)), query.rank(x)
    is_last = axes is not None and rank is not None and axes.size == 1 and int(axes.item()) % rank == rank - 1
    return division if is_last and query.int_(length, "keepdims", 1) else None


def _normalize(division: ir.Node, names: edit.Names) -> None:
    """Write x / max(‖x‖, ε) as LpNormalization: what a device has, and what its compiler does not die of.

    onnxruntime-qnn 2.7.0 does where such a division stands behind heads of attention in windows. All lengths that were
    seen are above ε, and a row of zeros stays one.
    """
    assert division.graph is not None and division.inputs[0] is not None, "the division is part of a model"
    node = ir.node("LpNormalization", [division.inputs[0]], {"axis": -1, "p": 2}, name=division.name)
    node.metadata_props.update(division.metadata_props)
    division.graph.insert_before(division, node)
    edit.describe_as(node.outputs[0], division.outputs[0])
    edit.replace_value(division.outputs[0], node.outputs[0], names)


def _too_small(node: ir.Node, sketches: Mapping[ir.Value, Sketch]) -> Iterator[int]:
    """The index of a constant that is too small and keeps results from zero, where all that were seen are far from it.

    A sum is far from zero where rounding it changes more than the raised constant does, what a bound lets through where
    it is above the raised one.
    """
    result = sketches.get(node.outputs[0]) if node.domain == "" else None
    if result is None or not result.count:
        return
    adds = node.op_type in ("Add", "Sub") and max(result.low, -result.high) * ROUNDING >= LEAST_NORMAL
    bounds = node.op_type == "Max" and result.low > LEAST_NORMAL
    cuts = node.op_type == "Clip" and result.low > LEAST_NORMAL
    for index, value in enumerate(node.inputs):
        seen = sketches.get(value) if value is not None and query.is_constant(value) else None
        if seen is None or not (adds or bounds or (cuts and index == 1)):
            continue
        least, most = (seen.low, seen.high) if adds else (max(seen.low, 0.0), seen.high)
        if 0 < max(-least, most) < LEAST_NORMAL:
            yield index
