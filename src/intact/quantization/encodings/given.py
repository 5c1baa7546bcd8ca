"""A grid as a file or a finished model gives it, before it is known where it goes."""

from __future__ import annotations

import numpy as np

from intact.numbers.encoding import Encoding
from intact.numbers.integer_types import bits, limits
from intact.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class GivenGrid:
    """A grid: real = (q - zero_point) * scale, with q counted from 0, so that signed and unsigned forms are one.

    `scale` and `zero_point` have one element, or one per channel along `axis`. `dtype` and `axis` are None where the
    source does not say. `constant` marks weights. A second grid on a tensor, for some of its readers, names them.
    """

    bits: int
    scale: np.ndarray
    zero_point: np.ndarray
    dtype: str | None = None
    axis: int | None = None
    constant: bool = False
    readers: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        assert self.scale.ndim == 1 and self.scale.shape == self.zero_point.shape, "one zero point per scale"
        assert self.scale.dtype == np.float32, "scales are float32, as in the model"

    @classmethod
    def of(cls, encoding: Encoding, *, constant: bool = False, readers: tuple[str, ...] | None = None) -> GivenGrid:
        """The same grid, counted from 0."""
        scale = encoding.scale.reshape(-1).astype(np.float32)
        zero_point = encoding.zero_point.reshape(-1).astype(np.int64) - encoding.limits[0]
        return cls(bits(encoding.dtype), scale, zero_point, encoding.dtype, encoding.axis, constant, readers)

    @property
    def symmetric(self) -> bool:
        """True if every zero point is the middle of the grid."""
        return bool((self.zero_point == 2 ** (self.bits - 1)).all())

    def type_like(self, other: str) -> str:
        """The type that the source names, else the one of these bits that is signed like `other`."""
        return self.dtype or f"{'u' if other.startswith('u') else ''}int{self.bits}"

    def encoding(self, dtype: str, axis: int | None) -> Encoding:
        """This grid as integers of `dtype`, with one scale, or one per channel along `axis`."""
        shape = () if axis is None else self.scale.shape
        zero_point = self.zero_point + limits(dtype)[0]
        return Encoding(dtype, self.scale.reshape(shape), zero_point.reshape(shape), axis)
