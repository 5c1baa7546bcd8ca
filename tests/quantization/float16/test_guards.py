"""Constants that only keep sums from zero are raised to what half precision holds, where that changes nothing."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import normalize, query, shapes
from intact.pipeline import execution
from intact.quantization import float16
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target

LEAST = 2.0**-14
HALF = QuantConfig(activation_type="float16", weight_type="float16")


def responses(constant: str = "0.000001", op: str = "Add(m, e)") -> ir.Model:
    """x / (mean of |x| + epsilon), as normalizations of responses have it."""
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[1,8] x) => (float[1,8] y) <float[1] e = {{{constant}}}, int64[1] axes = {{1}}> {{
        a = Abs(x)
        m = ReduceMean(a, axes)
        s = {op}
        y = Div(x, s)
    }}""")
    normalize.name_nodes(model)
    shapes.infer_shapes(model)
    return model


def rows(size: float) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": (size * np.sign(rng.normal(size=(1, 8)))).astype(np.float32)} for _ in range(4)]


def converted(model: ir.Model, size: float, device: str | None = "qnn") -> float16.Half:
    return float16.convert(model, HALF, rows(size), device=None if device is None else load_target(device))


def addend(half: float16.Half) -> float:
    (node,) = [node for node in half.model.graph if node.op_type in ("Add", "Sub")]
    (found,) = [array for value in node.inputs if value is not None and (array := query.constant(value)) is not None]
    return float(found.reshape(-1)[0])


@pytest.mark.parametrize(
    ("constant", "op", "raised"),
    [("0.000001", "Add(m, e)", LEAST), ("0.000001", "Add(e, m)", LEAST), ("-0.000001", "Sub(m, e)", -LEAST)],
)
def test_it_is_raised_beside_sums_that_are_far_larger(constant, op, raised):
    half = converted(responses(constant, op), 0.5)
    assert half.kept == () and addend(half) == raised
    assert any("are raised" in note for note in half.notes)
    # A row of zeros still gives zeros.
    (found,) = execution.run(half.model, [{"x": np.zeros((1, 8), np.float32)}])
    assert found["y"].tolist() == [[0.0] * 8]


@pytest.mark.parametrize(("size", "is_raised"), [(0.125, True), (0.124, False)])
def test_it_is_left_where_rounding_a_sum_would_change_less(size, is_raised):
    """By hand: 2^-14 is a part of 2^-11 of 0.125."""
    half = converted(responses(), size)
    assert bool(half.kept) is not is_raised
    assert addend(half) == (LEAST if is_raised else np.float32(1e-6))


def test_a_device_with_float32_keeps_it_as_it_is():
    half = converted(responses(), 0.5, device=None)
    assert [kept.kind for kept in half.kept] == ["range"] and addend(half) == np.float32(1e-6)


def test_a_constant_that_half_precision_holds_is_left():
    half = converted(responses("0.001"), 0.5)
    assert half.kept == () and addend(half) == np.float16(0.001)


def test_the_model_that_is_given_is_left_as_it_is():
    model = responses()
    converted(model, 0.5)
    assert query.constant(model.graph.initializers["e"]).tolist() == [np.float32(1e-6)]


def bounded(norm: str) -> ir.Model:
    """x / max(n, 1e-12), as vectors are brought to length 1, with the least number of x for its length."""
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[1,8] x) => (float[1,8] y) <float e = {{0.000000000001}}, int64[1] axes = {{1}}> {{
        a = Abs(x)
        n = ReduceMin(a, axes)
        s = {norm}
        y = Div(x, s)
    }}""")
    normalize.name_nodes(model)
    shapes.infer_shapes(model)
    return model


@pytest.mark.parametrize(("norm", "place"), [("Clip(n, e)", 1), ("Max(n, e)", 1), ("Max(e, n)", 0)])
@pytest.mark.parametrize(("size", "is_raised"), [(1.01, True), (0.99, False)])
def test_a_bound_is_raised_where_all_that_was_seen_is_above_it(norm, place, size, is_raised):
    given = np.array([[size * LEAST, *[1] * 7]], np.float32)
    half = float16.convert(bounded(norm), HALF, [{"x": given}], device=load_target("qnn"))
    bounds = [node for node in half.model.graph if node.op_type in ("Clip", "Max")]
    found = float(query.known_constant(bounds[0].inputs[place]))
    assert (found == LEAST) is is_raised
    assert is_raised or half.kept


def test_an_upper_bound_is_left():
    half = converted(bounded("Clip(n, , e)"), 0.5)
    assert half.kept


def test_a_bound_of_ordinary_size_is_left():
    half = converted(bounded("Clip(n, e)"), 0.5)
    assert half.kept == () and any("are raised" in note for note in half.notes)
    (found,) = execution.run(half.model, [{"x": np.full((1, 8), 2.0, np.float32)}])
    assert found["y"].tolist() == [[1.0] * 8]


def lengths(axes: str, keepdims: int = 1, divided: str = "x") -> ir.Model:
    body = f"n = ReduceL2 <keepdims = {keepdims}> (x, axes) s = Clip(n, e) y = Div({divided}, s)"
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[8,8] x) => (float[8,8] y) <float e = {{0.000000000001}}, int64[1] axes = {{{axes}}}> {{
        c = Neg(x) {body}
    }}""")
    normalize.name_nodes(model)
    shapes.infer_shapes(model)
    return model


def random_rows(model: ir.Model) -> list[dict[str, np.ndarray]]:
    return [{"x": np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)}]


@pytest.mark.parametrize("axes", ["1", "-1"])
def test_vectors_that_are_brought_to_length_one_become_one_operator(axes):
    model = lengths(axes)
    half = float16.convert(model, HALF, random_rows(model), device=load_target("qnn"))
    assert [node.op_type for node in half.model.graph if node.op_type in ("Clip", "Div")] == []
    rows = [*random_rows(model), {"x": np.zeros((8, 8), np.float32)}]
    first, zeros = (found["y"] for found in execution.run(half.model, rows))
    x = rows[0]["x"].astype(np.float64)
    assert np.abs(first - x / np.linalg.norm(x, axis=1, keepdims=True)).max() < 2e-3
    assert not zeros.any()


@pytest.mark.parametrize("model", [lengths("0"), lengths("1", keepdims=0), lengths("1", divided="c")])
def test_what_is_divided_by_something_else_than_its_own_length_stays_a_division(model):
    half = float16.convert(model, HALF, random_rows(model), device=load_target("qnn"))
    assert "Div" in [node.op_type for node in half.model.graph]
