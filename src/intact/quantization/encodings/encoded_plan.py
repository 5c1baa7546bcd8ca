"""A plan whose grids are those of an encodings file, instead of ranges that are yet to be observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import get_args

import numpy as np
import onnx_ir as ir

from intact.errors import SettingsError, some
from intact.model import query
from intact.numbers.encoding import Encoding, encode
from intact.quantization.encodings.encoding_files import read_encodings
from intact.quantization.encodings.given import GivenGrid
from intact.quantization.planning.planner import plan
from intact.records import dataclass
from intact.results import PlannedGrid, QuantPlan, Range, WeightPlan
from intact.settings import preset_table
from intact.settings.config import QuantConfig, QuantType, TensorOverride, nearest
from intact.targets.spec import Target

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, the encodings of weights that were given, by (node, input), and what the user should know."""

    plan: QuantPlan
    weights: Mapping[tuple[str, int], Encoding] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def changed(self, constants: Mapping[tuple[str, int], tuple[Encoding, np.ndarray]]) -> list[str]:
        """A warning for each weight whose given scale had to grow: its bias would not fit int32."""
        names = {(weight.node, weight.index): weight.tensor for weight in self.plan.weights}
        grown = [names[use] for use, given in self.weights.items() if not constants[use][0].same_grid(given)]
        return [f"{name}: its given scale is raised, because the bias would not fit 32 bits" for name in grown]


def planned(
    model: ir.Model,
    target: Target,
    config: QuantConfig,
    types: Mapping[str, str] | None = None,
    ranges: Mapping[str, Range] | None = None,
) -> Planned:
    """The plan for `model`; with `config.encodings`, every grid that the file has is fixed and not observed."""
    if config.encodings is None:
        preset_table.check_missing(config)
        return Planned(plan(model, target, config, types, ranges))
    given = read_encodings(Path(config.encodings))
    return use(model, target, config, given, config.encodings, types)


def use(
    model: ir.Model,
    target: Target,
    config: QuantConfig,
    given: Mapping[str, GivenGrid],
    source: str,
    types: Mapping[str, str] | None = None,
) -> Planned:
    """The plan with the types and the grids of `given`; each of its tensors has to have a place in the plan."""
    asked = node_types(model, given, config.activation_type) | dict(types or {})
    draft = plan(model, target, config, asked)
    overrides = _weight_overrides(draft, given, source)
    if overrides:
        config = config.model_copy(update={"overrides": _merged(config.overrides, overrides)})
        draft = _with_overrides(model, target, config, asked, source)
    _refuse_strangers(model, target, draft, given, asked, source)
    grids = _fixed_grids(draft, given, source)
    weights = {
        (weight.node, weight.index): _weight(model, weight, given[weight.tensor], source)
        for weight in draft.weights
        if weight.tensor in given
    }
    missing = _missing(draft, grids, given)
    if missing and not config.calibrate_missing:
        raise SettingsError(
            "S165",
            f"{source}: no encodings for {some(missing, _SHOWN)}",
            fix="--calibrate-missing calibrates them; --exclude-node leaves a node in float",
        )
    observed = tuple(entry for entry in draft.observed if draft.tensors[entry] not in grids)
    result = replace(draft, grids={**draft.grids, **grids}, observed=observed)
    return Planned(result, weights, _warnings(draft, given, missing, source))


def node_types(model: ir.Model, given: Mapping[str, GivenGrid], default: str) -> dict[str, str]:
    """Activation types of the nodes whose outputs `given` puts on other types than the default.

    A node without an output of its own there follows its only reader, as a Conv follows the Relu behind it.
    """
    found: dict[str, str] = {}
    for node in reversed(model.graph):
        own = next((given[v.name] for v in node.outputs if v.name and v.name in given), None)
        reader = query.only_consumer(node.outputs[0]) if node.outputs else None
        if own is not None:
            found[node.name or ""] = own.type_like(default)
        elif reader is not None and reader.name in found:
            found[node.name or ""] = found[reader.name]
    return {name: dtype for name, dtype in found.items() if dtype != default}


