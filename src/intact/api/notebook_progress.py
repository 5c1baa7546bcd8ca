"""Progress in a notebook: a cell shows the stages of a call while it runs, unless another watcher is given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from intact.events import Events
from intact.reports.figures import duration
from intact.reports.stage_words import stage_words
from intact.results import Stage

# The shell of a kernel; that of a terminal has no display to redraw.
_NOTEBOOK = "ZMQInteractiveShell"


def watched(events: Events | None) -> Events | None:
    """The watcher that was given, or in a notebook one that shows progress below the cell."""
    return Progress() if events is None and in_notebook() else events


def in_notebook() -> bool:
    """True if a notebook runs this; nothing is imported to find out."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == _NOTEBOOK


class Progress:
    """Shows stages as they begin and end, warnings, and the steps of the stage at work, in one place below the cell."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.at_work: list[str] = []
        self.shown: Any = None

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Callable[[], None]]:
        """Show a stage while it runs, with its steps where their number is known; stages may be in stages."""
        steps, place = 0, len(self.at_work)

        def advance() -> None:
            nonlocal steps
            steps += 1
            self.at_work[place] = f"{name} {steps} of {total}" if total else name
            self._show()

        self.at_work.append(name)
        self._show()
        try:
            yield advance
        finally:
            del self.at_work[place:]
            self._show()

    def finished(self, stage: Stage) -> None:
        """A line that stays: the stage, what it did, and how long that took."""
        self._keep(f"✓ {stage.name:<9} {stage_words(stage.name, stage.details)}  {duration(stage.seconds)}")

    def note(self, text: str) -> None:
        """A line that stays."""
        self._keep(text)

    def warn(self, text: str) -> None:
        """A line that stays, marked."""
        self._keep(f"warning: {text}")

    def _keep(self, line: str) -> None:
        self.done.append(line)
        self._show()

    def _show(self) -> None:
        """Draw everything anew in the same place."""
        from html import escape

        display = sys.modules["IPython.display"]
        lines = [*self.done, *(f"… {name}" for name in self.at_work)]
        drawn = display.HTML(f'<pre style="line-height:1.3">{escape(chr(10).join(lines))}</pre>')
        if self.shown is None:
            self.shown = display.display(drawn, display_id=True)
        else:
            self.shown.update(drawn)
