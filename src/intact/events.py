"""The watcher of a build, and the record of its stages and warnings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import field
from typing import Protocol, runtime_checkable

from intact.records import dataclass
from intact.results import Stage


class Events(Protocol):
    """Whoever watches a build: told about stages as they run, and about what is decided."""

    def stage(self, name: str, total: int | None = None) -> AbstractContextManager[Callable[[], None]]:
        """Called around a stage; the function it gives is called after each of `total` steps."""

    def note(self, text: str) -> None:
        """Called with a sentence for the user."""

    def warn(self, text: str) -> None:
        """Called with a sentence that the user should not miss; the manifest has it too."""


@runtime_checkable
class StageWatcher(Protocol):
    """A watcher that also wants to know what a stage did when it is over."""

    def finished(self, stage: Stage) -> None:
        """Called with the record of a stage that ran."""


class Silence:
    """Watches and says nothing."""

    def stage(self, name: str, total: int | None = None) -> AbstractContextManager[Callable[[], None]]:
        return nullcontext(lambda: None)

    def note(self, text: str) -> None:
        return

    def warn(self, text: str) -> None:
        return


@contextmanager
def counting(events: Events, name: str) -> Iterator[Callable[[int, int], None]]:
    """A stage that is told how many steps are done, of how many; fewer than before are the steps of another round."""
    with ExitStack() as rounds:
        told, advance = 0, nothing

        def tell(done: int, total: int) -> None:
            nonlocal told, advance
            if advance is nothing or done < told:
                rounds.close()
                told, advance = 0, rounds.enter_context(events.stage(name, total))
            for _ in range(done - told):
                advance()
            told = done

        yield tell


def nothing() -> None:
    """Take a step that nobody watches."""


@dataclass(slots=True)
class Log:
    """Stages and warnings of a build so far."""

    events: Events = field(default_factory=Silence)
    stages: list[Stage] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[tuple[Callable[[], None], dict[str, object]]]:
        """Time a stage; what is put into the dictionary goes to its record."""
        details: dict[str, object] = {}
        start = time.perf_counter()
        with self.events.stage(name, total) as advance:
            yield advance, details
        self.stages.append(Stage(name, "ran", "", time.perf_counter() - start, details))
        if isinstance(self.events, StageWatcher):
            self.events.finished(self.stages[-1])

    def mark(self) -> tuple[int, int]:
        """The place that has been reached, for `back_to`."""
        return len(self.stages), len(self.warnings)

    def back_to(self, mark: tuple[int, int]) -> None:
        """Forget the stages and warnings since a mark: they are gone through again."""
        del self.stages[mark[0] :], self.warnings[mark[1] :]

    def skip(self, name: str, reason: str) -> None:
        self.stages.append(Stage(name, "skipped", reason))
        self.events.note(f"{name}: skipped, {reason}")

    def warn(self, *texts: str) -> None:
        for text in texts:
            self.warnings.append(text)
            self.events.warn(text)
