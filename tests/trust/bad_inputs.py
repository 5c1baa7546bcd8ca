"""Everything wrong that a file can hold: models, weights beside them, inputs, labels, and files that people edit."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.zoo import ZOO, data

Make = Callable[[Path], object]
"""Writes a file at a path."""

DEEP = 100_000
F = TensorProto.FLOAT


def small() -> onnx.ModelProto:
    """A float model that every command takes."""
    return ZOO["residual_cnn"]()


def _written(content: bytes | str) -> Make:
    return lambda path: path.write_bytes(content.encode() if isinstance(content, str) else content)


def _edited(edit: Callable[[onnx.ModelProto], object]) -> Make:
    def make(path: Path) -> None:
        proto = small()
        edit(proto)
        path.write_bytes(proto.SerializeToString())

    return make


def _with_input_shape(*shape: int) -> Callable[[onnx.ModelProto], None]:
    def edit(proto: onnx.ModelProto) -> None:
        dims = proto.graph.input[0].type.tensor_type.shape
        del dims.dim[:]
        for size in shape:
            dims.dim.add(dim_value=size)

    return edit


def _zipped(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", content)
    return buffer.getvalue()


def _raw_tensor(proto: onnx.ModelProto) -> onnx.TensorProto:
    return next(tensor for tensor in proto.graph.initializer if tensor.raw_data)


def _first_weight(change: Callable[[onnx.TensorProto], object]) -> Make:
    return _edited(lambda proto: change(_raw_tensor(proto)))


def _attribute(name: str, **value: object) -> Callable[[onnx.ModelProto], None]:
    return lambda proto: proto.graph.node[0].attribute.append(helper.make_attribute(name, **value))


def _drop_input_type(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].ClearField("type")


def _circle(proto: onnx.ModelProto) -> None:
    first, last = proto.graph.node[0], proto.graph.node[-1]
    first.input[0] = last.output[0]


def _recursive(proto: onnx.ModelProto) -> None:
    call = helper.make_node("f", ["a"], ["b"], domain="own")
    proto.functions.append(helper.make_function("own", "f", ["a"], ["b"], [call], [helper.make_opsetid("own", 1)]))


def _sparse(proto: onnx.ModelProto) -> None:
    values = helper.make_tensor("s", F, [1], [1.0])
    proto.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, helper.make_tensor("i", TensorProto.INT64, [1], [0]), [4])
    )


MODELS: dict[str, Make] = {
    "empty": _written(b""),
    "a byte": _written(b"\x00"),
    "zeros": _written(bytes(4096)),
    "noise": lambda path: path.write_bytes(np.random.default_rng(0).bytes(4096)),
    "text": _written("this is no model\n" * 20),
    "a web page": _written("<!DOCTYPE html><html><body>404</body></html>"),
    "a git-lfs pointer": _written("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
    "a pickle": _written(pickle.dumps({"weights": [1, 2, 3]}, protocol=4)),
    "a zip archive": _written(_zipped(b"weights")),
    "a gzip archive": _written(gzip.compress(b"weights" * 100)),
    "an hdf5 file": _written(b"\x89HDF\r\n\x1a\n" + bytes(200)),
    "a tflite model": _written(b"\x1c\x00\x00\x00TFL3" + bytes(200)),
    "an ort model": _written(b"\x1c\x00\x00\x00ORTM" + bytes(200)),
    "safetensors": _written(struct.pack("<Q", 2) + b'{"a":1}' + bytes(100)),
    "cut in half": lambda path: path.write_bytes((whole := small().SerializeToString())[: len(whole) // 2]),
    "its last byte missing": lambda path: path.write_bytes(small().SerializeToString()[:-1]),
    "a byte flipped in its head": lambda path: path.write_bytes(b"\xff" + small().SerializeToString()[1:]),
    "no graph": _edited(lambda proto: proto.ClearField("graph")),
    "no nodes": _edited(lambda proto: proto.graph.ClearField("node")),
    "no opset": _edited(lambda proto: proto.ClearField("opset_import")),
    "an opset of the future": _edited(lambda proto: setattr(proto.opset_import[0], "version", 9999)),
    "an IR of the future": _edited(lambda proto: setattr(proto, "ir_version", 9999)),
    "two opsets": _edited(lambda proto: proto.opset_import.append(helper.make_opsetid("", 13))),
    "an input without a type": _edited(_drop_input_type),
    "a name twice": _edited(lambda proto: proto.graph.node.append(proto.graph.node[0])),
    "a tensor that nothing makes": _edited(lambda proto: proto.graph.node[0].input.__setitem__(0, "nobody")),
    "an output that nothing makes": _edited(lambda proto: setattr(proto.graph.output[0], "name", "nobody")),
    "a circle": _edited(_circle),
    "a function that calls itself": _edited(_recursive),
    "an unknown attribute": _edited(_attribute("banana", value=3)),
    "an attribute of another type": _edited(_attribute("auto_pad", value=[1, 2])),
    "too many inputs": _edited(lambda proto: proto.graph.node[0].input.extend(["x"] * 20)),
    "no inputs": _edited(lambda proto: proto.graph.node[0].ClearField("input")),
    "weights too short": _first_weight(lambda tensor: setattr(tensor, "raw_data", tensor.raw_data[:-1])),
    "weights too long": _first_weight(lambda tensor: setattr(tensor, "raw_data", tensor.raw_data + b"\0")),
    "weights of a negative shape": _first_weight(lambda tensor: tensor.dims.__setitem__(0, -1)),
    "weights of a huge shape": _first_weight(lambda tensor: tensor.dims.__setitem__(0, 1 << 62)),
    "weights of no type": _first_weight(lambda tensor: setattr(tensor, "data_type", 0)),
    "weights of an unknown type": _first_weight(lambda tensor: setattr(tensor, "data_type", 4711)),
    "sparse weights": _edited(_sparse),
    "a name that steers the terminal": _edited(lambda proto: setattr(proto.graph.node[0], "name", "\x1b[2J")),
    "an attribute without a type": _edited(lambda proto: proto.graph.node[0].attribute.add(name="group")),
}
"""No command takes one of these."""

UNRUNNABLE: dict[str, Make] = {
    "an input of 2^40": _edited(_with_input_shape(1, 3, 1 << 40, 8)),
    "an input of 2^62": _edited(_with_input_shape(1 << 62, 3, 1 << 62, 8)),
    "an input of size 0": _edited(_with_input_shape(1, 3, 0, 8)),
    "an operator of nobody": _edited(lambda proto: setattr(proto.graph.node[0], "op_type", "Banana")),
    "shapes that do not fit": _edited(_with_input_shape(1, 7, 8, 8)),
}
"""These can be described, and not run."""


def _outside(**entries: str) -> Make:
    """A model whose first weight is outside, with these entries in place of the right ones."""

    def make(path: Path) -> None:
        proto = small()
        tensor = _raw_tensor(proto)
        content = tensor.raw_data
        (path.parent / "weights.bin").write_bytes(content)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        right = {"location": "weights.bin", "offset": "0", "length": str(len(content))}
        for key, value in {**right, **entries}.items():
            tensor.external_data.add(key=key, value=value)
        path.write_bytes(proto.SerializeToString())

    return make


def _linked(path: Path) -> None:
    _outside()(path)
    (path.parent / "weights.bin").unlink()
    os.symlink("/etc/hostname", path.parent / "weights.bin")


EXTERNAL: dict[str, Make] = {
    "a file that is not there": _outside(location="missing.bin"),
    "an absolute path": _outside(location="/etc/hostname"),
    "a path that climbs": _outside(location="../weights.bin"),
    "a folder": _outside(location="."),
    "no path": _outside(location=""),
    "a backslash": _outside(location="a\\b"),
    "a zero byte": _outside(location="a\0b"),
    "a long path": _outside(location="a" * 5000),
    "a device": _outside(location="dev/zero"),
    "a link": _linked,
    "an offset of 5,000 digits": _outside(offset="9" * 5000),
    "a negative offset": _outside(offset="-1"),
    "an offset in words": _outside(offset="zero"),
    "an offset beyond the end": _outside(offset="100000000"),
    "a negative length": _outside(length="-8"),
    "a length of 5,000 digits": _outside(length="9" * 5000),
    "a length that differs": _outside(length="4"),
    "an unknown key": _outside(banana="1"),
}


def _arrays(**arrays: np.ndarray) -> Make:
    return lambda path: np.savez(path, **arrays)


def _rows() -> dict[str, np.ndarray]:
    return data(small(), 8)


def _changed(change: Callable[[np.ndarray], np.ndarray]) -> Make:
    return lambda path: np.savez(path, **{name: change(array) for name, array in _rows().items()})


def _npy_header(shape: str, descr: str = "<f4") -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()


def _npz_of(content: bytes, name: str = "x") -> Make:
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{name}.npy", content)

    return make


INPUT = next(iter(_rows()))

DATA: dict[str, Make] = {
    "empty": _written(b""),
    "noise": lambda path: path.write_bytes(np.random.default_rng(0).bytes(4096)),
    "text": _written("no arrays"),
    "an empty archive": _arrays(),
    "cut in half": lambda path: (np.savez(path, **_rows()), path.write_bytes(path.read_bytes()[:-200])),
    "a pickle in it": lambda path: np.savez(path, **{INPUT: np.array([{"a": 1}], dtype=object)}),
    "another name": _arrays(banana=np.zeros((4, 3, 8, 8), np.float32)),
    "another rank": _changed(lambda array: array[0]),
    "another shape": _changed(lambda array: array[:, :, :3]),
    "no rows": _changed(lambda array: array[:0]),
    "texts": _changed(lambda array: array.astype(str)),
    "complex numbers": _changed(lambda array: array.astype(np.complex64)),
    "not a number": _changed(lambda array: array * np.float32(np.nan)),
    "infinities": _changed(lambda array: array * np.float32(np.inf)),
    "an array of 2^40 rows that is not there": _npz_of(_npy_header("(1099511627776, 3, 8, 8)"), INPUT),
    "an array of negative size": _npz_of(_npy_header("(-4, 3, 8, 8)"), INPUT),
    "a header that is no header": _npz_of(b"\x93NUMPY\x01\x00" + struct.pack("<H", 60) + b"banana".ljust(60), INPUT),
    "a header that is code": _npz_of(_npy_header("__import__('os')"), INPUT),
    "another file in it": _npz_of(b"text", INPUT),
}

LABELS: dict[str, Make] = {
    "empty": _written(b""),
    "noise": lambda path: path.write_bytes(np.random.default_rng(0).bytes(4096)),
    "fractions": lambda path: np.savez(path, labels=np.zeros(8, np.float32)),
    "too few": lambda path: np.savez(path, labels=np.zeros(3, np.int64)),
    "too many": lambda path: np.savez(path, labels=np.zeros(3001, np.int64)),
    "a pickle": lambda path: np.savez(path, labels=np.array([{"a": 1}], dtype=object)),
    "another output": lambda path: np.savez(path, banana=np.zeros(8, np.int64)),
    "an array of 2^40 labels that is not there": _npz_of(_npy_header("(1099511627776,)", "<i8"), "labels"),
}

_TEXTS: dict[str, Make] = {
    "empty": _written(b""),
    "no text": _written(b"\xff\xfe\x00banana\x80"),
    "zero bytes": _written(bytes(100)),
    "only a word": _written("banana"),
    "a string without an end": _written('a = "banana'),
    "deeply nested lists": _written("a = " + "[" * DEEP + "]" * DEEP),
    "a deeply nested key": _written(".".join("a" * 5000) + " = 1"),
    "deeply nested tables": _written("[" + ".".join("a" * 5000) + "]"),
    "an empty table": _written("[]"),
    "an unknown table": _written("[banana]\na = 1\n"),
    "an unknown key": _written("banana = 1\n"),
    "a key twice": _written("precision = 'int8'\nprecision = 'uint8'\n"),
    "a number of 5,000 digits": _written("a = " + "9" * 5000),
    "a date": _written("precision = 1979-05-27\n"),
}

CONFIGS: dict[str, Make] = {
    **{name: make for name, make in _TEXTS.items() if name != "empty"},
    "a precision that nobody knows": _written("precision = 'banana'\n"),
    "a list for a word": _written("precision = ['uint8']\n"),
    "a word for a table": _written("quant = 'banana'\n"),
    "a number for a table": _written("compile = 3\n"),
    "a negative number": _written("[quant]\nsamples = -1\n"),
    "infinity": _written("min_sqnr = inf\n"),
    "both homes of a setting": _written("[quant]\nsamples = 1\n[compile.quant]\nsamples = 2\n"),
    "an unknown device": _written("[compile]\ndevice = 'banana'\n"),
    "a size of 0": _written("[dims]\nn = 0\n"),
    "a dimension that is not there": _written("[dims]\nbanana = 4\n"),
    "an array of tables": _written("[[quant]]\nsamples = 1\n"),
}

JSON_CONFIGS: dict[str, Make] = {
    "empty": _written(b""),
    "no JSON": _written("{banana"),
    "a list": _written("[]"),
    "a number": _written("3"),
    "null": _written("null"),
    "deeply nested lists": _written("[" * DEEP + "]" * DEEP),
    "deeply nested objects": _written('{"a":' * DEEP + "1" + "}" * DEEP),
    "a key twice": _written('{"precision": "int8", "precision": "uint8"}'),
    "an unknown key": _written('{"banana": 1}'),
    "not a number": _written('{"min_sqnr": NaN}'),
    "a number of 5,000 digits": _written('{"quant": {"samples": ' + "9" * 5000 + "}}"),
    "half a character": _written('{"precision": "\\ud800"}'),
}

PLANS: dict[str, Make] = {
    **_TEXTS,
    "a node that is not there": _written("[nodes]\nbanana = 'uint8'\n"),
    "a type that is none": _written("[nodes]\nConv_0 = 'banana'\n"),
    "strings for rows": _written("nodes = 'banana'\n"),
    "settings that are a number": _written("settings = 3\n"),
    "grids that are a list": _written("grids = [1]\n"),
    "a range upside down": _written("[grids.x.range]\nlow = 2.0\nhigh = 1.0\n"),
}

ENCODINGS: dict[str, Make] = {
    **{name: make for name, make in JSON_CONFIGS.items() if name not in ("not a number",)},
    "no tensors": _written("{}"),
    "a version of the future": _written('{"version": "99.0.0", "activation_encodings": [], "param_encodings": []}'),
    "a word for encodings": _written('{"version": "1.0.0", "activation_encodings": "banana", "param_encodings": []}'),
    "a list of numbers": _written('{"version": "1.0.0", "activation_encodings": [1], "param_encodings": [2]}'),
    "no name": _written('{"version": "1.0.0", "activation_encodings": [{"bw": 8}], "param_encodings": []}'),
    "a scale of 0": _written(
        json.dumps(
            {
                "version": "0.6.1",
                "activation_encodings": {"x": [{"bitwidth": 8, "scale": 0, "offset": 0, "min": 0, "max": 0}]},
                "param_encodings": {},
            }
        )
    ),
    "bits of a million": _written(
        json.dumps(
            {
                "version": "0.6.1",
                "activation_encodings": {"x": [{"bitwidth": 10**6, "scale": 1, "offset": 0, "min": 0, "max": 1}]},
                "param_encodings": {},
            }
        )
    ),
    "bits of 1e400": _written(
        '{"version": "0.6.1", "activation_encodings": {"x": [{"bitwidth": 1e400, "scale": 1, "offset": 0}]}, '
        '"param_encodings": {}}'
    ),
}

TABLES: dict[str, Make] = {
    **_TEXTS,
    "no name": _written("[target]\nnpu = true\n"),
    "a word for npu": _written("[target]\nname = 'a'\nnpu = 'banana'\n"),
    "operators that are a list": _written("op = [1]\n[target]\nname = 'a'\n"),
    "a predicate of nobody": _written(
        "[target]\nname = 'a'\nnpu = true\n[op.Conv]\nsource = 's'\nrequire = [{ check = 'banana' }]\n"
    ),
}

MANIFESTS: dict[str, Make] = {
    **JSON_CONFIGS,
    "an empty object": _written("{}"),
    "artifacts in words": _written('{"artifacts": "banana"}'),
}


def compiled(path: Path, **attributes: object) -> None:
    """A model that says of itself that a vendor has compiled it."""
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **attributes)
    ports = [helper.make_tensor_value_info(name, F, [1, 4]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)


COMPILED: dict[str, Make] = {
    "no attributes": compiled,
    "another maker": lambda path: compiled(path, source="banana", embed_mode=1, ep_cache_context=b"x"),
    "a binary that is not there": lambda path: compiled(path, source="Qnn", embed_mode=0, ep_cache_context="no.bin"),
    "a binary outside": lambda path: compiled(path, source="Qnn", embed_mode=0, ep_cache_context="/etc/hostname"),
    "a binary above": lambda path: compiled(path, source="Qnn", embed_mode=0, ep_cache_context="../a.bin"),
    "noise inside": lambda path: compiled(path, source="Qnn", embed_mode=1, ep_cache_context=b"\x00" * 64),
}
