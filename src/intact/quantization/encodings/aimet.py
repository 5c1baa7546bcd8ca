"""AIMET's encoding files: versions 0.4 to 0.6.1, 1.0.0 and 2.0.0.

In versions below 2 a grid is `real = (q + offset) * scale` with q from 0, whatever the type: the offset is minus the
zero point of the unsigned grid, and -128 for symmetric int8. They say neither whether the integers are signed, nor
along which axis the channels lie; where they are used, the model and the target say it. A symmetric grid whose offset
is one short of the middle (-127 at 8 bits) is AIMET's *strict* one, which has no lowest step: its middle is zero too.
Version 2.0.0 has ONNX's own convention, with type and axis.

Biases are not written: their scale is that of the input times that of the weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from intact.numbers.integer_types import limits
from intact.quantization.encodings import parse as read
from intact.quantization.encodings.given import GivenGrid
from intact.quantization.encodings.parse import Entry, wrong

VERSIONS = ("0.6.1", "1.0.0", "2.0.0")

_SERIES = {version.partition(".")[0] for version in VERSIONS}
_PARTS = (("activation_encodings", False), ("param_encodings", True))


def is_aimet(content: Entry) -> bool:
    """True for what AIMET writes, of any version."""
    return any(part in content for part, _ in _PARTS) or isinstance(content.get("encodings"), list)


def parse(content: Entry, path: str) -> dict[str, GivenGrid]:
    """The grids of a file of any version, by tensor."""
    version = str(content.get("version", VERSIONS[0]))
    if version.partition(".")[0] not in _SERIES:
        raise wrong(f"{path}: version {version[:20]!r}", "is not known", f"up to {VERSIONS[-1]}")
    found: dict[str, GivenGrid] = {}
    for name, given in _entries(content, path):
        if name in found:
            raise wrong(f"{path}: {name}", "stands there twice")
        found[name] = given
    return found


def _entries(content: Entry, path: str) -> Iterator[tuple[str, GivenGrid]]:
    for name, entry in _named(content, "encodings", path):
        yield name, _second(entry, f"{path}: {name}")
    for part, constant in _PARTS:
        entries = content.get(part, [])
        if isinstance(entries, dict):
            for name, channels in entries.items():
                yield name, replace(_legacy(channels, f"{path}: {name}"), constant=constant)
            continue
        for name, entry in _named(content, part, path):
            yield name, replace(_first(entry, f"{path}: {name}"), constant=constant)


def _named(content: Entry, part: str, path: str) -> Iterator[tuple[str, Entry]]:
    """The entries of a part that is a list, by the names that they bear."""
    where = f"{path}: an entry of {part}"
    for value in read.list_of(content.get(part, []), f"{path}: {part}"):
        entry = read.entry_of(value, where)
        yield str(read.field(entry, "name", where)), entry


def _legacy(channels: object, where: str) -> GivenGrid:
    """A list of one object, or of one per channel."""
    entries = [read.entry_of(channel, where) for channel in read.list_of(channels, where)]
    if not entries:
        raise wrong(where, "an empty list")
    _refuse_float(entries[0].get("dtype", "int"), where)
    widths = {read.bits_of(read.field(entry, "bitwidth", where), where) for entry in entries}
    if len(widths) > 1:
        raise wrong(where, f"channels of {' and '.join(map(str, sorted(widths)))} bits", "one bit width per tensor")
    (bits,) = widths
    symmetric = read.flag(entries[0].get("is_symmetric", False), where)
    scales, offsets = (
        [_one(read.field(entry, key, where), key, where) for entry in entries] for key in ("scale", "offset")
    )
    return read.grid(bits, scales, _zero_points(offsets, bits, symmetric), where)


def _one(value: object, name: str, where: str) -> float:
    (number,) = read.numbers(value, name, where) if not isinstance(value, list) else read.numbers(None, name, where)
    return number


def _first(entry: Entry, where: str) -> GivenGrid:
    """An entry of version 1.0.0."""
    _refuse_float(read.field(entry, "dtype", where), where)
    kind = entry.get("enc_type", "PER_TENSOR")
    if kind not in ("PER_TENSOR", "PER_CHANNEL"):
        raise wrong(where, f"enc_type {kind}", "PER_TENSOR, PER_CHANNEL")
    bits = read.bits_of(read.field(entry, "bw", where), where)
    scales, offsets = (read.numbers(read.field(entry, key, where), key, where) for key in ("scale", "offset"))
    zero_points = _zero_points(offsets, bits, read.flag(entry.get("is_sym", False), where))
    return read.grid(bits, scales, zero_points, where)


def _second(entry: Entry, where: str) -> GivenGrid:
    """An entry of version 2.0.0; it does not say whether the tensor is a weight."""
    if "per_block_int_scale" in entry or entry.get("block_size"):
        raise wrong(where, "scales per block", "one scale per tensor or per channel")
    dtype = read.dtype_of(read.field(entry, "output_dtype", where), where)
    first, last = limits(dtype)
    scales = read.numbers(read.field(entry, "y_scale", where), "y_scale", where)
    stored = entry.get("y_zero_point")
    zeros = read.numbers(0 if stored is None else stored, "y_zero_point", where)
    bits = (last - first).bit_length()
    axis = None if entry.get("axis") is None else read.axis_of(entry["axis"], where)
    return replace(read.grid(bits, scales, [zero - first for zero in zeros], where), dtype=dtype, axis=axis)


def _refuse_float(dtype: object, where: str) -> None:
    if str(dtype).lower() != "int":
        raise wrong(where, f"its type is {dtype}", "int; a tensor that stays float has no entry (see --exclude-node)")


def _zero_points(offsets: list[float], bits: int, symmetric: bool) -> list[float]:
    middle = 2 ** (bits - 1)
    return [middle if symmetric and -offset == middle - 1 else -offset for offset in offsets]


def render(given: Mapping[str, GivenGrid], version: str) -> dict[str, object]:
    """The content of AIMET's file for these grids; a second grid on a tensor (`tensor:type`) has no place in it."""
    own = {name: entry for name, entry in given.items() if entry.readers is None}
    if version == "2.0.0":
        return {"version": version, "encodings": [_as_second(name, entry) for name, entry in own.items()]}
    parts = {part: {n: e for n, e in own.items() if e.constant == constant} for part, constant in _PARTS}
    if version == "1.0.0":
        return {"version": version} | {part: [_as_first(n, e) for n, e in e_.items()] for part, e_ in parts.items()}
    return {"version": version} | {part: {n: _as_legacy(e) for n, e in e_.items()} for part, e_ in parts.items()}


