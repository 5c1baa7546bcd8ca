"""How much noise each group of nodes adds to the outputs by itself, at each precision.

Every tensor, weight and reading of a tensor is rounded alone, in a run of the float model on a few rows, and the noise
that it makes at the outputs is measured. Rounding errors of different places are all but independent, so the noise of
any assignment is about the sum of its parts. The rows are held out: ranges are observed on the others, since values
beyond them are cut off whatever the number of bits. That happens on few rows, so all that are held out are searched
for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from intact.data.dataset import Dataset
from intact.graph import query
from intact.quantize.grid import encode
from intact.quantize.observe import observe, watch
from intact.quantize.resolve import Resolved, resolve
from intact.quantize.sketch import Sketch
from intact.results import Encoding, QuantPlan
from intact.search.groups import Structure, Tensor
from intact.search.probe_model import Feeds, ProbeModel, rounded
from intact.verify.compare import Difference

# Of the rows a quarter is held out, but no more than so many. As many of them are run with every switch as keeps the
# number of runs within so many times that of a calibration.
SHARE_HELD, MOST_HELD, MOST_ROWS, RUNS_A_ROW = 4, 32, 16, 10
# Noise as a share of that of 8 bits: 16 bits have steps 257 times as fine; the 11 bits of half precision, which small
# values have as well as large ones, are some 36 dB better.
SHARE_16, SHARE_HALF = 2.0**-16, 2.0**-12
# Rounding with feedback leaves about this share of the noise of weights.
FEEDBACK = 0.4


@dataclass(frozen=True, slots=True)
class Noises:
    """Noise at each output as a share of its signal, [kinds, outputs], for activations of 8 bits, 16 bits and float.

    `written` is for a tensor that its writer rounds, `read` for one that only a group rounds when it reads it, and
    `weights` for the weights of a group.
    """

    written: Mapping[str, np.ndarray]
    read: Mapping[tuple[str, int], np.ndarray]
    weights: Mapping[int, np.ndarray]
    outputs: int

    def alone(self, found: Structure) -> list[float]:
        """For each group the noise at the worst output if it alone is in the lowest precision."""
        totals = [np.zeros(self.outputs) for _ in found.groups]
        for tensor in found.tensors:
            if tensor.writer is not None and tensor.name in self.written:
                totals[tensor.writer] += self.written[tensor.name][0]
            for group in tensor.readers:
                totals[group] += self.read[tensor.name, group][0]
        for group, noise in self.weights.items():
            totals[group] += noise[0]
        return [float(total.max(initial=0.0)) for total in totals]


def held_out(calibration: Dataset) -> tuple[Dataset, list[Feeds]]:
    """The rows to observe ranges on, and the others; all for both where there are too few to part them."""
    count = min(MOST_HELD, len(calibration) // SHARE_HELD)
    if count < 2:
        return calibration, list(calibration)
    source, start, stop = calibration.source, calibration.start, calibration.stop
    return Dataset.checked(source, start, stop - count), list(source.read(stop - count, stop))


def measure(
    model: ir.Model, found: Structure, rows: Dataset, held: Sequence[Feeds], *, halves: bool, feedback: bool
) -> Noises:
    """The noise of every tensor and weight, rounded alone; `halves` says that float is half precision."""
    seen = observe(model, found.plan, rows)
    bench = _Bench(model, found, resolve(model, found.plan, seen), _beyond(model, found.plan, seen, held))
    noise = bench.run(held)
    shares = np.array([[1.0], [SHARE_16], [SHARE_HALF if halves else 0.0]])
    kinds = {place: shares * noise[switch] for place, switch in bench.eight.items()}
    for place, switch in bench.sixteen.items():
        kinds[place][:2] += noise[switch]
    less = FEEDBACK if feedback else 1.0
    return Noises(
        {name: rows for (name, group), rows in kinds.items() if group is None},
        {(name, group): rows for (name, group), rows in kinds.items() if group is not None},
        {group: less * shares * noise[switch] for group, switch in bench.weights.items()},
        len(model.graph.outputs),
    )


Place = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class Beyond:
    """A tensor with values beyond what was seen: the 16-bit grid that cuts them off, and the rows that have them."""

    encoding: Encoding
    rows: tuple[int, ...]


@dataclass(slots=True)
class _Bench:
    """A model with a switch for each place where something is rounded: a tensor, for everyone or for one group."""

    model: ir.Model
    found: Structure
    resolved: Resolved
    beyond: Mapping[str, Beyond]
    eight: dict[Place, str] = field(default_factory=dict)
    sixteen: dict[Place, str] = field(default_factory=dict)
    weights: dict[int, str] = field(default_factory=dict)

    def run(self, rows: Sequence[Feeds]) -> dict[str, np.ndarray]:
        """The noise at each output as a share of its signal, by switch."""
        probe = ProbeModel(self.model)
        self._switch_weights(probe)
        values = {value.name: value for node in self.model.graph for value in node.outputs}
        values |= {value.name: value for value in self.model.graph.inputs}
        for tensor in self.found.tensors:
            self._switch_tensor(probe, tensor, values[tensor.name])
        names = dict.fromkeys([*self.eight.values(), *self.weights.values()])
        count = min(MOST_ROWS, max(1, RUNS_A_ROW * SHARE_HELD * len(rows) // max(1, len(names))))
        few = range(0, len(rows), -(-len(rows) // count))
        switches = dict.fromkeys(names, tuple(few))
        cut_off = {switch: self.beyond[place[0]].rows for place, switch in self.sixteen.items()}
        return _noise(probe, switches, rows, few) | _noise(probe, cut_off, rows, range(len(rows)))

    def _switch_weights(self, probe: ProbeModel) -> None:
        for index, group in enumerate(self.found.groups):
            inputs: dict[str, dict[int, np.ndarray]] = {}
            for weight in self.found.plan.weights:
                if weight.node in group.nodes:
                    array = rounded(*self.resolved.constants[weight.node, weight.index])
                    inputs.setdefault(weight.node, {})[weight.index] = array
            if inputs:
                self.weights[index] = probe.switch_weights(inputs)

    def _switch_tensor(self, probe: ProbeModel, tensor: Tensor, value: ir.Value) -> None:
        places: list[Place] = [(tensor.name, None)] if tensor.rounded else []
        places += [(tensor.name, group) for group in tensor.readers]
        grids = [(self.eight, self.resolved.tensors[tensor.name])]
        if tensor.name in self.beyond:
            grids.append((self.sixteen, self.beyond[tensor.name].encoding))
        alone = len(tensor.readers) == 1 and self._only_reader(value, tensor.readers[0])
        origin = self._moved_from(value) if alone else None
        for switches, encoding in grids:
            # What one group alone reads is the same to its writer and its reader, also if it was moved on the way.
            if origin is not None and (origin, None) in switches:
                switches[tensor.name, tensor.readers[0]] = switches[origin, None]
                continue
            if alone and tensor.rounded:
                switches.update(dict.fromkeys(places, probe.switch_tensor(tensor.name, encoding)))
                continue
            for place in places:
                group = place[1]
                readers = None if group is None else self.found.groups[group].nodes
                switches[place] = probe.switch_tensor(tensor.name, encoding, readers)

    def _moved_from(self, value: ir.Value) -> str | None:
        """The tensor whose values these are, only moved, by nodes that alone read them; None where there is none."""
        rounded_ones = {tensor.name for tensor in self.found.tensors if tensor.rounded}
        while (producer := value.producer()) is not None and value.name not in rounded_ones:
            source = producer.inputs[0] if producer.inputs else None
            if source is None or source.name not in self.found.plan.tensors or query.only_consumer(source) is None:
                return None
            value = source
        return value.name if value.name in rounded_ones else None

    def _only_reader(self, value: ir.Value, group: int) -> bool:
        nodes = self.found.groups[group].nodes
        return not value.is_graph_output() and all(node.name in nodes for node, _ in value.uses())


def _noise(
    probe: ProbeModel, switches: Mapping[str, Sequence[int]], rows: Sequence[Feeds], over: Sequence[int]
) -> dict[str, np.ndarray]:
    """The noise of each switch on its own rows, as a share of the signal of all rows in `over`."""
    noise: dict[str, np.ndarray] = {}
    signal = np.zeros(())
    for index in over if switches else ():
        expected = probe.run(rows[index])
        signal = signal + np.array([_difference(output, output).signal for output in expected])
        for switch in [switch for switch, own in switches.items() if index in own]:
            pairs = zip(expected, probe.again(switch), strict=True)
            found = np.array([_difference(before, after).noise for before, after in pairs])
            noise[switch] = noise.get(switch, 0.0) + found
    return {switch: found / np.where(signal > 0, signal, 1.0) for switch, found in noise.items()}


def _difference(reference: np.ndarray, candidate: np.ndarray) -> Difference:
    result = Difference()
    result.add(reference, candidate)
    return result


def _beyond(model: ir.Model, plan: QuantPlan, seen: Mapping[str, Sketch], held: Sequence[Feeds]) -> dict[str, Beyond]:
    """The tensors that have, on held-out rows, values beyond what was seen: there more bits do not help."""
    members: dict[str, list[Sketch]] = {}
    for entry in plan.observed:
        members.setdefault(plan.tensors[entry], []).append(seen[plan.source(entry)])
    ranges = {grid: (min(s.low for s in all_), max(s.high for s in all_)) for grid, all_ in members.items()}
    computed = {value.name for node in model.graph for value in node.outputs}
    computed |= {value.name for value in model.graph.inputs}
    watched = [name for name, grid in plan.tensors.items() if grid in ranges and name in computed]
    extremes: dict[str, list[tuple[float, float]]] = {name: [] for name in watched}
    add = {name: [_Extremes(found).add] for name, found in extremes.items()}
    watch(model, add, held)
    result = {}
    for name, found in extremes.items():
        low, high = ranges[plan.tensors[name]]
        rows = [i for i, (least, most) in enumerate(found) if least < min(low, 0.0) or most > max(high, 0.0)]
        if rows:
            symmetric = plan.grids[plan.tensors[name]].symmetric
            result[name] = Beyond(encode(low, high, "uint16", symmetric=symmetric), tuple(rows))
    return result


@dataclass(frozen=True, slots=True)
class _Extremes:
    """The least and the greatest value of each row."""

    found: list[tuple[float, float]]

    def add(self, values: np.ndarray) -> None:
        """Take in one row; without finite values it has no extremes."""
        finite = values[np.isfinite(values)]
        self.found.append((float(finite.min(initial=0.0)), float(finite.max(initial=0.0))))
