"""Inputs that the settings make constants: each value as an array of the type and shape of its input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from intact.errors import SettingsError
from intact.json_types import Json
from intact.settings.config import nearest


def arrays(model: ir.Model, values: Mapping[str, Json], dims: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The values by the names of inputs; a single number stands for an array full of it."""
    inputs = {value.name or "": value for value in model.graph.inputs if not value.is_initializer()}
    for name in values:
        if name not in inputs:
            known = list(inputs)
            raise SettingsError(
                "S177", f"--set {name}: the model has no such input{nearest(name, known)}", allowed=", ".join(known)
            )
    if values and len(values) == len(inputs):
        raise SettingsError("S178", "--set makes every input a constant", fix="leave out the inputs that vary")
    return {name: _array(inputs[name], value, dims) for name, value in values.items()}


def fix(model: ir.Model, given: Mapping[str, np.ndarray]) -> None:
    """Make constants, in place, of the inputs in `given`."""
    for value in [value for value in model.graph.inputs if value.name in given]:
        array = given[value.name or ""]
        model.graph.inputs.remove(value)
        value.const_value, value.shape = ir.tensor(array, name=value.name), ir.Shape(array.shape)
        model.graph.initializers[value.name or ""] = value


def _array(port: ir.Value, value: Json, dims: Mapping[str, int]) -> np.ndarray:
    if not isinstance(port.type, ir.TensorType) or port.shape is None or port.dtype is None:
        raise SettingsError("S179", f"--set {port.name}: it is no tensor of a known type and shape")
    wanted, shape = port.dtype.numpy(), _shape(port, dims)
    try:
        found = np.array(value)
    except ValueError:
        raise _unfit(port, value, "its lists differ in length") from None
    if not _is_of(found, wanted):
        raise _unfit(port, value, f"{port.dtype.name.lower()} cannot hold it")
    if found.ndim and not _agrees(shape, found.shape):
        raise _unfit(port, value, f"its shape is {list(found.shape)}, that of the input {list(port.shape)}")
    if found.ndim:
        return found.astype(wanted)
    if None in shape:
        raise _unfit(port, value, f"the input has free dimensions: {list(port.shape)}", fix="fix them with --dim")
    return np.full([size for size in shape if size is not None], found.item(), wanted)


def _shape(port: ir.Value, dims: Mapping[str, int]) -> list[int | None]:
    """The sizes of an input, None where one is free and not in `dims`."""
    assert port.shape is not None, f"{port.name!r} has a shape"
    names = [size if isinstance(size, int) else size.value for size in port.shape]
    keys = [f"{port.name}:{axis}" if name is None else name for axis, name in enumerate(names)]
    return [key if isinstance(key, int) and key >= 0 else dims.get(str(key)) for key in keys]


def _agrees(wanted: list[int | None], found: tuple[int, ...]) -> bool:
    return len(wanted) == len(found) and all(w in (None, f) for w, f in zip(wanted, found, strict=True))


def _is_of(found: np.ndarray, wanted: np.dtype[Any]) -> bool:
    """True if the type holds the values as they are: whole numbers in its range, or anything finite for floats."""
    if wanted.kind == "b" or found.dtype.kind == "b":
        return wanted.kind == found.dtype.kind
    if found.dtype.kind not in "iuf" or not np.isfinite(found).all():
        return False
    if wanted.kind == "f":
        return bool((np.abs(found) <= np.finfo(wanted).max).all())
    if wanted.kind not in "iu" or (found.dtype.kind == "f" and (found != np.rint(found)).any()):
        return False
    limits = np.iinfo(wanted)
    return bool((found >= limits.min).all() and (found <= limits.max).all())


def _unfit(port: ir.Value, value: Json, why: str, fix: str | None = None) -> SettingsError:
    assert port.dtype is not None, f"{port.name!r} has a type"
    allowed = f"a value, or lists of values, of type {port.dtype.name.lower()}"
    return SettingsError("S179", f"--set {port.name}={value}: {why}", allowed=allowed, fix=fix)
