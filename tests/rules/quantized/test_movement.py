"""Operators that move values: where they move integers instead, and why they do not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.matching.rewriter import apply
from intact.rules.discovery import rules_of
from intact.rules.quantized import movement
from intact.runtime import ort_cpu
from intact.targets.registry import load_target
from tests.builder import Net
from tests.rules.proof.harness import fired, integers, refused
from tests.rules.quantized.cases.movement import MOVES, SHAPE, int64, move

X = np.zeros(SHAPE, np.float32)
BYTES = np.zeros(SHAPE, np.uint8)
GRID = (0.5, np.uint8(3))
CPU = load_target("cpu").rewrite


def between(op, second=GRID, **changed):
    """Q(op(DQ(x)))."""
    net = Net()
    inputs, attributes = MOVES[op]
    net.quantize(net.op(op, net.dequantize("x", *GRID), *inputs, **{**attributes, **changed}), *second)
    return net.model({"x": BYTES}, "t2")


def behind(op, dtype=np.uint8):
    """op(DQ(x))."""
    net = Net()
    move(net, op, net.dequantize("x", 0.5, dtype(3)))
    return net.model({"x": BYTES.astype(dtype)}, "t1")


def ahead(op):
    """Q(op(x))."""
    net = Net()
    net.quantize(move(net, op, "x"), *GRID)
    return net.model({"x": X}, "t1")


def joined(*grids):
    net = Net()
    parts = [net.dequantize(f"x{index}", *grid) for index, grid in enumerate(grids)]
    result = net.op("Concat", *parts, axis=1)
    return net.model({f"x{index}": np.zeros((1, 2), type(grid[1])) for index, grid in enumerate(grids)}, result)


def weight(**attributes):
    net = Net()
    w = net.dequantize(np.arange(6, dtype=np.int8).reshape(2, 3), [0.5, 0.25], np.int8([0, 1]), axis=0, **attributes)
    return net.model({"x": np.zeros(1, np.float32)}, net.op("Mul", net.op("Transpose", w), "x"))


def blocked():
    net = Net()
    grid = np.full((2, 3), 0.5, np.float32), np.zeros((2, 3), np.int8)
    w = net.dequantize(np.zeros((4, 3), np.int8), *grid, axis=0, block_size=2)
    return net.model({"x": np.zeros(1, np.float32)}, net.op("Mul", net.op("Transpose", w), "x"))


FIRES = [
    *((movement.MoveIntegers, between(op), [op]) for op in MOVES),
    (movement.DequantizeAfterMove, behind("Slice"), ["Slice", "DequantizeLinear"]),
    (movement.DequantizeAfterMove, behind("MaxPool"), ["MaxPool", "DequantizeLinear"]),
    (movement.QuantizeBeforeMove, ahead("Transpose"), ["QuantizeLinear", "Transpose"]),
    (movement.QuantizeBeforeMove, ahead("MaxPool"), ["QuantizeLinear", "MaxPool"]),
    (movement.QuantizeBeforeMove, ahead("Tile"), ["QuantizeLinear", "Tile"]),
    (movement.ConcatIntegers, joined(GRID, GRID, GRID), ["Concat", "DequantizeLinear"]),
    (movement.ConcatIntegers, joined(GRID), ["Concat", "DequantizeLinear"]),
    (movement.TransposeWeight, weight(), ["DequantizeLinear", "Mul"]),
]
REFUSES = [
    (movement.MoveIntegers(), between("Reshape", (0.5, np.uint8(4))), "the zero points differ ([3] and [4])"),
    (movement.MoveIntegers(), between("Resize", mode="linear"), "this Resize computes values that it is not given"),
    (movement.MoveIntegers({"Reshape": frozenset()}), between("Reshape"), "the target has no Reshape of uint8"),
    (movement.DequantizeAfterMove(), behind("Tile"), "it would convert 288 elements instead of 144"),
    (movement.DequantizeAfterMove().for_target(CPU), behind("MaxPool", np.int16), "no MaxPool of int16"),
    (movement.QuantizeBeforeMove(), ahead("Slice"), "it would convert 144 elements instead of 48"),
    (movement.ConcatIntegers(), joined(GRID, (0.25, np.uint8(3))), "the scales differ (0.5 and 0.25)"),
    (movement.TransposeWeight(), blocked(), "the weight is quantized in blocks"),
]


@pytest.mark.parametrize(("rule", "model", "left"), FIRES)
def test_a_rule_fires(rule, model, left):
    assert fired(rule(), model) == left


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES)
def test_a_rule_refuses_with_the_reason(rule, model, reason):
    assert reason in refused(rule, model)


def test_scales_along_an_axis_do_not_move():
    net, grid = Net(), (np.full(4, 0.5), np.zeros(4, np.uint8))
    net.quantize(net.op("Reshape", net.dequantize("x", *grid), int64(1, 4, 36)), *grid)
    assert "4 numbers, not one constant scale" in refused(movement.MoveIntegers(), net.model({"x": BYTES}, "t2"))


def test_the_indices_of_a_max_pool_keep_it_in_float():
    net = Net()
    net.op("MaxPool", net.dequantize("x", *GRID), kernel_shape=[2, 2])
    net.nodes[-1].output.append("indices")
    model = net.model({"x": BYTES}, "t1", "indices")
    assert not apply(model, rules_of(movement)).applications


def test_a_scale_per_channel_follows_the_weight_that_is_turned():
    done = apply(weight(), [movement.TransposeWeight()])
    node = done.model.graph[0]
    assert node.attributes["axis"].value == 1
    assert node.inputs[0].const_value.numpy().tolist() == [[0, 3], [1, 4], [2, 5]]


# Operators that rules of their own are for.
ALONE = {
    "Concat": lambda net: net.op("Concat", "x", "x", axis=1),
    "Pad": lambda net: net.op("Pad", "x", int64(*[0] * 7, 2)),
    "Split": lambda net: net.split("x", [1, 3], axis=1)[1],
}


@pytest.mark.parametrize(("op", "name"), [(op, name) for op, names in CPU.moves.items() for name in sorted(names)])
def test_the_cpu_has_every_kernel_that_its_table_names(op, name):
    dtype = ir.DataType[name.upper()].numpy()
    net, x = Net(), integers(np.random.default_rng(0), dtype, SHAPE)
    result = ALONE[op](net) if op in ALONE else move(net, op, "x")
    assert ort_cpu.run(net.model({"x": x}, result), {"x": x})[result].dtype == dtype
