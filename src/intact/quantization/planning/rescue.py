"""Finds what 8 bits cannot hold, and keeps it in more: 16 bits on an NPU that has them, otherwise float.

A few massive values, as residual streams of transformers have them, set the step of a tensor's grid so high that all
its other values drown. The measure is the signal-to-noise ratio of the tensor's bulk on its own grid. On an NPU the
residual streams themselves stay in 16 bits whatever their values: every layer adds its rounding to them. So do outputs
of which few numbers were seen: the next row's may lie well beyond, and 16 bits have steps to spare for that room.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.numbers.decibels import sqnr_db
from intact.numbers.integer_types import limits
from intact.quantization.calibration.ranges import range_of
from intact.quantization.calibration.ranges.error import mean_squared_error
from intact.quantization.calibration.ranges.tails import SCANTY, far_beyond
from intact.quantization.calibration.sketch import Sketch
from intact.quantization.planning.choose import FLOAT
from intact.quantization.planning.planner import NORMALIZATIONS
from intact.results import PlannedGrid, QuantPlan, Range
from intact.targets.spec import Target

# A normal distribution cut at 4 standard deviations has 41 dB on 8 bits, one whose largest value is 15 of them 29 dB.
LEAST_DB = 20.0
LEAST_DB_OF_AN_NPU = 30.0
# The largest values do not count as signal: they are what the others drown under.
_OUTLIERS = 0.005
# The share of all weights that may be multiplied with 16 bits for the sake of a result.
MOST_WEIGHTS_OF_RESULTS = 0.05
# NPUs get results with finer steps wrong: of a detector with outputs near 0.001 a device kept 16 dB in 16 bits.
LEAST_STEP = 1e-6
_WIDER = {"uint8": "uint16", "int8": "int16"}


@dataclass(frozen=True, slots=True)
class Rescue:
    """Other types for single nodes, and what made them necessary.

    `tensors` are those that 8 bits do not hold well enough, with their SQNR in dB; `scanty` are outputs of which few
    numbers were seen.
    """

    types: Mapping[str, str]
    tensors: Mapping[str, float]
    scanty: Collection[str] = ()

    def __str__(self) -> str:
        kind, causes = ", ".join(sorted(set(self.types.values()))), []
        if self.tensors:
            worst = min(self.tensors, key=lambda name: self.tensors[name])
            held = f"8 bits cannot hold {_counted(len(self.tensors), 'tensor')}"
            causes.append(f"{held} (the worst is {worst}, {self.tensors[worst]:.1f} dB)")
        if self.scanty:
            causes.append(f"{_counted(len(self.scanty), 'output')} may exceed the few numbers that were seen")
        stay = "stays" if len(self.types) == 1 else "stay"
        nodes = f"{_counted(len(self.types), 'node')} {stay} in {kind}"
        return f"rescue: {nodes}, because {' and '.join(causes)}; --no-rescue forbids it"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def rescue(
    model: ir.Model,
    plan: QuantPlan,
    seen: Mapping[str, Sketch],
    target: Target,
    settled: Container[str] = (),
    *,
    wide_results: bool = True,
) -> Rescue | None:
    """The nodes that need another type than the plan gives them, or None.

    Nodes that read or write a tensor in `settled` stay as they are: the user has decided about them. `wide_results`
    allows more bits to outputs of which few numbers were seen.
    """
    wide = _has_wider(target)
    if target.npu and not wide and not target.halves:
        return None
    limit = LEAST_DB_OF_AN_NPU if wide else LEAST_DB
    ratios = signal_to_noise(plan, seen)
    streams = _residual_streams(model) if wide else set()
    scanty = _scanty_outputs(model, plan, seen) if wide and wide_results else set()
    noisy = {name: db for name, db in ratios.items() if db < limit or name in streams}
    scanty = {name for name in scanty if name in ratios and name not in noisy}
    grids = {plan.tensors[name] for name in (*noisy, *scanty)}
    poor = {value for value in _computed(model) if value.name and plan.tensors.get(value.name) in grids}
    types: dict[str, str] = {}
    for node in query.all_nodes(model):
        current = plan.nodes.get(node.name or "")
        read = [node.inputs[index] for index in plan.uses.get(node.name or "", ())]
        touched = [v for v in read if v is not None] + (list(node.outputs) if target.npu else [])
        if any(value.name in settled for value in (*node.inputs, *node.outputs) if value is not None):
            continue
        if current in _WIDER and any(value in poor for value in touched):
            types[node.name or ""] = _WIDER[current] if wide else FLOAT
    _keep_units_together(model, plan, types)
    return Rescue(types, noisy, scanty) if types else None


def _has_wider(target: Target) -> bool:
    """True if an NPU multiplies activations of 16 bits."""
    signatures = (row for spec in target.ops.values() for row in target.signatures(spec) if row.runs == "integer")
    types = {dtype for row in signatures for slot in row.inputs[:1] for dtype in slot.types}
    return target.npu and not types.isdisjoint(_WIDER.values())


def _keep_units_together(model: ir.Model, plan: QuantPlan, types: dict[str, str]) -> None:
    """Give a node that clips the type of its producer, and the other way round, where no grid is between them."""
    for node in query.all_nodes(model):
        source = node.inputs[0] if node.inputs else None
        producer = source.producer() if source is not None else None
        if producer is None or source is None or source.name in plan.tensors:
            continue
        names = [node.name or "", producer.name or ""]
        wanted = next((types[name] for name in names if name in types), None)
        if wanted is not None and all(name in plan.nodes for name in names):
            types.update(dict.fromkeys(names, wanted))


def _residual_streams(model: ir.Model) -> set[str]:
    """Sums that a normalization reads: whatever layers add to them, and round, adds up to the end of the network.

    What the first of them is made from, the embedding, belongs to the stream; what later layers add to it does not.
    """
    read = {node.inputs[0] for node in model.graph if node.op_type in NORMALIZATIONS}
    sums = [node for value in read if value is not None and (node := value.producer()) is not None]
    sums = [node for node in sums if node.op_type == "Add"]
    normalized = _normalized(model)
    embeddings = [value for node in sums for value in node.inputs if value is not None and value not in normalized]
    return {value.name or "" for value in (*(node.outputs[0] for node in sums), *embeddings)}


def _scanty_outputs(model: ir.Model, plan: QuantPlan, seen: Mapping[str, Sketch]) -> set[str]:
    """Outputs of which few numbers were seen, and which layers with few of the weights compute."""
    constants = query.initializers(model)
    weights = {weight.node: constants[weight.tensor].const_value for weight in plan.weights}
    sizes = {node: 0 if tensor is None else tensor.size for node, tensor in weights.items()}
    most = MOST_WEIGHTS_OF_RESULTS * sum(sizes.values())
    found = set()
    for value in model.graph.outputs:
        writer, name = value.producer(), value.name or ""
        size = 0 if writer is None else sizes.get(writer.name or "", 0)
        if name in seen and 0 < seen[name].count < SCANTY and size <= most and _has_room(seen[name]):
            found.add(name)
    return found


def _has_room(seen: Sketch) -> bool:
    """True if an NPU computes with the steps that 16 bits would have."""
    room = far_beyond(seen)
    return (room.high - room.low) / (2**16 - 1) >= LEAST_STEP


def _normalized(model: ir.Model) -> set[ir.Value]:
    """The values that some normalization has a part in."""
    found: set[ir.Value] = set()
    for node in model.graph:
        if node.op_type in NORMALIZATIONS or any(value in found for value in node.inputs):
            found.update(node.outputs)
    return found


def signal_to_noise(plan: QuantPlan, seen: Mapping[str, Sketch]) -> dict[str, float]:
    """For each observed tensor on an 8-bit grid, its signal-to-noise ratio there in dB."""
    ratios = {}
    for name, sketch in seen.items():
        grid = plan.grids.get(plan.tensors.get(name, ""))
        if grid is not None and grid.dtype in _WIDER and sketch.histogram:
            ratios[name] = _ratio(sketch, grid)
            sketch.forget_tables()
    return ratios


def _ratio(sketch: Sketch, grid: PlannedGrid) -> float:
    values, counts = sketch.points()
    order = np.argsort(np.abs(values), kind="stable")
    bulk = order[np.cumsum(counts[order]) <= (1 - _OUTLIERS) * sketch.count]
    power = float(np.sum(counts[bulk] / sketch.count * values[bulk] ** 2))
    error = float(mean_squared_error(sketch, [_range(sketch, grid)], grid)[0])
    return sqnr_db(power, error) if power > 0 and error > 0 else np.inf


def _range(sketch: Sketch, grid: PlannedGrid) -> Range:
    if grid.fixed is not None:
        scale, zero_point = grid.fixed
        least, greatest = limits(grid.dtype)
        low = (least - zero_point) * scale
        return Range(low, low + (greatest - least) * scale)
    return grid.range if grid.range is not None else range_of(sketch, grid)


def _computed(model: ir.Model) -> list[ir.Value]:
    inputs = (value for graph in query.all_graphs(model) for value in graph.inputs)
    return [*inputs, *(value for node in query.all_nodes(model) for value in node.outputs)]