def _weight_overrides(draft: QuantPlan, given: Mapping[str, GivenGrid], source: str) -> dict[str, TensorOverride]:
    """The overrides by which weights get the types and the granularity of `given`."""
    found: dict[str, TensorOverride] = {}
    for weight in draft.weights:
        entry = given.get(weight.tensor)
        if entry is None:
            continue
        dtype = entry.type_like(weight.dtype)
        if dtype not in get_args(QuantType):
            raise _not_taken(source, weight.tensor, dtype, "no weight has that type")
        channels = entry.scale.size > 1 or entry.axis is not None
        wish = TensorOverride(
            dtype=dtype if dtype != weight.dtype else None,  # type: ignore[arg-type]
            per_channel=channels if channels != (weight.axis is not None) else None,
        )
        if wish != TensorOverride():
            found[weight.tensor] = wish
    return found


def _with_overrides(
    model: ir.Model, target: Target, config: QuantConfig, types: Mapping[str, str], source: str
) -> QuantPlan:
    """The plan once more; where the target refuses a type, it is the one of the file."""
    try:
        return plan(model, target, config, types)
    except SettingsError as error:
        raise SettingsError(
            "S167", f"{source}: {error.message}", allowed=error.allowed, fix="change the encoding of this tensor"
        ) from None


def _merged(mine: Mapping[str, TensorOverride], more: Mapping[str, TensorOverride]) -> dict[str, TensorOverride]:
    changes = {name: wish.model_dump(exclude_none=True) for name, wish in more.items()}
    return {**mine, **{name: mine.get(name, TensorOverride()).model_copy(update=c) for name, c in changes.items()}}


def _refuse_strangers(
    model: ir.Model,
    target: Target,
    draft: QuantPlan,
    given: Mapping[str, GivenGrid],
    types: Mapping[str, str],
    source: str,
) -> None:
    """An encoding that the plan has no place for is a mistake: of the name, of the type, or of the settings."""
    known = {*draft.tensors, *(w.tensor for w in draft.weights), *(b.tensor for b in draft.biases)}
    producers = {value.name: node for node in model.graph for value in node.outputs}
    for name in given:
        node = producers.get(name)
        if node is not None and node.name and node.name in types and node.name not in draft.nodes:
            raise _not_taken(source, name, types[node.name], f"{target.name} does not take it at {node.name}")
    strange = next((name for name in given if name not in known), None)
    if strange is None:
        return
    tensors = {*producers, *model.graph.initializers, *(value.name for value in model.graph.inputs)}
    if strange not in tensors:
        raise SettingsError("S166", f"{source}: the model has no tensor {strange!r}{nearest(strange, sorted(known))}")
    raise SettingsError(
        "S166",
        f"{source}: {strange} has an encoding, but {target.name} quantizes nothing there",
        fix="take it out of the file, or quantize its node",
    )


def _not_taken(source: str, tensor: str, dtype: str, why: str) -> SettingsError:
    return SettingsError(
        "S167", f"{source}: {tensor} is {dtype}; {why}", fix="choose another --precision, or change the encoding"
    )


def _fixed_grids(draft: QuantPlan, given: Mapping[str, GivenGrid], source: str) -> dict[str, PlannedGrid]:
    """The grids that have a member in `given`; a second grid on a tensor follows the range of the first."""
    fixed: dict[str, tuple[str, PlannedGrid]] = {}
    for entry, name in draft.tensors.items():
        if entry not in given:
            continue
        found = _grid(draft.grids[name], entry, given[entry], source)
        first, known = fixed.setdefault(name, (entry, found))
        if known.fixed != found.fixed:
            raise SettingsError(
                "S164",
                f"{source}: {first} and {entry} share one grid, because values only move between them, "
                f"but their encodings differ",
                fix="give them the same encoding",
            )
    result = {name: grid for name, (_, grid) in fixed.items()}
    for entry, conversion in draft.conversions.items():
        if draft.tensors[entry] not in result and conversion.tensor in given:
            grid = draft.grids[draft.tensors[entry]]
            result[draft.tensors[entry]] = _same_range(grid, given[conversion.tensor])
    return result


