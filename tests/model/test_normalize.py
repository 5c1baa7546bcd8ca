"""Normalising: whatever an exporter wrote, stages see one form."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from intact.errors import ModelError, SettingsError
from intact.model import io, normalize, query


def parsed(body: str, *, opset: int = 17, ir_version: int = 8, domains: str = "") -> ir.Model:
    return ir.from_proto(proto_of(body, opset=opset, ir_version=ir_version, domains=domains))


def proto_of(body: str, *, opset: int = 17, ir_version: int = 8, domains: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": {opset}{domains}]> {body}')


def run(content: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ort.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feeds)


def names_of(model: ir.Model) -> list[str | None]:
    return [node.name for node in query.all_nodes(model)]


def test_initializers_are_no_inputs() -> None:
    proto = proto_of("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", ir_version=3)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1, 2], dtype=np.float32), "w"))
    model = normalize.normalize(ir.from_proto(proto))
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert list(model.graph.initializers) == ["w"]


@pytest.mark.parametrize(("opset", "expected"), [(7, 10), (13, 10), (21, 10), (23, 11), (24, 12), (25, 13)])
def test_the_ir_version_follows_from_the_opset(opset: int, expected: int) -> None:
    for given in (3, 8, 13):
        model = parsed("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=opset, ir_version=given)
        assert normalize.normalize(model).ir_version == expected


def test_unnamed_nodes_get_names_that_clash_with_none() -> None:
    model = parsed("g (float[2] x) => (float[2] y) { a = Relu(x) [Relu_1] b = Relu(a) c = Relu(b) y = Abs(c) }")
    assert names_of(normalize.normalize(model)) == ["Relu_0", "Relu_1", "Relu_2", "Abs_0"]


def test_repeated_names_of_nodes_are_made_different() -> None:
    model = parsed("g (float[2] x) => (float[2] y) { [n] a = Relu(x) [n_0] b = Abs(a) [n] c = Neg(b) [n] y = Exp(c) }")
    assert names_of(normalize.normalize(model)) == ["n", "n_0", "n_1", "n_2"]


def test_nodes_in_bodies_are_named_by_their_path() -> None:
    model = parsed(
        """g (float[2] x, bool c) => (float[2] y) {
            a = Relu(x)
            y = If (c) <then_branch = t () => (float[2] p) { p = Relu(a) },
                        else_branch = e () => (float[2] q) { q = Relu(x) }>
        }"""
    )
    names = names_of(normalize.normalize(model))
    assert sorted(filter(None, names)) == ["If_0", "If_0/else/Relu_2", "If_0/then/Relu_1", "Relu_0"]


def test_optional_outputs_that_are_left_out_stay_left_out() -> None:
    proto = proto_of("g (float[1,1,4] x) => (float[1,1,3] y) { y, i = MaxPool <kernel_shape: ints = [2]> (x) }")
    proto.graph.node[0].output[1] = ""
    content = io.to_bytes(normalize.normalize(ir.from_proto(proto)))
    [y] = run(content, {"x": np.array([[[1, 5, 2, 3]]], np.float32)})
    np.testing.assert_array_equal(y, [[[5, 5, 3]]])
    assert [name for name in onnx.load_from_string(content).graph.node[0].output if name] == ["y"]


def test_functions_are_inlined() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
    g (float[2] x) => (float[2] y) { a = own.twice(x) b = own.twice(a) y = own.outer(b) }
    <domain: "own", opset_import: ["": 17]> twice (v) => (w) { w = Add(v, v) }
    <domain: "own", opset_import: ["": 17, "own": 1]> outer (v) => (w) { t = own.twice(v) w = Neg(t) }
    <domain: "own", opset_import: ["": 17]> unused (v) => (w) { w = Neg(v) }
    """
    model = normalize.normalize(ir.from_proto(onnx.parser.parse_model(text)))
    assert not model.functions
    assert dict(model.opset_imports) == {"": 17}
    assert [node.op_type for node in model.graph] == ["Add", "Add", "Add", "Neg"]
    assert len(set(names_of(model))) == 4
    [y] = run(io.to_bytes(model), {"x": np.array([1, -2], dtype=np.float32)})
    np.testing.assert_array_equal(y, [-8, 16])


