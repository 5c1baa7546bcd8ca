"""The libraries that a probe can ask, as the process sees them that asks: none of them is loaded here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from intact.backends.openvino import client as openvino_client
from intact.backends.probing.models import PROBED
from intact.backends.qnn import client as qnn_client
from intact.backends.qnn import log as qnn_log
from intact.errors import SettingsError
from intact.targets import provider_placement

# Lines of a log that follow this one are about the question that it names.
MARK = "intact-probe"


@dataclass(frozen=True, slots=True)
class Library:
    """A library: its package, how to learn its version, the module that asks it, and how to read reasons in its log."""

    package: str
    version: Callable[[], str]
    module: str
    reasons: Callable[[str], Mapping[int, str]]

    def __str__(self) -> str:
        return f"{self.package} {self.version()}"


def library_of(backend: str) -> Library:
    """The library that knows what `backend` takes."""
    if backend not in LIBRARIES:
        raise SettingsError("S191", f"--device {backend}: it has no library to ask", allowed=", ".join(LIBRARIES))
    return LIBRARIES[backend]


def _qnn_version() -> str:
    return qnn_client.environment()[qnn_client.PACKAGE]


def _qnn_reasons(log: str) -> dict[int, str]:
    """Why a question was answered with no, by its number, from the log between its marks."""
    sections = log.split(f"{MARK} ")[1:]
    found: dict[int, str] = {}
    for section in sections:
        number, _, text = section.partition("\n")
        if number.isdecimal():
            found[int(number)] = _reason(qnn_log.reasons(text.split(MARK)[0]))
    return found


def _reason(reasons: Mapping[str, str]) -> str:
    """The reason against the operator itself, or else against a constant of it."""
    own = {provider_placement.known_name(name, {PROBED: ""}): reason for name, reason in reasons.items()}
    if PROBED in own:
        return own[PROBED]
    return next(
        (reason for reason in reasons.values() if "graph input" not in reason and "graph output" not in reason), ""
    )


def _no_log(log: str) -> dict[int, str]:
    """Its errors say why."""
    return {}


LIBRARIES = {
    "qnn": Library(qnn_client.PACKAGE, _qnn_version, "intact.backends.qnn.ask", _qnn_reasons),
    "openvino": Library(openvino_client.PACKAGE, openvino_client.version, "intact.backends.openvino.ask", _no_log),
}
