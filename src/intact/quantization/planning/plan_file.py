"""A plan as a file that a user can read, compare and edit.

The file has the settings that the plan was made with, the type of every node, and every grid and weight. What a reader
changes in it becomes types of nodes and overrides of tensors; what is left alone is decided as without the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import onnx_ir as ir
import tomli_w
from pydantic import ConfigDict, ValidationError, field_validator

from intact.errors import SettingsError
from intact.model import query
from intact.quantization.planning.choose import FLOAT
from intact.quantization.planning.planner import plan
from intact.records import dataclass
from intact.results import PlannedGrid, QuantPlan, WeightPlan
from intact.settings import hand_written
from intact.settings.config import Method, NodeType, QuantConfig, QuantType, TensorOverride, nearest
from intact.settings.frozen import Settings
from intact.settings.named_files import no_plan, unread
from intact.targets.spec import Target

VERSION = 1
# Settings that belong to a run, not to a plan, and those that its nodes say.
_OF_THE_RUN = {
    "load_path",
    "samples",
    "distribution",
    "seed",
    "plan",
    "images",
    "encodings",
    "calibrate_missing",
    "types",
}
HEADER = (
    "# A plan of intact. Change a type, a method, or give a grid a range, and use it with --plan.\n"
    "# A node of type float is not quantized. Tensors that stand together share one grid.\n\n"
)


class PlanPart(Settings):
    """A part of a plan file: every value is of its own type, and a key that is not known is refused."""

    model_config = ConfigDict(strict=True)


class FixedGrid(PlanPart):
    """A grid that an operator dictates."""

    scale: float
    zero_point: int


class GridRange(PlanPart):
    """The least and the greatest value of a grid."""

    low: float
    high: float


class GridRow(PlanPart):
    """A grid, and the tensors that share it; what a reader takes out is decided as without the file."""

    dtype: QuantType | None = None
    symmetric: bool | None = None
    method: Method | None = None
    fixed: FixedGrid | None = None
    range: GridRange | None = None
    tensors: list[str] | None = None


class WeightRow(PlanPart):
    """A weight of a node."""

    tensor: str | None = None
    dtype: QuantType | None = None
    symmetric: bool | None = None
    per_channel: bool | None = None


class PlanTarget(PlanPart):
    """The device that a plan is for."""

    device: str
    arch: str | None = None


class PlanFile(PlanPart):
    """The values of a plan file."""

    version: Literal[1]
    target: PlanTarget
    settings: QuantConfig
    nodes: dict[str, NodeType]
    grids: dict[str, GridRow]
    weights: dict[str, WeightRow]

    @field_validator("settings")
    @classmethod
    def _of_the_plan(cls, settings: QuantConfig) -> QuantConfig:
        foreign = sorted(settings.model_fields_set & _OF_THE_RUN)
        if foreign:
            raise ValueError(f"{foreign[0]} is a setting of a run, not of a plan: give it as a flag")
        return settings


@dataclass(frozen=True, slots=True)
class Edits:
    """Requests of a plan file beyond its settings."""

    types: Mapping[str, str]
    overrides: Mapping[str, TensorOverride]


def to_text(planned: QuantPlan, target: Target, config: QuantConfig) -> str:
    """The plan as TOML."""
    members: dict[str, list[str]] = {}
    for tensor, grid in planned.tensors.items():
        members.setdefault(grid, []).append(tensor)
    values = {
        "version": VERSION,
        "target": {"device": target.backend, **({"arch": f"v{target.arch}"} if target.arch is not None else {})},
        "settings": _settings(config),
        "nodes": dict(planned.nodes),
        "grids": {name: _written(_grid(planned.grids[name], tensors)) for name, tensors in members.items()},
        "weights": {f"{w.node}:{w.index}": _written(_weight(w)) for w in planned.weights},
    }
    return HEADER + tomli_w.dumps(values)


def read_plan(path: Path) -> PlanFile:
    """The values of a plan file, each checked; an error names the line and the nearest key."""
    try:
        text = hand_written.read(path)
    except OSError as error:
        raise no_plan(path, unread(error)) from None
    except ValueError as error:
        raise SettingsError("S171", f"{path}: {error}") from None
    try:
        values = hand_written.parse_toml(text)
    except ValueError as error:
        raise SettingsError("S171", f"{path}: {error}") from None
    missing = [key for key in PlanFile.model_fields if key not in values]
    if missing or values["version"] != VERSION:
        found = f"no {missing[0]}" if missing else f"version {values['version']}"
        raise SettingsError("S172", f"{path}: not a plan of intact: {found}", allowed=f"version {VERSION}")
    try:
        return PlanFile.model_validate(values)
    except ValidationError as error:
        raise SettingsError(
            "S174", hand_written.problems(error, path, text), fix="correct these lines, or make the plan again"
        ) from None


def edited(model: ir.Model, target: Target, config: QuantConfig) -> tuple[dict[str, str], QuantConfig]:
    """The types of single nodes, and the settings, with the edits of the plan file that the settings name, if any."""
    types: dict[str, str] = dict(config.types)
    if config.plan is None:
        return types, config
    found = edits(Path(config.plan), model, target, config)
    overrides = {**config.overrides, **found.overrides}
    return {**types, **found.types}, config.model_copy(update={"overrides": overrides})


def edits(path: Path, model: ir.Model, target: Target, config: QuantConfig) -> Edits:
    """The difference between a plan file and the plan that its settings would give; unknown names are errors."""
    values = read_plan(path)
    plain = plan(model, target, config, config.types)
    _refuse_unknown(path, "node", values.nodes, [node.name or "" for node in query.all_nodes(model)])
    types: dict[str, str] = {n: dtype for n, dtype in values.nodes.items() if plain.nodes.get(n, FLOAT) != dtype}
    types |= {name: FLOAT for name in plain.nodes if name not in values.nodes}
    # The types of its nodes may be what the file was made with or what a reader changed: the grids are of either plan.
    plans = [plain, plan(model, target, config, {**config.types, **types})] if types else [plain]
    _refuse_unknown(path, "grid", values.grids, [name for p in plans for name in p.grids])
    _refuse_unknown(path, "weight", values.weights, [f"{w.node}:{w.index}" for p in plans for w in p.weights])
    overrides = {**_grid_edits(path, values, plans), **_weight_edits(path, values, plans)}
    return Edits(types, overrides)


def _grid_edits(path: Path, values: PlanFile, plans: Sequence[QuantPlan]) -> dict[str, TensorOverride]:
    """The grids that a reader changed, by the tensor that they are of."""
    overrides: dict[str, TensorOverride] = {}
    for name, row in values.grids.items():
        known = [p for p in plans if name in p.grids]
        rows = [_grid(p.grids[name], []) for p in known]
        if row.fixed is not None and all(row.fixed != other.fixed for other in rows):
            raise _unchangeable(path, f"grids.{name}.fixed", "an operator dictates this grid; give a range instead")
        _refuse_unknown(path, "tensor", dict.fromkeys(row.tensors or ()), [t for p in plans for t in p.tensors])
        change = _changes(row, rows, ("dtype", "symmetric", "method"))
        if row.range is not None and all(row.range != other.range for other in rows):
            change |= {"low": row.range.low, "high": row.range.high}
        if change:
            overrides[known[-1].source(name)] = _override(path, f"grids.{name}", change)
    return overrides


def _weight_edits(path: Path, values: PlanFile, plans: Sequence[QuantPlan]) -> dict[str, TensorOverride]:
    """The weights that a reader changed, by their tensor."""
    overrides: dict[str, TensorOverride] = {}
    for key, row in values.weights.items():
        weights = [w for p in plans for w in p.weights if f"{w.node}:{w.index}" == key]
        if row.tensor is not None and all(row.tensor != weight.tensor for weight in weights):
            raise _unchangeable(path, f"weights.{key}.tensor", f"the model has {weights[0].tensor!r} there")
        change = _changes(row, [_weight(w) for w in weights], ("dtype", "symmetric", "per_channel"))
        if change:
            overrides[weights[0].tensor] = _override(path, f"weights.{key}", change)
    return overrides


def _changes(row: PlanPart, plans: Sequence[PlanPart], keys: tuple[str, ...]) -> dict[str, object]:
    """The values of a row of the file that differ from those of every plan."""
    given = {key: getattr(row, key) for key in keys if getattr(row, key) is not None}
    return {key: value for key, value in given.items() if all(value != getattr(other, key) for other in plans)}


def _override(path: Path, where: str, change: Mapping[str, object]) -> TensorOverride:
    try:
        return TensorOverride.model_validate(change)
    except ValidationError as error:
        told = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise SettingsError("S174", f"{path}: {where}: {told}") from None


def _unchangeable(path: Path, where: str, why: str) -> SettingsError:
    return SettingsError("S175", f"{path}: {where} was changed, and that has no effect: {why}", fix="put it back")


def _refuse_unknown(path: Path, what: str, asked: Mapping[str, object], known: list[str]) -> None:
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise SettingsError("S173", f"{path}: the model has no {what} {unknown[0]!r}{nearest(unknown[0], known)}")


def _settings(config: QuantConfig) -> dict[str, object]:
    return config.model_dump(mode="json", exclude=_OF_THE_RUN, exclude_none=True)


def _written(row: PlanPart) -> dict[str, object]:
    return row.model_dump(exclude_none=True)


def _grid(grid: PlannedGrid, tensors: list[str]) -> GridRow:
    fixed = None if grid.fixed is None else {"scale": grid.fixed[0], "zero_point": grid.fixed[1]}
    limits = None if grid.range is None else {"low": grid.range.low, "high": grid.range.high}
    values = {"dtype": grid.dtype, "symmetric": grid.symmetric, "method": grid.method, "tensors": tensors}
    return GridRow.model_validate({**values, "fixed": fixed, "range": limits})


def _weight(weight: WeightPlan) -> WeightRow:
    values = {"tensor": weight.tensor, "dtype": weight.dtype, "symmetric": weight.symmetric}
    return WeightRow.model_validate({**values, "per_channel": weight.axis is not None})
