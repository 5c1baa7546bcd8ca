"""Rows to calibrate models with state on: with the states that the model comes to when it goes through them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice

import numpy as np
import onnx_ir as ir

from intact import data
from intact.pipeline import execution
from intact.quantization.calibration.observe import Rows
from intact.records import dataclass
from intact.verification.compare import Runner

# States are those of a sequence if they differ from what the model returned by less than this share of their power.
_SAME = 1e-3


@dataclass(frozen=True, slots=True)
class FedRows:
    """Rows with the states that a model comes to in the place of their own; `given_too`, each is followed by itself."""

    rows: Rows
    model: ir.Model
    states: Mapping[str, str]
    given_too: bool = False

    def __len__(self) -> int:
        return len(self.rows) * (2 if self.given_too else 1)

    def __iter__(self) -> Iterator[data.Feeds]:
        session = execution.session(self.model)
        carried: dict[str, np.ndarray] = {}
        for row in self.rows:
            fed = {**row, **carried}
            found = session.run(fed)
            carried = {name: found[output] for name, output in self.states.items()}
            yield fed
            if self.given_too:
                yield dict(row)


@dataclass(frozen=True, slots=True)
class LastRows:
    """The last quarter of some rows."""

    rows: Rows

    def __len__(self) -> int:
        return len(self.rows) - 3 * len(self.rows) // 4

    def __iter__(self) -> Iterator[Mapping[str, np.ndarray]]:
        return islice(self.rows, 3 * len(self.rows) // 4, None)


@dataclass(frozen=True, slots=True)
class StatefulRows:
    """The data as steps of a sequence, rows to calibrate on, states of the model, and words if both rows differ."""

    sequence: Rows
    rows: Rows
    states: Mapping[str, str]
    note: str = ""


def with_states(model: ir.Model, rows: Rows, asked: Mapping[str, str] | None) -> StatefulRows:
    """Rows to calibrate on, and the states of the model.

    Data whose states are the same in every row, all zeros for instance, show nothing of the values that states have:
    there they are fed back. Other states that do not follow from the rows before, random ones for instance, may show as
    little; they may also come from real sequences, of which the data has single steps. There the model sees both.
    """
    alone = Runner("original", execution.PLAIN, partial(execution.stream, model))
    states = execution.states_of(asked, model, rows, alone)
    if not states:
        return StatefulRows(rows, rows, states)
    first = {name: np.array(value) for name, value in next(iter(rows)).items() if name in states}
    fed = FedRows(rows, model, states)
    constant, wrong, power = True, 0.0, 0.0
    for given, right in zip(rows, fed, strict=True):
        for name in states:
            constant = constant and np.array_equal(given[name], first[name])
            reference = np.asarray(right[name], np.float64)
            wrong += float(np.sum((np.asarray(given[name], np.float64) - reference) ** 2))
            power += float(np.sum(reference**2))
    if constant:
        note = f"calibrated in sequence: the data has one state throughout, so {states} is fed back"
        return StatefulRows(rows, fed, states, note)
    if wrong <= _SAME * power:
        return StatefulRows(rows, rows, states)
    note = f"calibrated in sequence too: the data's states do not follow from the rows before, so {states} is fed back"
    return StatefulRows(rows, FedRows(rows, model, states, given_too=True), states, note)
