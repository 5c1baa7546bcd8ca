"""Rounding with error feedback: the error of each rounded weight is made up for by those not rounded yet.

This is the GPTQ algorithm (Frantar et al., 2022): with H the second moments of the inputs, rounding column after
column and making up for each error in the rest leaves far less error in the layer's *output* than rounding each
weight to its nearest step. It pays at 8 bits too. What a column has to make up for is written with the factor U of
H = U D Uᵀ (Chee et al., 2023, show that both are the same), which needs no inverse.
"""

from __future__ import annotations

import numpy as np

from intact.numbers.encoding import narrowest, to_levels

# Share of the mean diagonal that is added to H: what was not seen in calibration should not count as free.
DAMPING = 0.01
# Inputs whose errors are fed back one by one; those of all earlier ones are fed back in one product.
_BLOCK = 16
# Up to so many inputs float32 holds the factor of H to a hundredth and better.
_FLOAT32_INPUTS = 512


def round_with_feedback(
    weights: np.ndarray, moments: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, dtype: str, noise: float
) -> np.ndarray:
    """Integers for `weights` [groups, outputs, inputs], with one scale and zero point per output or for each weight.

    `moments` is, per group, the sum of input · inputᵀ over what was observed; `noise` the variance that quantizing the
    inputs adds to each of them, summed likewise.
    """
    order, factor = _factor(moments, noise)
    # One row an input: rows are contiguous, and each is rounded as a whole.
    wanted = _in_order(weights.transpose(0, 2, 1), order)
    scale, zero_point = (_by_input(values, order) for values in (scale, zero_point))
    errors, levels = np.empty_like(wanted), np.empty_like(wanted)
    inputs = wanted.shape[1]
    for start in range(0, inputs, _BLOCK):
        stop = min(start + _BLOCK, inputs)
        left = wanted[:, start:stop] - factor[:, :start, start:stop].transpose(0, 2, 1) @ errors[:, :start]
        for row in range(start, stop):
            step, zero = scale[:, row], zero_point[:, row]
            found = to_levels(left[:, row - start], step, zero, dtype)
            error = (found - zero) * step - wanted[:, row]
            levels[:, row], errors[:, row] = found, error
            left[:, row - start + 1 :] -= factor[:, row, row + 1 : stop, None] * error[:, None]
    return _in_order(levels, np.argsort(order, axis=1)).transpose(0, 2, 1).astype(narrowest(dtype))


def _by_input(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Scales or zero points as [groups, inputs, outputs], in the order of rounding."""
    if values.ndim == 2:
        groups, outputs = values.shape
        return np.broadcast_to(values.astype(np.float32)[:, None, :], (groups, order.shape[1], outputs))
    return _in_order(values.transpose(0, 2, 1), order)


def _in_order(rows: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The rows of each group in an order of its own, as float32."""
    if len(order) == 1:  # rows are copied as a whole
        return np.asarray(rows[0, order[0]], np.float32)[None]
    return np.take_along_axis(rows.astype(np.float32), order[..., None], axis=1)


def _factor(moments: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """The order to round in, largest moments first, and U of H = U D Uᵀ in that order, with ones on its diagonal.

    H is factored in float64 where it is large, since inputs may depend on each other: what damping adds keeps its
    condition below a hundred times its size. In float32 the factor is exact enough to feed back errors of less than a
    step.
    """
    moments = moments.astype(np.float32 if moments.shape[1] <= _FLOAT32_INPUTS else np.float64)
    diagonal = np.diagonal(moments, axis1=1, axis2=2)
    order = np.argsort(-diagonal, axis=1, kind="stable")
    if len(order) == 1:  # rows are copied as a whole
        h = moments[0][order[0]][:, order[0]][None]
    else:
        h = np.take_along_axis(np.take_along_axis(moments, order[:, :, None], axis=1), order[:, None, :], axis=2)
    added = DAMPING * np.maximum(diagonal.mean(axis=1), 1e-30) + noise
    index = np.arange(h.shape[1])
    h[:, index, index] += added[:, None]
    # Cholesky gives a lower factor; of the matrix turned round, it is the upper one turned round.
    upper = np.linalg.cholesky(h[:, ::-1, ::-1])[:, ::-1, ::-1]
    return order, np.asarray(upper / np.diagonal(upper, axis1=1, axis2=2)[:, None, :], np.float32)
