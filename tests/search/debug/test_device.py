"""What counts as an error of an NPU: against the values, or where they are all zeros, against what a grid holds."""

from __future__ import annotations

import numpy as np
import pytest

from intact.backends.base import Device
from intact.search.debug.device import DeviceComparison
from tests.builder import from_text


class WrongBySteps:
    """A simulator that gives every number with so many steps too much."""

    def __init__(self, steps, scale):
        self.error = np.float32(steps * scale)

    def run(self, path, samples, device):
        return [{"0/y": np.full(4, self.error)} for _ in samples]


def errors(dtype, scale, steps):
    """The errors of a Relu between grids, on zeros."""
    q = {"s": np.float32(scale), "z": np.zeros((), dtype)}
    text = "a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) c = Relu(b) d = QuantizeLinear(c, s, z) "
    model = from_text("(float[4] x) => (float[4] y)", text + "y = DequantizeLinear(d, s, z)", weights=q)
    rows = [{"x": np.zeros(4, np.float32)}]
    return DeviceComparison(model, rows, WrongBySteps(steps, scale), Device("qnn", 10.0)).errors()


@pytest.mark.parametrize(
    ("dtype", "steps", "parted"),
    [(np.uint16, 5, False), (np.uint16, 5000, True), (np.uint8, 1, False), (np.uint8, 40, True)],
)
def test_zeros_are_wrong_by_what_their_grid_holds(dtype, steps, parted):
    """By hand: 20 dB less than half of 65535 steps are 3277 of them, of 255 steps 13."""
    (found,) = errors(dtype, 0.01, steps)
    assert found.parted == parted
    assert found.own_db == pytest.approx(20 * np.log10(np.iinfo(dtype).max / 2 / steps), abs=0.01)