def _as_legacy(given: GivenGrid) -> list[dict[str, object]]:
    steps = 2**given.bits - 1
    return [
        {
            "bitwidth": given.bits,
            "dtype": "int",
            "is_symmetric": str(given.symmetric),
            "max": (steps - zero) * scale,
            "min": -zero * scale,
            "offset": -zero,
            "scale": scale,
        }
        for scale, zero in zip(given.scale.tolist(), given.zero_point.tolist(), strict=True)
    ]


def _as_first(name: str, given: GivenGrid) -> dict[str, object]:
    return {
        "name": name,
        "bw": given.bits,
        "dtype": "INT",
        "enc_type": "PER_TENSOR" if given.axis is None else "PER_CHANNEL",
        "is_sym": given.symmetric,
        "offset": [-zero for zero in given.zero_point.tolist()],
        "scale": given.scale.tolist(),
    }


def _as_second(name: str, given: GivenGrid) -> dict[str, object]:
    dtype = given.type_like("uint8")
    scale, zero_point = given.scale.tolist(), (given.zero_point + limits(dtype)[0]).tolist()
    if given.axis is None:
        return {"name": name, "output_dtype": dtype, "y_scale": scale[0], "y_zero_point": zero_point[0]}
    return {"name": name, "output_dtype": dtype, "y_scale": scale, "y_zero_point": zero_point, "axis": given.axis}
