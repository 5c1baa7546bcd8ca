"""The notebook runs from top to bottom, and shows results as a notebook does."""

from __future__ import annotations

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
from tests.pages.interpreter import Interpreter

NOTEBOOK = ROOT / "examples/notebook.ipynb"
MODEL, DATA = ROOT / "examples/digits_cnn/model.onnx", ROOT / "examples/digits_cnn/calibration.npz"
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


CHECKS = """
page = built._repr_html_()
assert "good" in page and "14 of 14 nodes" in page and "dB" in page
assert repr(built).startswith("<Build good: ") and len(repr(built)) < 200
assert "<td>Conv</td>" in found._repr_html_() and repr(found).startswith("<ModelBisection: nothing parts ways")
assert chosen == "w8a16" and len(guessed) == 20
"""


@pytest.mark.qnn
@pytest.mark.slow
def test_the_notebook_runs() -> None:
    with Interpreter(NOTEBOOK.parent) as python:
        for cell in (*CELLS, CHECKS):
            python.run(cell)


def test_a_call_in_a_notebook_shows_its_stages(places: list[Place], tmp_path: Path) -> None:
    intact.quantize(MODEL, output=tmp_path / "q.onnx", effort="fast", data=DATA)
    (place,) = places
    assert "… load" in place.drawn[0] and "✓ quantize" in place.drawn[-1] and "…" not in place.drawn[-1]


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
    done = intact.quantize(MODEL, output=tmp_path / "q.onnx", effort="fast", data=DATA)
    assert repr(done).startswith("<QuantizedFile: ") and "nodes quantized 19" in repr(done) and len(repr(done)) < 200
    assert capsys.readouterr() == ("", "")


def test_help_names_every_setting() -> None:
    words = set(re.findall(r"\w+", intact.build.__doc__ or ""))
    assert sorted(set(Keywords.__annotations__) - words) == []
