"""Reading models safely and writing them whole: the one place where files and protobuf meet the program.

Loading runs nothing that a file holds and reads nothing outside the folder of the model. Weights outside the file
stay on the disk, memory-mapped.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]

from intact import scratch
from intact.errors import ModelError, about
from intact.model import (
    context_binaries,
    external,
    message,
    normalize,
    proto_check,
    proto_normalize,
    schema_check,
    sniff,
    streamed,
    upgrade,
)
from intact.model.copying import copied, shape_of, shared
from intact.model.ordinary_file import MODEL_FILE, check_ordinary, reading

# Protobuf refuses messages of 2 GiB; the graph itself needs room beside the weights.
PROTOBUF_LIMIT = 2**31 - 1
EXTERNAL_THRESHOLD = 3 * 2**29
# A session takes a copy of a constant that is smaller in less time than it finds it elsewhere.
COPIED_BYTES = 1 << 14

# Its number among the graphs of a model: bodies of nodes come behind it.
MAIN_GRAPH = 0

# Constants of so many bytes go into a file one by one: bytes that a message holds are in memory three times.
STREAMED_BYTES = 1 << 20

CHUNK = 1 << 22

REPEATED = "repeated_constants"
"""The key in `meta` of a loaded model for the names of constants that its file defines more than once."""


def load(path: str | os.PathLike[str]) -> ir.Model:
    """Read the model in the file `path`, checked, with its nodes sorted and each under a name of its own."""
    with about(path):
        return _load(Path(path))


def _load(file: Path) -> ir.Model:
    proto = _parse(file)
    proto_check.check_header(proto, onnx.IR_VERSION, _newest_opsets())
    proto_check.check_text(proto)
    proto_normalize.complete_imports(proto)
    proto_check.check_inputs(proto.graph)
    proto_check.check_no_sparse(proto)
    repeated = proto_normalize.keep_last_constants(proto.graph)
    proto_check.check_names(proto.graph)
    for function in proto.functions:
        proto_check.check_function_names(function)
    proto_check.check_no_recursion(proto.functions)
    proto_check.check_expansion(proto)
    roots = _check_tensors(proto, file)
    proto_normalize.forget_maps(proto.graph)
    model = _deserialize(proto)
    model.meta[REPEATED] = repeated
    for tensor in tensors_of(model):
        if isinstance(tensor, ir.ExternalTensor):
            tensor.base_dir = roots[os.fspath(tensor.location)]
    _unpack(model)
    normalize.sort_nodes(model)
    normalize.name_nodes(model)
    schema_check.check_nodes(model)
    context_binaries.check(file, model)
    return model


def save(
    model: ir.Model, path: str | os.PathLike[str], *, external_threshold: int = EXTERNAL_THRESHOLD
) -> tuple[Path, ...]:
    """Write `model` to `path` and return the files written; the same model always gives the same bytes.

    Weights of more than `external_threshold` bytes in all go to `<path>.data` beside it. Each file appears whole:
    it is written under another name and then renamed, the weights first.
    """
    target = Path(path)
    data = target.with_name(f"{target.name}.data")
    with _output_errors(target):
        if size_of_weights(model) <= external_threshold:
            _write_inside(target, model)
            return (target,)
        with _renamed_when_done(data) as file:
            outside = external.write_weights(model, file, data.name)
        _write_whole(target, _serialize(_message(model, outside)))
        return (target, data)


def _write_inside(target: Path, model: ir.Model) -> None:
    """Write a model with its weights in one file; large ones go there one by one."""
    large: dict[str, ir.TensorProtocol] = {}
    for name, value in model.graph.initializers.items() if message.is_flat(model) else ():
        tensor = None if value.const_value is None else _inside(value.const_value)
        if tensor is not None and tensor.nbytes >= STREAMED_BYTES and message.is_written_plainly(tensor):
            large[name] = tensor
    if not large:
        _write_whole(target, to_bytes(model))
        return
    empty = {f"{MAIN_GRAPH}:{name}": message.Emptied(tensor.numpy(), name=name) for name, tensor in large.items()}
    arrays = {name: np.require(tensor.numpy(), requirements=["C"]) for name, tensor in large.items()}
    content = _serialize(_message(model, empty))
    if (size := streamed.size_with(content, arrays)) > PROTOBUF_LIMIT:
        raise _too_large(size)
    with _renamed_when_done(target) as file:
        streamed.write(file, content, arrays)


def to_bytes(model: ir.Model) -> bytes:
    """The whole model as one protobuf message, weights included."""
    return _serialize(_message(model, {}))


def without_weights(model: ir.Model) -> tuple[bytes, dict[str, np.ndarray]]:
    """The model as a message that leaves the larger constants out, and those in use, by name, as arrays."""
    found = [(value, value.const_value) for value in model.graph.initializers.values()]
    plain = [(value, tensor) for value, tensor in found if tensor is not None and _is_plain(tensor)]
    large = [(value, tensor) for value, tensor in plain if _bytes_of(tensor) >= COPIED_BYTES]
    hollow = {f"{MAIN_GRAPH}:{value.name}": external.hollow(tensor, value.name or "") for value, tensor in large}
    arrays = {
        value.name or "": np.require(tensor.numpy(), requirements=["C", "A"])
        for value, tensor in large
        if value.uses() or value.is_graph_output()
    }
    return _serialize(_message(model, hollow, described=False)), arrays


def size_of_weights(model: ir.Model) -> int:
    """Bytes of all constant tensors of the model, wherever they are stored."""
    return sum(tensor.nbytes for tensor in tensors_of(model))


def nonfinite_weights(model: ir.Model) -> list[str]:
    """Names of the initializers that hold a NaN or an infinity, in the order of the model."""
    return [
        value.name or ""
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None and not _all_finite(value.const_value)
    ]


def files_of(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The model file and the weight files that it refers to, in the order in which it names them."""
    file = Path(path)
    proto = _parse(file)
    locations = {
        external.reference(name, ((entry.key, entry.value) for entry in tensor.external_data)).location: name
        for name, tensor in proto_check.tensors_of(proto)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }
    return (file, *(external.locate(file, location, name).path for location, name in locations.items()))


