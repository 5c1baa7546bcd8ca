"""The site is built without a warning, fetches nothing from elsewhere, and has every page."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages.blocks import ROOT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("material") is None, reason="mkdocs-material is not installed (extra: docs)"
)
# What a browser loads by itself; links that are followed may lead elsewhere.
LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\ssrc=\"([^\"]+)\"|<link\b[^>]*\shref=\"([^\"]+)\"")
REFERENCE = {
    "commands": ["intact build", "--min-sqnr", "intact encodings export"],
    "python": ["intact.build(", "verdict_reasons"],
    "settings": ["load_path", "suspect_below_db", "--effort"],
    "codes": ["S166", "T104"],
    "targets": ["Snapdragon X Elite", "w4a16"],
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it; a page outside the navigation or a broken link is a warning."""
    folder = tmp_path_factory.mktemp("site")
    # The makers of the theme announce the end of its life in every build.
    sources = os.pathsep.join(filter(os.path.isabs, sys.path))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": sources},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "WARNING" not in done.stdout, done.stdout
    return folder


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loaded = ["".join(found) for found in LOADED.findall(page.read_text(encoding="utf-8"))]
        assert [address for address in loaded if address.startswith(("http:", "https:", "//"))] == [], page
    for style in site.rglob("*.css"):
        assert re.findall(r"url\(\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")) == [], style


@pytest.mark.parametrize("name", REFERENCE)
def test_the_reference_is_drawn_from_the_code(site: Path, name: str) -> None:
    text = (site / f"reference/{name}.html").read_text(encoding="utf-8")
    plain = re.sub(r"<[^>]+>", "", text)
    assert [words for words in REFERENCE[name] if words not in plain] == []


def test_every_page_is_made_for_phones_and_for_dark_rooms(site: Path) -> None:
    text = (site / "tutorial.html").read_text(encoding="utf-8")
    assert 'name="viewport"' in text and 'data-md-color-scheme="slate"' in text
