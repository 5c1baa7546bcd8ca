"""The kinds of files that are fuzzed, and the property: a file is taken, or refused with a status from 1 to 5."""

from __future__ import annotations

import contextlib
import io
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

import intact
from intact.cli import main
from tests.fuzz.mutations import Draw, edit_message, edited_bytes, edited_text
from tests.trust import bad_inputs, bombs
from tests.zoo import ZOO, data

STATUSES = range(6)


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of file: its ending, how a wrong one is drawn, and the command that reads it; `{bad}` is the file."""

    suffix: str
    drawn: Callable[[Draw, Path], bytes]
    commands: tuple[str, ...]


class NotRefusedRightly(AssertionError):
    """A file that is neither taken nor refused as it should be."""


def check(target: Target, content: bytes, folder: Path) -> None:
    """Let the commands of a target read a file of this content; what they make of it has to load."""
    bad = folder / f"bad{target.suffix}"
    bad.write_bytes(content)
    for number, command in enumerate(target.commands):
        out = folder / f"out{number}.onnx"
        words = command.format(bad=bad, out=out, **_right()).split()
        status, told = _run(words)
        if status not in STATUSES or (status and "error[" not in told and status != 1):
            raise NotRefusedRightly(f"intact {' '.join(words)}: status {status}\n{told}")
        if out.exists():
            _load(out)
            out.unlink()


def _run(words: list[str]) -> tuple[object, str]:
    told = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["intact", *words]),
        contextlib.redirect_stderr(told),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            main.main()
        except SystemExit as end:
            return end.code or 0, told.getvalue()
    return 0, told.getvalue()


def _load(path: Path) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise NotRefusedRightly(f"what was written does not load: {error}") from error


@cache
def _folder() -> Path:
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    (folder / "model.onnx").write_bytes(small().SerializeToString())
    np.savez(folder / "data.npz", **data(small(), 8))
    intact.quantize(folder / "model.onnx", effort="fast", output=folder / "q.onnx")
    intact.plan(folder / "model.onnx", output=folder / "plan.toml")
    intact.encodings(folder / "q.onnx", output=folder / "encodings.json")
    intact.encodings(folder / "q.onnx", output=folder / "encodings2.json", format="aimet-2.0.0")
    return folder


def _right() -> dict[str, Path]:
    """Files that are right, for what is not fuzzed."""
    return {"model": _folder() / "model.onnx", "data": _folder() / "data.npz", "quantized": _folder() / "q.onnx"}


@cache
def small() -> onnx.ModelProto:
    return ZOO["residual_cnn"]()


@cache
def _models() -> tuple[onnx.ModelProto, ...]:
    quantized = onnx.load(_folder() / "q.onnx")
    return (small(), quantized, bombs.loop(limit=2), bombs.functions(depth=3), ZOO["bert"]())


def _model(draw: Draw, folder: Path) -> bytes:
    from hypothesis import strategies as st

    seed = draw(st.sampled_from(_models()))
    if draw(st.integers(0, 3)) == 0:
        return edited_bytes(seed.SerializeToString(), draw)
    proto = onnx.ModelProto()
    proto.CopyFrom(seed)
    edit_message(proto, draw)
    return proto.SerializeToString()


def _external(draw: Draw, folder: Path) -> bytes:
    proto = onnx.ModelProto()
    bad_inputs._outside()(folder / "seed.onnx")
    proto.ParseFromString((folder / "seed.onnx").read_bytes())
    tensor = next(one for one in proto.graph.initializer if one.data_location == TensorProto.EXTERNAL)
    edit_message(tensor, draw)
    return proto.SerializeToString()


def _compiled(draw: Draw, folder: Path) -> bytes:
    bad_inputs.compiled(folder / "seed.onnx", source="Qnn", embed_mode=1, ep_cache_context=b"\0" * 32)
    proto = onnx.ModelProto()
    proto.ParseFromString((folder / "seed.onnx").read_bytes())
    edit_message(proto, draw)
    return proto.SerializeToString()


def _npz(draw: Draw, folder: Path) -> bytes:
    from hypothesis import strategies as st

    whole = (_folder() / "data.npz").read_bytes()
    if draw(st.booleans()):
        return edited_bytes(whole, draw)
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, edited_bytes(content[:128], draw) + content[128:])
    return buffer.getvalue()


def _text(*seeds: Callable[[], str]) -> Callable[[Draw, Path], bytes]:
    from hypothesis import strategies as st

    def drawn(draw: Draw, folder: Path) -> bytes:
        seed = draw(st.sampled_from(range(len(seeds))))
        text = edited_text(seeds[seed](), draw)
        content = text.encode("utf-8", "replace")
        return edited_bytes(content, draw) if draw(st.integers(0, 9)) == 0 else content

    return drawn


def _table() -> str:
    return (Path(intact.__file__).parent / "backends/dml/table.toml").read_text(encoding="utf-8")


SETTINGS = """precision = "uint8"
min_sqnr = 3.5
[dims]
[quant]
samples = 4
effort = "fast"
exclude_op_types = ["Add"]
[quant.overrides.x]
low = -1.0
high = 1.0
[compile]
device = "cpu"
"""

TARGETS = {
    "models": Target(".onnx", _model, ("inspect {bad}", "lint {bad}", "quantize {bad} --effort fast -o {out}")),
    "external": Target(".onnx", _external, ("inspect {bad}", "quantize {bad} --effort fast -o {out}")),
    "compiled": Target(".onnx", _compiled, ("inspect {bad}", "lint {bad}", "plan {bad} -o {out}")),
    "npz": Target(".npz", _npz, ("verify {model} {model} --data {bad}",)),
    "settings": Target(".toml", _text(lambda: SETTINGS), ("plan {model} --config {bad} -o {bad}.plan",)),
    "plans": Target(
        ".toml",
        _text(lambda: (_folder() / "plan.toml").read_text()),
        ("plan {model} --plan {bad} --overwrite -o {bad}.plan",),
    ),
    "encodings": Target(
        ".json",
        _text(
            lambda: (_folder() / "encodings.json").read_text(),
            lambda: (_folder() / "encodings2.json").read_text(),
        ),
        ("encodings diff {bad} {quantized}",),
    ),
    "tables": Target(".toml", _text(_table), ("plan {model} --device {bad} --overwrite -o {bad}.plan",)),
}
