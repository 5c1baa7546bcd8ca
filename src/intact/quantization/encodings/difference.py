"""The differences between two sets of encodings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from intact.quantization.encodings.given import GivenGrid
from intact.records import dataclass


@dataclass(frozen=True, slots=True)
class EncodingDifference:
    """A difference for one tensor; between numbers, the largest ratio of scales and distance of zero points."""

    tensor: str
    what: str
    scale_ratio: float | None = None
    zero_point_steps: int | None = None


def differences(left: Mapping[str, GivenGrid], right: Mapping[str, GivenGrid]) -> list[EncodingDifference]:
    """One entry for each tensor that only one side has, or that the sides have on different grids."""
    names = [*left, *(name for name in right if name not in left)]
    return [found for name in names for found in _difference(name, left.get(name), right.get(name))]


def _difference(name: str, left: GivenGrid | None, right: GivenGrid | None) -> Iterator[EncodingDifference]:
    if left is None or right is None:
        yield EncodingDifference(name, "only in b" if left is None else "only in a")
        return
    kinds = [("bits", left.bits, right.bits), ("type", left.dtype, right.dtype), ("axis", left.axis, right.axis)]
    for what, one, other in kinds:
        # A format that does not say a type or an axis does not contradict one that does.
        if one != other and one is not None and other is not None:
            yield EncodingDifference(name, f"{what} {one} against {other}")
            return
    if left.scale.size != right.scale.size:
        yield EncodingDifference(name, f"{left.scale.size} scales against {right.scale.size}")
        return
    if np.array_equal(left.scale, right.scale) and np.array_equal(left.zero_point, right.zero_point):
        return
    ratio = float(np.exp(np.abs(np.log(right.scale.astype(np.float64) / left.scale)).max()))
    steps = int(np.abs(right.zero_point - left.zero_point).max())
    yield EncodingDifference(name, f"scale by a factor of {ratio:.6g}, zero point by {steps}", ratio, steps)
