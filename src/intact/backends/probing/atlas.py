"""An atlas of where a device computes wrong: each factor of each case in turn, and then towards the edge.

A case that the library takes as it stands is asked again with one factor changed at a time. Between a right and a
wrong value of an ordered factor the edge is narrowed. What was asked once, by its name, is not asked again, so that a
run that was stopped goes on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from intact.backends import probing
from intact.backends.probing import chips, subjects
from intact.backends.probing.answers import Answer, Probed, shipped
from intact.backends.probing.asking import Question
from intact.backends.probing.cases import Case, Chain
from intact.backends.probing.factors import factors_between, factors_of
from intact.backends.probing.fitting import Factor
from intact.backends.probing.judging import is_wrong
from intact.backends.probing.narrowing import OF_GRIDS, Narrowed, NodeView, RegionEvidence, narrowed, views_of
from intact.backends.probing.shape_factors import PAIRED, SIZES, around, paired, shape_factors
from intact.backends.probing.shaped_cases import kind_of, shaped
from intact.backends.probing.spots import Region, Spot
from intact.backends.probing.subjects import Asked
from intact.backends.probing.wrong_regions import WrongRegion
from intact.records import dataclass

# Pairs of factors of one case whose surroundings are looked at.
MOST_CORNERS = 3
LEAST_RIGHT = 0.25
# Halvings of the ratio between a right and a wrong value.
HALVINGS = 5
# Questions of one child process.
BATCH = 480

Progress = Callable[[int, int, Probed], None]


class Atlas:
    """The exploration of one architecture: the answers so far, and the regions that they show."""

    def __init__(self, backend: str, arch: int, known: Probed | None = None, workers: int = probing.WORKERS) -> None:
        self.library = probing.library_of(backend)
        self.arch, self.workers = arch, workers
        self.soc_id = chips.soc_of(backend, arch)
        kept = known is not None and known.library == str(self.library)
        self.answers = {name: dict(row) for name, row in known.answers.items()} if known and kept else {}
        self.regions: list[Region] = []
        self._rows: dict[str, list[list[Spot]]] = {}

    @property
    def probed(self) -> Probed:
        """The answers as they are written."""
        return Probed(str(self.library), self.answers)

    def explore(self, cases: Sequence[Case], chains: Sequence[Chain], progress: Progress) -> None:
        """Ask about every case and chain as it stands, then about each factor, then about the edges."""
        plain = [*map(Spot, cases), *map(Spot, chains)]
        self._ask(plain, progress)
        taken = [case for case in cases if self._taken(Spot(case)) and not self._wrong(Spot(case))]
        shown, others = shaped(taken)
        sizes = {case.name: SIZES for case in shown} | {case.name: PAIRED for case in others}
        rows = [_row(case, factor) for case in taken for factor in factors_of(case, sizes.get(case.name, ()))]
        rows += [
            _row(chain, factor)
            for chain in chains
            if (answer := self._answer(Spot(chain))) is not None and answer.right
            for factor in factors_between(chain)
        ]
        self._narrow(rows, progress)
        self._follow(rows, shown, progress)
        two = [_row(case, factor) for case in shown for factor in paired(case, self._wrong_alone(case))]
        self._narrow(two, progress)
        shapes = {(case.name, factor.name) for case in shown for factor in shape_factors(case)}
        single = [row for row in rows if row and (row[0].asked.name, row[0].kind) in shapes]
        corners = [row for found in self._corners((*single, *two)) for row in found]
        self._narrow(corners, progress)
        telling = [row for row in corners if self._matters(row)]
        for row in (row for row in (*([spot] for spot in plain), *rows, *two, *corners) if row):
            self._rows.setdefault(row[0].asked.name, []).append(row)
        telling = [row for row in (*rows, *two, *telling) if row]
        self._settle(self._all_regions(plain, telling), progress)
        self.regions = self._all_regions(plain, telling)

    def _all_regions(self, plain: Sequence[Spot], rows: Sequence[Sequence[Spot]]) -> list[Region]:
        """The regions of questions as they stand, and of the values of factors."""
        found = [Region((spot,), None, None, wrong, wrong) for spot in plain if (wrong := self._wrong(spot))]
        return [*found, *(region for row in rows for region in self._regions(row))]

    def conditions(self) -> list[Narrowed]:
        """The condition of each region, where something that can be read in a model is one, or why there is none."""
        known = _KnownViews()
        return [narrowed(self._evidence(region, known), known.of) for region in self.regions]

    def _evidence(self, region: Region, known: _KnownViews) -> RegionEvidence:
        """A region with all that is right about its case, and about others of its operator as they stand."""
        first = region.wrong[0]
        rows = self._rows[first.asked.name]
        if isinstance(first.asked, Case):
            op = first.asked.template.op
            others = [row for own in self._rows.values() for row in own[:1] if _is_of(row[0].asked, op)]
            rows = others if first.factor is None else [*rows, *others]
        is_grid = first.factor is not None and first.kind.startswith(OF_GRIDS)
        kinds = [row for row in rows if not row[0].factor or row[0].kind.startswith(OF_GRIDS) == is_grid]
        judged = [item for row in kinds for item in self._judged(row)]
        right = [spot for spot, _, is_so in judged if not is_so]
        corners = [f"where {first.factor.told([spot.value])}, " for spot in region.wrong if first.factor is not None]
        around = [spot for spot, _, is_so in judged if is_so and spot.kind.startswith(tuple(corners))]
        ends = region.wrong if not is_grid or len(region.wrong) < 3 else (region.wrong[0], region.wrong[-1])
        chosen = (known.built(spots) for spots in (ends, right, around if corners and not is_grid else ()))
        return RegionEvidence("" if first.factor is None else first.kind, first.asked, *chosen)

    def _follow(self, rows: Sequence[list[Spot]], shown: Sequence[Case], progress: Progress) -> None:
        """Ask about sizes that are wrong in a case that was asked about all in those of other types beside it too."""
        names = {case.name for case in shown}
        sizes = [row for row in rows if row and row[0].kind.startswith("size ")]
        wrong: dict[tuple[object, ...], set[float]] = {}
        for row in (row for row in sizes if row[0].asked.name in names):
            wrong[kind_of(row[0].asked), row[0].kind] = {spot.value for spot, _, is_so in self._judged(row) if is_so}
        for row in (row for row in sizes if row[0].asked.name not in names):
            new = sorted(wrong.get((kind_of(row[0].asked), row[0].kind), set()) - {spot.value for spot in row})
            row += [replace(row[0], value=value) for value in new]
        self._ask([spot for row in sizes for spot in row], progress)

    def _narrow(self, rows: Sequence[list[Spot]], progress: Progress) -> None:
        """Ask about every spot, then between those that are right and those that are wrong."""
        self._ask([spot for row in rows for spot in row], progress)
        for _ in range(HALVINGS):
            between = [self._between(row) for row in rows if row]
            if not any(between):
                return
            for row, more in zip((row for row in rows if row), between, strict=True):
                row += more
            self._ask([spot for more in between for spot in more], progress)

    def _settle(self, regions: Sequence[Region], progress: Progress) -> None:
        """Ask about the worst spot of each region again; where the answer is another, about all of it, one at a time.

        A library that reads memory which it never wrote gives what its neighbours in a process left there. The only
        question of a process always has the same answer.
        """
        worst = list({spot.name: spot for spot in map(self._worst, regions)}.values())
        # In another order, so that each has other neighbours than before.
        self._ask([spot.again() for spot in reversed(worst)], progress)
        doubted = {spot.name for spot in worst if self._figures(spot) != self._figures(spot.again())}
        spots = [spot for region in regions if self._worst(region).name in doubted for spot in region.wrong]
        for spot in spots:
            self.answers[spot.name].pop(self.arch, None)
        self._ask(spots, progress, batch=1)
        for spot in spots:
            self.answers.setdefault(spot.again().name, {})[self.arch] = self.answers[spot.name][self.arch]

    def _worst(self, region: Region) -> Spot:
        return next(spot for spot in region.wrong if self._answer(spot) == region.worst)

    def _figures(self, spot: Spot) -> tuple[float | None, float | None]:
        answer = self._answer(spot)
        return (None, None) if answer is None else (answer.sqnr_db, answer.steps)

    def _matters(self, row: Sequence[Spot]) -> bool:
        """True if a good part of the values of a factor is right: otherwise it is no condition."""
        judged = [wrong for _, _, wrong in self._judged(row)]
        return judged.count(False) >= LEAST_RIGHT * len(judged)

    def _wrong_alone(self, case: Case) -> Callable[[Factor], list[float]]:
        def wrong(factor: Factor) -> list[float]:
            return [spot.value for spot, _, is_so in self._judged(_row(case, factor)) if is_so]

        return wrong

    def _corners(self, rows: Sequence[Sequence[Spot]]) -> Iterator[list[list[Spot]]]:
        """For each shape that is wrong, the last of those that one factor or two of them give, what else that takes."""
        corners: dict[str, list[Spot]] = {}
        for row in rows:
            wrong = [spot for spot, _, is_so in self._judged(row) if is_so]
            if wrong:
                corners.setdefault(wrong[-1].asked.name, []).append(wrong[-1])
        for spot in (spot for found in corners.values() for spot in found[:MOST_CORNERS]):
            assert spot.factor is not None, "what is wrong together was varied"
            yield [_row(spot.asked, factor) for factor in around(spot.factor, spot.value)]

    def confirm(self, regions: Sequence[Region], progress: Progress) -> list[Region]:
        """Those of the regions of another architecture in which this one is wrong too; only edges are asked."""
        edges = [spot for region in regions for spot in (Spot(region.wrong[0].asked), *region.edges)]
        self._ask(list({spot.name: spot for spot in edges}.values()), progress)
        return [region for region in regions if any(map(self._wrong, region.last_wrong))]

    def _ask(self, spots: Sequence[Spot], progress: Progress, batch: int = BATCH) -> None:
        new = list({spot.name: spot for spot in spots if self._answer(spot) is None}.values())
        names: list[list[str]] = []

        def batches() -> Iterator[list[Question]]:
            for start in range(0, len(new), batch):
                built = [(spot.name, item) for spot in new[start : start + batch] if (item := spot.built()) is not None]
                names.append([name for name, _ in built])
                yield [Question(item, self.arch, self.soc_id, numeric=True) for _, item in built]

        done = 0
        for number, found in probing.ask_batches(self.library, batches(), self.workers):
            for name, (_, answer) in zip(names[number], found, strict=True):
                self.answers.setdefault(name, {})[self.arch] = answer
            done += min(batch, len(new) - number * batch)
            progress(done, len(new), self.probed)

    def _answer(self, spot: Spot) -> Answer | None:
        return self.answers.get(spot.name, {}).get(self.arch)

    def _taken(self, spot: Spot) -> Answer | None:
        """The answer to a question, if the library takes it as it is."""
        answer = self._answer(spot)
        return answer if answer is not None and answer.verdict == "integer" else None

    def _usual(self, spot: Spot) -> Answer | None:
        """The answer to the case as it stands, unless that is wrong itself."""
        answer = self._answer(Spot(spot.asked))
        return None if answer is None or answer.sqnr_db is None or is_wrong(answer, output=spot.output) else answer

    def _wrong(self, spot: Spot) -> Answer | None:
        """The answer to a question, if it is a wrong one; one that is computed in float may be."""
        answer = self._answer(spot)
        usual = None if spot.factor is None else self._usual(spot)
        return answer if answer is not None and is_wrong(answer, usual, output=spot.output) else None

    def _judged(self, row: Sequence[Spot]) -> list[tuple[Spot, Answer, bool]]:
        """The spots of one factor that the library computes, in order, each with the answer and True if it is wrong."""
        answers = [(spot, answer) for spot in row if (answer := self._answer(spot)) and answer.sqnr_db is not None]
        judged = [(spot, answer, self._wrong(spot) is not None) for spot, answer in answers]
        return sorted(judged, key=lambda item: item[0].value)

    def _between(self, row: Sequence[Spot]) -> list[Spot]:
        """Questions between neighbours of which one is right and the other wrong."""
        factor = row[0].factor
        judged = self._judged(row) if factor is not None and factor.ordered else []
        pairs = itertools.pairwise(judged)
        edges = [(low.value, high.value) for (low, _, first), (high, _, second) in pairs if first != second]
        middles = [float(f"{math.sqrt(low * high):.3g}") for low, high in edges]
        known = {spot.value for spot in row}
        return [Spot(row[0].asked, factor, value) for value in middles if value not in known]

    def _regions(self, row: Sequence[Spot]) -> Iterator[Region]:
        judged = self._judged(row)
        right = [spot for spot, _, is_so in judged if not is_so]
        usual = self._answer(Spot(row[0].asked))
        assert usual is not None, "only what the library computes is varied"
        factor = row[0].factor
        if factor is not None and not factor.ordered:
            judged = [item for item in judged if item[2]]
        for wrong, group in itertools.groupby(enumerate(judged), key=lambda item: item[1][2]):
            part = list(group)
            if not wrong:
                continue
            before, after = part[0][0] - 1, part[-1][0] + 1
            below = judged[before][0] if before >= 0 else None
            above = judged[after][0] if after < len(judged) else None
            worst = min((answer for _, (_, answer, _) in part), key=lambda answer: answer.sqnr_db or 0.0)
            spots = tuple(spot for _, (spot, _, _) in part)
            nearest = min(right, key=lambda spot: _distance(spot, spots), default=None)
            yield Region(spots, below, above, worst, usual, nearest)


def _is_of(asked: Case | Chain, op: str) -> bool:
    return isinstance(asked, Case) and asked.template.op == op


class _KnownViews:
    """Questions of spots, and what can be read in their models, each made once."""

    def __init__(self) -> None:
        self._built: dict[str, Case | Chain | None] = {}
        self._views: dict[int, Sequence[NodeView | None]] = {}

    def built(self, spots: Sequence[Spot]) -> list[Case | Chain]:
        """The questions of spots that can be asked."""
        for spot in (spot for spot in spots if spot.name not in self._built):
            self._built[spot.name] = spot.built()
        found = (self._built[spot.name] for spot in spots)
        return [asked for asked in found if asked is not None]

    def of(self, asked: Case | Chain) -> Sequence[NodeView | None]:
        """The operators of a question that `built` made."""
        if id(asked) not in self._views:
            self._views[id(asked)] = views_of(asked)
        return self._views[id(asked)]


def _row(asked: Case | Chain, factor: Factor) -> list[Spot]:
    return [Spot(asked, factor, value) for value in factor.values]


@dataclass(frozen=True, slots=True)
class Made:
    """An atlas: every answer, and the regions with the architectures that are wrong there."""

    probed: Probed
    wrong: tuple[WrongRegion, ...]


def made(
    backend: str,
    archs: Sequence[int],
    asked: Asked,
    known: Probed | None,
    progress: Progress,
    workers: int,
) -> Made:
    """Explore the first architecture, and ask the others at the edges that it shows."""
    taken_by = shipped(backend)
    assert taken_by is not None, "a backend with a library ships its answers"
    first = Atlas(backend, archs[0], known, workers)
    part = (asked.ops, asked.types)
    cases = [*subjects.taken(taken_by, archs[0], *part), *subjects.alone(*part)]
    cases += subjects.taken_wrongly(taken_by, archs[0], *part)
    first.explore(cases, subjects.chains(*part), progress)
    probed, wrong = first.probed, [[archs[0]] for _ in first.regions]
    for arch in archs[1:]:
        other = Atlas(backend, arch, probed, workers)
        confirmed = [str(region) for region in other.confirm(first.regions, progress)]
        for row, region in zip(wrong, first.regions, strict=True):
            row += [arch] if str(region) in confirmed else []
        probed = other.probed
    each = zip(first.regions, wrong, first.conditions(), strict=True)
    regions = [_told(region, tuple(sorted(row)), condition) for region, row, condition in each]
    return Made(probed, tuple(regions))


def _told(region: Region, archs: tuple[int, ...], found: Narrowed) -> WrongRegion:
    worst, usual = region.worst.sqnr_db or 0.0, region.usual.sqnr_db or 0.0
    first, right = region.wrong[0], region.right
    known = (first.asked.name, region.where, worst, usual, archs)
    if first.factor is None:
        return WrongRegion(*known, condition=found.condition, unread=found.unread)
    at = first if right is None else min(region.wrong, key=lambda spot: abs(spot.value - right.value))
    edge = at.value, None if right is None else right.value
    return WrongRegion(*known, first.factor.name, *edge, found.condition, found.unread)


def _distance(spot: Spot, others: Sequence[Spot]) -> float:
    return min(abs(spot.value - other.value) for other in others)
