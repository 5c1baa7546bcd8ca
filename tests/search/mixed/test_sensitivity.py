"""The noise of one tensor and of one group at a time, the cost of an assignment, and the steps between them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from intact import data
from intact.events import Silence
from intact.model import shapes
from intact.model.multiplications import multiply_adds
from intact.numbers.encoding import encode, round_to_grid
from intact.quantization.calibration.observe import observe
from intact.quantization.calibration.resolve import resolve
from intact.quantization.quantizing import quantize
from intact.runtime import ort_cpu
from intact.search.mixed.cost import Prices, work
from intact.search.mixed.groups import structure
from intact.search.mixed.ladder import Ladder
from intact.search.mixed.sensitivity import Noises, Rounding, measure
from intact.search.mixed.switchable_model import SwitchableModel
from intact.search.mixed.unseen import held_out, look
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.quantization.models import model

RNG = np.random.default_rng(0)
TARGET = load_target("qnn", arch="v73")
W = RNG.standard_normal((8, 8)).astype(np.float32)
X = {"x": RNG.standard_normal((1, 8)).astype(np.float32)}


@pytest.fixture
def net():
    found = model(
        "float[1,8] x", "float[1,8] y", "a = MatMul(x, w)  b = Sigmoid(a)  c = MatMul(b, v)  y = Add(c, a)", w=W, v=W.T
    )
    shapes.infer_shapes(found)
    return found


@pytest.fixture
def ladder(net):
    found = structure(net, TARGET, QuantConfig(), TARGET.costs.levels)
    table = np.array([[1.0], [2.0**-16], [2.0**-12]])
    written = {t.name: (i + 1) * 1e-4 * table for i, t in enumerate(found.tensors)}
    read = {(t.name, g): (i + 1) * 1e-4 * table for i, t in enumerate(found.tensors) for g in t.readers}
    weights = {i: 2e-5 * table for i, group in enumerate(found.groups) if group.weights}
    return Ladder(Prices(found, work(net, found), TARGET.costs), Noises(written, read, weights, 1))


def test_a_switch_rounds_one_tensor_for_everyone_or_for_one_reader_and_nothing_while_it_is_off(net):
    encoding = encode(-3.0, 3.0, "uint8", symmetric=False)
    switchable = SwitchableModel(net)
    everyone, one = switchable.switch_tensor("a", encoding), switchable.switch_tensor("a", encoding, ["b"])
    a = X["x"] @ W
    rounded = round_to_grid(a, encoding)

    def reference(to_sigmoid, to_add):
        return 1 / (1 + np.exp(-to_sigmoid)) @ W.T + to_add

    assert np.allclose(switchable.run(X)[0], reference(a, a), atol=1e-5)
    assert np.allclose(switchable.again([everyone])[0], reference(rounded, rounded), atol=1e-5)
    assert np.allclose(switchable.again([one])[0], reference(rounded, a), atol=1e-5)


def test_a_switch_exchanges_the_weights_of_a_node(net):
    switchable = SwitchableModel(net)
    switch = switchable.switch_weights({"a": {1: 2 * W}})
    plain = ort_cpu.run(net, X)["y"]
    assert np.allclose(switchable.run(X)[0], plain, atol=1e-5)
    a = X["x"] @ (2 * W)
    assert np.allclose(switchable.again([switch])[0], 1 / (1 + np.exp(-a)) @ W.T + a, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "x", "weight", "y", "expected"),
    [
        ("y = MatMul(x, w)", "2,3,4", (4, 5), "2,3,5", 2 * 3 * 5 * 4),
        ("y = Gemm<transA=1>(x, w)", "4,3", (4, 5), "3,5", 3 * 5 * 4),
        ("y = Conv(x, w)", "1,6,8,8", (4, 6, 3, 3), "1,4,6,6", 4 * 6 * 6 * 6 * 9),
        ("y = Conv<group=6>(x, w)", "1,6,8,8", (6, 1, 3, 3), "1,6,6,6", 6 * 6 * 6 * 9),
        ("y = ConvTranspose(x, w)", "1,6,8,8", (6, 4, 3, 3), "1,4,10,10", 6 * 8 * 8 * 4 * 9),
        ("y = Add(x, w)", "2,3", (2, 3), "2,3", 0),
    ],
)
def test_multiply_adds_are_those_of_the_definition(text, x, weight, y, expected):
    net = model(f"float[{x}] x", f"float[{y}] y", text, w=np.zeros(weight, np.float32))
    assert multiply_adds(net.graph[0]) == expected


@pytest.mark.parametrize(
    ("text", "x", "weight", "y", "expected"),
    [
        ("y = MatMul(x, w)", "2,3,4", (4, 5), "2,3,5", 2 * 3 * 32 * 32),
        ("y = Gemm(x, w)", "3,64", (64, 33), "3,33", 3 * 64 * 64),
        # The cycles of rknn-toolkit2 2.5.0 for 1024 products each: 1229312, 112896.
        ("y = Conv<strides=[2,2]>(x, w)", "1,3,229,229", (64, 3, 7, 7), "1,64,112,112", 1229312 * 1024),
        ("y = Conv<group=32>(x, w)", "1,32,114,114", (32, 1, 3, 3), "1,32,112,112", 112896 * 1024),
        ("y = Add(x, w)", "2,3", (2, 3), "2,3", 0),
    ],
)
def test_channels_that_are_missing_are_multiplied_as_well_where_many_are_at_once(text, x, weight, y, expected):
    net = model(f"float[{x}] x", f"float[{y}] y", text, w=np.zeros(weight, np.float32))
    assert multiply_adds(net.graph[0], 32) == expected


def test_each_point_of_the_front_costs_more_and_is_more_accurate_than_the_one_before(ladder):
    front = ladder.front()
    assert len(front) > 2 and front[0].levels == ladder.uniform(0).levels
    for before, after in pairwise(front):
        assert before.cost < after.cost and before.noise > after.noise


def test_the_first_level_is_the_cheapest_and_each_higher_one_costs_more(ladder):
    costs = [ladder.uniform(level).cost for level in range(3)]
    assert costs == sorted(costs) and costs[0] < costs[2]


@pytest.mark.parametrize("allowed", [0.0, 1e-4, 1.0])
def test_descending_adds_no_more_noise_than_allowed_and_never_costs_more(ladder, allowed):
    top = ladder.uniform(1)
    below = ladder.descend(top, allowed)
    assert below.noise <= top.noise + allowed * (1 + 1e-9) and below.cost <= top.cost


def test_with_room_for_all_noise_descending_ends_at_the_cheapest(ladder):
    assert ladder.descend(ladder.uniform(2), 1.0).cost == ladder.uniform(0).cost


def test_the_front_is_no_worse_than_the_way_down_from_any_precision(ladder):
    front = ladder.front()
    for level in range(len(TARGET.costs.levels)):
        for allowed in (0.0, 1e-4, 1e-3):
            below = ladder.descend(ladder.uniform(level), allowed)
            assert any(a.cost <= below.cost * (1 + 1e-9) and a.noise <= below.noise * (1 + 1e-9) for a in front)


@pytest.fixture
def rows(tmp_path):
    np.savez(tmp_path / "x.npz", x=RNG.standard_normal((24, 8)).astype(np.float32))
    return tmp_path / "x.npz"


def measured(net, path):
    calibration = data.load(net, str(path), samples=24).calibration
    found = structure(net, TARGET, QuantConfig(), TARGET.costs.levels)
    seen_on, held = held_out(calibration)
    return found, seen_on, held, measure(net, found, seen_on, held, Rounding(halves=False, feedback=False), Silence())


def test_the_worst_groups_are_measured_as_if_they_alone_were_quantized(net, rows):
    found, seen_on, held, (_, ranked) = measured(net, rows)
    expected = {}
    for index, group in enumerate(found.groups):
        types = {node.name: "float" for node in net.graph if node.name not in group.nodes}
        alone = quantize(net, TARGET, QuantConfig(types=types, effort="fast", rescue=False), seen_on).model
        pairs = [(ort_cpu.run(net, row)["y"], ort_cpu.run(alone, row)["y"]) for row in held]
        signal = sum(np.sum(a.astype(np.float64) ** 2) for a, _ in pairs)
        expected[index] = sum(np.sum((a.astype(np.float64) - b) ** 2) for a, b in pairs) / signal
    assert [one.group for one in ranked] == sorted(expected, key=lambda index: -expected[index])
    # Alone, a group reads what others compute from a grid that was observed, even if their operator has a fixed one.
    assert [one.noise for one in ranked] == pytest.approx([expected[one.group] for one in ranked], rel=0.05)


def test_the_same_rows_give_the_same_figures(net, rows):
    first, again = (measured(net, rows)[3] for _ in range(2))
    assert first[1] == again[1]
    assert all(np.array_equal(first[0].written[name], again[0].written[name]) for name in first[0].written)


def test_a_value_beyond_all_that_was_seen_costs_8_bits_more_than_16(net, tmp_path):
    values = np.tile(np.linspace(-1, 1, 8, dtype=np.float32), (24, 1))
    values[17] *= 1.2  # the last row of the calibration, which is held out: 16 bits have room for it
    np.savez(tmp_path / "x.npz", x=values)
    found, seen_on, held, (noises, _) = measured(net, tmp_path / "x.npz")
    seen = observe(net, found.plan, seen_on)
    beyond = look(net, found.plan, seen, resolve(net, found.plan, seen), held)
    assert beyond.eight["x"].rows == (len(held) - 1,) and "x" not in beyond.sixteen
    read = next(table for (name, _), table in noises.read.items() if name == "x")
    assert read[0, 0] > 2**12 * read[1, 0]
