"""A weight of nine bits as a sum of weights of eight, and the copies of the input that they want."""

from __future__ import annotations

import numpy as np


def fits(weight: np.ndarray, bits: int = 8) -> bool:
    """True if every number is one of a signed type of that many bits."""
    return bool(weight.min(initial=0) >= -(2 ** (bits - 1)) and weight.max(initial=0) < 2 ** (bits - 1))


def split(weight: np.ndarray, bits: int = 8) -> list[np.ndarray]:
    """Parts that a signed type of `bits` holds and that add up to `weight`, of one bit more.

    There are two, halves of every number; the third is for the one number that is twice the greatest and one more.
    """
    greatest = 2 ** (bits - 1) - 1
    first = weight // 2
    second = np.minimum(weight - first, greatest)
    rest = weight - first - second
    return [first, second, rest] if rest.any() else [first, second]


def split_small(weight: np.ndarray) -> list[np.ndarray]:
    """Four parts between -64 and 64 that add up to `weight`, of nine bits: pairs of products by 8 bits fit 16."""
    parts, rest = [], weight
    for left in (4, 3, 2, 1):
        parts.append(rest // left)
        rest = rest - parts[-1]
    return parts


def copy_indices(channels: int, group: int, count: int) -> np.ndarray:
    """The source of each input channel of a grouped convolution: the `channels` of each group, `count` times."""
    groups = np.arange(channels * group, dtype=np.int64).reshape(group, 1, channels)
    return np.asarray(np.broadcast_to(groups, (group, count, channels)).reshape(-1))
