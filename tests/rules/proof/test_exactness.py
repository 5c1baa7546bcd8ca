"""A rule that does not keep its claim is found when the model runs, and named."""

from __future__ import annotations

import numpy as np
import pytest

from intact.errors import GateFailed
from intact.matching import rewriter
from intact.matching.rewriter import BOUNDED, EXACT, NEAR, WITHIN_ONE_STEP, Rule
from intact.results import Application
from intact.rules.proof import exactness, witness
from intact.rules.proof.witness import Pair
from intact.rules.quantized.folding import DropSelfRequantize, MergeRequantize
from intact.rules.quantized.symmetric import RequantizeWeight
from intact.runtime import ort_cpu
from tests.builder import Net
from tests.rules.quantized.cases.zero_points import convolution

GRID = (0.5, np.uint8(100))
ROWS = [{"x": np.random.default_rng(seed).normal(0, 20, (1, 64)).astype(np.float32)} for seed in range(3)]


class MoveZeroPoint(Rule):
    """Q(Relu(x), s, z) = Q(Relu(x), s, z + by): wrong by as many steps."""

    start, by = 100, 1
    exactness = EXACT

    def pattern(self, op, x, s, z):
        return op.QuantizeLinear(op.Relu(x), s, z)

    def check(self, z):
        return None if int(z.const_value.numpy()) == self.start else "done"

    def rewrite(self, op, x, s, z):
        moved = op.constant(np.uint8(int(z.const_value.numpy()) + self.by))
        return op.QuantizeLinear(op.Relu(x), s, moved)


class MoveByOneHonestly(MoveZeroPoint):
    """The same, with the right claim."""

    exactness = WITHIN_ONE_STEP


class MoveByTwo(MoveZeroPoint):
    """The same by two steps."""

    by = 2
    exactness = WITHIN_ONE_STEP


class ReadTwoStepsLower(Rule):
    """DQ(q, s, z) = DQ(q, s, z + 2): wrong by two steps, however small those are."""

    exactness = WITHIN_ONE_STEP

    def pattern(self, op, q, s, z):
        return op.DequantizeLinear(q, s, z)

    def check(self, z):
        return None if int(z.const_value.numpy()) == 1000 else "done"

    def rewrite(self, op, q, s, z):
        return op.DequantizeLinear(q, s, op.constant(np.uint16(1002)))


class RoundAway(Rule):
    """−x = −1.001·x: a float on no grid that moves too far."""

    exactness = BOUNDED

    def pattern(self, op, x):
        return op.Neg(x)

    def rewrite(self, op, x):
        return op.Mul(x, op.constant(np.float32(-1.001)))


def model(pairs=1):
    """Pairs of Q and DQ around Relu, and a Neg at the end."""
    net, x = Net(), "x"
    for _ in range(pairs):
        x = net.dequantize(net.quantize(net.op("Relu", x), *GRID), *GRID)
    return net.model({"x": ROWS[0]["x"]}, net.op("Neg", x))


def validate(subject, *rules):
    after = rewriter.apply(subject.clone(), rules)
    assert after.applications
    return exactness.validate(subject, after, rules, ROWS)


def test_exact_rules_leave_the_outputs_as_they_are():
    net, x = Net(), "x"
    for _ in range(4):
        x = net.dequantize(net.quantize(x, *GRID), *GRID)
    found = validate(net.model({"x": ROWS[0]["x"]}, x), DropSelfRequantize())
    assert (found.identical, found.sqnr_db, found.checked, found.samples) == (True, None, 3, 3)
    assert found.moved == {"drop_self_requantize": 0}


def test_a_tensor_may_move_by_the_step_that_is_claimed():
    net = Net()
    wide = net.dequantize(net.quantize("x", 0.5, np.uint16(32768)), 0.5, np.uint16(32768))
    narrow = net.quantize(wide, 0.6, np.uint8(100))
    found = validate(net.model({"x": ROWS[0]["x"]}, narrow), MergeRequantize())
    assert not found.identical and found.sqnr_db > 20
    assert found.moved == {"merge_requantize": 1}


