"""Study a linear layer's inputs in one more run: moments, means, and the grid that disturbs it least."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np
import onnx_ir as ir

from intact.numbers.encoding import Encoding, round_to_grid
from intact.quantization.calibration.ranges.auto import WORTH_CLIPPING
from intact.quantization.improve.effort import NORMAL, Depth
from intact.quantization.improve.linear_layers import Linear, Moments, linear, spread
from intact.records import dataclass
from intact.results import QuantPlan, WeightPlan

# Columns of all rows together that grids are tried on. With a third of them wrong grids are chosen now and then.
_TRIAL_COLUMNS = 1536
# Rounding goes row by row and reads what it multiplies from memory: about this many times slower than a large product.
_ROUNDING_FACTOR = 6.0
_TRIAL_SIZE = 512
# How many times less a grid that clips has to disturb a row if that is not as much on all rows together, and the share
# of the rows that need not gain by it.
WORTH_CLIPPING_EVERYWHERE = 1.2
ROWS_THAT_MAY_LOSE = 1 / 32


@dataclass(slots=True)
class Study:
    """The layers that read one tensor in the same way, and what was seen of it.

    Grids for the tensor are tried on some columns of each row: `moved` is, for each grid, the sum of their changes, and
    `disturbances` holds, for each row, the squared change of the layers' outputs by grid. The columns are kept while
    the grids are not known. A grid that is worse than the first on more than `may_lose` rows will not be chosen: if no
    other study tries it, it is tried no more, and disturbs the rows that follow without end.
    """

    tensor: str
    entry: str
    linear: Linear
    layers: list[tuple[WeightPlan, np.ndarray]]
    projections: list[np.ndarray]
    moments: Moments
    tried_per_row: int
    may_lose: int
    candidates: Sequence[Encoding] | None = None
    kept: list[np.ndarray] = field(default_factory=list)
    tried: int = 0
    moved: np.ndarray = field(default_factory=lambda: np.zeros(0))
    disturbances: list[np.ndarray] = field(default_factory=list)
    decides: bool = False
    """True if no other study tries the same grids."""
    losses: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        count = len(self.candidates or ())
        self.moved, self.losses = np.zeros((count, *self.moments.total.shape)), np.zeros(count)
        self.disturbances = []

    def add(self, x: np.ndarray) -> None:
        """Take in one row."""
        columns = self.moments.columns(x)
        self.moments.add_columns(columns)
        chosen = columns[:, spread(columns.shape[1], self.tried_per_row)]
        if self.candidates is None:
            self.kept.append(chosen)
        else:
            self._try(chosen)

    def expect(self, candidates: Sequence[Encoding], *, decides: bool = False) -> None:
        """Try these grids, on all columns that were kept and on those of rows to come."""
        self.candidates, self.decides = candidates, decides
        self.__post_init__()
        for columns in self.kept:
            self._try(columns)
        self.kept = []

    def fresh(self) -> Study:
        """The same study with nothing seen, and without the weights, which are not needed to look."""
        return replace(self, layers=[], moments=self.moments.fresh(), kept=[], tried=0)

    def join(self, later: Study) -> None:
        """Take in what another has seen of the same tensor."""
        self.moments.join(later.moments)
        self.kept.extend(later.kept)
        self.tried += later.tried
        self.moved += later.moved
        self.disturbances += later.disturbances

    def mean_on_grid(self, candidate: int) -> np.ndarray:
        """The mean column after quantization to one of the candidates."""
        return np.asarray(self.moments.mean + self.moved[candidate] / max(self.tried, 1))

    def _try(self, columns: np.ndarray) -> None:
        assert self.candidates is not None, "grids are tried once they are known"
        self.tried += columns.shape[1]
        every = np.ones(columns.shape[1], np.float32)
        changes = np.zeros(len(self.candidates))
        for index, candidate in enumerate(self.candidates):
            if self.decides and self.losses[index] > self.may_lose:
                changes[index] = np.inf
                continue
            same = next((i for i in range(index) if self.candidates[i].same_grid(candidate)), None)
            if same is not None:  # several methods often find the same range
                self.moved[index], changes[index] = self.moved[same], changes[same]
                continue
            error = round_to_grid(columns, candidate)
            error -= columns
            self.moved[index] += every @ error
            if len(self.candidates) > 1:
                changes[index] = self._change(error)
        self.disturbances.append(changes)
        self.losses[1:] += changes[1:] >= changes[0]

    def _change(self, error: np.ndarray) -> float:
        """Squared change of all outputs, relative to the size of each layer's weights."""
        changes = (np.matmul(error, matrix).reshape(-1) for matrix in self.projections)
        return sum(float(np.dot(change, change)) for change in changes)


