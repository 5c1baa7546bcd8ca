"""`intact.probe`: asks the vendor's library what it takes, operator by operator."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from intact.backends import probing
from intact.backends.probing import atlas, chips, wrong_regions
from intact.backends.probing.answers import Probed
from intact.backends.probing.cases import cases
from intact.backends.probing.subjects import Asked
from intact.backends.probing.wrong_regions import WrongRegion
from intact.errors import SettingsError
from intact.events import Events, Silence, counting
from intact.records import dataclass
from intact.runtime import cluster as clusters
from intact.settings.keywords import AnyPath

DEFAULT_DEVICE = "qnn"


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The answers of a vendor's library as they were written: how many there are of each kind."""

    library: str
    output: Path
    answers: dict[str, int]
    wrong: tuple[WrongRegion, ...] = ()


def probe(
    *,
    device: str = DEFAULT_DEVICE,
    op: Sequence[str] | None = None,
    type: Sequence[str] | None = None,
    arch: Sequence[str] | None = None,
    numeric: bool = False,
    output: AnyPath | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    events: Events | None = None,
) -> ProbeReport:
    """Ask the vendor's library about every operator and type, and write its answers with its version.

    With `numeric`, ask its simulator where it computes something else: one factor of each operator at a time (scales,
    zero points, values, sizes, ranks, windows), pairs and triples of operators, and then towards the edges. The first
    architecture is explored, the others are asked at the edges. The output is the list of wrong regions; all answers
    are beside it. `type` limits that to activations of these types.

    `arch` names architectures, or chips where those of a device differ in more than that.

    An interrupted run goes on where it stopped: answers of the same version in the file are kept. On a `cluster` its
    workers ask, each the library that is installed there, which has to be the same.
    """
    with clusters.used(cluster, events=events):
        return _probe(ProbeRequest(device, op, type, arch, numeric, output, workers), events or Silence())


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """The arguments of one call of `probe`."""

    device: str
    op: Sequence[str] | None
    type: Sequence[str] | None
    arch: Sequence[str] | None
    numeric: bool
    output: AnyPath | None
    workers: int | None


def _probe(asks: ProbeRequest, events: Events) -> ProbeReport:
    device, op, output, workers = asks.device, asks.op, asks.output, asks.workers or probing.WORKERS
    library = probing.library_of(device)
    asked = cases(list(op) if op else None, library.types)
    if not asked:
        raise SettingsError("S192", f"--op {', '.join(op or ())}: no case asks about it")
    archs = None if asks.arch is None else chips.numbers_of(device, asks.arch)
    if asks.numeric:
        place = Path(output) if output is not None else Path(f"{device}-{library.version()}-wrong.json")
        part = Asked(tuple(op) if op else None, tuple(asks.type) if asks.type else None)
        order = NumericOrder(device, tuple(archs or [chips.usual(device), *chips.numbers(device)]), part, workers)
        return _numeric(order, place, events)
    place = Path(output) if output is not None else Path(f"{device}-{library.version()}.json")
    events.note(f"asking {library} about {len(asked)} cases; the answers go to {place}")
    known = Probed.read(place) if place.exists() else None

    with _questions(place, events) as progress:
        found = probing.probe(device, asked, archs, known=known, progress=progress, workers=workers)
    found.write(place)
    counts = Counter(answer.verdict for row in found.answers.values() for answer in row.values())
    return ProbeReport(found.library, place, dict(sorted(counts.items())))


@contextmanager
def _questions(place: Path, events: Events) -> Iterator[Callable[[int, int, Probed], None]]:
    """Write the answers so far after batches, and tell how many of the questions have one."""
    with counting(events, "probe") as count:
        pause = _Pause()

        def progress(done: int, total: int, so_far: Probed) -> None:
            if pause.over or done == total:
                with pause.after():
                    so_far.write(place)
            count(done, total)
            events.note(f"{done} of {total} questions answered")

        yield progress


class _Pause:
    """Time between writes of a file that grows: twenty times what the last one took."""

    def __init__(self) -> None:
        self._until = 0.0

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._until

    @contextmanager
    def after(self) -> Iterator[None]:
        started = time.monotonic()
        yield
        ended = time.monotonic()
        self._until = ended + 20 * (ended - started)


@dataclass(frozen=True, slots=True)
class NumericOrder:
    """The subject of an atlas: a device, its architectures, of which the first is explored, and what is asked."""

    device: str
    archs: tuple[int, ...]
    asked: Asked
    workers: int


def _numeric(order: NumericOrder, place: Path, events: Events) -> ProbeReport:
    answers = place.with_suffix(".answers.json")
    known = Probed.read(answers) if answers.exists() else None
    with _questions(answers, events) as progress:
        found = atlas.made(order.device, list(dict.fromkeys(order.archs)), order.asked, known, progress, order.workers)
    found.probed.write(answers)
    wrong_regions.write(found.wrong, found.probed.library, order.asked.told, place)
    counts = Counter(answer.verdict for row in found.probed.answers.values() for answer in row.values())
    return ProbeReport(found.probed.library, place, dict(sorted(counts.items())), found.wrong)
