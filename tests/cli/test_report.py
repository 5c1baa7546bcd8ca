"""`intact report`: a page drawn again from the manifest alone, and two builds compared."""

from __future__ import annotations

import json
from functools import partial

import pytest

import intact
from intact.errors import OutputError, SettingsError
from tests.cli import command
from tests.reports.sample import manifest


@pytest.fixture
def folder(tmp_path):
    """Folders with nothing in them but a manifest, changed as asked."""

    def write(name, **changes):
        values = manifest() | changes
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(json.dumps(values))
        return tmp_path / name

    return write


@pytest.fixture
def run():
    """`intact report` with these arguments: its status, stdout and stderr."""
    return partial(command.run, "report")


def test_a_report_is_drawn_again_from_the_manifest_alone(run, folder):
    build = folder("out")
    assert run(build)[0] == 0
    first = (build / "report.html").read_text(encoding="utf-8")
    assert "<svg" in first and "<script src" not in first
    (build / "report.html").write_text("stale")
    assert run(build / "manifest.json")[0] == 0 and (build / "report.html").read_text(encoding="utf-8") == first


def test_elsewhere_nothing_of_others_is_replaced(folder, tmp_path):
    place = tmp_path / "mine.html"
    place.write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        intact.report(folder("out"), output=place)
    assert intact.report(tmp_path / "out", output=place, overwrite=True) == place and "<svg" in place.read_text()


def test_two_builds_are_compared_by_what_differs(run, folder, tmp_path):
    config = manifest()["config"] | {"precision": "int8", "min_sqnr": 31.5}
    first, second = folder("one"), folder("two", config=config, verdict="suspect", verdict_reasons=["<b>odd</b>"])
    status, out, _ = run(first, second, "-o", tmp_path / "compare.html", "--json")
    page = (tmp_path / "compare.html").read_text(encoding="utf-8")
    assert status == 0 and json.loads(out) == {"output": str(tmp_path / "compare.html")}
    assert "31.5" in page and "min_sqnr" in page and "per_channel" not in page
    assert "&lt;b&gt;odd" in page and "<b>odd" not in page and 'class="verdict warn"><strong>suspect' in page


def test_what_cannot_be_drawn_is_refused(run, folder, tmp_path):
    first, second = folder("one"), folder("two")
    with pytest.raises(SettingsError, match="needs a place"):
        intact.report(first, second)
    with pytest.raises(SettingsError, match="3 builds"):
        intact.report(first, second, first)
    status, _, err = run(tmp_path)
    assert status == 2 and "manifest.json" in err
