"""The pages in docs/targets are those that the tables give."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.target_pages import main, pages
from intact.targets.predicates import PREDICATES, requirement

FOLDER = Path(__file__).parents[2] / "docs" / "targets"


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_page_is_up_to_date(name):
    found = (FOLDER / name).read_text(encoding="utf-8")
    assert found == pages()[name], "run: python -m docs.target_pages docs/targets"


def test_pages_are_written(tmp_path):
    main(tmp_path)
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == pages()


def test_a_requirement_reads_as_a_sentence():
    rule = {"check": "attribute_among", "attribute": "mode", "values": ["linear", "cubic"]}
    assert requirement(rule) == "The attribute mode is one of: linear, cubic."
    assert all(function.__doc__ for function in PREDICATES.values())
