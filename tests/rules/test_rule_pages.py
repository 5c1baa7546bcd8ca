"""The page about the rules says what they are."""

from __future__ import annotations

from pathlib import Path

from intact.rules import rule_pages
from intact.rules.quantized.families import RULES

PAGE = Path(__file__).resolve().parents[2] / "docs/rewriting.md"


def test_the_page_is_up_to_date():
    wanted = "run: python -m intact.rules.rule_pages > docs/rewriting.md"
    assert PAGE.read_text(encoding="utf-8") == rule_pages.markdown(), wanted


def test_every_rule_has_its_row_with_an_equation():
    rows = [line.split(" | ") for line in rule_pages.markdown().splitlines() if line.startswith("| `")]
    assert len(rows) == len(RULES) and all(row[2].strip() for row in rows)
