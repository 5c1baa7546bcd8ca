"""Find nodes that have to stay in float32: their data or constants are beyond what half precision holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Literal

import numpy as np
import onnx_ir as ir

from intact.errors import some
from intact.model import query
from intact.model.deciding import deciding
from intact.quantization.calibration.observe import watch
from intact.quantization.calibration.sketch import Sketch
from intact.quantization.float16.form import Form
from intact.quantization.planning.choose import wanted_by
from intact.records import dataclass
from intact.settings.config import QuantConfig

LARGEST = 65504.0
# Below this the digits of half precision run out, and devices that have no denormal numbers take values for zero.
LEAST_NORMAL = 2.0**-14
# Half of the least number: what is smaller rounds to zero.
_TO_ZERO = 2.0**-25
# Up to here half precision holds every integer: what becomes an index may not pass it.
LARGEST_INDEX = 2048.0

_INTEGERS = frozenset({ir.DataType.INT32, ir.DataType.INT64, ir.DataType.INT16, ir.DataType.UINT32, ir.DataType.UINT64})
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Kept:
    """A node that stays in float32: because of its values (`range`), the settings (`asked`) or its `form`."""

    node: str
    reason: str
    kind: Literal["range", "asked", "form"]


def without_form(forms: Mapping[ir.Node, Form]) -> dict[ir.Node, Kept]:
    """The nodes that have no half-precision form."""
    return {node: Kept(node.name or "", f.refusal, "form") for node, f in forms.items() if f.refusal is not None}


def excluded(forms: Mapping[ir.Node, Form], config: QuantConfig) -> dict[ir.Node, Kept]:
    """The nodes that the settings leave out, by name or by type."""
    return {node: Kept(node.name or "", "excluded", "asked") for node in forms if not wanted_by(node, config)}


def exact(model: ir.Model, forms: Mapping[ir.Node, Form]) -> dict[ir.Node, Kept]:
    """The nodes that decide a branch, a count or a shape, which fewer digits would change."""
    return {
        node: Kept(node.name or "", "decides a branch, a count or a shape", "range")
        for node in deciding(model)
        if node in forms
    }


def watched(
    model: ir.Model,
    forms: Mapping[ir.Node, Form],
    rows: Iterable[Mapping[str, np.ndarray]],
    progress: Callable[[], None],
) -> dict[ir.Value, Sketch]:
    """The least and greatest value of all that would be half, over all `rows` and in constants."""
    values = dict.fromkeys(value for node, form in forms.items() for value in _halved(node, form))
    sketches = {value: Sketch(histogram=False) for value in values}
    computed = {value.name or "": [sketches[value]] for value in values if query.constant_tensor(value) is None}
    for value in values:
        array = query.constant(value)
        if array is not None:
            sketches[value].add(array)
    watch(model, computed, rows, progress=progress)
    return sketches


def observed(forms: Mapping[ir.Node, Form], sketches: Mapping[ir.Value, Sketch]) -> dict[ir.Node, Kept]:
    """The nodes that read or write values which half precision cannot hold."""
    reasons = {value: reason for value, seen in sketches.items() if (reason := _misfit(value, seen)) is not None}
    return {node: kept for node, form in forms.items() if (kept := _first(node, form, reasons)) is not None}


def is_too_small(value: ir.Value, seen: Sketch) -> bool:
    """True if a computed value is always so small that half precision has no digits for it."""
    return not query.is_constant(value) and seen.count > 0 and 0 < max(-seen.low, seen.high) < LEAST_NORMAL


def _halved(node: ir.Node, form: Form) -> Iterator[ir.Value]:
    """The values of a node that would be half."""
    for index in sorted(form.inputs):
        value = node.inputs[index]
        assert value is not None, "only present inputs have a form"
        yield value
    yield from (node.outputs[index] for index in sorted(form.outputs))


def _misfit(value: ir.Value, seen: Sketch) -> str | None:
    if seen.count == 0:
        return None
    reach = max(-seen.low, seen.high)
    what = f"constant {value.name}" if query.is_constant(value) else value.name
    limit = LARGEST_INDEX if any(_makes_indices(user) for user in value.consumers()) else LARGEST
    if reach > limit:
        return f"{what} reaches {reach:.4g}, past {limit:g}"
    return f"{what} stays below {LEAST_NORMAL:.2g} ({reach:.2g})" if 0 < reach < LEAST_NORMAL else None


def _makes_indices(node: ir.Node) -> bool:
    return node.op_type == "Cast" and node.domain == "" and node.outputs[0].dtype in _INTEGERS


def _first(node: ir.Node, form: Form, reasons: Mapping[ir.Value, str]) -> Kept | None:
    found = next((reasons[value] for value in _halved(node, form) if value in reasons), None)
    return None if found is None else Kept(node.name or "", found, "range")


def lost_digits(forms: Mapping[ir.Node, Form], half: Collection[ir.Node]) -> tuple[str, ...]:
    """A note that names the constants of half-precision nodes with values that round to zero; nothing without any."""
    values = dict.fromkeys(value for node in forms if node in half for value in _halved(node, forms[node]))
    lost = []
    for value in values:
        array = query.constant(value)
        count = 0 if array is None else int(np.count_nonzero((array != 0) & (np.abs(array) <= _TO_ZERO)))
        if array is not None and count:
            lost.append(f"{value.name} ({count} of {array.size})")
    if not lost:
        return ()
    return (f"half precision turns values of {len(lost)} constants into 0: {some(lost, _SHOWN)}",)