@pytest.mark.parametrize(("of_model", "of_function"), [("1", "2"), ("2", "1"), ("1", "0")])
def test_the_version_of_a_domain_of_functions_means_nothing(of_model: str, of_function: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17, "own": {of_model}]>
    g (float[2] x) => (float[2] y) {{ y = own.outer(x) }}
    <domain: "own", opset_import: ["": 17]> twice (v) => (w) {{ w = Add(v, v) }}
    <domain: "own", opset_import: ["": 17, "own": {of_function}]> outer (v) => (w) {{ t = own.twice(v) w = Neg(t) }}
    """
    model = normalize.normalize(ir.from_proto(onnx.parser.parse_model(text)))
    [y] = run(io.to_bytes(model), {"x": np.array([1, -2], dtype=np.float32)})
    np.testing.assert_array_equal(y, [-2, 4])


def test_functions_of_another_version_of_an_onnx_domain_are_refused() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
    g (float[2] x) => (float[2] y) { a = own.first(x) y = own.second(a) }
    <domain: "own", opset_import: ["": 17, "ai.onnx.ml": 3]> first (v) => (w) { w = ai.onnx.ml.Scaler(v) }
    <domain: "own", opset_import: ["": 17, "ai.onnx.ml": 5]> second (v) => (w) { w = ai.onnx.ml.Scaler(v) }
    """
    with pytest.raises(ModelError) as error:
        normalize.normalize(ir.from_proto(onnx.parser.parse_model(text)))
    assert error.value.code == "M125" and "second" in str(error.value)


