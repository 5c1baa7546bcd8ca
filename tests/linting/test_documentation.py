"""The page about lint is what the checks say about themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from intact.errors import SettingsError
from intact.linting import linter

PAGE = Path(__file__).resolve().parents[2] / "docs/lint.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == linter.markdown(), "run: intact explain --all > docs/lint.md"


def test_codes_are_unique_and_in_order() -> None:
    codes = [check.code for check in linter.CHECKS]
    assert codes == sorted(set(codes))


@pytest.mark.parametrize("check", linter.CHECKS, ids=lambda check: check.code)
def test_a_check_says_what_is_wrong_and_how_to_put_it_right(check: linter.Check) -> None:
    first, *paragraphs = check.explanation().split("\n\n")
    assert first.endswith(".") and "\n" not in first
    assert paragraphs[-1].startswith("Fix: ")
    assert check.remedy


def test_an_unknown_code_is_refused_with_near_ones() -> None:
    with pytest.raises(SettingsError, match=r"did you mean .*Q103"):
        linter.check_of("Q1033")
