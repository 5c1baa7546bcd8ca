"""Finds where the NPU computes something else than the CPU: each unit of a quantized model alone on the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact import scratch
from intact.backends import installed
from intact.backends.base import Device, Simulator
from intact.errors import ToolchainError
from intact.model import io
from intact.model.copying import copied
from intact.model.cutting import joined
from intact.numbers.decibels import sqnr_db, sqnr_of
from intact.numbers.encoding import Encoding
from intact.numbers.integer_types import limits
from intact.pipeline import execution
from intact.runtime import cluster
from intact.search.debug.layers import PARTED_DB, Rows
from intact.search.debug.units import Unit, Units
from intact.settings.config import CompileConfig
from intact.targets.spec import Target
from intact.verification.compare import Difference

# Units that go to the simulator as one model: starting it costs more than running a unit.
UNITS_AT_ONCE = 24
# Rounding in another order moves a result by a step; an error of this many steps on average is none of rounding.
STEPS = 2.0
# Noise within this of the whole is more than half of it.
MOST_OF_IT_DB = 3.0
# The simulator takes seconds where the CPU takes milliseconds.
SIMULATED_ROWS = 2

Results = Sequence[Mapping[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class UnitError:
    """The distance of the NPU from the CPU in one unit, fed with the same tensors; None where they are identical."""

    unit: Unit
    own_db: float | None
    steps: float | None
    max_abs_error: float
    parted: bool


@dataclass(slots=True)
class _Waiting:
    """A unit whose result on the CPU is known, and which is to run on the NPU."""

    unit: Unit
    piece: ir.Model
    feeds: dict[str, Rows]
    expected: Rows


@dataclass(frozen=True, slots=True)
class SimulatorJob:
    """Units, joined to one small model, for a simulator, and what they are fed."""

    model: bytes
    samples: Sequence[Mapping[str, np.ndarray]]
    simulator: Simulator
    device: Device


def _simulate_or_fail(job: SimulatorJob) -> Results | None:
    """Run units on the simulator; None if its compiler does not take them."""
    try:
        return _simulate(job)
    except ToolchainError:
        return None


def _simulate(job: SimulatorJob) -> Results:
    """Run units on the simulator, here or on the machine of a worker."""
    with scratch.folder("debug") as folder:
        path = Path(folder, "units.onnx")
        path.write_bytes(job.model)
        return job.simulator.run(path, job.samples, job.device)


class DeviceComparison:
    """A quantized model on the CPU, unit by unit, and each unit on the NPU with the tensors of the CPU."""

    def __init__(
        self, model: ir.Model, rows: Sequence[Mapping[str, np.ndarray]], simulator: Simulator, device: Device
    ) -> None:
        self.units = Units(model)
        self._parted_db = PARTED_DB
        self._rows = rows
        self._simulator = simulator
        self.device = device
        self._values: dict[str, Rows] = {
            value.name or "": [np.asarray(row[value.name or ""]) for row in rows] for value in model.graph.inputs
        }
        self._known: dict[str, Rows] = {}
        self._last_use = {name: index for index, unit in enumerate(self.units.units) for name in unit.reads}

    def errors(self, progress: Callable[[], None] = lambda: None) -> list[UnitError]:
        """Every unit, in the order of the model."""
        elsewhere = cluster.current()
        if elsewhere is None:
            return [error for batch in self._batches(progress) for error in self._looked_at(batch, self._tried(batch))]
        batches = list(self._batches(progress))
        results = elsewhere.each(_simulate_or_fail, [self._job(batch) for batch in batches])
        return [error for batch, found in zip(batches, results, strict=True) for error in self._looked_at(batch, found)]

    def _tried(self, waiting: list[_Waiting]) -> Results | None:
        return _simulate_or_fail(self._job(waiting))

    def _looked_at(self, waiting: list[_Waiting], found: Results | None) -> list[UnitError]:
        """The errors of units that ran together; where that failed, of each half of them.

        A compiler may refuse a unit by itself that it takes in the model: that one is run behind all that is before it.
        """
        if found is not None:
            return self._errors(waiting, found)
        if len(waiting) == 1:
            return [self.behind_all(waiting[0].unit)]
        halves = waiting[: len(waiting) // 2], waiting[len(waiting) // 2 :]
        return [error for half in halves for error in self._looked_at(half, self._tried(half))]

    def _batches(self, progress: Callable[[], None]) -> Iterator[list[_Waiting]]:
        """Units with what the CPU makes of them, as many at a time as go to the simulator together."""
        waiting: list[_Waiting] = []
        for index, unit in enumerate(self.units.units):
            waiting.append(self._on_cpu(unit))
            for name in [name for name in self._values if self._last_use.get(name, -1) <= index]:
                del self._values[name]
            if len(waiting) == UNITS_AT_ONCE or index == len(self.units.units) - 1:
                yield waiting
                waiting = []
            progress()

    def together(self) -> Iterator[UnitError]:
        """For each output that is wrong, the first unit that is so behind all that is before it, with its error there.

        A compiler joins units, so that each alone may be right and the model not.
        """
        for end in [unit for unit in self.units.units if unit.tensor in self.units.ends]:
            if not self.behind_all(end).parted:
                continue
            line = self.line(end)
            low, high = 0, len(line) - 1
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if self.behind_all(line[middle]).parted else (middle + 1, high)
            yield self.behind_all(line[low])

    def gradually(self) -> UnitError | None:
        """The first unit behind which most of the error of the whole is there, where no unit is wrong by itself.

        None if every output is identical.
        """
        worst = self.kept_db()
        if worst is None:
            return None
        self._parted_db = worst + MOST_OF_IT_DB
        return next(self.together(), None)

    def kept_db(self, form: Units | None = None) -> float | None:
        """The SQNR of the worst output on the NPU, in another `form` if one is given; None if all are identical."""
        ends = [self.behind_all(unit, form) for unit in self.units.units if unit.tensor in self.units.ends]
        return min((error.own_db for error in ends if error.own_db is not None), default=None)

    def line(self, last: Unit) -> list[Unit]:
        """The units that one depends on, and itself, in the order of the model."""
        needed = {last.tensor}
        for unit in reversed(self.units.units):
            if unit.tensor in needed:
                needed.update(unit.reads)
        return [unit for unit in self.units.units if unit.tensor in needed]

    def behind_all(self, unit: Unit, form: Units | None = None) -> UnitError:
        """A unit at the end of the model that computes it from the inputs; in another `form` of it, if one is given."""
        units = form or self.units
        own = next(one for one in units.units if one.tensor == unit.tensor)
        piece = self._up_to(units, own)
        names = [value.name or "" for value in piece.graph.inputs]
        feeds = {name: [np.asarray(row[name]) for row in self._rows] for name in names}
        return self._on_npu([_Waiting(own, piece, feeds, self._expected(unit))])[0]

    def by_themselves(self, forms: Sequence[tuple[Unit, Units]]) -> list[UnitError]:
        """Units in other forms of the model, side by side, each fed with the tensors that it reads on the CPU."""
        return self._on_npu([self._by_itself(unit, form) for unit, form in forms])

    def _by_itself(self, unit: Unit, form: Units) -> _Waiting:
        own = next(one for one in form.units if one.tensor == unit.tensor)
        fed = [self._inputs_of(unit, row) for row in self._rows]
        session = execution.session(self._alone(unit, fed[0]))
        piece = form.cutter.piece([own.output], set(unit.reads), fed[0])
        feeds = {name: [row[name] for row in fed] for name in unit.reads}
        return _Waiting(own, piece, feeds, [session.run(row)[unit.output] for row in fed])

    def _up_to(self, units: Units, unit: Unit) -> ir.Model:
        inputs = {value.name or "" for value in units.cutter.model.graph.inputs}
        return units.cutter.piece([unit.output], inputs, self._rows[0])

    def _expected(self, unit: Unit) -> Rows:
        """Run a unit on the CPU, behind all that is before it; what was run once is kept."""
        if unit.tensor not in self._known:
            piece = self._up_to(self.units, unit)
            names = [value.name or "" for value in piece.graph.inputs]
            session = execution.session(piece)
            rows = ({name: row[name] for name in names} for row in self._rows)
            self._known = {unit.tensor: [session.run(row)[unit.output] for row in rows]}
        return self._known[unit.tensor]

    def behind(self, unit: Unit) -> tuple[ir.Model, dict[str, np.ndarray]]:
        """A unit with all that is before it, and the inputs of the first row."""
        piece = self._up_to(self.units, unit)
        return piece, {value.name or "": np.asarray(self._rows[0][value.name or ""]) for value in piece.graph.inputs}

    def alone(self, unit: Unit) -> tuple[ir.Model, dict[str, np.ndarray]]:
        """A unit by itself, as it ran, and the tensors that it reads in the first row."""
        inputs = self._inputs_of(unit, self._rows[0])
        return self._alone(unit, inputs), inputs

    def _alone(self, unit: Unit, like: Mapping[str, np.ndarray]) -> ir.Model:
        # With the tensor in front of its grid as an output too, the compiler would compute something else.
        return self.units.cutter.piece([unit.output], self.units.stops - {unit.tensor}, like)

    def _inputs_of(self, unit: Unit, row: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The tensors that a unit reads on the CPU, for one row."""
        behind = self.units.cutter.piece(list(unit.reads), {v.name or "" for v in self.units.cutter.model.graph.inputs})
        if not len(behind.graph):
            return {name: np.asarray(row[name]) for name in unit.reads}
        feeds = {value.name or "": np.asarray(row[value.name or ""]) for value in behind.graph.inputs}
        return dict(execution.session(behind).run(feeds))

    def _on_cpu(self, unit: Unit) -> _Waiting:
        feeds = {name: self._values[name] for name in unit.reads}
        piece = self.units.piece(unit, {name: rows[0] for name, rows in feeds.items()})
        session = execution.session(piece)
        results = [session.run({n: rows[index] for n, rows in feeds.items()}) for index in range(len(self._rows))]
        # As it is behind its grid: a simulator that rounds what it is fed otherwise would not compute with the same.
        self._values[unit.tensor] = [result[unit.output] for result in results]
        alone = self._alone(unit, {name: rows[0] for name, rows in feeds.items()})
        return _Waiting(unit, alone, feeds, [result[unit.output] for result in results])

    def _on_npu(self, waiting: list[_Waiting]) -> list[UnitError]:
        return self._errors(waiting, _simulate(self._job(waiting)))

    def _job(self, waiting: list[_Waiting]) -> SimulatorJob:
        # Joining takes the nodes of what it joins, and a unit that fails with others is asked about again.
        model = joined({str(index): copied(item.piece) for index, item in enumerate(waiting)})
        samples = [
            {f"{i}/{name}": rows[row] for i, item in enumerate(waiting) for name, rows in item.feeds.items()}
            for row in range(len(self._rows))
        ]
        return SimulatorJob(io.to_bytes(model), samples, self._simulator, self.device)

    def _errors(self, waiting: list[_Waiting], results: Sequence[Mapping[str, np.ndarray]]) -> list[UnitError]:
        return [
            self._error(item, [result[f"{i}/{item.unit.output}"] for result in results])
            for i, item in enumerate(waiting)
        ]

    def _error(self, item: _Waiting, found: Rows) -> UnitError:
        difference = Difference()
        for expected, value in zip(item.expected, found, strict=True):
            difference.add(expected, value)
        grid = self.units.grids.get(item.unit.tensor)
        step = None if grid is None else float(np.max(grid.write.scale))
        root = np.sqrt(difference.noise / max(difference.elements, 1))
        steps = None if step is None else float(root / step)
        kept = difference.sqnr_db if grid is None else _kept(difference, grid.write)
        # What is far from zero and became one value has lost all that it tells, and keeps many dB on paper.
        lost = kept is not None and (kept < self._parted_db or difference.is_constant)
        parted = lost and (steps is None or steps > STEPS or self._parted_db > PARTED_DB)
        return UnitError(item.unit, kept, steps, difference.largest, parted)


