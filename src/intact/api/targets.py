"""`intact.list_targets`: the devices that intact knows, their chips and precisions, and what is here for them."""

from __future__ import annotations

from intact.backends import installed
from intact.errors import IntactError
from intact.records import dataclass
from intact.targets.registry import known_archs, known_backends, known_socs, load_target
from intact.targets.spec import Soc


@dataclass(frozen=True, slots=True)
class KnownTarget:
    """A device: `missing` says what to install before models can be built for it, None where nothing is.

    `simulated` is True if a simulator of it is part of the toolchain, so that it runs here without the device.
    """

    name: str
    title: str
    precisions: tuple[str, ...]
    archs: tuple[str, ...]
    default_arch: str | None
    chips: tuple[Soc, ...]
    simulated: bool
    missing: str | None


def list_targets() -> list[KnownTarget]:
    """Every device by its table; no vendor's library is loaded."""
    return [_target(name) for name in known_backends()]


def _target(name: str) -> KnownTarget:
    target, is_backend = load_target(name), installed.is_backend(name)
    return KnownTarget(
        name,
        installed.title(name),
        tuple(target.precisions),
        tuple(f"v{arch}" for arch in known_archs(name)),
        None if target.arch is None else f"v{target.arch}",
        tuple(known_socs(name)),
        is_backend and installed.find(name).simulator is not None,
        _missing(name) if is_backend else "a backend: this is a table alone, for intact analyze and intact quantize",
    )


def _missing(name: str) -> str | None:
    try:
        installed.versions(name)
    except IntactError as error:
        return error.fix or error.message
    return None