def test_the_distance_of_outputs_is_that_of_plain_numpy_over_all_rows():
    net = Net()
    wide = net.dequantize(net.quantize("x", 0.5, np.uint16(32768)), 0.5, np.uint16(32768))
    narrow = net.dequantize(net.quantize(wide, 0.6, np.uint8(100)), 0.6, np.uint8(100))
    subject = net.model({"x": ROWS[0]["x"]}, narrow)
    after = rewriter.apply(subject.clone(), [MergeRequantize()]).model
    old, new = (np.stack([ort_cpu.run(m, row)[narrow] for row in ROWS]).astype(np.float64) for m in (subject, after))
    plain = 10 * np.log10((old**2).sum() / ((old - new) ** 2).sum())
    assert validate(subject, MergeRequantize()).sqnr_db == pytest.approx(plain)


@pytest.mark.parametrize("rule", [MoveByOneHonestly(), MoveByTwo()])
def test_where_random_numbers_are_drawn_each_application_is_held_to_its_claim_and_the_whole_is_not(rule):
    net = Net()
    x = net.dequantize(net.quantize(net.op("Relu", "x"), *GRID), *GRID)
    subject = net.model({"x": ROWS[0]["x"]}, net.op("Dropout", x, np.float32(0.5), np.array(True)))
    if rule.by == 2:
        with pytest.raises(GateFailed, match="a tensor moves by 2 steps"):
            validate(subject, rule)
    else:
        found = validate(subject, rule)
        assert not found.identical and found.sqnr_db is None and found.moved == {"move_by_one_honestly": 1}


class Halve(RequantizeWeight):
    """Conv(x, w) ≈ Conv(x, w) / 2, which is wrong."""

    def rewrite(self, op, node, x, w):
        return op.Mul(super().rewrite(op, node, x, w), op.constant(np.array(0.5, np.float32)))


def test_a_layer_that_keeps_too_little_on_data_is_named_with_what_it_keeps():
    case = convolution(np.random.default_rng(0), np.uint8, np.int8, "dense", 2, "Conv", to_grid=False)
    (layer,) = (node.name for node in case.model.graph if node.op_type == "Conv")
    assert exactness.lossy(case.model, [RequantizeWeight()], case.feeds) == {}
    found = exactness.lossy(case.model, [Halve()], case.feeds)
    assert found == {layer: "on data the layer keeps 6.0 dB, not 40"}
    left = rewriter.apply(case.model.clone(), exactness.except_at([Halve()], found))
    assert not left.applications and [refusal.reason for refusal in left.refusals] == [*found.values()]


def test_a_layer_that_keeps_too_little_stops_the_build_that_rewrites_it():
    case = convolution(np.random.default_rng(0), np.uint8, np.int8, "dense", 2, "Conv", to_grid=False)
    (layer,) = (node.name for node in case.model.graph if node.op_type == "Conv")
    fine, wrong = (rewriter.apply(case.model.clone(), [rule]) for rule in (RequantizeWeight(), Halve()))
    assert exactness.validate(case.model, fine, [RequantizeWeight()], case.feeds).checked == 1
    told = f"halve at '{layer}' does not keep its claim: a tensor keeps 6.0 dB of 40"
    with pytest.raises(GateFailed, match=told):
        exactness.validate(case.model, wrong, [Halve()], case.feeds)


def test_only_rules_that_give_a_weight_another_grid_lose_anything():
    assert exactness.lossy(model(), [MoveByOneHonestly()], ROWS) == {}


