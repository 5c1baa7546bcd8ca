"""The file of regions where a device is wrong: one line each, with the version of the library and the architectures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

from intact import scratch
from intact.backends import installed
from intact.records import dataclass
from intact.settings import devices
from intact.targets import faults
from intact.targets.faults import FaultCondition, WrittenCondition


@dataclass(frozen=True, slots=True)
class WrongRegion:
    """A condition under which a library takes operators and computes something else.

    `worst_db` is what is left of the signal there, `usual_db` what is left of it otherwise. At its edge a value of the
    factor is wrong, `wrong_at`, and another right, `right_at`; None where none is, or there is no factor. `condition`
    is what can be read of it in a model; `unread` says why there is none.
    """

    case: str
    where: str
    worst_db: float
    usual_db: float
    archs: tuple[int, ...]
    factor: str = ""
    wrong_at: float | None = None
    right_at: float | None = None
    condition: FaultCondition | None = None
    unread: str = ""

    def __str__(self) -> str:
        archs = ", ".join(f"v{arch}" for arch in self.archs if arch)
        return f"{self.case}: {self.where}: {self.worst_db:g} dB{f' ({archs})' if archs else ''}"


def write(regions: Sequence[WrongRegion], library: str, asked: Sequence[str] | None, path: Path) -> None:
    """Write the file, whole or not at all; `asked` are the operators that were asked about, None stands for all."""
    lines = ",\n".join(f"  {json.dumps(_row(region), ensure_ascii=False)}" for region in regions)
    head = f'"library": {json.dumps(library)}, "asked": {json.dumps(asked)}'
    scratch.write_text(path, f'{{{head}, "wrong": [\n{lines}\n]}}\n')


def _row(region: WrongRegion) -> dict[str, object]:
    """A line of the file, without what is not there."""
    plain = asdict(replace(region, condition=None))
    found = {name: value for name, value in plain.items() if value is not None and value != ""}
    return found if region.condition is None else found | {"condition": faults.written(region.condition)}


def _condition(row: WrittenCondition | None) -> FaultCondition | None:
    return None if row is None else faults.condition_of(row)


@dataclass(frozen=True, slots=True)
class ShippedRegions:
    """The regions that come with a backend, the library that showed them, and the operators that it was asked about."""

    library: str
    asked: tuple[str, ...] | None
    wrong: tuple[WrongRegion, ...]


@cache
def shipped_regions(backend: str) -> ShippedRegions | None:
    """The regions of the newest library, or None."""
    folder = installed.find(backend).table.with_name(devices.WRONG)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    if not files:
        return None
    data = json.loads(files[-1].read_text(encoding="utf-8"))
    wrong = tuple(
        WrongRegion(**row | {"archs": tuple(row["archs"]), "condition": _condition(row.get("condition"))})
        for row in data["wrong"]
    )
    return ShippedRegions(data["library"], None if data["asked"] is None else tuple(data["asked"]), wrong)
