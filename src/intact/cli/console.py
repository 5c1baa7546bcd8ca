"""Messages of a command at work: on stderr, so that stdout is for results."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from intact.cli import log_lines
from intact.errors import printable

if TYPE_CHECKING:
    from intact.results import Gate, Stage, Verdict


NARROW = 70
"""Columns of a terminal that is narrow."""
NO_BREAK = "\N{NO-BREAK SPACE}"
_LEAST_WIDTH = 20
_ABOUT = "about "
# Columns of a narrow terminal that the figures of a stage take: the spinner, steps of all, and a time.
_FIGURES = 28


class _Steps(MofNCompleteColumn):
    """Steps done of all, or nothing where nobody knows how many there are."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.total else Text("")


class _Left(TimeRemainingColumn):
    """The time that is left if steps go on as they did so far; it grows while one takes longer than that."""

    def render(self, task: Task) -> Text:
        if not (task.total and task.completed and task.elapsed) or task.finished:
            return Text("")
        left = timedelta(seconds=int(task.elapsed * (task.total - task.completed) / task.completed))
        return Text.assemble(_ABOUT, (str(left), "progress.remaining"), " left")


class _LeftOrElapsed(TimeRemainingColumn):
    """The time that is left, or, where nobody knows it, the time so far: a narrow terminal has room for one."""

    def __init__(self, table_column: Column) -> None:
        super().__init__(table_column=table_column)
        self._left, self._elapsed = _Left(), TimeElapsedColumn()

    def render(self, task: Task) -> Text:
        left = self._left.render(task)
        return left[len(_ABOUT) :] if left else self._elapsed.render(task)


class _PrintableTable(Table):
    """A table whose cells do not steer the terminal, whatever names are in them."""

    def add_row(self, *cells: RenderableType | None, **how: Any) -> None:
        super().add_row(*(printable(cell) if isinstance(cell, str) else cell for cell in cells), **how)


class Talk:
    """Shows stages, notes and warnings of a build on stderr."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.console = Console(stderr=True, highlight=False)
        self.live: Progress | None = None
        self.lines = log_lines.wanted()

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Callable[[], None]]:
        """A spinner, and a count where the number of steps is known; it leaves no trace. Stages may be in stages."""
        if self.lines and not self.quiet:
            with _told(name):
                yield lambda: None
            return
        if self.quiet or not self.console.is_terminal:
            yield lambda: None
            return
        with self._progress() as progress:
            task = progress.add_task(name, total=total)
            try:
                yield lambda: progress.advance(task)
            finally:
                progress.remove_task(task)

    @contextmanager
    def _progress(self) -> Iterator[Progress]:
        """The one live display: a terminal has room for one."""
        if self.live is not None:
            yield self.live
            return
        with Progress(*_columns(self.console.width), console=self.console, transient=True) as self.live:
            try:
                yield self.live
            finally:
                self.live = None

    def finished(self, stage: Stage) -> None:
        """A line that stays: the stage, what it did, and how long that took."""
        from intact.reports.figures import duration
        from intact.reports.stage_words import stage_words

        if not self.quiet and not self.lines:
            words = printable(stage_words(stage.name, stage.details))
            line = Text.assemble(("✓ ", "green"), (f"{stage.name:<9}", "bold"), f" {words}  " if words else " ")
            self.console.print(line.append(duration(stage.seconds), style="dim"), soft_wrap=True)

    def note(self, text: str) -> None:
        """A sentence that --quiet leaves out."""
        if self.lines and not self.quiet:
            log_lines.write("note", text=text)
        elif not self.quiet:
            self.console.print(printable(text), style="dim", markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """A sentence that is always shown."""
        if self.lines:
            log_lines.write("warning", text=text)
            return
        self.console.print(f"warning: {printable(text)}", style="yellow", markup=False, soft_wrap=True)


def _columns(width: int) -> list[ProgressColumn]:
    """The columns of a stage: on a narrow terminal figures matter more than the bar and the end of a name."""
    whole = Column(no_wrap=True)
    if width >= NARROW:
        times = (TimeElapsedColumn(table_column=whole), _Left(table_column=whole))
        name = TextColumn("{task.description}")
        return [SpinnerColumn(), name, BarColumn(20), _Steps(table_column=whole), *times]
    cut = Column(no_wrap=True, overflow="ellipsis", max_width=max(width - _FIGURES, 1))
    name = TextColumn("{task.description}", table_column=cut)
    return [SpinnerColumn(), name, _Steps(table_column=whole), _LeftOrElapsed(whole)]


@contextmanager
def _told(stage: str) -> Iterator[None]:
    """Write a line when a stage begins, and one when it ends, in whichever way."""
    log_lines.write("stage", name=stage, state="begun")
    start, state = time.perf_counter(), "failed"
    try:
        yield
        state = "done"
    finally:
        log_lines.write("stage", name=stage, state=state, seconds=round(time.perf_counter() - start, 3))


def print_json(value: object) -> None:
    """A result for programs, on stdout."""
    sys.stdout.write(printable(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")


def refuse_failed(verdict: Verdict, gates: Iterable[Gate], *more: str) -> None:
    """Raise if the verdict forbids deployment: with every reason, the limits of gates, and what to try."""
    from intact.errors import GateFailed

    if verdict.passed:
        return
    failed = [gate for gate in gates if not gate.passed]
    fixes = dict.fromkeys((*(gate.fix for gate in failed), *more))
    raise GateFailed(
        "G101" if verdict.word == "failed" else "G102",
        f"{verdict.word}: " + "; ".join(verdict.reasons),
        allowed=", ".join(f"{gate.name} {gate.limit:g}" for gate in failed) or None,
        fix="; ".join(fix for fix in fixes if fix) or "intact debug names the place where the models part ways",
    )


def verdict_line(verdict: Verdict) -> str:
    """The verdict as the first line of a summary."""
    return f"verdict: {verdict.word}" + "".join(f"\n  {reason}" for reason in verdict.reasons)


def say(text: str) -> None:
    """A line of the result for people, on stdout."""
    Console(highlight=False, markup=False).print(printable(text), soft_wrap=True)


def say_items(label: str, items: Sequence[str], indent: int = 0) -> None:
    """A line of the result that lists things: as wide as the terminal, further lines set in, no item on two of them."""
    console = Console(highlight=False, markup=False)
    # textwrap keeps together what has these between its words; nobody gets to see them.
    kept = [printable(item).replace(" ", NO_BREAK) for item in items]
    lines = textwrap.wrap(
        f"{printable(label)}{', '.join(kept)}",
        max(console.width, _LEAST_WIDTH),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )
    console.print("\n".join(lines).replace(NO_BREAK, " "), soft_wrap=True)


def table(texts: Sequence[str], numbers: Sequence[str], last: Sequence[str] = ()) -> Table:
    """A table with these headings: texts fold on a narrow terminal, numbers do not."""
    result = _PrintableTable(box=None, pad_edge=False, header_style="bold")
    for name in texts:
        result.add_column(name, overflow="fold")
    for name in numbers:
        result.add_column(name, justify="right", no_wrap=True)
    for name in last:
        result.add_column(name, overflow="fold")
    return result


def print_wrapped(found: Table | str) -> None:
    """A part of the result for people, on stdout, as wide as the terminal; the columns of a narrow one are closer."""
    console = Console(highlight=False, markup=False)
    if isinstance(found, Table) and console.width < NARROW:
        found.padding = (0, 1, 0, 0)
    console.print(printable(found) if isinstance(found, str) else found)