def test_a_model_without_applications_is_identical_to_itself():
    found = exactness.validate(model(), rewriter.Rewritten(model()), (), ROWS)
    assert found.identical and found.checked == 0


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (MoveZeroPoint(), "move_zero_point at 'the_t1' does not keep its claim: a tensor moves by 1 steps"),
        (MoveByTwo(), "move_by_two at 'the_t1' does not keep its claim: a tensor moves by 2 steps"),
        (RoundAway(), "round_away at 'the_t3' does not keep its claim"),
    ],
)
def test_a_broken_claim_stops_and_names_the_rule_and_the_node(rule, what):
    with pytest.raises(GateFailed) as caught:
        validate(model(), rule)
    assert what in caught.value.message and caught.value.code == "G110"


def test_the_second_of_two_tensors_is_not_blamed_for_what_the_first_did():
    seen = witness.of(model(pairs=2), [MoveByOneHonestly()])
    assert [pair.application.node for pair in seen.pairs] == ["the_t1", "the_t4"]
    moved = exactness._hold_to_claims(seen, ROWS)
    assert moved == {"move_by_one_honestly": 1}


@pytest.mark.parametrize(("every", "held"), [(1, [1, 4, 7]), (2, [1, 7]), (3, [1]), (9, [1])])
def test_of_many_applications_of_a_rule_the_first_and_one_in_so_many_leave_pairs(every, held):
    before, rules = model(pairs=3), [MoveByOneHonestly()]
    done, seen = witness.rewrite(before, rules, every=every)
    assert len(done.applications) == 3
    assert [pair.application.node for pair in seen.pairs] == [f"the_t{number}" for number in held]
    # Those that leave none change the tensors behind them all the same.
    assert exactness._hold_to_claims(seen, ROWS) == {"move_by_one_honestly": 1}
    assert len(seen.graph) <= len(witness.of(before, rules).graph)


def test_applications_that_depend_on_the_numbers_of_a_weight_all_leave_pairs():
    class MoveNearly(MoveByOneHonestly):
        exactness = NEAR

    assert len(witness.rewrite(model(pairs=3), [MoveNearly()], every=3)[1].pairs) == 3


@pytest.mark.parametrize(("claimed_on", "rows"), [(None, len(ROWS)), (1, 1)])
def test_claims_are_held_on_all_rows_or_on_as_many_as_are_asked_for(claimed_on, rows, monkeypatch):
    before, seen = model(), []
    held = exactness._hold_to_claims
    monkeypatch.setattr(
        exactness, "_hold_to_claims", lambda known, given: seen.append(len(given)) or held(known, given)
    )
    after = rewriter.apply(before.clone(), [MoveByOneHonestly()])
    known = exactness.KnownRewriting(claimed_on=claimed_on)
    found = exactness.validate(before, after, [MoveByOneHonestly()], ROWS, known)
    assert seen == [rows] and found.samples == rows and len(ROWS) > 1


def test_outputs_that_are_far_apart_stop_the_build_whatever_the_claims():
    net, steps = Net(), np.float32(40)
    x = net.dequantize(net.quantize(net.op("Relu", "x"), steps, np.uint8(100)), steps, np.uint8(100))
    with pytest.raises(GateFailed, match="move_by_one_honestly moves tensors most") as caught:
        validate(net.model({"x": ROWS[0]["x"]}, net.op("Neg", x)), MoveByOneHonestly())
    assert caught.value.code == "G111"


@pytest.mark.parametrize(("factor", "stops"), [(1.0, True), (1.5, False)])
def test_outputs_may_be_as_far_apart_as_quantizing_has_put_them_from_those_of_the_float_model(factor, stops):
    grid, row = (4.0, np.uint8(100)), {"x": ROWS[0]["x"]}
    net, exact = Net(), Net()
    x = net.dequantize(net.quantize(net.op("Relu", "x"), *grid), *grid)
    before = net.model(row, net.op("Neg", x))
    twin = exact.model(row, exact.op("Neg", exact.op("Mul", exact.op("Relu", "x"), np.float32(factor))))
    twin.graph.outputs[0].name = before.graph.outputs[0].name
    after, known = rewriter.apply(before.clone(), [MoveByOneHonestly()]), exactness.KnownRewriting(twin=twin)
    if stops:
        with pytest.raises(GateFailed, match="moves tensors most"):
            exactness.validate(before, after, [MoveByOneHonestly()], ROWS, known)
    else:
        assert exactness.validate(before, after, [MoveByOneHonestly()], ROWS, known).sqnr_db < 20
        with pytest.raises(GateFailed, match="moves tensors most"):
            exactness.validate(before, after, [MoveByOneHonestly()], ROWS)