def sha256_of(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of the bytes of one file, read in pieces."""
    check_ordinary(Path(path))
    with reading(Path(path)), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parse(file: Path) -> onnx.ModelProto:
    content = _read(file)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError as problem:
        raise _not_a_model(file, content) from problem
    if not proto.HasField("graph") and sniff.kind_of(content[: sniff.HEAD_BYTES]) is not None:
        raise _not_a_model(file, content)
    return proto


def _read(file: Path) -> bytes:
    status = check_ordinary(file)
    if status.st_size > PROTOBUF_LIMIT:
        raise ModelError(
            "M105",
            f"{file} has {status.st_size} bytes in one file, more than an ONNX file can have",
            allowed=f"up to {PROTOBUF_LIMIT} bytes, with the weights outside",
            fix="save the model with external data",
        )
    with reading(file):
        content = file.read_bytes()
    if not content:
        raise ModelError("M102", f"{file} is empty", allowed=MODEL_FILE, fix="copy or download it again")
    return content


def _not_a_model(file: Path, content: bytes) -> ModelError:
    known = sniff.kind_of(content[: sniff.HEAD_BYTES])
    if known is not None:
        return ModelError("M101", f"{file} is {known[0]}", allowed=MODEL_FILE, fix=known[1])
    return ModelError(
        "M103",
        f"{file} cannot be read as ONNX: it is truncated, damaged, or something else",
        allowed=MODEL_FILE,
        fix="compare its size with the original's, and copy or download it again",
    )


def _newest_opsets() -> dict[str, int]:
    newest: dict[str, int] = {}
    for domain, version in onnx.helper.OP_SET_ID_VERSION_MAP:
        name = "" if domain == proto_check.DOMAIN_ALIAS else domain
        newest[name] = max(version, newest.get(name, 0))
    return newest


def _check_tensors(proto: onnx.ModelProto, file: Path) -> dict[str, Path]:
    """Check the data of every tensor; return the folder of each weight file, by the name that tensors now give it."""
    roots: dict[str, Path] = {}
    located: dict[str, external.Located] = {}
    for name, tensor in proto_check.tensors_of(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            proto_check.check_tensor(name, tensor)
            continue
        found = external.reference(name, ((entry.key, entry.value) for entry in tensor.external_data))
        needed = proto_check.bytes_needed(name, tensor)
        if found.location not in located:
            located[found.location] = external.locate(file, found.location, name)
        target = located[found.location]
        external.check_span(name, found, target, needed)
        if roots.setdefault(target.name, target.root) != target.root:
            raise ModelError("M113", f"two weight files are both called {target.name!r}", allowed=external.CONFINED)
        del tensor.external_data[:]
        for key, value in (("location", target.name), ("offset", found.offset), ("length", needed)):
            tensor.external_data.add(key=key, value=str(value))
    return roots


def _deserialize(proto: onnx.ModelProto) -> ir.Model:
    try:
        return ir.serde.deserialize_model(proto)
    except (ir.serde.SerdeError, ValueError, TypeError, NotImplementedError) as problem:
        cause: BaseException = problem
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ModelError("M117", f"the model holds something that cannot be represented: {cause}") from problem


def _unpack(model: ir.Model) -> None:
    """Keep constants as arrays: a message reads its bytes again whenever it is asked for them.

    Those of the same sizes share one shape, which takes half a kilobyte.
    """
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _unpacked(value.const_value)
            if value.shape is not None and not value.is_graph_input():
                value.shape = shared(value.shape)


def _unpacked(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if type(tensor) is ir.Tensor:
        return tensor  # as most are: asking for the class of a tensor takes long
    if not (isinstance(tensor, ir.serde.TensorProtoTensor) and _is_plain(tensor)):
        return tensor
    array = tensor.numpy()
    return ir.Tensor(
        array,
        shape=shape_of(array.shape),
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=tensor.metadata_props,
    )


def _is_plain(tensor: ir.TensorProtocol) -> bool:
    """True if a tensor is of a type that numpy has itself."""
    return message.is_plain(tensor.dtype)


def _bytes_of(tensor: ir.TensorProtocol) -> int:
    """The size of a tensor of a type that numpy has itself."""
    return tensor.numpy().nbytes if type(tensor) is ir.Tensor else tensor.nbytes


def tensors_of(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Every constant tensor: initializers, and attributes of nodes, in all graphs and functions."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
    for body in upgrade.bodies_of(model):
        for node in ir.traversal.RecursiveGraphIterator(body):
            for attribute in node.attributes.values():
                yield from _attribute_tensors(attribute)


def _attribute_tensors(attribute: ir.Attr) -> tuple[ir.TensorProtocol, ...]:
    if attribute.is_ref():
        return ()
    if attribute.type == ir.AttributeType.TENSOR:
        return (attribute.as_tensor(),)
    return tuple(attribute.as_tensors()) if attribute.type == ir.AttributeType.TENSORS else ()


def _all_finite(tensor: ir.TensorProtocol) -> bool:
    if not tensor.dtype.is_floating_point():
        return True
    values = tensor.numpy().reshape(-1)
    return all(np.isfinite(values[start : start + CHUNK]).all() for start in range(0, values.size, CHUNK))


def _message(model: ir.Model, outside: Mapping[str, ir.TensorProtocol], *, described: bool = True) -> onnx.ModelProto:
    """The message of `model`, whose initializers are those in `outside`, or else hold their data themselves."""
    if not message.is_flat(model):
        return ir.serde.serialize_model(_with_tensors(model, outside))
    constants = model.graph.initializers.items()
    found = {
        value: outside.get(f"{MAIN_GRAPH}:{name}") or _inside(value.const_value)
        for name, value in constants
        if value.const_value is not None
    }
    return message.of(model, found, described=described)


def _with_tensors(model: ir.Model, outside: Mapping[str, ir.TensorProtocol]) -> ir.Model:
    """A copy of `model` whose initializers are those in `outside`, or else hold their data themselves."""
    result = copied(model)
    for number, graph in enumerate(result.graphs()):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = outside.get(f"{number}:{value.name}") or _inside(value.const_value)
    for body in upgrade.bodies_of(result):
        for node in ir.traversal.RecursiveGraphIterator(body):
            for attribute in tuple(node.attributes.values()):
                tensors = _attribute_tensors(attribute)
                if any(isinstance(tensor, ir.ExternalTensor) for tensor in tensors):
                    node.attributes.add(_attribute_with(attribute, [_inside(tensor) for tensor in tensors]))
    return result


def _attribute_with(attribute: ir.Attr, tensors: list[ir.TensorProtocol]) -> ir.Attr:
    if attribute.type == ir.AttributeType.TENSOR:
        return ir.AttrTensor(attribute.name, tensors[0])
    return ir.AttrTensors(attribute.name, tensors)


def _inside(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The tensor with its data in it, written in one way whichever of the fields of a message held it before."""
    if type(tensor) is ir.Tensor or not isinstance(tensor, ir.ExternalTensor):
        return _unpacked(tensor)
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name, doc_string=tensor.doc_string)


def _serialize(proto: onnx.ModelProto) -> bytes:
    try:
        content: bytes = proto.SerializeToString(deterministic=True)
    except EncodeError:
        raise _too_large(proto.ByteSize()) from None
    # Asking for the size beforehand would write the whole message a second time.
    if len(content) > PROTOBUF_LIMIT:
        raise _too_large(len(content))
    return content


def _too_large(size: int) -> ModelError:
    return ModelError(
        "M105",
        f"the model needs {size} bytes in one message",
        allowed=f"up to {PROTOBUF_LIMIT} bytes",
        fix="save it to a file, with its weights outside",
    )


def _write_whole(target: Path, content: bytes) -> None:
    with _renamed_when_done(target) as file:
        file.write(content)


@contextmanager
def _renamed_when_done(target: Path) -> Iterator[BinaryIO]:
    """A new file beside `target` that takes its name when the block ends, and is gone when the block fails."""
    with scratch.draft(target) as draft, open(draft, "wb") as file:
        yield file


@contextmanager
def _output_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise scratch.refusal(target, problem) from problem
