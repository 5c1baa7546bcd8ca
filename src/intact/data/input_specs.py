"""The name, type and shape of each input of a model, and the check that arrays fit them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from intact.errors import DataError, ModelError
from intact.records import dataclass
from intact.settings.config import nearest

Feeds = dict[str, np.ndarray]

UNFED = ("M181", "M182")
"""The codes of errors where an input is nothing that can be fed."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of a model; a free dimension is its name, or None where it has none."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int | str | None, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{shape_text(self.shape)}"

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """True if an array of this shape can be fed as it is."""
        return fits(self.shape, shape)


def input_specs(model: ir.Model) -> tuple[InputSpec, ...]:
    """The inputs that a caller has to feed, in the order of the graph."""
    fed = (value for value in model.graph.inputs if value.name not in model.graph.initializers)
    return tuple(_spec(value) for value in fed)


def shape_text(shape: Iterable[int | str | None]) -> str:
    """A shape as users write it, with ? for what has neither size nor name."""
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def fits(wanted: tuple[int | str | None, ...], found: tuple[int, ...]) -> bool:
    """True if ranks agree, and sizes wherever a size is wanted."""
    return len(wanted) == len(found) and all(
        want == size for want, size in zip(wanted, found, strict=True) if isinstance(want, int)
    )


def check_names(specs: tuple[InputSpec, ...], names: Iterable[str], where: str) -> None:
    """Raise unless `names` are exactly the names of the inputs."""
    given, known = list(names), [spec.name for spec in specs]
    allowed = ", ".join(f"{spec.name} ({spec})" for spec in specs)
    missing = next((name for name in known if name not in given), None)
    if missing is not None:
        found = ", ".join(given) or "nothing"
        raise DataError(
            "D104",
            f"{where}: no array for input {missing}; found {found}{nearest(missing, given)}",
            allowed=allowed,
            fix="name every array after the input that it feeds",
        )
    extra = next((name for name in given if name not in known), None)
    if extra is not None:
        raise DataError(
            "D105",
            f"{where}: {extra} is not an input of the model{nearest(extra, known)}",
            allowed=allowed,
            fix=f"leave {extra} out (labels, for instance, belong in a file of their own)",
        )


def check_dtype(spec: InputSpec, dtype: np.dtype[np.generic], where: str) -> None:
    """Raise unless `dtype` is the very type of the input: values are never converted in silence."""
    if dtype.hasobject:
        raise DataError(
            "D112",
            f"{where}: {spec.name} is an object array, which is never unpickled",
            allowed=str(spec.dtype),
            fix=f"make it a plain array of one shape: np.stack(rows).astype(np.{spec.dtype})",
        )
    if dtype != spec.dtype:
        raise DataError(
            "D106",
            f"{where}: {spec.name} is {dtype}, the model takes {spec.dtype}",
            allowed=str(spec.dtype),
            fix=f".astype(np.{spec.dtype}), after making sure that the values mean the same",
        )


def check_feed(specs: tuple[InputSpec, ...], arrays: Mapping[str, object], where: str) -> Feeds:
    """One sample as it is fed to the model: every array has the type and the whole shape of its input."""
    check_names(specs, arrays, where)
    feed = {spec.name: np.asarray(arrays[spec.name]) for spec in specs}
    for spec in specs:
        found = feed[spec.name]
        check_dtype(spec, found.dtype, where)
        if not spec.accepts(found.shape):
            raise DataError(
                "D107",
                f"{where}: {spec.name} has shape {shape_text(found.shape)}{looks_like(spec.shape, found.shape)}",
                allowed=f"{shape_text(spec.shape)}, the batch axis included",
                fix="give each sample in the shape of the model's input",
            )
    return feed


def check_values(feed: Mapping[str, np.ndarray], where: str) -> None:
    """Raise if any value of this sample is NaN or infinite."""
    for name, array in feed.items():
        if array.dtype.kind in "iub" or np.isfinite(array).all():
            continue
        kind = "NaN" if np.isnan(array).any() else "Inf"
        count = array.size - int(np.isfinite(array).sum())
        raise DataError(
            "D111",
            f"{where}: {name} holds {kind} ({count} of {array.size} values are not finite)",
            allowed="finite values",
            fix="repair or leave out this sample; a mask of -inf can be a finite value such as -10000",
        )


def looks_like(wanted: tuple[int | str | None, ...], found: tuple[int, ...], *, before: int = 0) -> str:
    """`, which looks like …` where moving the channel axis would make `found` fit, else nothing.

    `before` is the number of axes of samples that come before those of `found` in the array.
    """
    if len(found) < 3 or len(found) != len(wanted):
        return ""
    if fits(wanted, (found[0], found[-1], *found[1:-1])):
        return f", which looks like channels last (NHWC): {_moved(len(found), before, last=True)} makes it fit"
    if fits(wanted, (found[0], *found[2:], found[1])):
        return f", which looks like channels first (NCHW): {_moved(len(found), before, last=False)} makes it fit"
    return ""


def _moved(rank: int, before: int, *, last: bool) -> str:
    axes = (0, rank - 1, *range(1, rank - 1)) if last else (0, *range(2, rank), 1)
    return f".transpose{(*range(before), *(axis + before for axis in axes))}"


def _spec(value: ir.Value) -> InputSpec:
    """The tensor that feeds an input: of a sequence, its tensors along a first axis."""
    name, kind = value.name or "", value.type
    kind = kind.elem_type if isinstance(kind, ir.OptionalType) else kind
    is_sequence = isinstance(kind, ir.SequenceType) and isinstance(kind.elem_type, ir.TensorType)
    shape = ir.Shape([None, *(value.shape or ())]) if is_sequence else value.shape
    if not (isinstance(kind, ir.TensorType) or is_sequence) or shape is None:
        raise ModelError(
            "M181",
            f"input {name}: only tensors of known rank, and sequences of them, can be fed",
            fix="give it a shape",
        )
    assert kind is not None, "tensors and sequences have a type"
    try:
        dtype = kind.dtype.numpy()
    except TypeError:
        raise ModelError("M182", f"input {name}: numpy has no type for {kind.dtype}") from None
    return InputSpec(name, dtype, tuple(dim if isinstance(dim, int) else dim.value for dim in shape))