def rounding(*grids):
    """What grids, one behind the other, make of x, minus x: nothing but the roundings."""
    net, exact = Net(), "x"
    x = net.op("Relu", exact)
    for grid in grids:
        x = net.dequantize(net.quantize(x, *grid), *grid)
    return net.model({"x": ROWS[0]["x"]}, net.op("Neg", net.op("Sub", x, net.op("Relu", exact))))


def test_outputs_may_be_as_far_apart_as_on_grids_that_are_as_good_where_no_float_model_is_known():
    before = rounding((0.5, np.uint16(32768)), (0.6, np.uint8(100)))
    after = rewriter.apply(before.clone(), [MergeRequantize()])
    assert exactness.validate(before, after, [MergeRequantize()], ROWS).sqnr_db < 10


def test_outputs_of_nothing_but_rounding_may_not_move_by_whole_steps():
    before = rounding((0.6, np.uint8(100)))
    after = rewriter.apply(before.clone(), [MoveByOneHonestly()])
    with pytest.raises(GateFailed, match="moves tensors most"):
        exactness.validate(before, after, [MoveByOneHonestly()], ROWS)


def test_other_grids_are_those_of_what_is_computed_and_leave_weights_inputs_and_outputs():
    net, low = Net(), np.uint8(100)
    x = net.dequantize("q", 0.5, low)
    inner = net.dequantize(net.quantize(net.op("Relu", x), 0.25, low), 0.25, low)
    kinds = [net.dequantize(np.ones((64, 4), np.uint8), 0.125, low)]
    kinds += [net.dequantize(net.quantize(np.ones((64, 4), np.float32), 0.0625, low), 0.0625, low)]
    outputs = [net.quantize(net.op("MatMul", inner, weight), 2.0, low) for weight in kinds]
    subject = net.model({"q": np.zeros((1, 64), np.uint8)}, *outputs)
    scales = [
        (float(before.inputs[1].const_value.numpy()), float(after.inputs[1].const_value.numpy()))
        for before, after in zip(subject.graph, exactness._on_other_grids(subject).graph, strict=True)
        if before.op_type in ("QuantizeLinear", "DequantizeLinear")
    ]
    assert {before for before, after in scales if before != after} == {0.25}
    assert [after for before, after in scales if before == 0.25] == [0.25 * exactness.OTHER_GRID] * 2


def test_an_output_that_quantizing_ruined_allows_nothing_for_the_one_beside_it():
    grid, row = (4.0, np.uint8(100)), {"x": ROWS[0]["x"]}
    net, exact = Net(), Net()
    x = net.dequantize(net.quantize(net.op("Relu", "x"), *grid), *grid)
    before = net.model(row, net.op("Neg", x), net.op("Mul", x, np.float32(2)))
    y = exact.op("Relu", "x")
    twin = exact.model(row, exact.op("Mul", y, np.float32(-1.5)), exact.op("Mul", y, np.float32(2)))
    for ours, theirs in zip(before.graph.outputs, twin.graph.outputs, strict=True):
        theirs.name = ours.name
    after, known = rewriter.apply(before.clone(), [MoveByOneHonestly()]), exactness.KnownRewriting(twin=twin)
    with pytest.raises(GateFailed, match=f"output {before.graph.outputs[1].name!r} is") as caught:
        exactness.validate(before, after, [MoveByOneHonestly()], ROWS, known)
    assert caught.value.allowed == "at least 20 dB"


