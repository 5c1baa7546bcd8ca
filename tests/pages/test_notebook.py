"""The notebook runs from top to bottom, and shows results as a notebook does."""

from __future__ import annotations

import ast
import json
import re
import sys
import types
from pathlib import Path

import pytest

import intact
from intact.api.notebook_progress import Progress
from intact.settings.keywords import Keywords
from tests.pages.blocks import ROOT

NOTEBOOK = ROOT / "examples/notebook.ipynb"
CELLS = [
    "".join(cell["source"])
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    if cell["cell_type"] == "code"
]


class ZMQInteractiveShell:
    """The shell that a kernel of Jupyter has."""


class Place:
    """The place below a cell that a display leaves, with all that was drawn in it."""

    def __init__(self, first: str) -> None:
        self.drawn = [first]

    def update(self, html: str) -> None:
        self.drawn.append(html)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[Place]:
    """A notebook as far as intact can tell; gives the places that were drawn in."""
    found: list[Place] = []

    def display(html: str, *, display_id: bool) -> Place:
        assert display_id
        found.append(Place(html))
        return found[-1]

    shell, shows = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    shell.__dict__["get_ipython"] = ZMQInteractiveShell
    shows.__dict__.update(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", shows)
    return found


def shown(cell: str, names: dict[str, object]) -> object:
    """Run a cell; give the value of its last line, if that is an expression."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)


@pytest.mark.qnn
@pytest.mark.slow
def test_the_notebook_runs(places: list[Place], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(NOTEBOOK.parent)
    names: dict[str, object] = {}
    results = [shown(cell, names) for cell in CELLS]
    built, found = names["built"], names["found"]
    assert any(result is built for result in results) and any(result is found for result in results)
    page = built._repr_html_()
    assert "good" in page and "14 of 14 nodes" in page and "dB" in page
    assert re.search(r"<td>node_\w+</td><td>Conv</td>", found._repr_html_())
    assert names["chosen"] == "w8a16" and len(names["guessed"]) == 20
    assert [place.drawn[-1].count("✓ verify") for place in places[:1]] == [1] and len(places) == 3


def test_progress_is_drawn_in_one_place_and_escaped(places: list[Place]) -> None:
    progress = Progress()
    with progress.stage("outer"), progress.stage("inner", 2) as advance:
        advance()
        advance()
    progress.warn("a <name>")
    (place,) = places
    assert [text for text in place.drawn if "inner 2 of 2" in text and "outer" in text]
    assert "warning: a &lt;name&gt;" in place.drawn[-1] and "inner" not in place.drawn[-1]


def test_without_a_notebook_nothing_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = ROOT / "examples/digits_cnn/model.onnx", ROOT / "examples/digits_cnn/calibration.npz"
    done = intact.quantize(model, output=tmp_path / "q.onnx", effort="fast", data=data)
    assert repr(done).startswith("<QuantizedFile: ") and "nodes quantized 19" in repr(done) and len(repr(done)) < 200
    assert capsys.readouterr() == ("", "")


def test_help_names_every_setting() -> None:
    words = set(re.findall(r"\w+", intact.build.__doc__ or ""))
    assert sorted(set(Keywords.__annotations__) - words) == []