def test_a_call_may_leave_out_the_last_outputs_of_a_function() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
    g (float[2] x) => (float[2] y) { y = own.both(x) }
    <domain: "own", opset_import: ["": 17]> both (v) => (w, u) { w = Neg(v) u = Abs(v) }
    """
    model = normalize.normalize(ir.from_proto(onnx.parser.parse_model(text)))
    [y] = run(io.to_bytes(model), {"x": np.array([1, -2], dtype=np.float32)})
    np.testing.assert_array_equal(y, [-1, 2])


def test_constant_nodes_become_initializers_in_bodies_too() -> None:
    model = parsed(
        """g (float[2] x, bool c) => (float[2] y) {
            k = Constant <value_floats: floats = [1.0, 2.0]> ()
            a = Add(x, k)
            y = If (c) <then_branch = t () => (float[2] p) {
                            one = Constant <value: tensor = float {1.0}> ()
                            p = Mul(a, one)
                        },
                        else_branch = e () => (float[2] q) { q = Neg(a) }>
        }"""
    )
    result = normalize.normalize(model)
    assert "Constant" not in {node.op_type for node in query.all_nodes(result)}
    feeds = {"x": np.ones(2, np.float32), "c": np.array(True)}
    np.testing.assert_array_equal(run(io.to_bytes(result), feeds)[0], [2, 3])


def test_domains_that_no_node_uses_are_dropped() -> None:
    model = parsed("g (float[2] x) => (float[2] y) { y = Relu(x) }", domains=', "ai.onnx.ml": 3, "com.microsoft": 1')
    assert dict(normalize.normalize(model).opset_imports) == {"": 17}


def test_shapes_and_types_are_inferred() -> None:
    model = parsed("g (float[2,3] x) => (y) { a = Transpose(x) y = Shape(a) }")
    a = next(iter(normalize.normalize(model).graph)).outputs[0]
    assert query.static_shape(a) == (3, 2)
    assert a.dtype == ir.DataType.FLOAT


@pytest.mark.parametrize(
    ("op", "inputs"), [("GroupNormalization <num_groups: int = 2>", "x, s, s"), ("com.microsoft.QuickGelu", "x")]
)
def test_shapes_are_known_behind_ops_that_onnx_does_not_infer(op: str, inputs: str) -> None:
    model = parsed(
        f"g (float[2,4,3] x, float[4] s) => (y) {{ a = {op} ({inputs}) b = {op} ({inputs}) y = Add(a, b) }}",
        opset=21,
        ir_version=10,
        domains=', "com.microsoft": 1',
    )
    result = normalize.normalize(model)
    assert query.static_shape(result.graph.outputs[0]) == (2, 4, 3)
    assert [node.op_type for node in result.graph] == [op.split(".")[-1].split()[0]] * 2 + ["Add"]


def test_metadata_is_preserved() -> None:
    proto = proto_of("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    helper.set_model_props(proto, {"author": "someone"})
    proto.producer_name, proto.doc_string, proto.graph.doc_string = "exporter", "about", "graph"
    proto.graph.node[0].metadata_props.add(key="k", value="v")
    model = normalize.normalize(ir.from_proto(proto))
    assert model.metadata_props == {"author": "someone"}
    assert (model.producer_name, model.doc_string, model.graph.doc_string) == ("exporter", "about", "graph")
    assert next(iter(model.graph)).metadata_props["k"] == "v"


def with_free_dims() -> ir.Model:
    proto = proto_of("g (float[batch,3,N] x, float[batch,N] z, float[1,2] u) => (float[batch,3,N] y) { y = Relu(x) }")
    proto.graph.input[2].type.tensor_type.shape.dim[0].Clear()
    return ir.from_proto(proto)


def test_free_dimensions_are_listed_in_order_and_by_axis_where_they_have_no_name() -> None:
    assert normalize.free_dims(with_free_dims()) == ["batch", "N", "u:0"]


def test_free_dimensions_are_advised_to_be_one_only_where_they_come_first() -> None:
    model = parsed("g (float[batch,n] x, float[2,batch] h) => (float[batch,n] y) { y = Relu(x) }")
    assert normalize.advised_dims(model) == "--dim batch=1 --dim n=SIZE"


def test_a_dimension_is_fixed_wherever_its_name_stands() -> None:
    model = normalize.normalize(with_free_dims(), dims={"batch": 2, "u:0": 5})
    assert [str(value.shape) for value in model.graph.inputs] == ["[2,3,N]", "[2,N]", "[5,2]"]
    assert str(model.graph.outputs[0].shape) == "[2,3,N]"
    assert normalize.free_dims(model) == ["N"]


def test_shapes_that_follow_from_a_fixed_dimension_are_known() -> None:
    text = "g (float[batch,6] x) => (float[n] y) { a = MatMul(x, w) s = Shape(a) b = Reshape(a, m) y = ReduceMax(b) }"
    proto = proto_of(text)
    proto.graph.initializer.extend(
        [
            numpy_helper.from_array(np.ones((6, 4), np.float32), "w"),
            numpy_helper.from_array(np.array([-1, 2]), "m"),
        ]
    )
    model = normalize.normalize(ir.from_proto(proto), dims={"batch": 3})
    shapes = {value.name: query.static_shape(value) for node in model.graph for value in node.outputs}
    assert shapes["a"] == (3, 4)
    assert shapes["b"] == (6, 2)


def test_a_dimension_of_minus_one_is_a_free_dimension() -> None:
    proto = proto_of("g (float[1,2] x) => (float[1,2] y) { y = Relu(x) }")
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    model = ir.from_proto(proto)
    assert normalize.free_dims(model) == ["x:0"]
    fixed = normalize.normalize(model, dims={"x:0": 4})
    assert query.static_shape(fixed.graph.outputs[0]) == (4, 2)


def test_the_given_model_is_not_changed() -> None:
    model = with_free_dims()
    before = io.to_bytes(model)
    normalize.normalize(model, dims={"batch": 1})
    assert io.to_bytes(model) == before


def test_normalising_twice_changes_nothing() -> None:
    once = normalize.normalize(with_free_dims(), dims={"batch": 1})
    assert io.to_bytes(normalize.normalize(once)) == io.to_bytes(once)


@pytest.mark.parametrize(
    ("dims", "code", "words"),
    [
        ({"Batch": 1}, "S131", ("'Batch'", "batch, N, u:0", "did you mean batch?")),
        ({"seq": 1}, "S131", ("'seq'", "batch, N, u:0")),
        ({"x:1": 3}, "S131", ("'x:1'",)),
        ({"batch": 0}, "S132", ("batch", "0", "from 1 up")),
        ({"batch": -1}, "S132", ("-1",)),
        ({"batch": True}, "S132", ("True",)),
        ({"batch": 1.5}, "S132", ("1.5",)),
    ],
)
def test_a_wrong_dimension_is_an_error_that_says_what_there_is(
    dims: dict[str, int], code: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(SettingsError) as caught:
        normalize.normalize(with_free_dims(), dims=dims)
    assert (caught.value.code, caught.value.status) == (code, 2)
    assert all(word in str(caught.value) for word in words)


def test_a_model_without_free_dimensions_says_so() -> None:
    with pytest.raises(SettingsError, match="fixed already"):
        normalize.normalize(parsed("g (float[2] x) => (float[2] y) { y = Relu(x) }"), dims={"batch": 1})


@pytest.mark.parametrize("order", ["abc", "cab", "cba", "bca"])
def test_nodes_are_sorted(order: str) -> None:
    nodes = {"a": "[a] p = Relu(x)", "b": "[b] q = Abs(p)", "c": "[c] y = Exp(q)"}
    model = parsed(f"g (float[2] x) => (float[2] y) {{ {' '.join(nodes[name] for name in order)} }}")
    normalize.sort_nodes(model)
    assert names_of(model) == ["a", "b", "c"]


def test_nodes_that_are_sorted_stay_in_their_order() -> None:
    nodes = "[e] a = Relu(x) [d] b = Abs(x) [c] c = Neg(b) [b] d = Exp(a) [a] y = Add(c, d)"
    model = parsed(f"g (float[2] x) => (float[2] y) {{ {nodes} }}")
    normalize.sort_nodes(model)
    assert names_of(model) == ["e", "d", "c", "b", "a"]


def test_a_circle_is_an_error_that_names_its_nodes() -> None:
    model = parsed("g (float[2] x) => (float[2] y) { [p] a = Add(x, b) [q] b = Relu(a) [r] y = Neg(b) }")
    with pytest.raises(ModelError) as caught:
        normalize.sort_nodes(model)
    assert (caught.value.code, caught.value.status) == ("M110", 3)
    assert "p (Add)" in caught.value.message
    assert "q (Relu)" in caught.value.message
    assert "r (Neg)" not in caught.value.message


def test_a_circle_through_the_body_of_an_if_is_found() -> None:
    model = parsed(
        """g (float[2] x, bool c) => (float[2] y) {
            [p] a = Relu(y)
            [q] y = If (c) <then_branch = t () => (float[2] u) { u = Abs(a) },
                            else_branch = e () => (float[2] v) { v = Abs(x) }>
        }"""
    )
    with pytest.raises(ModelError, match=r"(?s)q \(If\).*p \(Relu\)|p \(Relu\).*q \(If\)"):
        normalize.sort_nodes(model)


def test_a_model_of_one_custom_domain_gets_the_default_domain_for_later_stages() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["made.up": 1]> g (float[2] x) => (float[2] y) { y = made.up.F(x) }'
    )
    assert dict(normalize.normalize(ir.from_proto(proto)).opset_imports) == {"made.up": 1, "": 21}


def test_inputs_of_unknown_rank_have_no_dimensions_to_fix() -> None:
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [info], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    assert normalize.free_dims(ir.from_proto(helper.make_model(graph))) == []


def test_grids_of_one_number_are_scalars_and_other_uses_of_the_number_keep_its_shape() -> None:
    model = parsed(
        """g (float[2] x) => (float[2] y, float[2] v) <float[1] s = {0.5}, float[1] t = {0.25}, uint8[1] z = {3}> {
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            y = Mul(d, t)
            w = QuantizeLinear(x, t, z)
            v = DequantizeLinear(w, t, z)
        }"""
    )
    done = normalize.normalize(model)
    shapes = {name: tuple(value.shape or ()) for name, value in done.graph.initializers.items()}
    assert shapes == {"s": (), "z": (), "t": (1,), "t/scalar": ()}
    x = np.array([-3, 7], np.float32)
    expected = run(ir.to_proto(model).SerializeToString(), {"x": x})
    assert all(map(np.array_equal, run(ir.to_proto(done).SerializeToString(), {"x": x}), expected))


def test_scales_of_blocks_keep_their_shape() -> None:
    body = "g (uint8[2] q) => (float[2] y) <float[1] s = {0.5}> { y = DequantizeLinear <axis=0, block_size=2> (q, s) }"
    done = normalize.normalize(parsed(body, opset=21, ir_version=10))
    assert [tuple(value.shape or ()) for value in done.graph.initializers.values()] == [(1,)]


QAT = """g (float[1,2] x) => (float[1,2] y) <float s = {0.1}, uint8 z = {128}> {
    a = Identity(s)  b = Identity(a)  c = Identity(z)
    q = QuantizeLinear(x, b, c)  same = Cast <to = 2> (q)  y = DequantizeLinear(same, b, c)
}"""


def test_copies_of_scales_and_casts_to_the_same_type_are_nothing() -> None:
    proto = proto_of(QAT)
    model = normalize.normalize(ir.from_proto(proto))
    assert [node.op_type for node in model.graph] == ["QuantizeLinear", "DequantizeLinear"]
    assert all(query.is_constant(value) for node in model.graph for value in node.inputs[1:])
    x = np.array([[0.33, -2.71]], np.float32)
    for given, found in zip(run(proto.SerializeToString(), {"x": x}), run(serialized(model), {"x": x}), strict=True):
        np.testing.assert_array_equal(given, found)


def serialized(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString()


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("q = QuantizeLinear(x, s, z)  y = Cast <to = 3> (q)", "Cast"),
        ("y = Identity(s)", "Identity"),
    ],
    ids=["a cast to another type", "an output of the graph"],
)
def test_what_does_something_stays(body: str, kept: str) -> None:
    kind = "int8[1,2]" if kept == "Cast" else "float"
    model = parsed(f"g (float[1,2] x) => ({kind} y) <float s = {{0.1}}, uint8 z = {{128}}> {{ {body} }}")
    assert kept in [node.op_type for node in normalize.normalize(model).graph]
