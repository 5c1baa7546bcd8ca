"""ONNX Runtime's `TensorQuantOverrides`, as JSON: `{tensor: [{quant_type, scale, zero_point, …}, …]}`.

One object for a tensor, or one per channel, each with the same `axis`. In place of `scale` and `zero_point` there may
be `rmin` and `rmax`, from which a grid is made as from an observed range. `convert` is a second grid, for the nodes
in `recv_nodes`. ONNX Runtime itself wants `QuantType` objects: `QuantType.from_string(entry["quant_type"])`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

import numpy as np

from intact.numbers.encoding import encode
from intact.numbers.integer_types import limits
from intact.quantization.encodings import parse as read
from intact.quantization.encodings.given import GivenGrid
from intact.quantization.encodings.parse import Entry, wrong

_NAMES = {
    f"{'u' if unsigned else ''}int{bits}": f"Q{'U' if unsigned else ''}Int{bits}"
    for unsigned in (True, False)
    for bits in (2, 4, 8, 16)
}

Overrides = Mapping[str, Sequence[Entry]]


def is_overrides(content: Entry) -> TypeGuard[Overrides]:
    """True if every value is a list of objects."""
    return bool(content) and all(
        isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries) for entries in content.values()
    )


def parse(content: Overrides, path: str) -> dict[str, GivenGrid]:
    """The grids of a file, by tensor; a second grid on a tensor as `tensor:type`."""
    found: dict[str, GivenGrid] = {}
    for name, entries in content.items():
        where = f"{path}: {name}"
        if not entries:
            raise wrong(where, "an empty list")
        found[name] = _per_channel(entries, where) if "axis" in entries[0] else _one(entries, where)
        found |= {f"{name}:{second.dtype}": second for second in _converted(entries[0], where)}
    return found


def _one(entries: Sequence[Entry], where: str) -> GivenGrid:
    if len(entries) > 1:
        raise wrong(where, f"{len(entries)} objects without an axis", "an axis for grids per channel")
    return _grid(entries[0], read.dtype_of(read.field(entries[0], "quant_type", where), where), where)


def _per_channel(entries: Sequence[Entry], where: str) -> GivenGrid:
    """One grid of all channels; what the first object says of type and axis holds for those that do not say it."""
    dtype = read.dtype_of(read.field(entries[0], "quant_type", where), where)
    for key in ("axis", "quant_type"):
        if any(entry.get(key, entries[0][key]) != entries[0][key] for entry in entries):
            raise wrong(where, f"channels differ in {key}")
    parts = [_grid({"symmetric": entries[0].get("symmetric", False), **entry}, dtype, where) for entry in entries]
    return replace(
        parts[0],
        scale=np.concatenate([part.scale for part in parts]),
        zero_point=np.concatenate([part.zero_point for part in parts]),
        axis=read.axis_of(entries[0]["axis"], where),
        constant=True,
    )


def _grid(entry: Entry, dtype: str, where: str) -> GivenGrid:
    first, last = limits(dtype)
    if "scale" in entry:
        scale, zero = (read.numbers(read.field(entry, key, where), key, where) for key in ("scale", "zero_point"))
        found = read.grid((last - first).bit_length(), scale, [number - first for number in zero], where)
        return replace(found, dtype=dtype)
    if read.flag(entry.get("reduce_range", False), where):
        raise wrong(where, "reduce_range with rmin and rmax", "scale and zero_point for a reduced range")
    if "rmin" not in entry or "rmax" not in entry:
        raise wrong(where, f"only {', '.join(entry)}", "scale and zero_point, or rmin and rmax")
    low, high = (read.numbers(entry[key], key, where)[0] for key in ("rmin", "rmax"))
    if not low <= high:
        raise wrong(where, f"rmin {low} above rmax {high}")
    return GivenGrid.of(encode(low, high, dtype, symmetric=read.flag(entry.get("symmetric", False), where)))


def _converted(entry: Entry, where: str) -> Iterator[GivenGrid]:
    if "convert" not in entry:
        return
    where = f"{where}: convert"
    second = read.entry_of(entry["convert"], where)
    given = _grid(second, read.dtype_of(read.field(second, "quant_type", where), where), where)
    yield replace(given, readers=tuple(map(str, read.list_of(second.get("recv_nodes", []), where))))


def render(given: Mapping[str, GivenGrid]) -> Overrides:
    """The overrides for these grids."""
    seconds = {name.rpartition(":")[0]: entry for name, entry in given.items() if entry.readers is not None}
    result: dict[str, list[dict[str, object]]] = {}
    for name, entry in given.items():
        if entry.readers is not None:
            continue
        result[name] = _entries(entry)
        if name in seconds:
            (second,) = _entries(seconds[name])
            result[name][0]["convert"] = {**second, "recv_nodes": sorted(seconds[name].readers or ())}
    return result


def _entries(given: GivenGrid) -> list[dict[str, object]]:
    dtype = given.type_like("uint8")
    zero_points = (given.zero_point + limits(dtype)[0]).tolist()
    axis = {} if given.axis is None else {"axis": given.axis}
    return [
        {"quant_type": _NAMES[dtype], **axis, "scale": scale, "zero_point": zero}
        for scale, zero in zip(given.scale.tolist(), zero_points, strict=True)
    ]
