"""Accuracy algorithms against plain references: columns, rounding with feedback, biases, scales, smoothing, rescue."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import threadpoolctl

from intact.model import query
from intact.numbers.encoding import encode
from intact.quantization import quantizing
from intact.quantization.calibration.observe import observe
from intact.quantization.improve.coarse_scales import least_error_scales
from intact.quantization.improve.gptq import round_with_feedback
from intact.quantization.improve.linear_layers import linear
from intact.quantization.improve.migrate import migrate
from intact.quantization.planning.rescue import rescue
from intact.runtime import ort_cpu
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.quantization.models import assert_the_rest_is_the_same, model, quantized, read

F = np.float32
RNG = np.random.default_rng(11)


def normal(*shape):
    return RNG.standard_normal(shape).astype(F)


@pytest.mark.parametrize(
    ("attributes", "x", "w"),
    [
        ("pads=[1,0,2,1], strides=[2,1]", (2, 3, 7, 6), (4, 3, 3, 2)),
        ("dilations=[2,1], group=2", (1, 4, 8, 5), (6, 2, 3, 3)),
        ("group=4, pads=[1,1,1,1]", (1, 4, 5, 5), (4, 1, 3, 3)),
        ('auto_pad="SAME_UPPER", strides=[2,2]', (1, 2, 7, 8), (3, 2, 3, 3)),
        ('auto_pad="SAME_LOWER", strides=[2,2]', (1, 2, 6, 6), (3, 2, 3, 3)),
        ("strides=[2]", (1, 2, 9), (3, 2, 4)),
        ("group=2, pads=[1,0,2,1], strides=[2,1]", (3, 4, 5, 6), (6, 2, 3, 2)),
        ("pads=[1,1,1,0,0,0]", (1, 2, 4, 4, 4), (2, 2, 2, 2, 2)),
    ],
)
def test_columns_times_the_weight_matrix_is_the_convolution(attributes, x, w):
    kernel, values = normal(*w), normal(*x)
    shape = ",".join(map(str, x))
    output = f"float[{','.join('ABCDE'[: len(x)])}] y"
    net = model(f"float[{shape}] x", output, f"y = Conv<{attributes}>(x, w)", w=kernel)
    view = linear(next(iter(net.graph)), kernel, 1)
    found = np.matmul(view.columns(values, 10**6), view.matrix(kernel).transpose(0, 2, 1))
    plain = ort_cpu.run(net, {"x": values})["y"]
    expected = np.moveaxis(plain.reshape(x[0], found.shape[0], found.shape[2], -1), (1, 3, 2), (0, 2, 3))
    np.testing.assert_allclose(found, expected.reshape(found.shape), atol=1e-5)


@pytest.mark.parametrize("transposed", [0, 1])
def test_columns_times_the_weight_matrix_is_the_gemm(transposed):
    weight, values = normal(*((3, 5) if transposed else (5, 3))), normal(4, 5)
    net = model("float[4,5] x", "float[4,3] y", f"y = Gemm<transB={transposed}>(x, w)", w=weight)
    view = linear(next(iter(net.graph)), weight, 1)
    found = view.columns(values, 100)[0] @ view.matrix(weight)[0].T
    np.testing.assert_allclose(found, ort_cpu.run(net, {"x": values})["y"], atol=1e-5)
    assert np.array_equal(view.weight(view.matrix(weight)), weight)


def plain_feedback(weights, moments, scale, damping):
    """Optimal brain quantization as it is written down: round a column, spread its error by the inverse, drop it."""
    order = np.argsort(-np.diag(moments), kind="stable")
    h = moments[np.ix_(order, order)] + damping * np.eye(len(moments))
    left, integers = weights[:, order].copy(), np.zeros(weights.shape, np.int64)
    for column in range(weights.shape[1]):
        inverse, step = np.linalg.inv(h[column:, column:]), scale[:, order[column]]
        integers[:, column] = np.clip(np.rint(left[:, column] / step), -128, 127)
        error = (left[:, column] - integers[:, column] * step) / inverse[0, 0]
        left[:, column:] -= np.outer(error, inverse[0])
    result = np.zeros_like(integers)
    result[:, order] = integers
    return result


def correlated(rows, size):
    mixing = RNG.standard_normal((size, size)) / np.sqrt(size) + np.eye(size)
    return RNG.standard_normal((rows, size)) @ mixing


@pytest.mark.parametrize("blocks", [1, 3], ids=["per output", "in blocks"])
def test_rounding_with_feedback_is_the_plain_algorithm(blocks):
    x, weights = correlated(400, 24), RNG.standard_normal((6, 24))
    moments = x.T @ x
    # Coarse, so that errors are large and ties rare.
    scale = np.abs(weights).reshape(6, blocks, -1).max(axis=2) / 7.0
    spread = np.repeat(scale, 24 // blocks, axis=1)
    given = spread[None] if blocks > 1 else scale.reshape(1, 6)
    found = round_with_feedback(weights[None], moments[None], given, np.zeros(given.shape), "int8", noise=3.0)[0]
    assert np.array_equal(found, plain_feedback(weights, moments, spread, 0.01 * np.diag(moments).mean() + 3.0))


def test_feedback_leaves_less_error_in_the_outputs_than_rounding_to_nearest():
    x, weights = correlated(600, 64), RNG.standard_normal((16, 64))
    scale = np.abs(weights).max(axis=1) / 127
    nearest = np.rint(weights / scale[:, None]) * scale[:, None]
    fed = round_with_feedback(weights[None], (x.T @ x)[None], scale[None], np.zeros((1, 16)), "int8", noise=0.0)[0]
    fed = fed * scale[:, None]
    assert np.square(x @ (fed - weights).T).sum() < 0.7 * np.square(x @ (nearest - weights).T).sum()


def algebra_threads():
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


def test_improving_makes_every_product_with_one_thread(monkeypatch):
    inside, room = [], importlib.import_module("intact.quantization.improve")
    improve = room.improve
    monkeypatch.setattr(room, "improve", lambda *a, **k: inside.append(algebra_threads()) or improve(*a, **k))
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        quantized(layer(), [{"x": normal(1, 8, 16)} for _ in range(4)], effort="normal")
        assert (inside, algebra_threads()) == ([{1}], {2})


def test_independent_inputs_are_rounded_to_nearest():
    weights = RNG.standard_normal((3, 10))
    found = round_with_feedback(
        weights[None], np.diag(np.arange(1.0, 11.0))[None], np.full((1, 3), 0.1), np.zeros((1, 3)), "int8", noise=0.0
    )[0]
    assert np.array_equal(found, np.rint(weights / 0.1))


def test_coarse_scales_have_the_least_squared_error_of_all_that_are_tried():
    values = RNG.standard_t(3, (4, 200))
    start = encode(values.min(axis=1), values.max(axis=1), "int4", symmetric=True, axis=0)
    found = least_error_scales(values, start)

    def error(scale, channel):
        return np.square(values[channel] - np.clip(np.rint(values[channel] / scale), -8, 7) * scale).sum()

    for channel in range(4):
        tried = [error(float(start.scale[channel]) * share, channel) for share in np.linspace(1.0, 0.4, 31)]
        assert error(float(found.scale[channel]), channel) == pytest.approx(min(tried), rel=1e-5)
        assert min(tried) < error(float(start.scale[channel]), channel)


def layer(**more):
    return model(
        "float[1,8,16] x",
        "float[1,8,4] y",
        "m = MatMul(x, w)  y = Add(m, b)",
        w=normal(16, 4),
        b=normal(4),
        **more,
    )


def test_a_corrected_bias_makes_the_mean_error_of_a_layer_vanish():
    net = layer()
    rows = [{"x": np.abs(normal(1, 8, 16)) + F(0.5)} for _ in range(8)]
    settings = {"method": "minmax", "weight_type": "int4", "activation_type": "uint16"}
    reference = np.stack([ort_cpu.run(net, row)["y"] for row in rows])
    errors = {}
    for effort in ("fast", "normal"):
        result = quantized(net, rows, effort=effort, **settings).model
        found = np.stack([ort_cpu.run(result, row)["y"] for row in rows])
        errors[effort] = np.abs((found - reference).mean(axis=(0, 1, 2))).max()
    assert errors["normal"] < 1e-3 < errors["fast"]


def test_memory_of_a_study_does_not_depend_on_the_number_of_rows():
    from intact.quantization.improve.study import studies

    net = layer()
    plan = quantizing.plan(net, load_target("cpu"), QuantConfig())
    before, kept = [], []
    for rows in (64, 256):
        (study,) = studies(net, plan, rows)
        before.append(study.moments.nbytes)
        for _ in range(rows):
            study.add(normal(1, 32, 16))
        assert (study.moments.nbytes, study.moments.rows) == (before[0], rows * 32)
        kept.append(sum(columns.size for columns in study.kept))
    assert kept[0] == kept[1] == 1536 * 16


OUTLIERS = np.where(np.arange(16) == 3, 60.0, 1.0).astype(F)


def normalized(more=""):
    body = f"n = LayerNormalization(x, g, h)  m = MatMul(n, w)  y = Add(m, b) {more}"
    outputs = "float[1,8,4] y" + (", float[1,8,16] z" if more else "")
    weights = {"g": OUTLIERS, "h": normal(16), "w": normal(16, 4), "b": normal(4)}
    return model("float[1,8,16] x", outputs, body, **weights)


@pytest.mark.parametrize(("more", "muls"), [("", 0), ("z = Relu(n)", 1)], ids=["folds", "has another reader"])
def test_smoothing_moves_an_outlying_channel_and_keeps_the_function(more, muls):
    net, rows = normalized(more), [{"x": normal(1, 8, 16)} for _ in range(6)]
    plan = quantizing.plan(net, load_target("cpu"), QuantConfig())
    found = migrate(net, plan, rows, by_nodes=True)
    result = found.model
    assert [tensor for _, tensor in found.moved] == ["n"] and found.notes()[0].startswith("smoothing: ")
    assert_the_rest_is_the_same(net, found, rows[0])
    assert sum(node.op_type == "Mul" for node in result.graph) == muls
    for row in rows:
        for name, expected in ort_cpu.run(net, row).items():
            np.testing.assert_allclose(ort_cpu.run(result, row)[name], expected, atol=2e-3, rtol=1e-4)
    before, after = (
        min(_sqnr(net, quantized(net, rows, effort=effort).model, row) for row in rows) for effort in ("fast", "normal")
    )
    assert after > before + 6


def test_smoothing_leaves_alone_what_it_may_not_or_need_not_touch():
    plain = model("float[1,8,16] x", "float[1,8,4] y", "y = MatMul(x, w)", w=normal(16, 4))
    rows = [{"x": normal(1, 8, 16)} for _ in range(6)]
    for net, by_nodes in ((plain, True), (normalized("z = Relu(n)"), False)):
        plan = quantizing.plan(net, load_target("cpu"), QuantConfig())
        assert migrate(net, plan, rows, by_nodes=by_nodes).moved == ()


def _sqnr(net, result, row):
    expected, found = ort_cpu.run(net, row)["y"].astype(np.float64), ort_cpu.run(result, row)["y"].astype(np.float64)
    return 10 * np.log10(np.square(expected).sum() / np.square(expected - found).sum())


def stream(massive):
    values = normal(1, 64, 16)
    values[0, 0, 0] = massive
    net = model(
        "float[1,64,16] x",
        "float[1,64,16] y",
        "a = MatMul(x, w)  s = Add(a, x)  y = Mul(s, k)",
        w=normal(16, 16) * F(0.1),
        k=normal(16),
    )
    return net, [{"x": values}]


@pytest.mark.parametrize(("device", "dtype"), [("qnn", "uint16"), ("cpu", "float")])
def test_nodes_around_massive_values_are_rescued(device, dtype):
    net, rows = stream(massive=4000.0)
    target = load_target(device)
    plan = quantizing.plan(net, target, QuantConfig())
    seen = observe(net, plan, rows, watched=[name for name in plan.tensors if name not in net.graph.initializers])
    found = rescue(net, plan, seen, target)
    assert found is not None and set(found.types.values()) == {dtype} and "a" in found.types
    assert "--no-rescue" in str(found)
    assert rescue(net, plan, seen, target, settled={"x", "a", "s", "y"}) is None


def test_ordinary_values_need_no_rescue():
    net, rows = stream(massive=3.0)
    target = load_target("qnn")
    plan = quantizing.plan(net, target, QuantConfig())
    seen = observe(net, plan, rows, watched=[name for name in plan.tensors if name not in net.graph.initializers])
    assert rescue(net, plan, seen, target) is None


def headed(head=4):
    """A network that sums what is above zero; with 4 results a row, these take a twenty-fifth of its weights."""
    body = "h = MatMul(x, v)  a = Relu(h)  b = MatMul(a, u)  y = MatMul(b, w)"
    weights = {"v": np.eye(32, 64, dtype=F), "u": np.eye(64, dtype=F), "w": np.ones((64, head), F)}
    return model("float[1,32] x", f"float[1,{head}] y", body, **weights)


@pytest.mark.parametrize(
    ("count", "head", "size", "more", "types"),
    [
        (255, 4, 1.0, {}, {"y": "uint16"}),
        (256, 4, 1.0, {}, None),  # 1024 numbers
        (100, 8, 1.0, {}, None),  # 512 of 6656 weights
        (255, 4, 1e-3, {}, None),  # steps near 6e-7
        (255, 4, 1.0, {"wide_results": False}, None),
        (255, 4, 1.0, {"settled": {"y"}}, None),
    ],
)
def test_an_output_of_which_few_numbers_were_seen_gets_16_bits_if_that_costs_little(count, head, size, more, types):
    net, target = headed(head), load_target("qnn")
    plan = quantizing.plan(net, target, QuantConfig())
    rows = [{"x": F(size) * normal(1, 32)} for _ in range(count)]
    seen = observe(net, plan, rows, watched=["x", "h", "a", "b", "y"])
    found = rescue(net, plan, seen, target, **more)
    assert (None if found is None else found.types) == types


def test_sums_well_beyond_the_few_that_were_seen_keep_their_place_in_an_output():
    net, one, more = headed(), np.eye(32, dtype=F), np.zeros((1, 32), F)
    more[0, :2] = 1, 0.613
    rows = [{"x": row[None]} for row in one]
    told, forbidden = (quantized(net, rows, "qnn", method="auto", rescue=rescue) for rescue in (True, False))
    assert _sqnr(net, told.model, {"x": more}) > 40 and _sqnr(net, forbidden.model, {"x": more}) < 10
    assert told.notes == (
        "rescue: 1 node stays in uint16, because 1 output may exceed the few numbers that were seen; "
        "--no-rescue forbids it",
    )


def test_a_rescue_is_told_and_can_be_forbidden():
    net, rows = stream(massive=4000.0)
    told = quantized(net, rows, "qnn", rescue=True)
    assert any(note.startswith("rescue: ") for note in told.notes) and "uint16" in told.plan.nodes.values()
    forbidden = quantized(net, rows, "qnn", rescue=False)
    assert not forbidden.notes and set(forbidden.plan.nodes.values()) == {"uint8"}


def test_a_sixteen_bit_product_reads_its_second_operand_as_symmetric_int16():
    body = "y = MatMul(a, b)"
    net = model("float[1,4,8] a, float[1,8,4] b", "float[1,4,4] y", body)
    rows = [{"a": normal(1, 4, 8), "b": normal(1, 8, 4)} for _ in range(4)]
    settings = {"activation_type": "uint16"}
    result = quantized(net, rows, "qnn", **settings).model
    first, second = read(result, "y", 0), read(result, "y", 1)
    assert (first.dtype, second.dtype, int(second.zero_point)) == ("uint16", "int16", 0)


def test_a_grid_that_feeds_a_normalization_is_not_clipped():
    plan = quantizing.plan(normalized(), load_target("qnn"), QuantConfig(method="percentile"))
    assert plan.grids[plan.tensors["x"]].method == "minmax"
    assert plan.grids[plan.tensors["n"]].method == "percentile"


def test_what_feeds_no_integer_kernel_stays_in_float_on_cpu():
    body = "c = Conv(x, w)  a = Add(c, k)  y = Exp(a)"
    net = model("float[1,2,4,4] x", "float[1,3,4,4] y", body, w=normal(3, 2, 1, 1), k=normal(3, 1, 1))
    assert list(quantizing.plan(net, load_target("cpu"), QuantConfig()).nodes) == ["c"]
    assert query.constant(net.graph.initializers["k"]) is not None
