"""The page of the architecture leads to files that are there, to every room, and to the answers of a new reader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import intact

ROOT = Path(intact.__file__).parent
DOCS = ROOT.parents[1] / "docs"
PAGE = (DOCS / "architecture.md").read_text(encoding="utf-8")
QUESTIONS = (DOCS / "questions.md").read_text(encoding="utf-8")
PATH = re.compile(r"\w(?:[\w/.]*\w)?(?:/|\.(?:py|toml|js|j2|md|txt)(?![\w/.]))")
# Where the build that is followed goes.
OUTPUT = "output/"
EVERY = [path.relative_to(ROOT).as_posix() + ("/" if path.is_dir() else "") for path in sorted(ROOT.rglob("*"))]


def named(text: str) -> set[str]:
    """The files and folders that a page names in code, drawings included."""
    quoted = re.findall(r"```text\n.*?```|`[^`\n]+`", text, re.DOTALL)
    return {path for part in quoted for path in PATH.findall(part)}


def is_there(path: str) -> bool:
    """True if a path is one of the repository, or ends one of the package: rows of a table name the room first."""
    return (ROOT.parents[1] / path).exists() or any(f"/{one}".endswith(f"/{path}") for one in EVERY)


def test_every_path_on_the_page_is_there():
    assert len(named(PAGE)) > 120
    assert sorted(path for path in named(PAGE) - {OUTPUT} if not is_there(path)) == []


def test_every_room_is_on_the_page():
    rooms = {path for path in EVERY if "/" not in path.rstrip("/") and path.endswith(("/", ".py"))}
    assert sorted(rooms - named(PAGE) - {"__pycache__/", "__init__.py"}) == []


@pytest.mark.parametrize("answer", sorted(named(QUESTIONS.partition("## Answers")[2])))
def test_an_answer_is_found_on_the_page(answer):
    assert is_there(answer) and (answer in named(PAGE) or Path(answer).name in {Path(one).name for one in named(PAGE)})


def test_a_path_that_is_not_there_is_seen():
    assert named("`rules/float/gone.py` and `x.y`") == {"rules/float/gone.py"} and not is_there("rules/float/gone.py")
