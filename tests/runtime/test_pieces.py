"""Long graphs on ONNX Runtime in pieces, against the same graphs as a whole."""

from __future__ import annotations

import weakref

import numpy as np
import onnx_ir as ir
import pytest

from intact.errors import ModelError
from intact.model import message, shapes
from intact.runtime import pieces
from intact.runtime.ort_cpu import Session
from intact.runtime.pieces import SessionInPieces
from tests.builder import from_text

W = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)
STEPS = {"s": np.float32(0.05), "z": np.uint8(7)}

# A stream that every layer adds to, a value that is read again at the end, a scalar, and what only comes late.
LAYERS = """
a = MatMul(x, w) b = Relu(a) c = Add(b, x)
q = QuantizeLinear(c, s, z) d = DequantizeLinear(q, s, z)
e = MatMul(d, w) f = Relu(e) g = Add(f, c)
m = ReduceMax<keepdims = 0>(g) h = Mul(g, m) i = Sub(h, a)
k = Neg(b) y = Add(i, k)
"""


@pytest.fixture(autouse=True)
def tiny_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "NODES", 2)
    monkeypatch.setattr(pieces, "MOST_NODES", 3)
    monkeypatch.setattr(pieces, "SHORTEST", 3)


def layers(text=LAYERS, types="(float[N,4] x) => (float[N,4] y)"):
    return from_text(types, text, weights={"w": W, **STEPS})


@pytest.mark.parametrize("names", [None, ["y"], ["q", "m", "y", "b"], ["k"], ["w", "g"]])
def test_pieces_give_the_tensors_of_the_whole_to_the_last_bit(names):
    model = layers()
    whole, cut = Session(model, outputs=names), pieces.opened(model, names)
    assert isinstance(cut, SessionInPieces) and len(cut._pieces) >= 5
    assert [port.name for port in cut.outputs] == [port.name for port in whole.outputs]
    assert [(port.name, port.type) for port in cut.inputs] == [(port.name, port.type) for port in whole.inputs]
    for row in (X, X[:1], -2 * X):
        expected = whole.run({"x": row})
        for found in (cut.run({"x": row}), cut.run_over({"x": row}), cut.twin().run_over({"x": row})):
            assert list(found) == list(expected)
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array)
                assert found[name].dtype == array.dtype


@pytest.mark.parametrize("names", [None, ["q", "m", "y", "b"], ["x", "g"]])
def test_rows_that_go_through_the_pieces_together_give_the_same(names, monkeypatch):
    monkeypatch.setattr(pieces, "ROWS", 2)
    model = layers()
    rows = [{"x": row} for row in (X, X[:1], -2 * X)]
    cut = pieces.opened(model, names)
    expected = [Session(model, outputs=[name for name in names or ["y"] if name != "x"]).run(row) for row in rows]
    found = list(cut.stream(iter(rows)))
    parts = [{}, {}, {}]
    for number, values in cut.parts(iter(rows)):
        assert not parts[number].keys() & values.keys(), "each tensor comes once"
        parts[number] |= {name: array.copy() for name, array in values.items()}
    for row, right, one, other in zip(rows, expected, found, parts, strict=True):
        assert list(one) == list(names or ["y"])
        for name, array in {**right, **({"x": row["x"]} if "x" in one else {})}.items():
            np.testing.assert_array_equal(one[name], array)
            np.testing.assert_array_equal(other[name], array)


def test_rows_that_go_together_may_be_asked_for_different_tensors(monkeypatch):
    monkeypatch.setattr(pieces, "ROWS", 2)
    rows = [{"x": X}, {"x": 2 * X}, {"x": 3 * X}]
    cut = pieces.opened(layers(), ["x", "b", "y"])
    whole, found = list(cut.parts(rows)), [{}, {}, {}]
    for number, values in cut.some_parts(rows, [None, ["y"], ["x", "y"]].__getitem__):
        found[number] |= values
    assert [sorted(one) for one in found] == [["b", "x", "y"], ["y"], ["x", "y"]]
    for number, values in whole:
        for name in values.keys() & found[number].keys():
            np.testing.assert_array_equal(found[number][name], values[name])


def test_one_piece_is_open_at_a_time(monkeypatch):
    alive, most = weakref.WeakSet(), []
    opened = SessionInPieces._opened

    def counted(self, piece):
        session = opened(self, piece)
        alive.add(session)
        most.append(len(alive))
        return session

    monkeypatch.setattr(SessionInPieces, "_opened", counted)
    typed = layers()
    shapes.infer_shapes(typed)
    list(pieces.opened(typed, ["c", "y"]).stream([{"x": X}, {"x": 2 * X}]))
    assert len(most) >= 5 and max(most) <= 2, "the next is opened before the last is let go"


def test_what_reads_constants_alone_is_in_the_piece_of_its_reader():
    text = """u = DequantizeLinear(i, s, z) v = Neg(u) a = Relu(x) b = Neg(a) c = Relu(b) d = MatMul(c, v) y = Neg(d)"""
    integers = np.arange(16, dtype=np.uint8).reshape(4, 4)
    model = from_text("(float[N,4] x) => (float[N,4] y)", text, weights={"i": integers, **STEPS})
    found = pieces._cut(model, frozenset())
    homes = [[node.op_type for node in piece.nodes] for piece in found]
    assert next(ops for ops in homes if "MatMul" in ops)[-3:] == ["DequantizeLinear", "Neg", "MatMul"]
    assert not any(value.name in "uv" for piece in found for value in piece.inputs), "no weight is handed over"


