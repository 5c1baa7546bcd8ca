"""`intact.explain`: what a code of an error or of lint means."""

from __future__ import annotations

from intact.linting import linter
from intact.reports import error_pages


def explain(code: str | None = None) -> str:
    """Explain a code: what is wrong, why it matters, how to put it right; without one, those of lint as Markdown."""
    if code is None:
        return linter.markdown()
    if error_pages.CODE.fullmatch(code) and code in error_pages.known_codes():
        return error_pages.page(code)
    check = linter.check_of(code)
    return f"{check.code} ({check.severity})\n{check.explanation()}"
