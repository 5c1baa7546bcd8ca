"""Every promise in docs/promises.md names a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [line for line in (ROOT / "docs/promises.md").read_text().splitlines() if line.startswith("| ")]
PROMISES = [row for row in ROWS if not row.startswith(("| promise", "| ---"))]


def test_there_are_promises() -> None:
    assert len(PROMISES) >= 20


@pytest.mark.parametrize("row", PROMISES)
def test_a_promise_has_its_test(row: str) -> None:
    found = re.search(r"`(tests/[\w/]+\.py)(?:::(\w+))?` \|$", row)
    assert found is not None, "no test is named"
    text = (ROOT / found[1]).read_text()
    assert found[2] is None or re.search(rf"def {found[2]}\b", text)
