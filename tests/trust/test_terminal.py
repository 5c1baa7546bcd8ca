"""Names of models, files and data never steer the terminal, and never forge a line of a message."""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import intact
from intact.cli import console, main
from intact.errors import ModelError, printable

CLEAR = "\x1b[2J\x1b]0;title\x07"
FORGED = "x\nerror[M101]: forged"
CLI = Path(main.__file__).parent


def model(path: Path, *, node: str = "n", inner: str = "a", op: str = "Relu", port: str = "x") -> Path:
    nodes = [helper.make_node(op, [port], [inner], name=node), helper.make_node("Abs", [inner], ["y"])]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in (port, "y")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


@pytest.mark.parametrize("name", [CLEAR, FORGED, "\u202ereversed", "tab\there", "\x9b2J", "\x7f"])
@pytest.mark.parametrize("place", ["node", "inner", "op", "port"])
def test_a_model_with_such_a_name_is_refused_when_it_is_read(place: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="control characters") as error:
        intact.load(model(tmp_path / "m.onnx", **{place: name}))
    assert error.value.code == "M123" and printable(str(error.value)) == str(error.value)
    assert "forged" not in str(error.value).partition("\n")[2]


@pytest.mark.parametrize("name", ["größe", "层/卷积", "a b", "x:0", "/model/layers.0/Add", "\u3000"])
def test_a_name_of_any_language_is_taken(name: str, tmp_path: Path) -> None:
    assert intact.load(model(tmp_path / "m.onnx", node=name, inner=name + "'"))


def test_text_of_the_author_is_no_name(tmp_path: Path) -> None:
    proto = onnx.load(model(tmp_path / "m.onnx"))
    proto.doc_string = proto.graph.doc_string = "two\nlines"
    proto.metadata_props.add(key="notes", value="two\nlines")
    onnx.save(proto, tmp_path / "m.onnx")
    assert intact.load(tmp_path / "m.onnx")


@pytest.mark.parametrize("command", ["build", "inspect", "verify", "lint"])
def test_a_file_name_does_not_reach_the_terminal_raw(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / f"{CLEAR.replace('/', '')}.onnx"
    bad.write_bytes(b"junk" * 50)
    more = {"build": ["-o", str(tmp_path / "out")], "verify": [str(bad)]}.get(command, [])
    monkeypatch.setattr("sys.argv", ["intact", command, str(bad), *more])
    with pytest.raises(SystemExit):
        main.main()
    told = capsys.readouterr()
    assert "\x1b" not in told.err + told.out and "\\u001b[2J" in told.err


def test_names_of_arrays_do_not_reach_the_terminal_raw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "d.npz", **{CLEAR: np.zeros((4, 1, 4), np.float32)})
    words = ["build", model(tmp_path / "m.onnx"), "--data", tmp_path / "d.npz", "-o", tmp_path / "out"]
    monkeypatch.setattr("sys.argv", ["intact", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 2 and "\x1b" not in capsys.readouterr().err


def test_all_that_the_console_prints_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    talk = console.Talk()
    table = console.table(["name"], ["number"])
    table.add_row(CLEAR, "1")
    for shown in (table, CLEAR):
        console.print_wrapped(shown)
    console.say(CLEAR)
    console.print_json({CLEAR: "\x9b\u202e"})
    talk.note(CLEAR)
    talk.warn(CLEAR)
    told = capsys.readouterr()
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(told.out + told.err)


def test_json_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"a": "\x9b\u202e\x1b"})
    assert json.load(io.StringIO(capsys.readouterr().out)) == {"a": "\x9b\u202e\x1b"}


def test_the_console_is_the_one_place_that_prints() -> None:
    """A command that wrote to a stream of its own would not go through it."""
    allowed = {"console.py", "main.py", "explain.py", "matrix.py"}
    for path in CLI.glob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        printing = {ast.unparse(call.func) for call in calls} & {"print", "typer.echo", "sys.stdout.write", "Console"}
        assert not printing or path.name in allowed, path
