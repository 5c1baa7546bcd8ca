"""A device as a whole: its chips, architectures and precisions, without what its table says of operators.

A command line asks it first, so that a chip or a precision that the device does not have is told at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Protocol, get_args

from intact.errors import NotAvailable, SettingsError
from intact.settings import contradictions, devices, hand_written, preset_table
from intact.settings.config import BuildConfig, Precision, nearest
from intact.targets.spec import Soc
from intact.targets.table import TableHead, TargetSection, parse_head


class Offers(Protocol):
    """The part of a target, or of the head of its table, that is about precisions."""

    @property
    def precisions(self) -> Mapping[str, str]:
        """Precisions that the device takes, each with its source."""

    @property
    def later(self) -> Mapping[str, str]:
        """Precisions that are not built yet, each with the reason."""

    @property
    def instead(self) -> Mapping[str, str]:
        """Precisions that make no sense on the device, each with what does."""


def check_settings(config: BuildConfig) -> None:
    """Refuse a chip, a precision or a version that the device of these settings does not have."""
    wanted = config.compile
    head = parse_head(*source_of(wanted.device))
    chip = soc_of(head, wanted.soc, wanted.device) if wanted.soc is not None else None
    arch_of(head, wanted.arch, chip, wanted.device)
    if config.precision is not None:
        check_precision(head.target.name, config.precision, head)
        preset_table.check_meant(config, config.precision, halves_alone=head.target.halves_alone)
    preset_table.check_plan(config)
    _check_gates(config, head.target)
    if wanted.assume_ort is not None:
        version_parts(wanted.assume_ort)


def _check_gates(config: BuildConfig, target: TargetSection) -> None:
    """Refuse gates that cannot be checked for the device, as far as its table says so."""
    contradictions.check_npu(config, target.name, npu=target.npu)
    if config.max_cycles is None and config.max_latency_ratio is None:
        return
    # A package of somebody else's says this of its device when it is loaded.
    ours = [parse_head(*source_of(name)).target for name in devices.shipped()]
    if target.name in devices.shipped():
        able = [other.name for other in ours if other.estimates]
        contradictions.check_cycles(config, target.name, able, estimates=target.estimates)
    timed = [other.name for other in ours if other.untimed is None]
    contradictions.check_latency(config, target.name, target.untimed, timed)


def source_of(name: str) -> tuple[str, str]:
    """The text of a table and where it comes from; a file that a user may edit is read every time."""
    if not name.endswith(".toml"):
        return _installed(name)
    try:
        return hand_written.read(Path(name)), name
    except FileNotFoundError:
        raise SettingsError("S122", f"{name}: no such target table") from None
    except (OSError, ValueError) as error:
        raise SettingsError("S122", f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def socs(head: TableHead) -> list[Soc]:
    """The chips of a device, in the order of its table."""
    rows = [] if head.soc is None else head.soc.rows
    return [Soc(row.name, row.id, row.arch, row.vtcm_mb, row.sold_as, row.clock_mhz) for row in rows]


def soc_of(head: TableHead, soc: str, name: str) -> Soc:
    """The chip `soc`, by the name of its maker or the one it is sold as."""
    chips = {chip.name: chip for chip in socs(head)}
    named = chips | {chip.sold_as.upper(): chip for chip in chips.values() if chip.sold_as}
    if soc.upper() not in named:
        hint = nearest(soc.upper(), list(named))
        raise SettingsError("S126", f"unknown SoC {soc!r} of {name}{hint}", allowed=", ".join(chips) or "none")
    return named[soc.upper()]


def arch_of(head: TableHead, arch: str | int | None, soc: Soc | None, name: str) -> int | None:
    """The architecture that is asked for, that of the chip, or the usual one."""
    known = head.target.archs
    text = ", ".join(f"v{a}" for a in known) or f"{name} has no architectures"
    if arch is None:
        return soc.arch if soc is not None else head.target.default_arch
    digits = str(arch).lower().removeprefix("v")
    if not digits.isdecimal() or int(digits) not in known:
        raise SettingsError("S124", f"unknown architecture {arch!r} of {name}", allowed=text)
    if soc is not None and soc.arch != int(digits):
        raise SettingsError("S125", f"{soc.name} is v{soc.arch}, not v{digits}", fix="give --soc or --arch, not both")
    return int(digits)


def check_precision(name: str, precision: str, offers: Offers) -> None:
    """Refuse a precision that the device has no use for (status 2), or that is not built yet (status 5)."""
    if precision in offers.precisions:
        return
    works = ", ".join(offers.precisions)
    if precision not in get_args(Precision):
        raise SettingsError("S110", f"unknown precision {precision!r}", allowed=", ".join(get_args(Precision)))
    if precision in offers.later:
        raise NotAvailable(
            "E130",
            f"{precision} for {name} is not built yet: {offers.later[precision]}",
            allowed=works or f"no precision works for {name} yet; give another --device (see intact targets)",
        )
    fix = offers.instead.get(precision)
    raise SettingsError("S111", f"{precision} makes no sense on {name}", allowed=works, fix=fix)


def version_parts(version: str) -> tuple[int, ...]:
    """The first two numbers of a version of ONNX Runtime."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise SettingsError("S138", f"{version!r} is not a version of ONNX Runtime", allowed="for example 1.26")
    return int(found[1]), int(found[2])


@cache
def _installed(name: str) -> tuple[str, str]:
    if name in devices.shipped():
        shipped = resources.files("intact") / "backends" / name / devices.TABLE
        return shipped.read_text(encoding="utf-8"), f"backends/{name}/table.toml"
    paths = [devices.load(point).table for point in devices.added(devices.BACKEND_GROUP, name)]
    paths += [devices.load(point) for point in devices.added(devices.TARGET_GROUP, name)]
    for path in map(Path, paths):
        return path.read_text(encoding="utf-8"), str(path)
    known = devices.known()
    raise SettingsError("S121", f"unknown device {name!r}{nearest(name, known)}", allowed=", ".join(known))
