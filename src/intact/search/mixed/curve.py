"""The curve of accuracy against cost of a model: how its groups are measured, and what a point of it stands for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from intact.errors import TargetError
from intact.events import Events, Silence
from intact.model import shapes
from intact.pipeline import preparation
from intact.pipeline.preparation import PreparedModel
from intact.quantization import quantizing
from intact.quantization.improve.migrate import migrate
from intact.records import dataclass
from intact.results import Sensitivity
from intact.search.mixed import groups, precisions, sensitivity, unseen
from intact.search.mixed.bill import Bill, bill
from intact.search.mixed.cost import Prices, work
from intact.search.mixed.groups import FLOAT, Structure
from intact.search.mixed.ladder import Assignment, Ladder, predicted_db
from intact.search.mixed.sensitivity import Alone, Noises
from intact.settings.config import BuildConfig, QuantConfig, TensorOverride
from intact.targets.spec import Level


@dataclass(frozen=True, slots=True)
class Curve:
    """Assignments of which each is more accurate than all that cost less, and what they were found from.

    Costs are multiples of that of the lowest precision throughout. `uniform` are the precisions of the target that
    have everything at one level, cheapest first, and `model` is the float model that is priced.
    """

    front: Sequence[Assignment]
    uniform: Sequence[Assignment]
    ladder: Ladder
    cheapest: float
    found: Structure
    levels: Sequence[Level]
    alone: Sequence[Alone]
    model: ir.Model
    source: str

    def __str__(self) -> str:
        worst = self.sensitivity(1)
        named = f"; the most sensitive is {worst[0].nodes[0]}, {worst[0].sqnr_db:.1f} dB by itself" if worst else ""
        return f"auto: {len(self.found.groups)} groups of nodes, {len(self.front)} assignments on the curve{named}"

    def sensitivity(self, count: int) -> tuple[Sensitivity, ...]:
        """The groups that cost the most accuracy by themselves, worst first."""
        return tuple(
            Sensitivity(self.found.groups[alone.group].nodes, predicted_db(alone.noise)) for alone in self.alone[:count]
        )

    def below(self, start: Assignment, allowed: float) -> Assignment:
        """The cheapest assignment found with at most so much more noise than another."""
        found = self.ladder.descend(start, allowed)
        return replace(found, cost=found.cost / self.cheapest)

    def bill(self, written: ir.Model) -> Bill:
        """The cost of a model that was made with an assignment, or with any other types."""
        found = bill(self.ladder.prices, self.model, written)
        return replace(found, cost=found.cost / self.cheapest)

    def throughout(self) -> dict[str, float]:
        """The cost of everything at one level, as far as groups have it, by the name of the level."""
        return {level.name: self.ladder.uniform(k).cost / self.cheapest for k, level in enumerate(self.levels)}

    def groups_of(self, chosen: Assignment) -> dict[str, int]:
        """The number of groups with each precision."""
        counts = Counter(chosen.levels)
        return {level.name: counts[position] for position, level in enumerate(self.levels) if counts[position]}


@dataclass(frozen=True, slots=True)
class MeasuredNoise:
    """The float model whose groups were measured, with its shapes, their noise, and that of the worst by themselves."""

    model: ir.Model
    found: Structure
    noises: Noises
    alone: Sequence[Alone]


def measured_noise(begun: PreparedModel, events: Events | None = None, named: int = sensitivity.NAMED) -> MeasuredNoise:
    """The noise of every group by itself; so many as are to be `named` as the worst are measured more closely."""
    target, quant = begun.target, quant_of(begun.config)
    assert target.costs is not None, f"{target.table} lists levels of precision, so it has costs"
    settled = preparation.settle(begun.model, quant, begun.inputs)
    rows, held = unseen.held_out(begun.inputs.calibration)
    careful = quant.effort != "fast"
    model = settled.model
    if careful:
        model = migrate(model, quantizing.plan(model, target, quant), rows, by_nodes=not target.npu).model
    found = groups.structure(model, target, quant, target.costs.levels, settled.ranges)
    rounding = sensitivity.Rounding(target.halves, careful, named)
    noises, alone = sensitivity.measure(model, found, rows, held, rounding, events or Silence())
    shaped = model.clone()
    shapes.infer_shapes(shaped)
    return MeasuredNoise(shaped, found, noises, alone)


def curve_of(begun: PreparedModel, events: Events | None = None) -> Curve:
    """The curve of a model: the noise of every group by itself, measured once, and the steps that save it for least."""
    target = begun.target
    assert target.costs is not None, f"{target.table} lists the precision auto, so it has costs"
    measured = measured_noise(begun, events)
    shaped, found = measured.model, measured.found
    ladder = Ladder(Prices(found, work(shaped, found, target.channels_at_once or 1), target.costs), measured.noises)
    cheapest = ladder.uniform(0).cost
    front = [replace(a, cost=a.cost / cheapest) for a in ladder.front()]
    while len(front) > 1 and not _quantizes(begun, found, front[-1]):
        front.pop()
    uniform = [
        replace(ladder.uniform(k), cost=ladder.uniform(k).cost / cheapest, precision=name)
        for name, k in precisions.throughout(begun.target, begun.config).items()
    ]
    uniform.sort(key=lambda assignment: assignment.cost)
    levels, source = target.costs.levels, target.costs.source
    return Curve(front, uniform, ladder, cheapest, found, levels, measured.alone, shaped, source)


def _quantizes(begun: PreparedModel, found: Structure, chosen: Assignment) -> bool:
    """True if anything is left to quantize: float throughout is another precision, not a mix."""
    quant = quant_of(settings(begun, found, chosen))
    try:
        quantizing.plan(begun.model, begun.target, quant, quant.types)
    except TargetError:
        return False
    return True


def settings(begun: PreparedModel, found: Structure, chosen: Assignment) -> BuildConfig:
    """The settings of a build with an assignment: types of nodes and of weights, under what the user set."""
    assert begun.target.costs is not None, "assignments are of the levels in the target's costs"
    config, quant = begun.config, quant_of(begun.config)
    if chosen.precision is not None:
        return _with_quant(config, precisions.quantization(quant, chosen.precision))
    types: dict[str, str] = {}
    weights: dict[str, TensorOverride] = {}
    for group, position in zip(found.groups, chosen.levels, strict=True):
        level = begun.target.costs.levels[position]
        types |= dict.fromkeys(group.nodes, level.activation)
        if level.activation != FLOAT and level.weight != quant.weight_type:
            weights |= {name: TensorOverride.from_dict({"dtype": level.weight}) for name in group.weights}
    types = {n: t for n, t in moved_as_read(begun, types).items() if t != quant.activation_type}
    overrides = {name: override.to_dict() for name, override in (weights | quant.overrides).items()}
    return _with_quant(config, QuantConfig.from_dict(quant.to_dict() | {"types": types, "overrides": overrides}))


def _with_quant(config: BuildConfig, changed: QuantConfig) -> BuildConfig:
    if config.quant is not None:
        return config.model_copy(update={"quant": changed})
    return config.model_copy(update={"compile": config.compile.model_copy(update={"quant": changed})})


def moved_as_read(begun: PreparedModel, types: Mapping[str, str]) -> dict[str, str]:
    """The types of the model's nodes; one in float that only moves values has the type of all that reads them.

    They are rounded there anyway, and fewer bits are moved.
    """
    result = {name: types[name] for node in begun.model.graph if (name := node.name or "") in types}
    for node in reversed(begun.model.graph):
        spec = begun.target.op(node.domain, node.op_type)
        if result.get(node.name or "") != FLOAT or spec is None or spec.grid != "input":
            continue
        readers = {result.get(reader.name or "", FLOAT) for value in node.outputs for reader in value.consumers()}
        if len(readers) == 1:
            result[node.name or ""] = readers.pop()
    return result


def quant_of(config: BuildConfig) -> QuantConfig:
    """The settings of the quantizer, which a build with the precision auto has."""
    quant = config.quantization
    assert quant is not None, "the preset of auto quantizes"
    return quant
