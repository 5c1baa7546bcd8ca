"""`intact.probe`: asks the vendor's library what it takes, operator by operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from intact.backends import probing
from intact.backends.probing.answers import Probed
from intact.backends.probing.cases import cases
from intact.errors import SettingsError
from intact.events import Events, Silence
from intact.settings.keywords import AnyPath
from intact.targets.registry import load_target

DEFAULT_DEVICE = "qnn"


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The answers of a vendor's library as they were written: how many there are of each kind."""

    library: str
    output: Path
    answers: dict[str, int]


def probe(
    *,
    device: str = DEFAULT_DEVICE,
    op: Sequence[str] | None = None,
    arch: Sequence[str] | None = None,
    output: AnyPath | None = None,
    workers: int | None = None,
    events: Events | None = None,
) -> ProbeReport:
    """Ask the vendor's library about every operator and type, and write its answers with its version.

    An interrupted run goes on where it stopped: answers of the same version in the file are kept.
    """
    library, asked = probing.library_of(device), cases(list(op) if op else None)
    if not asked:
        raise SettingsError("S192", f"--op {', '.join(op or ())}: no case asks about it")
    numbers = None if arch is None else [load_target(device, arch=name).arch for name in arch]
    archs = None if numbers is None else [number for number in numbers if number is not None]
    place = Path(output) if output is not None else Path(f"{device}-{library.version()}.json")
    known = Probed.read(place) if place.exists() else None

    def progress(done: int, total: int, so_far: Probed) -> None:
        so_far.write(place)
        (events or Silence()).note(f"{done} of {total} questions answered")

    found = probing.probe(device, asked, archs, known=known, progress=progress, workers=workers or probing.WORKERS)
    found.write(place)
    counts = Counter(answer.verdict for row in found.answers.values() for answer in row.values())
    return ProbeReport(found.library, place, dict(sorted(counts.items())))
