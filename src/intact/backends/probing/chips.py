"""The numbers that answers of a library are kept by: architectures, or chips where those differ in more than that."""

from __future__ import annotations

from collections.abc import Sequence

from intact.backends.probing.answers import NO_ARCH
from intact.targets.registry import known_archs, known_socs, load_target
from intact.targets.spec import Target


def numbers(backend: str) -> list[int]:
    """Everything that a backend's library is asked about, in the order of its table."""
    if load_target(backend).by_chip:
        return [soc.id for soc in known_socs(backend)]
    return known_archs(backend) or [NO_ARCH]


def usual(backend: str) -> int:
    """The number of the target that a build has where the user names none."""
    target = load_target(backend)
    if target.by_chip and target.soc is not None:
        return target.soc.id
    return target.arch or NO_ARCH


def target_of(backend: str, number: int) -> Target:
    """The target that a number stands for."""
    if number == NO_ARCH:
        return load_target(backend)
    if load_target(backend).by_chip:
        return load_target(backend, soc=_names(backend)[number])
    return load_target(backend, arch=number)


def numbers_of(backend: str, names: Sequence[str]) -> list[int]:
    """The numbers of the architectures, or of the chips, that a user names."""
    if load_target(backend).by_chip:
        chips = [load_target(backend, soc=name).soc for name in names]
        return [chip.id for chip in chips if chip is not None]
    archs = [load_target(backend, arch=name).arch for name in names]
    return [arch for arch in archs if arch is not None]


def label(backend: str, number: int) -> str:
    """A number as people know it: v73, RK3588."""
    if number == NO_ARCH:
        return "every"
    return _names(backend)[number] if load_target(backend).by_chip else f"v{number}"


def soc_of(backend: str, number: int) -> int | None:
    """The number of the chip that is asked about, or stands for an architecture."""
    soc = target_of(backend, number).soc if number != NO_ARCH else None
    return soc.id if soc is not None else None


def _names(backend: str) -> dict[int, str]:
    return {soc.id: soc.name for soc in known_socs(backend)}