def _grid(grid: PlannedGrid, tensor: str, given: GivenGrid, source: str) -> PlannedGrid:
    wanted = given.type_like(grid.dtype)
    if wanted != grid.dtype:
        raise _not_taken(source, tensor, wanted, f"the plan has {grid.dtype} there")
    if given.scale.size > 1:
        raise SettingsError(
            "S168", f"{source}: {tensor} has {given.scale.size} scales", allowed="one for an activation"
        )
    _check_symmetric(tensor, given, grid.symmetric, "--activation-asymmetric", source)
    encoding = given.encoding(grid.dtype, None)
    return replace(grid, fixed=(float(encoding.scale), int(encoding.zero_point)), range=None)


def _same_range(grid: PlannedGrid, given: GivenGrid) -> PlannedGrid:
    scale, zero = float(given.scale[0]), int(given.zero_point[0])
    low, high = -zero * scale, (2**given.bits - 1 - zero) * scale
    encoding = encode(low, high, grid.dtype, symmetric=grid.symmetric)
    return replace(grid, fixed=(float(encoding.scale), int(encoding.zero_point)), range=None)


def _weight(model: ir.Model, weight: WeightPlan, given: GivenGrid, source: str) -> Encoding:
    tensor = model.graph.initializers[weight.tensor].const_value
    assert tensor is not None, "a planned weight has values"
    shape = tensor.shape.numpy()
    wanted = given.type_like(weight.dtype)
    if wanted != weight.dtype:
        raise _not_taken(source, weight.tensor, wanted, f"the plan has {weight.dtype} there")
    channels = 1 if weight.axis is None else shape[weight.axis]
    other_axis = given.axis is not None and (weight.axis is None or given.axis % len(shape) != weight.axis)
    if given.scale.size not in (1, channels) or other_axis:
        raise SettingsError(
            "S168",
            f"{source}: {weight.tensor} has {given.scale.size} scales"
            + (f" along axis {given.axis}" if given.axis is not None else ""),
            allowed="one" if weight.axis is None else f"one, or {channels} along axis {weight.axis}",
        )
    _check_symmetric(weight.tensor, given, weight.symmetric, "--weight-asymmetric", source)
    encoding = given.encoding(weight.dtype, weight.axis)
    if weight.axis is None or given.scale.size == channels:
        return encoding
    scale, zero_point = (np.repeat(array, channels) for array in (encoding.scale, encoding.zero_point))
    return Encoding(weight.dtype, scale, zero_point, weight.axis)


def _check_symmetric(tensor: str, given: GivenGrid, wanted: bool, flag: str, source: str) -> None:
    if not wanted or given.symmetric:
        return
    raise SettingsError(
        "S169",
        f"{source}: {tensor} has a zero point that is not the middle of its grid",
        allowed="a symmetric grid, as the target or the settings want it there",
        fix=f"{flag} allows others where the target takes them",
    )


def _missing(draft: QuantPlan, grids: Mapping[str, PlannedGrid], given: Mapping[str, GivenGrid]) -> list[str]:
    """The tensors that would have to be calibrated: what decides a grid that is still open, and weights."""
    open_grids = [draft.source(entry) for entry in draft.observed if draft.tensors[entry] not in grids]
    return list(dict.fromkeys([*open_grids, *(w.tensor for w in draft.weights if w.tensor not in given)]))


def _warnings(draft: QuantPlan, given: Mapping[str, GivenGrid], missing: list[str], source: str) -> tuple[str, ...]:
    biases = [bias.tensor for bias in draft.biases if bias.tensor in given]
    found = [f"{source}: no encodings for {some(missing, _SHOWN)}: calibrated"] if missing else []
    if biases:
        found.append(
            f"{source}: the encodings of {some(biases, _SHOWN)} are not used: the scale of a bias follows from its "
            "input and its weight"
        )
    return tuple(found)
