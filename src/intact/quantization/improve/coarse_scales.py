"""Scales of coarse weights: at 4 bits and fewer, cutting off the largest weights lets all others round finer."""

from __future__ import annotations

import numpy as np

from intact.numbers.encoding import Encoding, dequantize, quantize

COARSE = ("int4", "uint4", "int2")
_SHARES = np.linspace(1.0, 0.4, 31)


def least_error_scales(values: np.ndarray, encoding: Encoding) -> Encoding:
    """The same grid with each scale shrunk to where the squared error of its weights is least."""
    others = None if encoding.axis is None else tuple(i for i in range(values.ndim) if i != encoding.axis)
    best_error = np.full(encoding.scale.shape, np.inf)
    best_scale = encoding.scale.copy()
    for share in _SHARES:
        scale = (encoding.scale * np.float32(share)).astype(np.float32)
        attempt = Encoding(encoding.dtype, scale, encoding.zero_point, encoding.axis)
        integers = quantize(values, attempt, precision=np.float64)
        error = np.square(values - dequantize(integers, attempt, precision=np.float64)).sum(axis=others)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_scale = np.where(better, scale, best_scale).astype(np.float32)
    return Encoding(encoding.dtype, best_scale, encoding.zero_point, encoding.axis)
