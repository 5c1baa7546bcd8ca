"""Every command on every page runs as it stands there, and prints what the page shows, but for a list with reasons."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from intact.cli import main
from tests.pages.blocks import ROOT, agrees, blocks, commands, pages
from tests.pages.reader import Reader

HERE = Path(__file__).parent
EXCEPTIONS = tomllib.loads((HERE / "exceptions.toml").read_text(encoding="utf-8"))["command"]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in pages()}
RUN = ("sh", "console")
WITH_COMMANDS = [name for name, text in TEXTS.items() if any(commands(b) for b in blocks(text) if b.language in RUN)]
# Pages that take more than a few processor seconds; `make test` checks the flags of their commands only.
DEAR = {
    "docs/explanation/verdict.md",
    "docs/howto/calibrate.md",
    "docs/howto/ci.md",
    "docs/howto/deploy.md",
    "docs/howto/performance.md",
    "docs/howto/precision.md",
    "docs/rewriting.md",
    "docs/scale.md",
    "docs/tutorial.md",
    "docs/zero_points.md",
    "examples/digits_cnn/README.md",
    "examples/digits_vit/README.md",
    "examples/topics_bert/README.md",
}
TYPED = re.compile(r"^\s*(?:\$ |(?:intact|wmk|pip|make|python3?|git) \S)")
INLINE = re.compile(r"`intact ([a-z]+)((?: [^`]*)?)`")
KNOWN = typer.main.get_command(main.app).commands


def test_pages_that_are_dear_exist() -> None:
    assert set(WITH_COMMANDS) >= DEAR


def marked(name: str) -> object:
    return pytest.param(name, marks=[pytest.mark.qnn, *([pytest.mark.slow] if name in DEAR else [])])


@pytest.mark.skipif(sys.platform == "win32", reason="pages are written for a POSIX shell")
@pytest.mark.parametrize("name", [marked(name) for name in WITH_COMMANDS])
def test_the_commands_of_a_page_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    reader = Reader(tmp_path, frozenset(entry["text"] for entry in EXCEPTIONS if name in entry["pages"]))
    reader.equip()
    reader.follow(TEXTS[name])


@pytest.mark.parametrize("entry", EXCEPTIONS, ids=lambda entry: entry["text"])
def test_an_exception_has_a_reason_and_stands_on_its_pages(entry: dict[str, object]) -> None:
    assert len(str(entry["reason"])) > 20
    for page in entry["pages"]:
        found = [command.text for block in blocks(TEXTS[page]) if block.language in RUN for command in commands(block)]
        found += [block.lines[0] for block in blocks(TEXTS[page]) if block.language == "python"]
        assert entry["text"] in found, f"{page} does not have it"


@pytest.mark.parametrize("name", TEXTS)
def test_what_looks_like_a_command_is_one(name: str) -> None:
    """A command in a block that is not run, or set off by spaces, would escape."""
    shown = [line for block in blocks(TEXTS[name]) if block.language not in RUN for line in block.lines]
    indented = [line for line in TEXTS[name].splitlines() if line.startswith("    ")]
    inside = {line for block in blocks(TEXTS[name]) for line in block.lines}
    assert [line for line in (*shown, *(set(indented) - inside)) if TYPED.match(line)] == []


@pytest.mark.parametrize("name", TEXTS)
def test_flags_that_pages_name_exist(name: str) -> None:
    """Also where a command stands in a sentence, and of commands that are dear to run."""
    typed = [c.text for block in blocks(TEXTS[name]) if block.language in RUN for c in commands(block)]
    whole = [shlex.split(text, comments=True)[1:] for text in typed if text.startswith("intact ")]
    inline = [[command, *rest.split()] for command, rest in INLINE.findall(TEXTS[name])]
    for command, *words in (*whole, *inline):
        if not command.startswith("-"):
            assert command in KNOWN, command
            assert [word for word in _flags(words) if word not in _known(command, words)] == [], command


def _flags(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if word.startswith("-")]


def _known(command: str, words: list[str]) -> set[str]:
    found = KNOWN[command]
    found = getattr(found, "commands", {}).get(words[0] if words else "", found)
    return {"-h", "--help", *(flag for param in found.params for flag in (*param.opts, *param.secondary_opts))}


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["a 3.41 dB  2 ms"], ["a   3.40 dB 17 s"], True),
        (["a 3.41 dB"], ["a 4.41 dB"], False),
        (["12 nodes"], ["13 nodes"], False),
        (["first", "…", "last"], ["first", "x", "y", "last"], True),
        (["first", "…", "last"], ["first", "x", "y"], False),
        (["report: …/report.html"], ["report: out/report.html"], True),
        (["one"], ["one", "two"], False),
    ],
)
def test_what_is_printed_is_compared(shown: list[str], printed: list[str], same: bool) -> None:
    assert agrees(shown, printed) is same
