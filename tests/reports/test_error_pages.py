"""Every code that an error can have is explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import intact
from intact.errors import SettingsError
from intact.reports import error_pages

ROOT = Path(intact.__file__).parent
USED = sorted({code for path in ROOT.rglob("*.py") for code in re.findall(r"\b[SDOMTEG]\d{3}\b", path.read_text())})


def test_no_code_is_left_out() -> None:
    assert len(USED) > 200
    assert set(error_pages.known_codes()) == set(USED)


@pytest.mark.parametrize("code", error_pages.known_codes())
def test_a_code_has_a_page(code: str) -> None:
    told = intact.explain(code)
    assert told.startswith(f"{code}: ")
    assert len(told.splitlines()) >= 3, "the kind alone explains nothing"
    assert re.search(r"status [1-5]", told)


def test_a_page_has_the_words_and_the_remedy() -> None:
    told = intact.explain("O102")
    assert "exists and is not empty" in told and "fix: choose another -o" in told


def test_a_limit_of_a_device_is_explained_too() -> None:
    told = intact.explain("T104")
    assert "symmetry" in told and "fix: " in told
    assert "unknown operator" in intact.explain("T101")


def test_a_code_that_nobody_uses_is_an_error() -> None:
    with pytest.raises(SettingsError):
        intact.explain("M999")
