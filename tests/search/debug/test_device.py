"""What counts as an error of an NPU: against the values, or where they are all zeros, against what a grid holds."""

from __future__ import annotations

import numpy as np
import pytest

from intact.backends.base import Device
from intact.search.debug.device import DeviceComparison
from tests.builder import from_text


class Giving:
    """A simulator that gives the same numbers whatever it is fed."""

    def __init__(self, numbers):
        self.numbers = np.asarray(numbers, np.float32)

    def run(self, path, samples, device):
        return [{"0/y": self.numbers} for _ in samples]


def errors(dtype, scale, fed, given):
    """The errors of a Relu between grids that is fed with some numbers, on a device that gives others."""
    q = {"s": np.float32(scale), "z": np.zeros((), dtype)}
    text = "a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) c = Relu(b) d = QuantizeLinear(c, s, z) "
    model = from_text("(float[4] x) => (float[4] y)", text + "y = DequantizeLinear(d, s, z)", weights=q)
    rows = [{"x": np.asarray(fed, np.float32)}]
    return DeviceComparison(model, rows, Giving(given), Device("qnn", 10.0)).errors()


@pytest.mark.parametrize(
    ("dtype", "steps", "parted"),
    [(np.uint16, 5, False), (np.uint16, 5000, True), (np.uint8, 1, False), (np.uint8, 40, True)],
)
def test_zeros_are_wrong_by_what_their_grid_holds(dtype, steps, parted):
    """By hand: 20 dB less than half of 65535 steps are 3277 of them, of 255 steps 13."""
    (found,) = errors(dtype, 0.01, np.zeros(4), np.full(4, steps * 0.01))
    assert found.parted == parted
    assert found.own_db == pytest.approx(20 * np.log10(np.iinfo(dtype).max / 2 / steps), abs=0.01)


@pytest.mark.parametrize(
    ("fed", "given", "parted"),
    [
        ([100.0, 100.1, 100.2, 100.3], [100.15] * 4, True),
        ([100.0, 100.1, 100.2, 100.3], [100.05, 100.05, 100.25, 100.25], False),
        # A step of the grid is rounding, though it is all that differs.
        ([100.0, 100.0, 100.0, 100.01], [100.0] * 4, False),
        ([100.0] * 4, [100.1] * 4, False),
    ],
)
def test_what_became_one_value_is_wrong_however_far_from_zero(fed, given, parted):
    (found,) = errors(np.uint16, 0.01, fed, given)
    assert found.own_db > 50 and found.parted == parted