@pytest.mark.parametrize("as_float", [True, False])
def test_an_output_may_move_by_a_step_of_its_own_grid_however_coarse(as_float):
    net, steps = Net(), np.float32(40)
    x = net.quantize(net.op("Relu", "x"), steps, np.uint8(100))
    x = net.dequantize(x, steps, np.uint8(100)) if as_float else x
    found = validate(net.model({"x": ROWS[0]["x"]}, x), MoveByOneHonestly())
    assert not found.identical and found.moved == {"move_by_one_honestly": 1}


def test_a_float_on_a_fine_grid_may_move_by_one_of_its_steps_only():
    net, grid = Net(), (0.001, np.uint16(1000))
    x = net.dequantize(net.quantize(net.op("Relu", "x"), *grid), *grid)
    with pytest.raises(GateFailed, match=r"read_two_steps_lower at .* moves by 2"):
        validate(net.model({"x": ROWS[0]["x"]}, net.op("Neg", x)), ReadTwoStepsLower())


def test_outputs_that_are_infinite_or_nan_on_both_sides_are_equal():
    net = Net()
    wide = net.dequantize(net.quantize("x", 0.5, np.uint16(32768)), 0.5, np.uint16(32768))
    y = net.op("Log", net.dequantize(net.quantize(wide, 0.6, np.uint8(100)), 0.6, np.uint8(100)))
    found = validate(net.model({"x": ROWS[0]["x"]}, y), MergeRequantize())
    assert not found.identical and found.sqnr_db > 0


class Misplace(Rule):
    """Neg(x) = Neg(x), and a wire to the wrong place: what no pair of tensors shows."""

    exactness = EXACT

    def pattern(self, op, x):
        return op.Neg(x, _name="node")

    def check(self, node):
        return "done" if "moved" in node.metadata_props else None

    def rewrite(self, op, x, node):
        for use in list(x.uses()):
            if use.node.op_type == "Sub":
                use.node.replace_input_with(0, node.outputs[0])
        result = op.Neg(x)
        result.producer().metadata_props["moved"] = "yes"
        return result


def test_a_change_that_no_tensor_shows_is_found_by_replaying():
    net = Net()
    net.op("Sub", "x", net.op("Neg", net.op("Identity", "x")))
    subject = net.model({"x": ROWS[0]["x"]}, "t2")
    subject.graph[2].replace_input_with(0, subject.graph[0].outputs[0])
    with pytest.raises(GateFailed, match="misplace at 'the_t1' does not keep its claim: the outputs of the model"):
        validate(subject, Misplace())


def test_a_replaced_input_of_the_graph_can_be_looked_at():
    net = Net()
    net.op("Identity", net.quantize(net.dequantize("x", *GRID), *GRID))
    subject = net.model({"x": np.zeros((1, 64), np.uint8)}, "t2")
    after = rewriter.apply(subject.clone(), [DropSelfRequantize()])
    rows = [{"x": np.arange(64, dtype=np.uint8)[None]}]
    assert exactness.validate(subject, after, [DropSelfRequantize()], rows).checked == 1


STEP = np.float32(0.1)


@pytest.mark.parametrize(
    ("steps", "least", "most"),
    [(-127, 1, 1), (-126.999, 1.0005, 1.002), (-127.75, 0, 0.3)],
    ids=["neighbours", "a thousandth more", "closer"],
)
def test_neighbours_on_a_grid_are_a_step_apart_but_for_the_rounding_of_floats(steps, least, most):
    """Rounded to floats, -128 and -127 steps are more than a step apart; a thousandth of a step is more than that."""
    old = np.float32(-128) * STEP
    assert float(np.float32(-127) * STEP) - float(old) > STEP
    pair = Pair(Application("a_rule", "a_node", WITHIN_ONE_STEP), "old", "new", float(STEP), None)
    assert least <= exactness._move(pair, np.array([old]), np.array([np.float32(steps) * STEP])) <= most
