"""`intact.explain`: what a code of lint means."""

from __future__ import annotations

from intact.linting import linter


def explain(code: str | None = None) -> str:
    """Explain a code of `lint`: what is wrong, why it matters, how to put it right; without one, all as Markdown."""
    if code is None:
        return linter.markdown()
    check = linter.check_of(code)
    return f"{check.code} ({check.severity})\n{check.explanation()}"
