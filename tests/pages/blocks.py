"""The fenced blocks of pages, and the commands in them.

A block of `sh` is commands, one a line; in one of `console` lines after `$ ` are commands, and the lines after each are
what it prints. A block with a title is a file that the page asks its reader to write; one of `python` without a title
is run. Blocks without a language, and those of other languages, are only shown: they may not look like commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^ *(```+) *(\w*)(?: +title=\"([^\"]+)\")? *$")
# A page says of a command that fails with what it ends.
STATUS = re.compile(r"#.*\bends with status (\d+)")
ANYTHING = "…"
TIME = re.compile(r"\b\d+(?:\.\d+)? (?:ms|s|min)\b")
FRACTION = re.compile(r"-?\b\d+\.\d+\b(?!\.\d)")


def pages() -> list[Path]:
    """Every page that people read: the README, those beside it, those of the examples and of docs/."""
    beside = ROOT.glob("*.md")
    return sorted([*beside, *(ROOT / "examples").rglob("*.md"), *(ROOT / "docs").rglob("*.md")])


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: the line that it begins in, its language, the file that it is, and its lines."""

    line: int
    language: str
    title: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


@dataclass(frozen=True, slots=True)
class Command:
    """A command as it is typed, the status that it ends with, and the lines that a page shows of it, if any."""

    line: int
    text: str
    status: int
    shown: tuple[str, ...] | None


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        opening = FENCE.match(line)
        if opening is None:
            continue
        fence, language, title = opening.groups()
        indent = len(line) - len(line.lstrip())
        found: list[str] = []
        for _, inner in lines:
            if inner.strip() == fence:
                break
            found.append(inner[indent:])
        yield Block(number, language, title or "", tuple(found))


def commands(block: Block) -> list[Command]:
    """The commands of a block of `sh` or `console`."""
    found: list[Command] = []
    typed, start, shown = "", 0, []
    for number, line in enumerate(block.lines, block.line + 1):
        begins = block.language == "sh" or line.startswith("$ ")
        if not typed.endswith("\\") and not begins:
            shown += [line] if line.strip() else []
            continue
        if typed.endswith("\\"):
            typed = typed[:-1].rstrip() + " " + line.strip()
        else:
            found += _command(start, typed, shown)
            typed, start, shown = line.removeprefix("$ ").strip(), number, []
    return [*found, *_command(start, typed, shown)]


def _command(line: int, text: str, shown: list[str]) -> list[Command]:
    if not text or text.startswith("#"):
        return []
    status = STATUS.search(text)
    return [Command(line, text, int(status[1]) if status else 0, tuple(shown) or None)]


def agrees(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """True if a page shows what a command printed; `…` stands for any words, and alone in a line for any lines."""
    if not shown:
        return not printed
    if shown[0].strip() == ANYTHING:
        return any(agrees(shown[1:], printed[skipped:]) for skipped in range(len(printed) + 1))
    return bool(printed) and _same(shown[0], printed[0]) and agrees(shown[1:], printed[1:])


def _same(shown: str, printed: str) -> bool:
    """True if words and whole numbers are the same, and fractions to a twentieth or to a hundredth of one.

    Processors round floats differently, and one value decides a largest error: the build of the README has 0.028 on an
    AMD EPYC and 0.035 on an Intel Xeon, with half a decibel between them.
    """
    words, fractions = _parts(shown)
    pattern = r".*".join(re.escape(part) for part in words.split(ANYTHING))
    found_words, found = _parts(printed)
    if re.fullmatch(pattern, found_words) is None:
        return False
    return len(fractions) != len(found) or all(
        isclose(*pair, rel_tol=0.05, abs_tol=0.01) for pair in zip(fractions, found, strict=True)
    )


def _parts(line: str) -> tuple[str, list[float]]:
    """A line without its times and fractions, spaces in one, and the fractions."""
    timeless = TIME.sub("TIME", " ".join(line.split()))
    return FRACTION.sub("N", timeless), [float(number) for number in FRACTION.findall(timeless)]
