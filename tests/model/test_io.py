"""Reading and writing models: what is not a model says so, and nothing outside the model's folder is read."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from intact.errors import IntactError, ModelError, OutputError, SettingsError
from intact.model import io, normalize, upgrade

SIMPLE = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'


def written(folder: Path, proto: onnx.ModelProto, name: str = "m.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def simple() -> onnx.ModelProto:
    return onnx.parser.parse_model(SIMPLE)


def with_weight(array: np.ndarray) -> onnx.ModelProto:
    """y = x + w, with the weight in the file."""
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name in "xy"]
    node = helper.make_node("Add", ["x", "w"], ["y"], "add")
    graph = helper.make_graph([node], "g", info[:1], info[1:], [numpy_helper.from_array(array, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


WEIGHT = np.arange(1024, dtype=np.float32)


def outside(**entries: str) -> onnx.ModelProto:
    """The same with the weight outside, under the entries given."""
    proto = with_weight(WEIGHT)
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return proto


def error_of(path: str | Path) -> IntactError:
    with pytest.raises(IntactError) as caught:
        io.load(path)
    assert str(path) in caught.value.message, "every refusal names the file"
    return caught.value


def without_file(error: IntactError) -> str:
    """The message behind the name of the file."""
    return error.message.partition(".onnx: ")[2]


def run(path: Path, x: np.ndarray) -> np.ndarray:
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


# Paths that are wrong: the user's mistake, status 2.


def test_a_missing_file_is_a_mistake_of_settings(tmp_path: Path) -> None:
    error = error_of(tmp_path / "none.onnx")
    assert (type(error), error.status, error.code) == (SettingsError, 2, "S130")
    assert "none.onnx" in error.message


def a_folder(path: Path) -> Path:
    path.mkdir()
    return path


def a_fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def a_circular_link(path: Path) -> Path:
    path.symlink_to(path)
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (a_folder, "is a folder"),
        (a_fifo, "not an ordinary file"),
        (a_circular_link, "cannot read"),
        (lambda path: path.with_name("zero\0byte"), "cannot read"),
        (lambda path: path.with_name("long" * 100), "cannot read"),
        (lambda path: path / "below a missing folder", "cannot read"),
    ],
)
def test_a_path_that_is_no_file_is_a_mistake_of_settings(
    tmp_path: Path, make: Callable[[Path], Path], words: str
) -> None:
    error = error_of(make(tmp_path / "m.onnx"))
    assert (error.status, error.code) == (2, "S130")
    assert words in error.message


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the administrator may read everything")
def test_an_unreadable_file_is_a_mistake_of_settings(tmp_path: Path) -> None:
    path = written(tmp_path, simple())
    path.chmod(0)
    assert error_of(path).code == "S130"


@pytest.mark.parametrize("name", ["模型 é.onnx", "no_suffix", f"{'l' * 250}.onnx"])
def test_unusual_paths_work(tmp_path: Path, name: str) -> None:
    folder = tmp_path / ("deep" * 20) / "ünï"
    folder.mkdir(parents=True)
    path = written(folder, simple(), name)
    model = io.load(str(path))
    assert io.save(model, path) == (path,)
    assert [file.name for file in folder.iterdir()] == [name]


# Files that are no models: status 3.


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("bomb-went-off",)


def a_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.onnx", simple().SerializeToString())


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"

NOT_MODELS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "empty": (lambda path: path.write_bytes(b""), "M102", "empty"),
    "zip": (a_zip, "M101", "zip archive"),
    "gzip": (lambda path: path.write_bytes(gzip.compress(simple().SerializeToString())), "M101", "gzip"),
    "git-LFS pointer": (lambda path: path.write_text(LFS), "M101", "git-LFS pointer"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps(Bomb())), "M101", "pickle"),
    "old pickle": (lambda path: path.write_bytes(pickle.dumps(Bomb(), protocol=2)), "M101", "pickle"),
    "JSON": (lambda path: path.write_text('{"graph": {"node": []}}'), "M101", "text"),
    "HTML": (lambda path: path.write_text("<!DOCTYPE html><html>404</html>"), "M101", "text"),
    "random bytes": (lambda path: path.write_bytes(np.random.default_rng(0).bytes(5000)), "M103", "damaged"),
    "truncated": (lambda path: path.write_bytes(with_weight(WEIGHT).SerializeToString()[:-7]), "M103", "truncated"),
    "cut in half": (lambda path: path.write_bytes(with_weight(WEIGHT).SerializeToString()[:2000]), "M103", "truncated"),
    "no graph": (lambda path: path.write_bytes(onnx.ModelProto(ir_version=8).SerializeToString()), "M104", "no graph"),
    "no nodes": (
        lambda path: path.write_bytes(onnx.parser.parse_model(SIMPLE.replace("y = Relu(x)", "")).SerializeToString()),
        "M104",
        "no nodes",
    ),
}


@pytest.mark.parametrize("kind", NOT_MODELS)
def test_a_file_that_is_no_model_says_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    make, code, words = NOT_MODELS[kind]
    path = tmp_path / "m.onnx"
    make(path)
    error = error_of(path)
    assert (type(error), error.status, error.code) == (ModelError, 3, code)
    assert words in error.message
    assert not (tmp_path / "bomb-went-off").exists()


def test_a_file_over_the_limit_of_protobuf_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.touch()
    os.truncate(path, io.PROTOBUF_LIMIT + 1)
    error = error_of(path)
    assert error.code == "M105"
    assert "external data" in (error.fix or "")


# Models that are wrong: status 3.


def model_text(body: str, imports: str = '"": 17', ir_version: int = 8) -> str:
    return f"<ir_version: {ir_version}, opset_import: [{imports}]> {body}"


RECURSIVE = """
<domain: "own", opset_import: ["": 17, "own": 1]> f (a) => (b) { b = own.h(a) }
<domain: "own", opset_import: ["": 17, "own": 1]> h (a) => (b) { c = Relu(a) b = own.f(c) }
"""

SHADOWED = """g (float[2] x, bool c) => (float[2] y) {
    y = If (c) <then_branch = t () => (float[2] p) { p = Relu(nowhere) },
                else_branch = e () => (float[2] q) { q = Abs(x) }>
}"""

BAD_GRAPHS = {
    "a cycle": ("M110", "a circle", "g (float[2] x) => (float[2] y) { [p] a = Add(x, y) [q] y = Relu(a) }"),
    "two nodes with one output": ("M108", "'y'", "g (float[2] x) => (float[2] y) { y = Relu(x) y = Abs(x) }"),
    "an output like an input": ("M108", "'x'", "g (float[2] x) => (float[2] x) { x = Relu(x) }"),
    "two inputs of one name": ("M108", "'x'", "g (float[2] x, float[2] x) => (float[2] y) { y = Relu(x) }"),
    "an input from nowhere": ("M109", "'z'", "g (float[2] x) => (float[2] y) { y = Add(x, z) }"),
    "an output from nowhere": ("M109", "'z'", "g (float[2] x) => (float[2] z) { y = Relu(x) }"),
    "a body that reads from nowhere": ("M109", "'nowhere'", SHADOWED),
}


@pytest.mark.parametrize("kind", BAD_GRAPHS)
def test_a_broken_graph_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    code, words, body = BAD_GRAPHS[kind]
    error = error_of(written(tmp_path, onnx.parser.parse_model(model_text(body))))
    assert (error.status, error.code) == (3, code)
    assert words in error.message


def constant(number: float) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["c"], value_float=number)


@pytest.mark.parametrize(
    ("nodes", "initializers"),
    [([], [5.0, 1.0]), ([constant(5.0), constant(1.0)], []), ([constant(1.0)], [3.0, 5.0])],
)
def test_of_constants_under_one_name_the_one_counts_that_onnx_runtime_takes(
    tmp_path: Path, nodes: list[onnx.NodeProto], initializers: list[float]
) -> None:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    tensors = [numpy_helper.from_array(np.float32(number), "c") for number in initializers]
    graph = helper.make_graph([*nodes, helper.make_node("Add", ["x", "c"], ["y"])], "g", infos[:1], infos[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    loaded = io.load(written(tmp_path, model))
    feeds = {"x": np.zeros(2, np.float32)}
    for content in (model.SerializeToString(), io.to_bytes(loaded)):
        np.testing.assert_array_equal(ort.InferenceSession(content).run(None, feeds)[0], [1, 1])
    assert loaded.meta[io.REPEATED] == ("c",)


def test_functions_that_call_each_other_are_refused(tmp_path: Path) -> None:
    body = "g (float[2] x) => (float[2] y) { y = own.f(x) }" + RECURSIVE
    error = error_of(written(tmp_path, onnx.parser.parse_model(model_text(body, '"": 17, "own": 1'))))
    assert error.code == "M111"
    assert "f → h → f" in error.message


@pytest.mark.parametrize("call", ["y = own.f(x, x)", "y, z = own.f(x)"])
def test_a_call_with_more_than_the_function_has_is_refused(tmp_path: Path, call: str) -> None:
    body = f"""g (float[2] x) => (float[2] y) {{ {call} }}
    <domain: "own", opset_import: ["": 17]> f (a) => (b) {{ b = Relu(a) }}"""
    error = error_of(written(tmp_path, onnx.parser.parse_model(model_text(body, '"": 17, "own": 1'))))
    assert error.code == "M118"
    assert "the function" in error.message


def test_a_function_may_be_called_from_two_others(tmp_path: Path) -> None:
    body = """g (float[2] x) => (float[2] y) { a = own.f(x) y = own.h(a) }
    <domain: "own", opset_import: ["": 17, "own": 1]> f (a) => (b) { b = own.base(a) }
    <domain: "own", opset_import: ["": 17, "own": 1]> h (a) => (b) { c = own.f(a) b = own.base(c) }
    <domain: "own", opset_import: ["": 17]> base (a) => (b) { b = Relu(a) }"""
    assert len(io.load(written(tmp_path, onnx.parser.parse_model(model_text(body, '"": 17, "own": 1')))).functions) == 3


@pytest.mark.parametrize(
    ("imports", "ir_version", "code", "words"),
    [
        (f'"": {onnx.defs.onnx_opset_version() + 1}', 8, "M106", f"opset {onnx.defs.onnx_opset_version() + 1}"),
        ('"": 17, "ai.onnx.ml": 99', 8, "M106", "opset 99 of ai.onnx.ml"),
        ('"": 17', onnx.IR_VERSION + 1, "M106", f"IR version {onnx.IR_VERSION + 1}"),
        ('"": 17, "ai.onnx": 18', 8, "M107", "17 and as 18"),
        ('"com.microsoft": 1', 8, "M107", "which opset"),
    ],
)
def test_versions_that_cannot_be_read_are_refused(
    tmp_path: Path, imports: str, ir_version: int, code: str, words: str
) -> None:
    body = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
    error = error_of(written(tmp_path, onnx.parser.parse_model(model_text(body, imports, ir_version))))
    assert (error.status, error.code) == (3, code)
    assert words in error.message


def test_the_long_name_of_the_default_domain_means_the_same(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        model_text("g (float[2] x) => (float[2] y) { y = Relu(x) }", '"ai.onnx": 17, "com.microsoft": 1')
    )
    proto.graph.node[0].domain = "ai.onnx"
    model = io.load(written(tmp_path, proto))
    assert dict(model.opset_imports) == {"": 17, "com.microsoft": 1}
    assert next(iter(model.graph)).domain == ""


def test_custom_domains_are_kept_and_imported_where_the_file_forgot(tmp_path: Path) -> None:
    body = "g (float[2] x) => (float[2] y) { a = made.up.Thing <k: int = 3> (x) y = Relu(a) }"
    model = io.load(written(tmp_path, onnx.parser.parse_model(model_text(body))))
    assert dict(model.opset_imports) == {"": 17, "made.up": 1}
    assert next(iter(model.graph)).attributes.get_int("k") == 3


def test_nodes_are_sorted_and_named_on_loading(tmp_path: Path) -> None:
    body = "g (float[2] x) => (float[2] y) { [n] y = Exp(b) [n] a = Relu(x) b = Abs(a) }"
    model = io.load(written(tmp_path, onnx.parser.parse_model(model_text(body))))
    assert [(node.op_type, node.name) for node in model.graph] == [("Relu", "n"), ("Abs", "Abs_0"), ("Exp", "n_0")]


def tensor(data_type: int, dims: list[int], **fields: object) -> onnx.TensorProto:
    return onnx.TensorProto(name="w", data_type=data_type, dims=dims, **fields)


GOOD_TENSORS = [
    tensor(TensorProto.FLOAT, [2], raw_data=bytes(8)),
    tensor(TensorProto.FLOAT, [2], float_data=[1, 2]),
    tensor(TensorProto.FLOAT16, [3], int32_data=[1, 2, 3]),
    tensor(TensorProto.INT4, [5], raw_data=bytes(3)),
    tensor(TensorProto.INT4, [5], int32_data=[1, 2, 3]),
    tensor(TensorProto.COMPLEX64, [2], float_data=[1, 2, 3, 4]),
    tensor(TensorProto.STRING, [2], string_data=[b"a", b"b"]),
    tensor(TensorProto.UINT32, [1], uint64_data=[7]),
    tensor(TensorProto.FLOAT, [0, 3]),
    tensor(TensorProto.INT64, [], int64_data=[4]),
]

BAD_TENSORS = [
    (tensor(TensorProto.FLOAT, [2], raw_data=bytes(7)), "7 bytes"),
    (tensor(TensorProto.FLOAT, [3], raw_data=bytes(8)), "needs 12"),
    (tensor(TensorProto.FLOAT, [2], float_data=[1]), "1 values"),
    (tensor(TensorProto.FLOAT, [2]), "0 values"),
    (tensor(TensorProto.FLOAT, [2], int32_data=[1, 2]), "0 values"),
    (tensor(TensorProto.INT4, [5], raw_data=bytes(5)), "needs 3"),
    (tensor(TensorProto.STRING, [2], string_data=[b"a"]), "1 values"),
    (tensor(TensorProto.FLOAT, [-2], raw_data=bytes(8)), "[-2]"),
    (tensor(TensorProto.FLOAT, [2**62, 2**62], raw_data=bytes(8)), "needs"),
    (tensor(TensorProto.UNDEFINED, [2], raw_data=bytes(8)), "number 0"),
    (tensor(99, [2], raw_data=bytes(8)), "number 99"),
]


def with_tensor(item: onnx.TensorProto, place: str) -> onnx.ModelProto:
    proto = simple()
    if place == "initializer":
        proto.graph.initializer.append(item)
        return proto
    proto.graph.node.append(helper.make_node("Constant", [], ["k"], "constant", value=item))
    return proto


@pytest.mark.parametrize("place", ["initializer", "attribute"])
@pytest.mark.parametrize("item", GOOD_TENSORS, ids=range(len(GOOD_TENSORS)))
def test_tensors_that_fit_their_shape_load(tmp_path: Path, item: onnx.TensorProto, place: str) -> None:
    model = io.load(written(tmp_path, with_tensor(item, place)))
    assert io.size_of_weights(model) >= 0


@pytest.mark.parametrize("place", ["initializer", "attribute"])
@pytest.mark.parametrize(("item", "words"), BAD_TENSORS, ids=range(len(BAD_TENSORS)))
def test_tensors_that_do_not_fit_their_shape_are_refused(
    tmp_path: Path, item: onnx.TensorProto, words: str, place: str
) -> None:
    error = error_of(written(tmp_path, with_tensor(item, place)))
    assert (error.status, error.code) == (3, "M112")
    assert words in error.message
    assert without_file(error).startswith("w:" if place == "initializer" else "constant.value:")


MISWRITTEN = {
    "an attribute too many": "y = Relu <alpha: float = 1.0> (x)",
    "an attribute of another type": "y = LeakyRelu <alpha: int = 1> (x)",
    "an attribute too few": "y = Concat(x, x)",
    "an input too many": "y = Relu(x, x)",
    "an input too few": "y = Add(x)",
    "an output too many": "y, z = Relu(x)",
    "a form of a newer opset": "y = ReduceMean(x, x)",
    "a form of an older opset": "y = Squeeze <axes: ints = [0]> (x)",
    "an input left out": 'y = Add("", x)',
}


@pytest.mark.parametrize("kind", MISWRITTEN)
def test_a_node_that_is_not_written_as_its_op_is_defined_is_refused(tmp_path: Path, kind: str) -> None:
    proto = onnx.parser.parse_model(SIMPLE.replace("y = Relu(x)", "[it] " + MISWRITTEN[kind]))
    error = error_of(written(tmp_path, proto))
    assert (error.status, error.code) == (3, "M118")
    assert without_file(error).startswith("it (")


def test_an_attribute_without_a_type_is_refused(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(SIMPLE.replace("Relu(x)", "made.up.F <alpha: float = 1.0> (x)"))
    proto.graph.node[0].attribute[0].ClearField("type")
    assert error_of(written(tmp_path, proto)).code == "M118"


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    content = simple().SerializeToString().replace(b"Relu", b"Re\xff\xff")
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert error_of(path).code == "M103"


def test_an_input_without_a_type_is_refused(tmp_path: Path) -> None:
    proto = simple()
    proto.graph.input[0].ClearField("type")
    error = error_of(written(tmp_path, proto))
    assert error.code == "M117"
    assert "'x'" in error.message


def test_a_damaged_file_never_ends_in_anything_but_a_sentence(tmp_path: Path) -> None:
    body = """g (float[N,4,6] x, bool c) => (float[N,4,6] y) {
        t = Clip <min: float = 0.0> (x)
        b = If (c) <then_branch = th () => (float[N,4,6] p) { p = Softmax <axis: int = 1> (t) },
                    else_branch = el () => (float[N,4,6] q) { q = own.f(x) }>
        u = Unsqueeze <axes: ints = [0]> (b)
        v = Squeeze <axes: ints = [0]> (u)
        y = Add(v, w)
    }
    <domain: "own", opset_import: ["": 10]> f (m) => (n) { r = Neg(m) n = Abs(r) }"""
    proto = onnx.parser.parse_model(model_text(body, '"": 10, "own": 1'))
    proto.graph.initializer.append(numpy_helper.from_array(WEIGHT[:24].reshape(4, 6), "w"))
    sound = proto.SerializeToString()
    rng = np.random.default_rng(11)
    path = tmp_path / "m.onnx"
    outcomes = set()
    for _ in range(400):
        content = bytearray(sound)
        content[rng.integers(len(content))] = rng.integers(256)
        path.write_bytes(content)
        try:
            upgrade.upgrade(normalize.normalize(io.load(path)))
            outcomes.add("loaded")
        except IntactError as problem:
            outcomes.add(problem.code)
    assert outcomes >= {"loaded", "M103", "M109", "M118", "M121"}


def test_sparse_constants_and_maps_as_inputs_are_refused_not_lost(tmp_path: Path) -> None:
    sparse = simple()
    sparse.graph.sparse_initializer.add().dims.append(2)
    assert error_of(written(tmp_path, sparse)).code == "M117"
    mapped = simple()
    mapped.graph.input[0].type.map_type.key_type = TensorProto.INT64
    assert error_of(written(tmp_path, mapped)).code == "M117"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_weights_that_are_not_finite_load_and_are_listed(tmp_path: Path, bad: float, dtype: type) -> None:
    proto = simple()
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1, bad], dtype), "sick"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1, 2], dtype), "sound"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1, 2]), "whole"))
    assert io.nonfinite_weights(io.load(written(tmp_path, proto))) == ["sick"]


def test_nested_bodies_load_to_the_depth_that_protobuf_reads(tmp_path: Path) -> None:
    def nested(depth: int) -> onnx.ModelProto:
        proto = onnx.parser.parse_model(model_text("g (float[2] x, bool c) => (float[2] y) { y = Relu(x) }"))
        body = onnx.parser.parse_graph("b () => (float[2] z) { z = Relu(x) }")
        for _ in range(depth):
            wrapped = onnx.parser.parse_graph("b () => (float[2] z) { z = Relu(x) }")
            wrapped.node[0].CopyFrom(helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body))
            body = wrapped
        proto.graph.node[0].CopyFrom(helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body))
        return proto

    assert len(list(io.load(written(tmp_path, nested(4))).graphs())) == 2**6 - 1


# Weights outside the file.


def test_weights_outside_stay_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16) + WEIGHT.tobytes())
    path = written(tmp_path, outside(location="w.bin", offset="16", length="4096"))
    weight = io.load(path).graph.initializers["w"].const_value
    assert isinstance(weight, ir.ExternalTensor)
    np.testing.assert_array_equal(weight.numpy(), WEIGHT)
    assert io.files_of(path) == (path, tmp_path / "w.bin")


def test_weights_may_lie_in_a_folder_below_and_a_model_path_may_be_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(WEIGHT.tobytes())
    written(tmp_path, outside(location="sub/w.bin"))
    monkeypatch.chdir(tmp_path)
    weight = io.load("m.onnx").graph.initializers["w"].const_value
    monkeypatch.chdir("/")
    assert weight is not None
    np.testing.assert_array_equal(weight.numpy(), WEIGHT)


@pytest.mark.parametrize(
    "location",
    [
        "../secret.bin",
        "a/../../secret.bin",
        "sub/../w.bin",
        "..",
        "/etc/hostname",
        "C:\\secret.bin",
        "C:/secret.bin",
        "C:secret.bin",
        "..\\secret.bin",
        "sub\\w.bin",
        "\\\\server\\share\\w.bin",
        "w.bin\0.txt",
        "",
    ],
)
def test_paths_that_leave_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    for name in ("secret.bin", "model/w.bin", "model/sub/w.bin"):
        (tmp_path / name).write_bytes(WEIGHT.tobytes())
    error = error_of(written(folder, outside(location=location)))
    assert (error.status, error.code) == (3, "M113")
    assert without_file(error).startswith("w: ")


def link_to_outside(folder: Path, secret: Path) -> str:
    (folder / "w.bin").symlink_to(secret)
    return "w.bin"


def link_of_a_parent(folder: Path, secret: Path) -> str:
    (folder / "sub").symlink_to(secret.parent)
    return f"sub/{secret.name}"


def link_over_a_link(folder: Path, secret: Path) -> str:
    (folder / "inner").symlink_to(secret)
    (folder / "w.bin").symlink_to(folder / "inner")
    return "w.bin"


def hard_link(folder: Path, secret: Path) -> str:
    (folder / "w.bin").hardlink_to(secret)
    return "w.bin"


@pytest.mark.parametrize("escape", [link_to_outside, link_of_a_parent, link_over_a_link, hard_link])
def test_links_that_leave_the_folder_are_refused(tmp_path: Path, escape: Callable[[Path, Path], str]) -> None:
    folder, secret = tmp_path / "model", tmp_path / "elsewhere" / "secret.bin"
    folder.mkdir()
    secret.parent.mkdir()
    secret.write_bytes(WEIGHT.tobytes())
    error = error_of(written(folder, outside(location=escape(folder, secret))))
    assert (error.status, error.code) == (3, "M113")


def test_a_link_within_the_folder_works(tmp_path: Path) -> None:
    (tmp_path / "real.bin").write_bytes(WEIGHT.tobytes())
    (tmp_path / "w.bin").symlink_to("real.bin")
    weight = io.load(written(tmp_path, outside(location="w.bin"))).graph.initializers["w"].const_value
    assert weight is not None
    np.testing.assert_array_equal(weight.numpy(), WEIGHT)


def hub_cache(root: Path, proto: onnx.ModelProto, data: Path | None = None) -> Path:
    """A model as the cache of Hugging Face keeps it: links in a snapshot, the files themselves among blobs."""
    blobs, snapshot = root / "blobs", root / "snapshots" / "0f3a" / "onnx"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "a1").write_bytes(proto.SerializeToString())
    (blobs / "b2").write_bytes(WEIGHT.tobytes())
    (snapshot / "model.onnx").symlink_to("../../../blobs/a1")
    (snapshot / "model.onnx_data").symlink_to(data or "../../../blobs/b2")
    return snapshot / "model.onnx"


def test_the_links_of_a_hugging_face_cache_work(tmp_path: Path) -> None:
    path = hub_cache(tmp_path / "models--org--name", outside(location="model.onnx_data"))
    model = io.load(path)
    weight = model.graph.initializers["w"].const_value
    assert isinstance(weight, ir.ExternalTensor)
    np.testing.assert_array_equal(weight.numpy(), WEIGHT)
    assert [file.name for file in io.files_of(path)] == ["model.onnx", "b2"]
    [copy] = io.save(model, tmp_path / "copy.onnx")
    np.testing.assert_array_equal(run(copy, WEIGHT), 2 * WEIGHT)


def test_a_cache_cannot_lead_anywhere_else(tmp_path: Path) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(WEIGHT.tobytes())
    path = hub_cache(tmp_path / "models--org--name", outside(location="model.onnx_data"), secret)
    assert error_of(path).code == "M113"


def test_the_file_that_a_cache_links_to_may_be_given_itself(tmp_path: Path) -> None:
    hub_cache(tmp_path, outside(location="model.onnx_data"))
    error = error_of(tmp_path / "blobs" / "a1")
    assert error.code == "M114"


BAD_SPANS = {
    "missing": ({"location": "none.bin"}, "M114"),
    "a folder": ({"location": "folder"}, "M114"),
    "a pipe": ({"location": "pipe"}, "M114"),
    "no location": ({"offset": "0"}, "M113"),
    "too short": ({"location": "short.bin"}, "M115"),
    "an offset past the end": ({"location": "w.bin", "offset": "1"}, "M115"),
    "a negative offset": ({"location": "w.bin", "offset": "-4096"}, "M115"),
    "a negative length": ({"location": "w.bin", "length": "-1"}, "M115"),
    "an offset that is no number": ({"location": "w.bin", "offset": "0x10"}, "M115"),
    "an offset of other digits": ({"location": "w.bin", "offset": "٣"}, "M115"),
    "a petabyte": ({"location": "w.bin", "length": str(10**15)}, "M115"),
    "an offset of a petabyte": ({"location": "w.bin", "offset": str(10**15)}, "M115"),
    "an offset of 5000 digits": ({"location": "w.bin", "offset": "9" * 5000}, "M115"),
    "a length below the shape": ({"location": "w.bin", "length": "4"}, "M115"),
    "a stray key": ({"location": "w.bin", "__class__": "x"}, "M116"),
    "a base path": ({"location": "w.bin", "basepath": "/etc"}, "M116"),
}


@pytest.mark.parametrize("kind", BAD_SPANS)
def test_external_data_that_cannot_be_right_is_refused(tmp_path: Path, kind: str) -> None:
    entries, code = BAD_SPANS[kind]
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    (tmp_path / "short.bin").write_bytes(WEIGHT.tobytes()[:-1])
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    error = error_of(written(tmp_path, outside(**entries)))
    assert (error.status, error.code) == (3, code)
    assert without_file(error).startswith("w: ")


def test_strings_in_another_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    proto = outside(location="w.bin")
    proto.graph.initializer[0].data_type = TensorProto.STRING
    error = error_of(written(tmp_path, proto))
    assert (error.status, error.code) == (3, "M112")
    assert without_file(error).startswith("w: ") and "strings" in str(error)


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    proto = outside(location="w.bin")
    proto.graph.initializer[0].external_data.add(key="location", value="../w.bin")
    assert error_of(written(tmp_path, proto)).code == "M116"


def test_the_keys_that_onnx_runtime_adds_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    path = written(tmp_path, outside(location="w.bin", checksum="0" * 40, prepacked_0="key|64|128"))
    assert "w" in io.load(path).graph.initializers


# Writing.


def test_a_saved_model_is_the_same_model(tmp_path: Path) -> None:
    source = written(tmp_path, with_weight(WEIGHT))
    [path] = io.save(io.load(source), tmp_path / "out.onnx")
    np.testing.assert_array_equal(run(path, WEIGHT), run(source, WEIGHT))


@pytest.mark.parametrize("threshold", [0, 4096, 10**9])
def test_the_same_model_gives_the_same_bytes(tmp_path: Path, threshold: int) -> None:
    source = written(tmp_path, with_weight(WEIGHT))
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        io.save(io.load(source), folder / "m.onnx", external_threshold=threshold)
    contents = [{file.name: file.read_bytes() for file in folder.iterdir()} for folder in folders]
    assert contents[0] == contents[1]
    assert len(contents[0]) == (2 if threshold < WEIGHT.nbytes else 1)


def test_a_constant_that_became_an_initializer_is_saved_as_it_is_when_it_is_read_again(tmp_path: Path) -> None:
    body = "g (float[2, 3] x) => (float[1, 1] y) { a = Constant <value = int64[2] {0, 1}> () y = ReduceSum (x, a) }"
    proto = onnx.parser.parse_model(model_text(body))
    assert proto.graph.node[0].attribute[0].t.int64_data, "the numbers are not raw bytes in this file"
    [once] = io.save(upgrade.upgrade(io.load(written(tmp_path, proto))).model, tmp_path / "once.onnx")
    [twice] = io.save(upgrade.upgrade(io.load(once)).model, tmp_path / "twice.onnx")
    assert once.read_bytes() == twice.read_bytes()


def test_weights_above_the_threshold_go_outside_and_come_back(tmp_path: Path) -> None:
    source = written(tmp_path, with_weight(WEIGHT))
    files = io.save(io.load(source), tmp_path / "out.onnx", external_threshold=WEIGHT.nbytes - 1)
    assert [file.name for file in files] == ["out.onnx", "out.onnx.data"]
    assert files[0].stat().st_size < 1000
    np.testing.assert_array_equal(run(files[0], WEIGHT), 2 * WEIGHT)
    again = io.load(files[0])
    assert io.size_of_weights(again) == WEIGHT.nbytes
    assert io.files_of(files[0]) == files
    assert io.to_bytes(again) == io.to_bytes(io.load(source))


def test_small_and_packed_and_inner_tensors_survive_being_written_outside(tmp_path: Path) -> None:
    body = """g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] p) { p = Add(x, w) },
                    else_branch = e () => (float[2] q) { q = Sub(x, w) }>
    }"""
    proto = onnx.parser.parse_model(model_text(body, '"": 21', 10))
    shapes = {"then_branch": 1.0, "else_branch": 2.0}
    for attribute in proto.graph.node[0].attribute:
        big = np.full((600, 2), shapes[attribute.name], np.float32)
        attribute.g.initializer.append(numpy_helper.from_array(big, "big"))
        attribute.g.initializer.append(numpy_helper.from_array(big[0], "w"))
    packed = np.arange(-8, 8).repeat(256).astype(np.int8)
    proto.graph.initializer.append(helper.make_tensor("packed", TensorProto.INT4, [packed.size], packed))
    model = io.load(written(tmp_path, proto))
    path, _ = io.save(model, tmp_path / "out.onnx", external_threshold=0)
    again = io.load(path)
    found = again.graph.initializers["packed"].const_value
    assert isinstance(found, ir.ExternalTensor)
    np.testing.assert_array_equal(found.numpy().astype(np.int8), packed)
    for condition, expected in ((True, [2, 2]), (False, [-1, -1])):
        feeds = {"x": np.ones(2, np.float32), "c": np.array(condition)}
        [y] = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)
        np.testing.assert_array_equal(y, expected)
    inner = [graph.initializers["big"].const_value for graph in list(again.graphs())[1:]]
    assert all(isinstance(tensor, ir.ExternalTensor) for tensor in inner)
    assert sorted(float(tensor.numpy()[0, 0]) for tensor in inner if tensor is not None) == [1.0, 2.0]


def test_a_model_can_replace_the_files_that_its_weights_are_mapped_from(tmp_path: Path) -> None:
    path, data = io.save(io.load(written(tmp_path, with_weight(WEIGHT))), tmp_path / "m2.onnx", external_threshold=0)
    before = data.read_bytes()
    io.save(io.load(path), path, external_threshold=0)
    assert data.read_bytes() == before
    np.testing.assert_array_equal(run(path, WEIGHT), 2 * WEIGHT)


def test_saving_does_not_change_the_model(tmp_path: Path) -> None:
    model = io.load(written(tmp_path, with_weight(WEIGHT)))
    before = io.to_bytes(model)
    io.save(model, tmp_path / "out.onnx", external_threshold=0)
    assert io.to_bytes(model) == before


@pytest.mark.parametrize("threshold", [0, 10**9])
def test_a_failed_save_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold: int
) -> None:
    source = written(tmp_path, with_weight(WEIGHT))
    target = tmp_path / "out.onnx"
    target.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    model = io.load(source)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="No space left") as caught:
        io.save(model, target, external_threshold=threshold)
    assert caught.value.status == 2
    assert target.read_bytes() == b"old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onnx", "out.onnx"]


def test_a_folder_that_does_not_exist_is_a_mistake_of_output(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught:
        io.save(io.load(written(tmp_path, simple())), tmp_path / "none" / "out.onnx")
    assert (caught.value.code, caught.value.status) == ("O130", 2)


def test_a_written_file_has_ordinary_rights(tmp_path: Path) -> None:
    [path] = io.save(io.load(written(tmp_path, simple())), tmp_path / "out.onnx")
    assert path.stat().st_mode == (tmp_path / "m.onnx").stat().st_mode


def test_a_model_too_large_for_one_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "PROTOBUF_LIMIT", 1000)
    with pytest.raises(ModelError, match="one message") as caught:
        io.to_bytes(ir.from_proto(with_weight(WEIGHT)))
    assert caught.value.code == "M105"


def test_a_digest_is_that_of_the_bytes(tmp_path: Path) -> None:
    path = written(tmp_path, with_weight(WEIGHT))
    assert io.sha256_of(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(SettingsError):
        io.sha256_of(tmp_path / "none")


def test_loading_writes_nothing_to_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    normalize.normalize(io.load(written(tmp_path, with_weight(WEIGHT))))
    assert capfd.readouterr() == ("", "")


def large(folder: Path, count: int, each: int) -> Path:
    """A chain of additions whose weights are holes in a sparse file; old enough to be upgraded."""
    data = folder / "large.bin"
    data.touch()
    os.truncate(data, count * each)
    names = ["x", *(f"t{index}" for index in range(count - 1)), "y"]
    nodes = [helper.make_node("Add", [names[i], f"w{i}"], [names[i + 1]]) for i in range(count)]
    nodes.append(helper.make_node("ReduceSum", ["y"], ["z"], axes=[0, 1], keepdims=0))
    proto = with_weight(WEIGHT[:1])
    proto.opset_import[0].version = 11
    proto.graph.ClearField("node")
    proto.graph.ClearField("initializer")
    proto.graph.node.extend(nodes)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", TensorProto.FLOAT, []))
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, each // 16]))
    for index in range(count):
        weight = proto.graph.initializer.add(name=f"w{index}", data_type=TensorProto.FLOAT, dims=[4, each // 16])
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", data.name), ("offset", index * each), ("length", each)):
            weight.external_data.add(key=key, value=str(value))
    return written(folder, proto, "large.onnx")


def through_all_steps(path: Path, **options: int) -> tuple[Path, ...]:
    model = upgrade.upgrade(normalize.normalize(io.load(path))).model
    assert model.opset_imports[""] == 21
    assert all(
        isinstance(value.const_value, ir.ExternalTensor)
        for name, value in model.graph.initializers.items()
        if name.startswith("w")
    )
    return io.save(model, path.with_name("out.onnx"), **options)


def test_a_model_above_the_threshold_is_never_in_memory_whole(tmp_path: Path) -> None:
    files = through_all_steps(large(tmp_path, 3, 4096), external_threshold=8192)
    assert [file.name for file in files] == ["out.onnx", "out.onnx.data"]
    assert run(files[0], np.ones((4, 256), np.float32)) == 1024


@pytest.mark.slow
def test_a_model_over_two_gigabytes_loads_upgrades_and_saves(tmp_path: Path) -> None:
    files = through_all_steps(large(tmp_path, 11, 200 * 2**20))
    assert files[1].stat().st_size == 11 * 200 * 2**20 > 2**31
    assert io.size_of_weights(io.load(files[0])) > 2**31
    files[1].unlink()
