"""What a command says while it works: on stderr, so that stdout is for results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Talk:
    """Shows stages, notes and warnings of a build on stderr."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.console = Console(stderr=True, highlight=False)

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Callable[[], None]]:
        """A spinner, or a bar where the number of steps is known; it leaves no trace."""
        if self.quiet or not self.console.is_terminal:
            yield lambda: None
            return
        counted = [BarColumn(20), MofNCompleteColumn()] if total else []
        columns = [SpinnerColumn(), TextColumn("{task.description}"), *counted, TimeElapsedColumn()]
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(name, total=total)
            yield lambda: progress.advance(task)

    def note(self, text: str) -> None:
        """A sentence that --quiet leaves out."""
        if not self.quiet:
            self.console.print(text, style="dim", markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """A sentence that is always shown."""
        self.console.print(f"warning: {text}", style="yellow", markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """A result for programs, on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def say(text: str) -> None:
    """A line of the result for people, on stdout."""
    Console(highlight=False, markup=False).print(text, soft_wrap=True)