def _kept(difference: Difference, grid: Encoding) -> float | None:
    """The SQNR in dB; of a tensor of zeros, as the first states of a sequence give, against all that its grid holds.

    A few of 65536 steps are no fault, though nothing is infinitely less than they are.
    """
    if difference.identical or difference.signal > 0:
        return difference.sqnr_db
    reach = float(np.max(grid.scale)) * float(np.subtract(*limits(grid.dtype)[::-1])) / 2
    return sqnr_db(difference.elements * reach**2, difference.noise)


def run_whole(
    model: ir.Model, rows: Sequence[Mapping[str, np.ndarray]], simulator: Simulator, device: Device
) -> Sequence[Mapping[str, np.ndarray]]:
    """The outputs of a whole model on the NPU."""
    return _simulate(SimulatorJob(io.to_bytes(model), rows, simulator, device))


def worst_rows(
    model: ir.Model, rows: Sequence[Mapping[str, np.ndarray]], simulator: Simulator, device: Device
) -> Sequence[Mapping[str, np.ndarray]]:
    """Pick the rows of which the NPU loses most, as many as are looked at: others may be right."""
    if len(rows) <= SIMULATED_ROWS:
        return rows
    found = run_whole(model, rows, simulator, device)
    expected = execution.run(model, map(dict, rows))
    kept = [min(sqnr_of(right[name], got[name]) for name in right) for right, got in zip(expected, found, strict=True)]
    return [rows[index] for index in np.argsort(kept, kind="stable")[:SIMULATED_ROWS]]


