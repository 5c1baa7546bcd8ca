"""Errors that a user can act on, their codes and their exit statuses.

::

    IntactError
    ├── GateFailed            1  a gate on accuracy, placement or latency did not hold
    ├── SettingsError         2  flags or settings (also a ValueError)
    │   ├── DataError         2  calibration or test inputs
    │   └── OutputError       2  the place that output should go to
    ├── ModelError            3  the model cannot be used
    ├── TargetError           4  the device cannot take the model (also a ValueError)
    └── ToolchainError        5  the environment
        └── NotAvailable      5  a missing extra, or something that this machine cannot do

A code is one letter for the kind (S settings, D data, O output, M model, T target, E environment, G gate)
and three digits. Codes are stable: they are never reused for something else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


class IntactError(Exception):
    """An error that says where, what was found, what is allowed and what to do."""

    status = 1

    def __init__(
        self,
        code: str,
        message: str,
        *,
        allowed: str | None = None,
        source: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.code = code
        self.message = message
        self.allowed = allowed
        self.source = source
        self.fix = fix
        self.files: dict[str, str] = {}
        super().__init__(self.text())

    def __reduce__(self) -> tuple[Callable[..., IntactError], tuple[type[IntactError], dict[str, Any]]]:
        """Pickle the parts of the error, so that another process makes the same one and not just its text."""
        return _again, (type(self), self.__dict__)

    def text(self) -> str:
        """The whole error as it is printed, without the leading `error[...]`."""
        lines = [self.message]
        lines += [f"  allowed: {self.allowed}"] if self.allowed else []
        lines += [f"  source: {self.source}"] if self.source else []
        last = [f"  fix: {self.fix}"] if self.fix else []
        said = "\n".join([*lines, *last])
        lines += [f"  {kind}: {path}" for kind, path in self.files.items() if path not in said]
        return "\n".join([*lines, *last])

    def name_files(self, files: Mapping[str, str]) -> None:
        """Tell the files that the command was about, by their kind, wherever the words do not name them."""
        self.files = {**files, **self.files}
        self.args = (self.text(),)


def _again(kind: type[IntactError], parts: dict[str, Any]) -> IntactError:
    error = kind(parts["code"], parts["message"])
    error.__dict__.update(parts)
    error.args = (error.text(),)
    return error


@contextmanager
def about(subject: object) -> Iterator[None]:
    """Name what is worked on (a model's file) in every refusal of the model that does not name it itself."""
    try:
        yield
    except (ModelError, TargetError, ToolchainError) as error:
        if str(subject) not in error.message and not isinstance(error, NotAvailable):
            error.message = f"{subject}: {error.message}"
            error.args = (error.text(),)
        raise


class GateFailed(IntactError):
    """The build is complete, but a gate that the user set did not hold."""

    status = 1


class SettingsError(IntactError, ValueError):
    """A flag, a settings file or a call is wrong."""

    status = 2


class DataError(SettingsError):
    """Calibration or test inputs do not fit the model."""


class OutputError(SettingsError):
    """Output cannot go where it was asked to go."""


class ModelError(IntactError):
    """The file is not a model, or not one that can be used."""

    status = 3


class TargetError(IntactError, ValueError):
    """The device cannot take this model."""

    status = 4


class ToolchainError(IntactError):
    """The environment failed: a vendor library died or refused to start."""

    status = 5


class NotAvailable(ToolchainError):
    """Something that is not installed, or that cannot work on this machine."""


# What moves a cursor, colours, hides or reverses text: C0 and C1 without tab and newline, separators, directions.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Text for a terminal: whatever would steer it is written as an escape. Everything that is printed goes through."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def steers(text: str) -> bool:
    """True if a name would steer a terminal, or begin a line of its own."""
    return not text.isprintable() and (printable(text) != text or "\n" in text or "\t" in text)


def some(items: Sequence[str], most: int, between: str = ", ") -> str:
    """A list for a message: its first items, and the number of those that are left out."""
    shown = between.join(items[:most])
    return shown if len(items) <= most else f"{shown}{between.rstrip(', ')} and {len(items) - most} more"
