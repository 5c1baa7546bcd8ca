"""The page about codes: what `intact explain` says of each."""

from __future__ import annotations

from collections.abc import Iterator

from intact.reports import error_pages

HEAD = """\
# Codes

Every error and every failed gate has a code that does not change; `intact explain CODE` prints what stands here. Codes
of findings (Q…) are under [what lint finds](../lint.md).
"""


def codes_page() -> str:
    """Every code, by kind."""
    codes = error_pages.known_codes()
    return HEAD + "".join(
        part for kind in error_pages.KINDS for part in _kind(kind, [c for c in codes if c[0] == kind])
    )


def _kind(kind: str, codes: list[str]) -> Iterator[str]:
    yield f"\n## {kind}: {error_pages.KINDS[kind]}\n"
    for code in codes:
        _, *rest = error_pages.page(code).splitlines()
        yield f"\n### {code}\n\n```text\n" + "\n".join(rest).strip("\n") + "\n```\n"
