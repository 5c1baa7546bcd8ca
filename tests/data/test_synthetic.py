"""Inputs made up from the structure of the graph."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from intact.data import Reading, load
from intact.data.roles import Mask, Real, Signal, TableIndex, roles
from intact.errors import DataError
from intact.runtime import ort_cpu
from tests.builder import from_text
from tests.data.models import IMAGE, model
from tests.zoo import ZOO

TABLE = "float[50, 4] t, float[7, 4] small"
ONE = "float one = {1.0}, float[1] far = {-10000.0}, float[1] high = {10000.0}, float[1] near = {-2.0}"
SHAPES = "int64[1] first = {0}, int64[2] flat = {1, -1}, int64 two = {2}, int64[2] offsets = {0, 9}"


@pytest.mark.parametrize(
    ("inputs", "body", "weights", "role"),
    [
        # Ids: what indexes a table stays below its rows.
        ("int64[1, 6] x", "y = Gather (t, x)", TABLE, TableIndex(0, 50)),
        ("int32[1, 6] x", "y = Gather <axis = 1> (t, x)", TABLE, TableIndex(0, 4)),
        ("int64[1, 6] x", "y = Gather <axis = -1> (t, x)", TABLE, TableIndex(0, 4)),
        ("int32[1, 6] x", "c = Cast <to = 7> (x) y = Gather (t, c)", TABLE, TableIndex(0, 50)),
        (
            "int64[1, 6] x",
            "r = Reshape (x, flat) u = Unsqueeze (r, first) i = Identity (u) y = Gather (t, i)",
            f"{TABLE}, {SHAPES}",
            TableIndex(0, 50),
        ),
        ("int64[1, 6] x", "a = Gather (t, x) b = Gather (small, x) y = Add (a, b)", TABLE, TableIndex(0, 7)),
        ("int64[1, 6] x", "s = Add (x, two) y = Gather (t, s)", f"{TABLE}, {SHAPES}", TableIndex(0, 48)),
        ("int64[1, 6] x", "s = Sub (x, two) y = Gather (t, s)", f"{TABLE}, {SHAPES}", TableIndex(2, 52)),
        ("int64[1, 2] x", "s = Add (offsets, x) y = Gather (t, s)", f"{TABLE}, {SHAPES}", TableIndex(0, 41)),
        ("int64[1, 6] x", "m = Cast <to = 9> (x) n = Cast <to = 1> (m) y = Gather (t, x)", TABLE, TableIndex(0, 50)),
        ("int64[2, 4] x", "y = GatherElements (small, x)", TABLE, TableIndex(0, 7)),
        ("int64[3, 2] x", "y = GatherND (t, x)", TABLE, TableIndex(0, 4)),
        ("int64[3, 1] x", "y = GatherND (t, x)", TABLE, TableIndex(0, 50)),
        (
            "int64[1, 6] x",
            "y = OneHot (x, depth, off_on)",
            "int64 depth = {9}, float[2] off_on = {0.0, 1.0}",
            TableIndex(0, 9),
        ),
        ("int64[1, 6] x, float[N, 4] given", "y = Gather (given, x)", "", TableIndex(0, 1, known=False)),
        # Masks: integers and bools that index nothing, and floats that hide what they mask.
        ("int64[1, 6] x", "f = Cast <to = 1> (x) y = Sub (one, f)", ONE, Mask()),
        ("int64[1, 6] x", "b = Equal (x, first) y = Cast <to = 1> (b)", SHAPES, Mask()),
        ("bool[1, 6] x", "y = Cast <to = 1> (x)", "", Mask()),
        ("bool[1, 6] x, float[1, 6] a", "y = Where (x, a, a)", "", Mask()),
        ("float[1, 6] x", "u = Unsqueeze (x, first) s = Sub (one, u) y = Mul (s, far)", f"{ONE}, {SHAPES}", Mask()),
        ("float[1, 6] x", "s = Sub (x, one) y = Mul (high, s)", ONE, Mask()),
        ("float[1, 6] x", "b = Equal (x, one) y = Cast <to = 1> (b)", ONE, Mask()),
        ("float[1, 6] x", "b = Cast <to = 9> (x) y = Cast <to = 1> (b)", "", Mask()),
        ("uint8[1, 6] x", "b = Cast <to = 9> (x) y = Cast <to = 1> (b)", "", Mask()),
        # Data: everything else.
        ("float[1, 6] x", "y = Relu (x)", "", Real()),
        ("float[1, 6] x", "s = Sub (one, x) y = Mul (s, near)", ONE, Real()),
        ("float[1, 6] x", "s = Sub (one, x) y = Mul (s, high)", ONE, Real()),
        ("float[1, 6] x", "s = Sub (x, one) y = Mul (s, far)", ONE, Real()),
        ("float[1, 6] x", "b = Greater (x, one) y = Cast <to = 1> (b)", ONE, Real()),
        ("float16[1, 6] x", "y = Cast <to = 1> (x)", "", Real()),
        ("uint8[1, 6] x", "f = Cast <to = 1> (x) y = Sub (f, one)", ONE, Signal()),
        ("int16[1, 6] x", "y = Cast <to = 1> (x)", "", Signal()),
    ],
)
def test_the_use_of_an_input_decides_its_role(inputs, body, weights, role):
    assert roles(model(inputs, body, weights=weights))["x"] == role


@pytest.mark.parametrize(
    ("inputs", "body", "made", "shape"),
    [
        ("int64[2] x, float[4] a", "y = Reshape (a, x)", [1, -1], (1, 4)),
        ("int64[2] x, float[4] a", "c = Cast <to = 7> (x) y = Expand (a, c)", [1, 1], (1, 4)),
        ("int64[2] x", "y = ConstantOfShape (x)", [2, 2], (2, 2)),
        ("float[4] x, float[1, 1, 2, 2] a", "y = Resize (a, , x)", [1, 1, 1, 1], (1, 1, 2, 2)),
        ("int64[4] x, float[2, 3] a", "y = Pad (a, x)", [0, 0, 0, 0], (2, 3)),
        ("int64[2] x, float[2, 3] a", "y = Tile (a, x)", [1, 1], (2, 3)),
        ("int64[2] x, int64[2] z, float[2, 3] a", "y = Slice (a, z, x)", [1 << 30, 1 << 30], (2, 3)),
        ("int64[1] x, float[2, 3] a", "y, i = TopK (a, x)", [1], (2, 1)),
    ],
)
def test_an_input_that_decides_a_shape_that_nobody_declares_changes_nothing(inputs, body, made, shape):
    given = model(inputs, body)
    row = next(iter(load(given, None, samples=4).calibration))
    np.testing.assert_array_equal(row["x"], made)
    session = ort.InferenceSession(ir.to_proto(given).SerializeToString())
    assert session.run(["y"], {name: row[name] for name in row})[0].shape == shape


def test_labels_of_a_loss_are_its_classes_and_their_weights_are_above_zero():
    given = model("float[9, 5] s, int64[9] x, float[5] w", "y = NegativeLogLikelihoodLoss (s, x, w)")
    rows = list(load(given, None, samples=8).calibration)
    assert set(np.concatenate([row["x"] for row in rows])) == set(range(5))
    assert min(row["w"].min() for row in rows) >= 0.5


def test_a_shape_of_unknown_rank_cannot_be_made_up():
    with pytest.raises(DataError, match="decides a shape") as caught:
        load(model("int64[N] x, float[4] a", "y = Reshape (a, x)"), None, samples=4)
    assert caught.value.code == "D120"


@pytest.mark.parametrize("rename", [str, lambda name: "".join(reversed(name))])
@pytest.mark.parametrize("name", ZOO)
def test_every_zoo_model_runs_on_its_synthetic_inputs_whatever_they_are_called(name, rename):
    given = ir.from_proto(ZOO[name]())
    for value in given.graph.inputs:
        value.name = rename(value.name)
    session = ort.InferenceSession(ir.to_proto(given).SerializeToString())
    for feed in load(given, None, samples=4).calibration:
        assert all(np.isfinite(output).all() for output in session.run(None, feed))


def test_ids_reach_every_row_of_their_table_and_no_further():
    given = model("int64[1, 6] x", "y = Gather (small, x)", weights=TABLE)
    seen = {int(value) for feed in load(given, None, samples=64).calibration for value in feed["x"].reshape(-1)}
    assert seen == set(range(7))


@pytest.mark.parametrize(
    ("declared", "longest"),
    [("bool[1, 6]", 6), ("int64[2, 6]", 6), ("int32[1, 1, 6, 6]", 6), ("int64[6]", 6), ("int64[1]", 1), ("int64", 1)],
)
def test_masks_are_ones_then_zeros_with_at_least_one_live_key(declared, longest):
    lengths = set()
    for feed in load(model(f"{declared} x", "y = Cast <to = 1> (x)"), None, samples=64).calibration:
        rows = feed["x"].astype(int).reshape(-1, longest)
        assert set(np.unique(rows)) <= {0, 1}
        assert (rows[:, 0] == 1).all()
        assert (np.diff(rows, axis=1) <= 0).all()
        lengths |= set(rows.sum(1).tolist())
    assert lengths == set(range(1, longest + 1))


@pytest.mark.parametrize(
    ("distribution", "deviation", "limit"), [("normal", 1.0, np.inf), ("uniform", np.sqrt(1 / 3), 1.0)]
)
def test_floats_follow_the_distribution(distribution, deviation, limit):
    parts = load(
        model("float[1, 1000] x", "y = Relu (x)"), None, samples=20, reading=Reading(distribution=distribution)
    )
    values = np.concatenate([feed["x"] for feed in parts.calibration])
    assert values.dtype == np.float32
    assert abs(values.mean()) < 0.03
    assert abs(values.std() - deviation) < 0.03
    assert np.abs(values).max() <= limit


def test_narrow_integers_use_their_whole_range():
    parts = load(model("int8[1, 2000] x", "y = Cast <to = 1> (x)"), None, samples=4)
    values = np.concatenate([feed["x"] for feed in parts.calibration])
    assert (values.dtype, values.min(), values.max()) == (np.int8, -128, 127)


@pytest.mark.parametrize("dtype", ["float16", "double", "bfloat16", "uint8", "int32", "bool"])
def test_every_numeric_type_can_be_made_up(dtype):
    given = model(f"{dtype}[1, 6] x", "y = Cast <to = 1> (x)")
    feed = next(iter(load(given, None, samples=1).calibration))
    assert feed["x"].dtype == given.graph.inputs[0].dtype.numpy()


def test_strings_cannot_be_made_up():
    with pytest.raises(DataError) as caught:
        load(model("string[1] x"), None, samples=4)
    assert caught.value.code == "D121"


def test_long_windows_get_long_inputs_and_short_batches():
    """A reflection by 200 needs more than 200 samples, whatever the batch; the state has the batch in its middle."""
    body = 'p = Pad <mode = "reflect"> (x, n) s = ReduceSum(h) y = Add(p, s)'
    given = model("float[batch, samples] x, float[2, batch, 3] h", body, weights="int64[4] n = {0, 200, 0, 200}")
    parts = load(given, None, samples=1)
    feeds = next(iter(parts.calibration))
    assert feeds["x"].shape == (1, 512) and feeds["h"].shape == (2, 1, 3)
    told = [note for note in parts.warnings if "free dimensions" in note]
    assert "taken as 512, those of batches as 1, [1, 512]" in told[0]


@pytest.mark.parametrize("size", [0, 2**32, 2**40, 2**62])
def test_a_size_that_nothing_can_have_is_refused(size):
    with pytest.raises(DataError, match="input x") as caught:
        load(model(f"float[1, {size}] x", "y = Relu(x)"), None, samples=4)
    assert caught.value.code == "D144"


def test_the_kind_is_synthetic_and_a_warning_says_so():
    parts = load(IMAGE, None, samples=128, reading=Reading(seed=3))
    assert (parts.calibration.kind, parts.calibration.rows, parts.test.rows) == ("synthetic", 128, 16)
    assert "inputs are synthetic (normal, seed 3)" in parts.warnings[0]


def test_free_dimensions_become_one_and_a_warning_says_so():
    parts = load(model("float[N, 3, H] x", "y = Relu (x)"), None, samples=4)
    assert next(iter(parts.calibration))["x"].shape == (1, 3, 1)
    assert parts.warnings[1].startswith("input x [N, 3, H]: free dimensions are taken as 1, [1, 3, 1]")


def test_a_table_of_unknown_size_is_read_at_its_first_row_and_a_warning_says_so():
    given = model("int64[1, 6] x, float[N, 4] given", "y = Gather (given, x)")
    parts = load(given, None, samples=4)
    assert all((feed["x"] == 0).all() for feed in parts.calibration)
    assert any("table of unknown size" in warning for warning in parts.warnings)


def test_a_row_depends_on_the_seed_and_its_position_but_not_on_how_many_are_asked_for():
    bert = ir.from_proto(ZOO["bert"]())
    few, many = (list(load(bert, None, samples=count).calibration) for count in (8, 40))
    for short, long in zip(few, many, strict=False):
        assert all(np.array_equal(short[name], long[name]) for name in short)
    other = next(iter(load(bert, None, samples=8, reading=Reading(seed=1)).calibration))
    assert not np.array_equal(other["input_ids"], few[0]["input_ids"])
    assert not np.array_equal(few[0]["input_ids"], few[1]["input_ids"])


def test_inputs_with_a_default_are_not_fed():
    given = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2] x, float[2] w) => (float[1, 2] y)'
        "<float[2] w = {1.0, 2.0}> { y = Add (x, w) }"
    )
    feed = next(iter(load(ir.from_proto(given), None, samples=1).calibration))
    assert list(feed) == ["x"]


def run(given):
    """Every synthetic row of a model, and what the model gives for it."""
    session = ort.InferenceSession(ir.to_proto(given).SerializeToString())
    return [(feed, session.run(None, feed)[0]) for feed in load(given, None, samples=4).calibration]


def declared(inputs, output, body):
    return from_text(f"({inputs}) => ({output} y)", body, opset=18)


@pytest.mark.parametrize(
    ("inputs", "output", "body", "values"),
    [
        ("float[2, 6] a, int64[2] x", "float[3, 4]", "y = Reshape (a, x)", [3, 4]),
        ("float[1, 4] a, int64[2] x", "float[3, 4]", "y = Expand (a, x)", [3, 4]),
        ("float[2, 3] a, int64[2] x", "float[4, 3]", "y = Tile (a, x)", [2, 1]),
        ("float[2, 3] a, int64[4] x", "float[2, 5]", "y = Pad (a, x)", [0, 0, 0, 2]),
        ("float[1, 1, 4, 4] a, int64[4] x", "float[1, 1, 8, 2]", "y = Resize (a, , , x)", [1, 1, 8, 2]),
        ("float[1, 1, 4, 4] a, float[4] x", "float[1, 1, 8, 2]", "y = Resize (a, , x)", [1, 1, 2, 0.5]),
        ("int64[1] x", "float[7]", "y = ConstantOfShape (x)", [7]),
        ("float[2, 9] a, int64[1] x", "float[2, 3]", "y, i = TopK (a, x)", [3]),
        ("float[4, 9] a, int64[2] x, int64[2] e", "float[2, 3]", "y = Slice (a, x, e)", [0, 0]),
    ],
)
def test_what_decides_a_shape_is_made_up_from_the_shape_that_the_graph_declares(inputs, output, body, values):
    given = declared(inputs, output, body)
    expected = tuple(given.graph.outputs[0].shape)
    for feed, result in run(given):
        np.testing.assert_allclose(feed["x"].reshape(-1), values, rtol=1e-6)
        assert result.shape == expected
    assert any("input x is taken as" in warning for warning in load(given, None, samples=4).warnings)


@pytest.mark.parametrize(
    ("inputs", "body", "low", "high"),
    [
        ("float[1, 9, 4] b, float[1, 1, 9] s, int64[1] n, float[1] x", "y = NonMaxSuppression (b, s, n, x)", 0, 1),
        ("float[1, 1, 8, 8] a, float[5, 4] r, int64[5] x", "y = RoiAlign <sampling_ratio = 1> (a, r, x)", 0, 0),
        ("int64[2, 3] a, int64[2, 3] x", "y = Mod (a, x)", 1, 8),
        ("float[2, 3] a, float x", "y, m = Dropout (a, x)", 0, 0.5),
    ],
)
def test_what_an_operator_allows_only_in_a_range_stays_in_it(inputs, body, low, high):
    seen = np.concatenate([feed["x"].reshape(-1) for feed, _ in run(model(inputs, body))])
    assert seen.min() >= low and seen.max() <= high


def test_free_dimensions_are_as_large_as_the_model_needs():
    given = model("float[1, 1, H, W] x", "y = AveragePool <kernel_shape = [5, 5]> (x)")
    assert {feed["x"].shape for feed, _ in run(given)} == {(1, 1, 8, 8)}
    assert any("free dimensions are taken as 8" in warning for warning in load(given, None, samples=4).warnings)


def test_a_declared_number_becomes_an_array_where_the_model_runs_with_no_number():
    proto = from_text(
        "(float x, float n) => (y)", "c = CumSum (x, first) y = Add (c, n)", weights={"first": np.array(0)}
    )
    inputs = load(proto, None, samples=1)
    assert next(iter(inputs.calibration))["x"].shape == (2,)
    assert any("input x is declared a single number" in warning for warning in inputs.warnings)


def test_a_declared_number_stays_one_where_the_model_runs_with_it():
    inputs = load(from_text("(float x) => (y)", "y = Neg (x)"), None, samples=1)
    assert next(iter(inputs.calibration))["x"].shape == ()
    assert not any("single number" in warning for warning in inputs.warnings)


@pytest.mark.parametrize("kind", ["seq(float[3])", "optional(seq(float[3]))"])
def test_a_sequence_is_made_up_as_an_array_of_its_tensors(kind):
    body = "s = OptionalGetElement (x) y = ConcatFromSequence <axis = 0> (s)"
    given = from_text(f"({kind} x) => (float[N] y)", body)
    row = next(iter(load(given, None, samples=1).calibration))
    assert row["x"].shape == (1, 3)
    np.testing.assert_array_equal(
        ort_cpu.run(given, {"x": np.arange(6.0).reshape(2, 3).astype(np.float32)})["y"], np.arange(6)
    )


def test_a_list_of_axes_may_be_empty():
    given = from_text("(float[2, 3] x, int64[0] axes) => (y)", "y = ReduceSum <noop_with_empty_axes = 1> (x, axes)")
    row = next(iter(load(given, None, samples=1).calibration))
    assert row["axes"].shape == (0,)
    np.testing.assert_array_equal(ort_cpu.run(given, row)["y"], row["x"])