def studies(model: ir.Model, plan: QuantPlan, rows: int, depth: Depth = NORMAL) -> list[Study]:
    """One empty study for each tensor and way of reading it by layers with quantized weights, coarse ones apart.

    Layers in bodies have none: what they read is seen without its dimensions.
    """
    nodes = {node.name: node for node in model.graph}
    found: dict[tuple[str, Linear, int], Study] = {}
    for weight in (weight for weight in plan.weights if weight.node in nodes):
        node = nodes[weight.node]
        tensor = model.graph.initializers[weight.tensor].const_value
        source = node.inputs[0]
        assert tensor is not None and source is not None and source.name, "planned weights are constants"
        view = linear(node, tensor.numpy(), weight.index)
        entry = plan.entry(source.name, weight.node, 0)
        if view is None or entry not in plan.tensors or source.const_value is not None:
            continue
        matrix = np.asarray(view.matrix(tensor.numpy()), np.float32)
        block = depth.block(weight.dtype)
        key = entry, view, block
        if key not in found:
            moments = Moments.empty(view, matrix, most=depth.columns(matrix.shape[2], rows, weight.dtype), block=block)
            tried = max(1, _TRIAL_COLUMNS // max(rows, 1))
            found[key] = Study(source.name, entry, view, [], [], moments, tried, int(ROWS_THAT_MAY_LOSE * rows))
        found[key].layers.append((weight, matrix))
        found[key].projections.append(_projection(matrix, depth.directions))
    return list(found.values())


def _projection(matrix: np.ndarray, directions: int) -> np.ndarray:
    """A layer's weights as [groups, inputs, directions], of size 1: of its outputs, or of random sums of many.

    All grids are seen in the same directions, so that they compare well although each is only estimated.
    """
    groups, outputs, _ = matrix.shape
    size = max(float(np.linalg.norm(matrix.reshape(-1))), 1e-15)
    if outputs <= directions:
        return matrix.transpose(0, 2, 1) / np.float32(size)
    signs = np.random.default_rng(0).choice(np.array([-1, 1], np.float32), (groups, directions, outputs))
    sums = np.matmul(signs, matrix)
    sums /= np.float32(size * np.sqrt(directions))
    return np.asarray(sums.transpose(0, 2, 1))


def best_candidates(plan: QuantPlan, seen: Sequence[Study]) -> dict[str, int]:
    """For each grid that layers read, the candidate that disturbs all of them together least."""
    totals: dict[str, np.ndarray] = {}
    for study in seen:
        grid = plan.tensors[study.entry]
        totals[grid] = totals.get(grid, 0.0) + np.array(study.disturbances)
    return {grid: _worth_it(total) for grid, total in totals.items()}


def _worth_it(disturbances: np.ndarray) -> int:
    """Of the candidates that are worth it the one that disturbs all rows least, or the first, which clips nothing.

    What clips has to be better on nearly every single row: where a few rows lose what the others gain, there will be
    more of those among the rows that are still to come.
    """
    if not len(disturbances):
        return 0
    total = disturbances.sum(axis=0)
    gains = np.sort(disturbances[:, :1] / np.maximum(disturbances, 1e-300), axis=0)
    least = gains[int(ROWS_THAT_MAY_LOSE * len(gains))]
    enough = (least > WORTH_CLIPPING_EVERYWHERE) | ((least > 1) & (total[0] > WORTH_CLIPPING * total))
    return int(np.argmin(np.where(enough, total, np.inf))) if enough[1:].any() else 0


def by_tensor(seen: Sequence[Study]) -> dict[str, list[Study]]:
    """The studies of each tensor, to watch a run."""
    found: dict[str, list[Study]] = {}
    for study in seen:
        found.setdefault(study.tensor, []).append(study)
    return found


def expect(seen: Sequence[Study], plan: QuantPlan, candidates: Mapping[str, Sequence[Encoding]]) -> None:
    """Tell studies the grids to try on their tensors, by the names of these; those that know them already go on."""
    grids = Counter(plan.tensors[study.entry] for study in seen)
    for study in seen:
        grid = plan.tensors[study.entry]
        if study.candidates is None and grid in candidates:
            study.expect(candidates[grid], decides=grids[grid] == 1)


def expected_seconds(planned: Sequence[Study], rows: int) -> float:
    """Estimate the time of studying and rounding here, from their multiplications and the speed of a large product."""
    moments = rounding = 0.0
    for study in planned:
        groups, inputs = study.moments.groups, study.moments.inputs
        together = min(inputs, study.moments.block)
        moments += 2.0 * groups * rows * study.moments.most * inputs * together
        outputs = sum(matrix.shape[1] for _, matrix in study.layers)
        rounding += 2.0 * groups * inputs * together * (outputs + together / 3 * len(study.layers))
    return (moments + _ROUNDING_FACTOR * rounding) / _operations_per_second()


def _operations_per_second() -> float:
    a = np.ones((_TRIAL_SIZE, _TRIAL_SIZE), np.float32)
    np.matmul(a, a)
    start = time.perf_counter()
    np.matmul(a, a)
    return 2.0 * _TRIAL_SIZE**3 / max(time.perf_counter() - start, 1e-6)
