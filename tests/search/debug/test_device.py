"""What counts as an error of an NPU: against the values, or where they are all zeros, against what a grid holds."""

from __future__ import annotations

import numpy as np
import pytest

from intact.backends.base import Device
from intact.errors import ToolchainError
from intact.model import io
from intact.runtime import ort_cpu
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


class Refusing:
    """A simulator that computes as the CPU does, and takes no model of several units, nor one unit by itself."""

    def __init__(self, alone):
        self.alone, self.asked = alone, []

    def run(self, path, samples, device):
        model = io.load(path)
        operators = [node.op_type for node in model.graph if "Linear" not in node.op_type]
        self.asked.append(operators)
        if len(model.graph.outputs) > 1 or operators == [self.alone]:
            raise ToolchainError("E108", "the simulator does not load it")
        return [ort_cpu.run(model, sample) for sample in samples]


def test_units_that_do_not_run_together_or_alone_are_run_apart_and_behind_all_before_them():
    q = {"s": np.float32(0.1), "z": np.zeros((), np.uint8)}
    on_grid = "q{0} = QuantizeLinear({1}, s, z) d{0} = DequantizeLinear(q{0}, s, z) "
    text = (
        on_grid.format(0, "x") + "a = Relu(d0) " + on_grid.format(1, "a") + "b = Sigmoid(d1) " + on_grid.format(2, "b")
    )
    model = from_text("(float[4] x) => (float[4] d2)", text, weights=q)
    simulator = Refusing("Sigmoid")
    rows = [{"x": np.float32([0, 1, 2, 3])}]
    found = DeviceComparison(model, rows, simulator, Device("qnn", 10.0)).errors()
    assert [(error.unit.op, error.parted) for error in found] == [("Relu", False), ("Sigmoid", False)]
    assert simulator.asked == [["Relu", "Sigmoid"], ["Relu"], ["Sigmoid"], ["Relu", "Sigmoid"]]
