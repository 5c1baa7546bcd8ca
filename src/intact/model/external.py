"""Locate the files that a model file names, inside the folders that they may lie in, check their size, and write one.

The rule: weights, and the binary of a compiled model, are in an ordinary file inside the folder of the model. Where
the model itself is a symbolic link (the cache of Hugging Face is made of them), they may also lie right beside the
file that the link leads to.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

import onnx_ir as ir

from intact.errors import ModelError
from intact.records import dataclass

# What ONNX defines. ONNX Runtime adds `prepacked_<n>`, which only speeds up its own start.
KEYS = ("location", "offset", "length", "checksum")
RUNTIME_KEYS = "prepacked_"

# No file has more bytes than a number of so many digits tells.
MOST_DIGITS = 20

# The file that tensors refer to whose data is elsewhere: empty, so that reading it can only fail. ONNX Runtime wants it
# to be there.
NO_CONTENT = Path(__file__).resolve().parents[1] / "py.typed"

# Small tensors (shapes, axes, scales) stay in the file of the model, where shape inference can read them.
EXTERNAL_MIN_BYTES = 1024
EXTERNAL_ALIGNMENT = 4096

CONFINED = "a relative path with forward slashes, inside the folder of the model"


@dataclass(frozen=True, slots=True)
class Reference:
    """A tensor's reference to its data: the file, the offset, and the number of bytes (None: as its shape has)."""

    location: str
    offset: int
    length: int | None


@dataclass(frozen=True, slots=True)
class Located:
    """An existing weight file: `name` relative to `root`, both with every symbolic link resolved."""

    root: Path
    name: str

    @property
    def path(self) -> Path:
        return self.root / self.name


def reference(tensor: str, entries: Iterable[tuple[str, str]]) -> Reference:
    """Read the entries that a tensor has for its external data; refuse what ONNX does not define."""
    found: dict[str, str] = {}
    for key, value in entries:
        if key.startswith(RUNTIME_KEYS):
            continue
        if key not in KEYS or key in found:
            problem = "given twice" if key in found else "unknown"
            raise ModelError(
                "M116",
                f"{tensor}: the key {key!r} of its external data is {problem}",
                allowed=f"each of {', '.join(KEYS)}, once",
                fix="save the model again with onnx.save",
            )
        found[key] = value
    length = _natural(tensor, "length", found["length"]) if "length" in found else None
    return Reference(found.get("location", ""), _natural(tensor, "offset", found.get("offset", "0")), length)


def hollow(tensor: ir.TensorProtocol, name: str) -> ir.ExternalTensor:
    """A tensor of the same type and shape that refers to a file which is never opened."""
    shape = ir.Shape(tensor.shape.numpy())
    return ir.ExternalTensor(NO_CONTENT.name, 0, tensor.nbytes, tensor.dtype, shape=shape, name=name)


def locate(model: Path, location: str, owner: str, kind: str = "external data") -> Located:
    """Find the file that `owner` (a tensor or a node) of the file `model` names, without leaving the model's folder."""
    what = f"{owner}: its {kind} {location!r}"
    reason = _unsafe(location)
    if reason is not None:
        raise _refused(what, reason)
    folder = Path(os.path.realpath(model.parent))
    target = Path(os.path.realpath(folder / location))
    root = _root_of(target, folder, Path(os.path.realpath(model)))
    if root is None:
        raise _refused(what, f"leads out of the folder, to {target}")
    _check_ordinary(target, what)
    return Located(root, target.relative_to(root).as_posix())


def check_span(tensor: str, found: Reference, file: Located, needed: int) -> None:
    """The span that `tensor` names holds exactly the bytes of its shape, and lies within the file."""
    if found.length is not None and found.length != needed:
        raise ModelError(
            "M115",
            f"{tensor}: its external data is said to have {found.length} bytes, but its shape and type need {needed}",
            fix="save the model again with onnx.save",
        )
    size = file.path.stat().st_size
    if found.offset + needed > size:
        raise ModelError(
            "M115",
            f"{tensor}: its external data ends at byte {found.offset + needed} of {found.location!r}, "
            f"which has {size} bytes",
            fix="the file seems truncated: copy or download it again",
        )


def _natural(tensor: str, key: str, text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS:
        return int(text)
    shown = repr(text if len(text) <= MOST_DIGITS else f"{text[:MOST_DIGITS]}…")
    raise ModelError("M115", f"{tensor}: the {key} of its external data is {shown}", allowed="a whole number from 0 up")


def _unsafe(location: str) -> str | None:
    """Return the reason against taking this text as a path, whatever is on the disk."""
    if not location:
        return "is empty"
    if "\\" in location or "\0" in location:
        return "has a backslash or a zero byte"
    windows = PureWindowsPath(location)
    if PurePosixPath(location).is_absolute() or windows.drive or windows.root:
        return "is absolute"
    return "climbs with `..`" if ".." in PurePosixPath(location).parts else None


def _root_of(target: Path, folder: Path, real_model: Path) -> Path | None:
    """The folder that holds `target` lawfully: the model's own, or the one that the model's link leads to."""
    if target.is_relative_to(folder):
        return folder
    return real_model.parent if target.parent == real_model.parent else None


def _check_ordinary(target: Path, what: str) -> None:
    try:
        status = target.stat()
    except OSError as problem:
        raise ModelError(
            "M114",
            f"{what} cannot be read ({problem.strerror})",
            fix="put that file beside the model, under the name that it was saved with",
        ) from problem
    if not stat.S_ISREG(status.st_mode):
        raise ModelError("M114", f"{what} is not an ordinary file")
    if status.st_nlink > 1:
        # A hard link shows nothing of where else the file lies; onnx refuses them for the same reason.
        raise _refused(what, "is a hard link, which may belong to another folder")


def _refused(what: str, reason: str) -> ModelError:
    return ModelError(
        "M113",
        f"{what} {reason}",
        allowed=CONFINED,
        fix="copy that file into the folder of the model, and save the model with that name",
    )


def write_weights(model: ir.Model, file: BinaryIO, location: str) -> dict[str, ir.ExternalTensor]:
    """Write the larger initializers to `file`; return what stands for them, by number of graph and name."""
    outside: dict[str, ir.ExternalTensor] = {}
    for number, graph in enumerate(model.graphs()):
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.nbytes < EXTERNAL_MIN_BYTES or tensor.dtype == ir.DataType.STRING:
                continue
            offset = -(-file.tell() // EXTERNAL_ALIGNMENT) * EXTERNAL_ALIGNMENT
            file.seek(offset)
            if isinstance(tensor, ir.ExternalTensor):
                tensor.tofile(file)  # file to file, in pieces
            else:
                file.write(tensor.tobytes())
            shape = ir.Shape(tensor.shape.numpy())
            outside[f"{number}:{value.name}"] = ir.ExternalTensor(
                location, offset, tensor.nbytes, tensor.dtype, shape=shape, name=value.name or ""
            )
    return outside