def simulator_of(target: Target) -> Simulator | None:
    """The simulator of a target; None where there is none here."""
    return installed.find(target.backend).simulator if installed.is_backend(target.backend) else None


def first_on_device(
    model: ir.Model, rows: Sequence[Mapping[str, np.ndarray]], target: Target, config: CompileConfig
) -> str | None:
    """Name the first node at which the NPU leaves the CPU on these rows, and how; None without a simulator."""
    simulator = simulator_of(target)
    if simulator is None:
        return None
    device = execution.device_of(target, config)
    comparison = DeviceComparison(model, worst_rows(model, rows, simulator, device), simulator, device)
    alone = next((error for error in comparison.errors() if error.parted), None)
    if alone is not None:
        return _sentence(target, alone, "")
    joined = next(comparison.together(), None)
    if joined is not None:
        return _sentence(target, joined, "; alone it is right: the compiler joins it with what is before")
    grown = comparison.gradually()
    return None if grown is None else _sentence(target, grown, "; the error grew up to there, no node is wrong alone")


def _sentence(target: Target, error: UnitError, more: str) -> str:
    unit = error.unit
    kept = "nothing" if error.own_db is None else f"{error.own_db:.1f} dB"
    return f"{target.name} and the CPU part ways at {unit.node} ({unit.op}), which keeps {kept}{more}"