@pytest.mark.parametrize(
    ("dtype", "zero", "axis"), [(np.uint8, 7, None), (np.int8, [0, 1, -3, 5], 1), (np.int32, None, 0)]
)
@pytest.mark.parametrize("most", [0, 16])
def test_small_weights_are_dequantized_beforehand_to_the_last_bit(dtype, zero, axis, most, monkeypatch):
    monkeypatch.setattr(pieces, "MOST_DEQUANTIZED", most)
    written, real = [], message.part
    monkeypatch.setattr(
        message, "part", lambda model, nodes, *given: written.extend(nodes) or real(model, nodes, *given)
    )
    limits = np.iinfo(dtype)
    integers = np.random.default_rng(2).integers(limits.min, limits.max, (4, 4), dtype, endpoint=True)
    scale = np.float32(0.013) if axis is None else np.float32([0.1, 0.003, 7.7, 1e-4])
    given = {"i": integers, "c": scale} | ({} if zero is None else {"o": np.array(zero, dtype)})
    axes, point = ("" if axis is None else f"<axis = {axis}>"), "" if zero is None else ", o"
    text = f"u = DequantizeLinear{axes}(i, c{point}) a = Relu(x) d = MatMul(a, u) b = Neg(d) y = Neg(b)"
    model = from_text("(float[N,4] x) => (float[N,4] y)", text, weights=given)
    for names in (["y"], ["u", "y"]):
        written.clear()
        found = pieces.opened(model, names).run({"x": X})
        for name, array in Session(model, outputs=names).run({"x": X}).items():
            np.testing.assert_array_equal(found[name], array)
        assert any(node.op_type == "DequantizeLinear" for node in written) == (most == 0 or "u" in names)


def test_arrays_are_written_over_only_where_that_was_asked_for():
    cut = pieces.opened(layers(types="(float[2,4] x) => (float[2,4] y)"), ["c", "y"])
    kept, again = cut.run({"x": X}), cut.twin()
    over = again.run_over({"x": X})
    again.run_over({"x": 2 * X}), again.run_over({"x": 3 * X})
    np.testing.assert_array_equal(kept["y"], cut.run({"x": X})["y"])
    assert not np.array_equal(over["y"], kept["y"])


def test_some_of_the_outputs_can_be_asked_for():
    cut = pieces.opened(layers(), ["c", "y", "m"])
    assert list(cut.run({"x": X}, ["m"])) == ["m"]


def test_inputs_that_nothing_reads_and_nodes_that_nobody_needs_do_not_hinder():
    model = layers("u = Neg(x) v = Neg(u) " + LAYERS, "(float[N,4] x, float[1] idle) => (float[N,4] y, float[N,4] x)")
    whole, cut = Session(model), pieces.opened(model)
    assert isinstance(cut, SessionInPieces)
    assert [port.name for port in cut.inputs] == ["x", "idle"]
    feeds = {"x": X, "idle": np.zeros(1, np.float32)}
    for name, array in whole.run(feeds).items():
        np.testing.assert_array_equal(cut.run(feeds)[name], array)


def test_an_input_that_is_missing_is_a_mistake_of_the_model():
    with pytest.raises(ModelError, match="x"):
        pieces.opened(layers()).run({})


def test_a_short_graph_stays_whole():
    assert type(pieces.opened(layers("y = MatMul(x, w)"))) is Session


def test_what_no_array_holds_is_not_handed_over():
    text = """a = Relu(x) b = Cast<to = 16>(a) c = Identity(b) d = Identity(c) e = Identity(d) y = Cast<to = 1>(e)"""
    opened = pieces.opened(layers(text))
    assert type(opened) is Session
    assert opened.run({"x": X})["y"].shape == X.shape


def test_nodes_out_of_order_stay_whole():
    model = layers()
    last = list(model.graph)[-1]
    model.graph.remove(last)
    model.graph.insert_before(model.graph[0], last)
    assert type(pieces.opened(model)) is Session


def test_a_body_stays_in_one_piece():
    text = """a = Relu(x) c = ReduceMax<keepdims = 0>(a) d = Greater(c, s)
    e = If(d) <then_branch = one () => (float[N,4] t) { t = Neg(a) },
               else_branch = two () => (float[N,4] o) { o = Relu(a) }> f = Neg(e) y = Neg(f)"""
    assert type(pieces.opened(layers(text))) is Session


def test_late_nodes_join_the_piece_that_they_read_from():
    graph = layers().graph
    found = pieces._cut(layers(), frozenset())
    assert found is not None and sum(len(piece.nodes) for piece in found) == len(graph)
    home = next(piece for piece in found if any(value.name == "b" for node in piece.nodes for value in node.outputs))
    assert isinstance(home.nodes[0], ir.Node) and "k" in {value.name for node in home.nodes for value in node.outputs}
