"""Models with state are compared in sequence: each form goes on from its own state, so that drift shows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import intact
from intact.errors import SettingsError
from intact.verification.compare import Runner, measure
from intact.verification.sequences import chained, namesakes, states_of
from tests.builder import from_text


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        (["input", "state"], ["output", "stateN"], {"state": "stateN"}),
        (["x", "h0", "c0"], ["y", "hn", "cn"], {"h0": "hn", "c0": "cn"}),
        (["x", "h_in"], ["y", "h_out"], {"h_in": "h_out"}),
        (["x", "prev_memory"], ["y", "next_memory"], {"prev_memory": "next_memory"}),
        (["x", "past_key_3"], ["y", "present_key_3", "present_key_4"], {"past_key_3": "present_key_3"}),
        (["x", "state", "state_0"], ["y", "stateN"], {}),
        (["input", "mask"], ["output", "logits"], {}),
    ],
)
def test_states_are_found_by_their_names(inputs, outputs, expected):
    assert namesakes(inputs, outputs) == expected


def step(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def test_a_cache_that_grows_and_an_image_that_is_improved_are_no_states():
    assert states_of(None, step(x=(1,), past_k=(1, 4)), step(y=(1,), present_k=(1, 5))) == {}
    assert states_of(None, step(image=(2, 2)), step(image_out=(2, 2))) == {}
    assert states_of(None, step(x=(1,), image=(2, 2)), step(y=(1,), image_out=(2, 2))) == {"image": "image_out"}


def test_what_is_asked_for_is_taken_or_refused():
    assert states_of({"x": "y"}, step(x=(2,)), step(y=(2,))) == {"x": "y"}
    for asked, words in (({"z": "y"}, "no input 'z'"), ({"x": "z"}, "no output 'z'"), ({"x": "w"}, r"cannot be fed")):
        with pytest.raises(SettingsError, match=words):
            states_of(asked, step(x=(2,)), step(y=(2,), w=(3,)))


def counter(error: float) -> Runner:
    """A step that adds its input to its state, and an error with it."""

    def outputs(rows):
        for row in rows:
            yield {"y": row["x"] * 1.0, "s_out": row["s"] + row["x"] + error}

    return Runner("quantized", "numpy", outputs)


def test_errors_add_up_over_the_steps_of_a_sequence():
    rows = [{"x": np.array([2.0]), "s": np.array([5.0])} for _ in range(10)]
    alone = measure(rows, counter(0.0), [counter(0.1)])[1][0].accuracy
    states = {"s": "s_out"}
    steps = measure(rows, chained(counter(0.0), states), [chained(counter(0.1), states)])[1][0].accuracy
    assert [round(row.max_abs_error, 6) for row in alone if row.output == "s_out"] == [0.1]
    assert [round(row.max_abs_error, 6) for row in steps if row.output == "s_out"] == [1.0]
    assert list(chained(counter(0.0), states).outputs(rows))[-1]["s_out"] == [25.0], "the first state is the data's"


def test_a_build_runs_the_rows_as_steps_and_says_so(tmp_path):
    rng = np.random.default_rng(0)
    weights = {"w": (rng.standard_normal((8, 8)) / 4).astype(np.float32)}
    text = "a = MatMul(x, w) b = Add(a, state) stateN = Tanh(b) y = Relu(b)"
    signature = "(float[1,8] x, float[1,8] state) => (float[1,8] y, float[1,8] stateN)"
    ir.save(from_text(signature, text, weights=weights), tmp_path / "m.onnx")
    rows = {name: rng.standard_normal((24, 8)).astype(np.float32) for name in ("x", "state")}
    given = {"data": rows, "precision": "uint8", "device": "cpu"}
    built = intact.build(tmp_path / "m.onnx", **given, output=tmp_path / "out")
    verify = next(stage for stage in built.stages if stage.name == "verify")
    assert verify.details["states"] == {"state": "stateN"}
    other = intact.verify(tmp_path / "m.onnx", tmp_path / "out/model.onnx", data=rows)
    assert [row.sqnr_db for row in other.accuracy] == [row.sqnr_db for row in built.accuracy if row.form == "compiled"]
    single = intact.build(tmp_path / "m.onnx", **given, state={}, output=tmp_path / "single")
    errors = [max(row.max_abs_error for row in one.accuracy if row.output == "stateN") for one in (built, single)]
    assert errors[0] != errors[1]
