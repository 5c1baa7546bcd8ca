"""Models with state: calibrated on states that they come to, and layers that let a sequence drift get more bits."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import intact
from intact.errors import TargetError
from intact.model import normalize
from intact.pipeline import drift, fed_rows
from intact.quantization.planning.planner import plan
from intact.quantization.quantizing import QuantizedModel
from intact.results import WeightPlan
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.builder import from_text

WIDTH, ROWS = 16, 96
RNG = np.random.default_rng(0)
# One input that counts for nothing is a hundred times as large as the others, so that 8 bits hardly hold those.
SPREAD = np.array([30.0, *[0.3] * (WIDTH - 1)], np.float32)
WEIGHTS = {
    "w": (RNG.standard_normal((WIDTH, WIDTH)) / 8 * (SPREAD[:, None] < 1)).astype(np.float32),
    "v": (RNG.standard_normal((WIDTH, 4)) / 8).astype(np.float32),
    "leak": np.float32(0.97),
}
X = (RNG.standard_normal((ROWS, WIDTH)) * SPREAD).astype(np.float32)


def built(folder, states, **settings):
    """A build of a leaky state that adds up products, and a product of the state."""
    text = "a = MatMul(x, w) k = Mul(state, leak) stateN = Add(a, k) y = MatMul(stateN, v)"
    signature = f"(float[1,{WIDTH}] x, float[1,{WIDTH}] state) => (float[1,4] y, float[1,{WIDTH}] stateN)"
    ir.save(from_text(signature, text, weights=WEIGHTS), folder / "m.onnx")
    given = {"data": {"x": X, "state": states}, "precision": "uint8", "device": "cpu", "effort": "fast", **settings}
    return intact.build(folder / "m.onnx", **given, output=folder / "out", overwrite=True)


def states():
    """The states that the model comes to, by numpy."""
    found = [np.zeros(WIDTH, np.float32)]
    for row in X[:-1]:
        found.append(row @ WEIGHTS["w"] + WEIGHTS["leak"] * found[-1])
    return np.stack(found)


def least(result):
    return min(row.sqnr_db for row in result.accuracy if row.form == "compiled" and row.sqnr_db is not None)


def notes(result):
    return next(stage for stage in result.stages if stage.name == "quantize").details["notes"]


def test_states_of_zeros_are_replaced_by_those_that_the_model_comes_to(tmp_path):
    zeros = np.zeros((ROWS, WIDTH), np.float32)
    assert least(built(tmp_path, zeros)) > 30
    assert np.abs(states()).max() > 2 * np.abs(X @ WEIGHTS["w"]).max(), "a single step shows a fraction of the range"


def test_fed_rows_hold_the_states_of_the_float_model(tmp_path):
    built(tmp_path, states())
    rows = [{"x": x[None], "state": np.zeros((1, WIDTH), np.float32)} for x in X]
    found = fed_rows.with_states(ir.load(tmp_path / "m.onnx"), rows, None)
    assert found.states == {"state": "stateN"} and len(found.rows) == ROWS and "one state throughout" in found.note
    assert np.allclose(np.concatenate([row["state"] for row in found.rows]), states(), atol=1e-5)


def test_states_that_do_not_follow_from_the_rows_before_are_seen_beside_those_that_do(tmp_path):
    built(tmp_path, states())
    model, given = ir.load(tmp_path / "m.onnx"), RNG.standard_normal((ROWS, 1, WIDTH)).astype(np.float32)
    rows = [{"x": x[None], "state": state} for x, state in zip(X, given, strict=True)]
    found = fed_rows.with_states(model, rows, None)
    seen = [row["state"] for row in found.rows]
    assert len(found.rows) == len(seen) == 2 * ROWS and "do not follow" in found.note
    assert np.array_equal(seen[1::2], given)
    assert np.array_equal(seen[0], given[0])
    assert np.allclose(seen[2], X[0] @ WEIGHTS["w"] + WEIGHTS["leak"] * given[0], atol=1e-5)
    assert [len(part) for part in (fed_rows.LastRows(found.rows), [*fed_rows.LastRows(found.rows)])] == [ROWS // 2] * 2


def test_a_sequence_is_taken_as_it_is(tmp_path):
    built(tmp_path, states())
    rows = [{"x": x[None], "state": state[None]} for x, state in zip(X, states(), strict=True)]
    found = fed_rows.with_states(ir.load(tmp_path / "m.onnx"), rows, None)
    assert found.rows is rows and not found.note


def test_the_layer_that_lets_a_sequence_drift_stays_in_float_and_is_told(tmp_path):
    steady = built(tmp_path, states())
    (note,) = [note for note in notes(steady) if "adds up" in note]
    assert "1 of 2 layers have floats" in note and "48 steps keep" in note
    left = onnx.load(tmp_path / "out/model.qdq.onnx").graph
    assert {node.name for node in left.node if node.op_type == "MatMul" and node.input[1] in WEIGHTS} == {"a"}
    forbidden = built(tmp_path, states(), rescue=False)
    assert least(steady) > drift.LEAST_DB > least(forbidden)
    assert not any("adds up" in note for note in notes(forbidden))


def test_layers_that_cost_nothing_with_more_bits_are_found_and_get_them():
    """On the CPU an LSTM is computed in float with weights of any type; a head of few weights counts for nothing."""
    sizes = {"w": (1, 32, 8), "r": (1, 32, 8), "u": (8, 256), "v": (256, 256), "t": (256, 1)}
    weights = {name: RNG.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    body = "a = LSTM<hidden_size = 8>(x, w, r) b = MatMul(z, u) c = MatMul(b, v) y = MatMul(c, t)"
    signature = "(float[1,2,8] x, float[2,8] z) => (float[1,1,2,8] a, float[2,1] y)"
    given = normalize.normalize(from_text(signature, body, weights=weights))
    target, config = load_target("cpu"), QuantConfig()
    found, steps = plan(given, target, config), drift.Steps(given, [], {}, [])
    free = steps.free(found, target)
    assert free == ["a", "y"], "the LSTM, and the smallest"
    freed = drift._with_more_bits(config, steps, found, free, target)
    assert {name: override.dtype for name, override in freed.overrides.items()} == {"w": "int16", "r": "int16"}
    assert freed.types == {"y": "float"}


def test_a_way_that_leaves_no_layer_is_followed_by_the_next():
    def nothing(config):
        raise TargetError("T110", "nothing is left")

    def broken(config):
        raise TargetError("T104", "not taken")

    fine = QuantizedModel("fine", None, (), (), {})
    ways = [drift.Rehearsal(call, lambda model: {}) for call in (nothing, broken, lambda config: fine)]
    given = (None, QuantConfig(), lambda config: fine)
    assert drift.steadied(*given, [ways[0], ways[2]], None).model == "fine"
    for wrong in ([ways[1], ways[2]], [ways[0]]):
        with pytest.raises(TargetError):
            drift.steadied(*given, wrong, None)


def test_without_states_nothing_is_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(drift, "steadied", lambda *_, **__: pytest.fail("there is no state"))
    assert built(tmp_path, states(), state={}).accuracy


def test_too_many_layers_are_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(drift, "MOST_LAYERS", 1)
    monkeypatch.setattr(drift, "LEAST_DB", 90)
    assert any("too many to try each alone" in warning for warning in built(tmp_path, states()).warnings)


def test_bits_that_do_not_help_are_not_spent(tmp_path, monkeypatch):
    """Where the noise is not in the layers, they stay as they were, and a warning says so."""
    monkeypatch.setattr(drift, "LEAST_GAIN_DB", 300.0)
    result = built(tmp_path, states())
    assert any("more bits for layers do not help" in warning for warning in result.warnings)
    left = onnx.load(tmp_path / "out/model.qdq.onnx").graph
    assert not any(node.op_type == "MatMul" and node.input[1] in WEIGHTS for node in left.node)


def test_a_quiet_step_counts_as_much_as_a_loud_one():
    """By numpy: loud steps keep 60 dB, quiet ones 20 dB; all together seem to keep what the loud ones do."""
    right = np.array([[100.0], [1.0]] * 24, np.float32)
    steps = drift.Steps(ir_model("y = Mul(x, c)", c=np.float32(1)), [{"x": row} for row in right], {}, rows_of(right))
    wrong = ir_model("y = Add(x, c)", c=np.float32(0.1))
    together = 10 * np.log10(np.mean(right**2) / 0.01)
    assert -10 * np.log10(steps.noise(wrong)["y"]) == pytest.approx(together, abs=0.01)
    single = 10 * np.log10(1 / np.mean(0.01 / right**2)) - drift.STEP_ROOM_DB
    assert -10 * np.log10(steps.noise_of_a_step(wrong)["y"]) == pytest.approx(single, abs=0.01) and single < 20


def ir_model(text, **weights):
    return from_text("(float[1] x) => (float[1] y)", text, weights=weights)


def rows_of(values):
    return [{"y": row} for row in values]


@pytest.mark.parametrize(
    ("shares", "freed"),
    [
        ({"a": 1e-3, "b": 1e-9, "c": 1e-2}, {"a", "c"}),  # 30 and 20 dB are too little, 90 are not
        ({"a": 1e-9, "b": 1e-9, "c": 1e-2}, {"c"}),
        ({"a": 0.0, "b": 0.0, "c": 1e-2, "rest": 3e-3}, {"c"}),  # never 34 dB: bits for a and b would change nothing
    ],
)
def test_bits_go_to_the_noisiest_layers_and_to_no_more_than_help(shares, freed):
    rest, layers = shares.get("rest", 1e-9), [name for name in shares if name != "rest"]

    def release(names):
        return SimpleNamespace(model=frozenset(names))

    def noise(names):
        return {"y": rest + sum(shares[name] for name in layers if name not in names)}

    way = drift.Rehearsal(release, noise)
    result, names = drift._released(layers, release, way, noise(layers))
    assert result.model == set(names) == freed


@pytest.mark.parametrize(("beyond", "freed"), [(0.0, {"a"}), (drift.FITTED_DB, {"a", "b"})])
def test_a_look_at_rows_that_fit_asks_for_more(beyond, freed):
    """Without a, 40 dB are kept: enough to keep 30, but not to keep 10 more than that and its room."""
    shares = {"a": 1e-2, "b": 1e-4, "c": 1e-9}

    def release(names):
        return SimpleNamespace(model=frozenset(names))

    def noise(names):
        return {"y": sum(share for name, share in shares.items() if name not in names)}

    _, names = drift._released(list(shares), release, drift.Rehearsal(release, noise, beyond), {})
    assert set(names) == freed


@pytest.mark.parametrize(
    ("narrow", "wide", "told"),
    [
        # The SQNR in dB of single steps, and of all together.
        ((20.0, 20.0), (40.0, 40.0), "48 steps keep 40.0 dB instead of 20.0"),
        ((33.0, 40.0), (32.9, 41.0), "48 steps keep 41.0 dB instead of 40.0"),
        ((33.0, 40.0), (33.1, 40.1), None),
    ],
)
def test_bits_are_spent_where_steps_gain_alone_or_together(narrow, wide, told):
    layer = WeightPlan("m", 1, "w", "int8", symmetric=True, axis=None)

    def quantize(config):
        figures = wide if "w" in config.overrides else narrow
        return QuantizedModel(figures, SimpleNamespace(weights=[layer]), (), (), {})

    steps = SimpleNamespace(
        rows=range(48),
        layers=lambda plan: {"m": layer},
        is_matrix=lambda weight: True,
        noise_of_a_step=lambda figures: {"y": 10 ** (-figures[0] / 10)},
        noise=lambda figures: {"y": 10 ** (-figures[1] / 10)},
    )
    target = SimpleNamespace(npu=True)
    ways = drift.trials(steps, lambda config, rows: quantize(config), [], npu=True)
    result = drift.steadied(steps, QuantConfig(activation_type="uint16"), quantize, ways, target)
    assert result.model == (narrow if told is None else wide)
    assert told is None or told in result.notes[0]
    assert (told is None) == any("do not help" in warning for warning in result.warnings)
