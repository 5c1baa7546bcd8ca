"""Half precision: what is float32 becomes float16 where its values fit, and stays float32 where they do not.

Inputs and outputs of the graph keep their types. What the model computes is observed once over the data, so that a
node stays in float32 for a reason that can be named: its values, its form, or the user's wish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.errors import ModelError, some
from intact.quantization.calibration.sketch import Sketch
from intact.quantization.float16.cast import cast
from intact.quantization.float16.follow import follow
from intact.quantization.float16.form import Form, form_of
from intact.quantization.float16.guards import raise_guards
from intact.quantization.float16.keep import (
    LEAST_NORMAL,
    Kept,
    exact,
    excluded,
    is_too_small,
    lost_digits,
    observed,
    watched,
    without_form,
)
from intact.quantization.float16.lift import Lifted, bring_back, lift, takes_back
from intact.quantization.planning.planner import check_names
from intact.results import Violation
from intact.settings.config import QuantConfig
from intact.targets.spec import Target

_SHOWN = 5
_KINDS = {
    "range": "because of their values",
    "asked": "as the settings ask",
    "form": "because they have no half-precision form",
}


@dataclass(frozen=True, slots=True)
class Half:
    """A model in half precision, the nodes that compute in it, and those that do not, each with the reason."""

    model: ir.Model
    nodes: tuple[str, ...]
    kept: tuple[Kept, ...]
    notes: tuple[str, ...]


def convert(
    model: ir.Model,
    config: QuantConfig,
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    device: Target | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Half:
    """`model` with float16 in place of float32 wherever the settings allow it and the values over `rows` fit.

    For a device that has nothing but half precision, values that are too small for it are lifted by powers of two, and
    constants that only keep numbers from zero are raised.
    """
    check_names(model, config)
    forms = _forms(model)
    sketches = watched(model, forms, rows, progress)
    only_halves = device is not None and device.halves
    lifted = _lifted(model, sketches, device) if device is not None and only_halves else None
    if lifted is not None:
        model, forms = lifted.model, _forms(lifted.model)
        sketches = watched(model, forms, rows, lambda: None)
    model, raised = raise_guards(model, sketches) if only_halves else (model, ())
    if raised:
        forms = _forms(model)
        sketches = watched(model, forms, rows, lambda: None)
    kept = {**exact(model, forms), **observed(forms, sketches), **excluded(forms, config)}
    kept |= without_form(forms)
    half = follow(forms, kept)
    if not half:
        raise ModelError(
            "M143", f"no node of the model can be in half precision: {_summary(list(kept.values()), len(forms))}"
        )
    names = tuple(node.name or "" for node in forms if node in half)
    notes = (_summary(list(kept.values()), len(forms)), *lost_digits(forms, half))
    result = cast(model, forms, half)
    if lifted is not None:
        bring_back(result, lifted.outputs)
        notes = (*notes, _told(lifted))
    if raised:
        adding = some(list(raised), _SHOWN)
        notes = (
            *notes,
            f"half precision: constants below {LEAST_NORMAL:.2g} are raised to it, results being far larger: {adding}",
        )
    return Half(result, names, tuple(kept.values()), notes)


def _forms(model: ir.Model) -> dict[ir.Node, Form]:
    opset = model.opset_imports.get("", 0)
    return {node: form for node in model.graph if (form := form_of(node, opset)) is not None}


def _lifted(model: ir.Model, sketches: Mapping[ir.Value, Sketch], device: Target) -> Lifted | None:
    """The model with small values lifted, where some are too small for half precision and can be."""
    if not any(is_too_small(value, seen) for value, seen in sketches.items()):
        return None
    ends = {value.name or "": (seen.low, seen.high) for value, seen in sketches.items() if seen.count}
    return lift(model, ends, outputs_too=takes_back(device))


def _told(lifted: Lifted) -> str:
    outputs = [f"{name} by 2^{one.exponent}" for name, one in lifted.outputs.items()]
    back = f"; {some(outputs, _SHOWN)}, which 16-bit integers bring back" if outputs else ""
    return f"half precision: {lifted.tensors} tensors are too small for it, and lifted by powers of two{back}"


def _summary(kept: list[Kept], total: int) -> str:
    said = f"half precision: {len(kept)} of {total} nodes stay in float32"
    parts = []
    for kind, why in _KINDS.items():
        found = [f"{row.node}: {row.reason}" for row in kept if row.kind == kind]
        parts += [f"{len(found)} {why} ({some(found, _SHOWN, '; ')})"] if found else []
    return f"{said}: {', '.join(parts)}" if parts else said


def violations(model: ir.Model, kept: Iterable[Kept], target: Target) -> tuple[Violation, ...]:
    """For a target that computes float32 in half precision: the nodes that must not be computed so."""
    if not target.halves:
        return ()
    ops = {node.name: node.op_type for node in model.graph}
    return tuple(
        Violation(
            row.node,
            ops.get(row.node, "?"),
            f"{target.name} computes in half precision, also what is written in float32",
            row.reason,
            target.table,
            "choose --precision w8a16, or scale the values down; --no-strict goes on with this node on the CPU",
            "T112",
        )
        for row in kept
        if row.kind != "form"
    )


__all__ = ["Form", "Half", "Kept", "convert", "violations"]
