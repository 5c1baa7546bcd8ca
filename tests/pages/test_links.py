"""Every link of every page leads somewhere: to a file of the repository, to a heading of it, or to a known place."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.pages.blocks import ROOT, pages

LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
# Places outside, which no test can look at without a network: whoever adds one has looked.
KNOWN_HOSTS = {"github.com", "keepachangelog.com"}
PAGES = {path.relative_to(ROOT).as_posix(): path for path in pages()}


def links(path: Path) -> list[str]:
    return LINK.findall(CODE.sub("", FENCED.sub("", path.read_text(encoding="utf-8"))))


def anchors(path: Path) -> set[str]:
    """The headings of a page as links name them."""
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def broken(path: Path, link: str) -> str | None:
    """The reason why a link leads nowhere, or None."""
    parts = urlsplit(link)
    if parts.scheme:
        known = parts.scheme == "https" and parts.hostname in KNOWN_HOSTS
        return None if known else f"{link}: not a known place"
    target = (path.parent / parts.path).resolve() if parts.path else path
    if not target.is_file() or ROOT not in target.parents:
        return f"{link}: no such file"
    if parts.fragment and target.suffix == ".md" and parts.fragment not in anchors(target):
        return f"{link}: no such heading"
    return None


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    assert [reason for link in links(PAGES[name]) if (reason := broken(PAGES[name], link)) is not None] == []


def test_the_readme_leads_to_the_pages() -> None:
    assert len(links(ROOT / "README.md")) > 25


@pytest.mark.parametrize(
    "link", ["docs/none.md", "docs/tutorial.md#none", "../outside.md", "http://github.com/", "https://example.org/"]
)
def test_a_broken_link_is_found(link: str) -> None:
    assert broken(ROOT / "README.md", link) is not None
