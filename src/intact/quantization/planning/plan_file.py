"""A plan as a file that a user can read, compare and edit.

The file has the settings that the plan was made with, the type of every node, and every grid and weight. What a reader
changes in it becomes types of nodes and overrides of tensors; what is left alone is decided as without the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import onnx_ir as ir
import tomli_w

from intact.errors import SettingsError
from intact.quantization.planning.choose import FLOAT
from intact.quantization.planning.planner import plan
from intact.results import PlannedGrid, QuantPlan, WeightPlan
from intact.settings.config import QuantConfig, TensorOverride, nearest
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


class GridRow(TypedDict):
    """A grid, and the tensors that share it."""

    dtype: str
    symmetric: bool
    method: str
    fixed: NotRequired[dict[str, float]]
    range: NotRequired[dict[str, float]]
    tensors: list[str]


class WeightRow(TypedDict):
    """A weight of a node."""

    tensor: str
    dtype: str
    symmetric: bool
    per_channel: bool


class PlanFile(TypedDict):
    """The values of a plan file."""

    version: int
    target: dict[str, str]
    settings: dict[str, object]
    nodes: dict[str, str]
    grids: dict[str, GridRow]
    weights: dict[str, WeightRow]


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
    values: PlanFile = {
        "version": VERSION,
        "target": {"device": target.backend, **({"arch": f"v{target.arch}"} if target.arch is not None else {})},
        "settings": _settings(config),
        "nodes": dict(planned.nodes),
        "grids": {name: _grid(planned.grids[name], tensors) for name, tensors in members.items()},
        "weights": {f"{w.node}:{w.index}": _weight(w) for w in planned.weights},
    }
    return HEADER + tomli_w.dumps(values)


def read_plan(path: Path) -> PlanFile:
    """The values of a plan file, checked for their form."""
    try:
        values = cast(PlanFile, tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SettingsError("S170", f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError("S171", f"{path}: {error}") from None
    missing = [key for key in ("version", "target", "settings", "nodes", "grids", "weights") if key not in values]
    if missing or values["version"] != VERSION:
        found = f"no {missing[0]}" if missing else f"version {values['version']}"
        raise SettingsError("S172", f"{path}: not a plan of intact: {found}", allowed=f"version {VERSION}")
    return values


def edits(path: Path, model: ir.Model, target: Target, config: QuantConfig) -> Edits:
    """The difference between a plan file and the plan that its settings would give; unknown names are errors."""
    values = read_plan(path)
    plain = plan(model, target, config, config.types)
    _refuse_unknown(path, "node", values["nodes"], [node.name or "" for node in model.graph])
    types = {name: dtype for name, dtype in values["nodes"].items() if plain.nodes.get(name, FLOAT) != dtype}
    types |= {name: FLOAT for name in plain.nodes if name not in values["nodes"]}
    # The types of its nodes may be what the file was made with or what a reader changed: the grids are of either plan.
    plans = [plain, plan(model, target, config, {**config.types, **types})] if types else [plain]
    _refuse_unknown(path, "grid", values["grids"], [name for p in plans for name in p.grids])
    _refuse_unknown(path, "weight", values["weights"], [f"{w.node}:{w.index}" for p in plans for w in p.weights])
    overrides: dict[str, TensorOverride] = {}
    for name, row in values["grids"].items():
        known = [p for p in plans if name in p.grids]
        rows = [_grid(p.grids[name], []) for p in known]
        change = _changes(row, rows, ("dtype", "symmetric", "method"))
        if "range" in row and all(row["range"] != other.get("range") for other in rows):
            change |= {"low": row["range"]["low"], "high": row["range"]["high"]}
        if change:
            overrides[known[-1].source(name)] = TensorOverride.from_dict(change)
    for key, wanted in values["weights"].items():
        weights = [w for p in plans for w in p.weights if f"{w.node}:{w.index}" == key]
        change = _changes(wanted, [_weight(w) for w in weights], ("dtype", "symmetric", "per_channel"))
        if change:
            overrides[weights[0].tensor] = TensorOverride.from_dict(change)
    return Edits(types, overrides)


def _changes(
    row: Mapping[str, object], plans: Sequence[Mapping[str, object]], keys: tuple[str, ...]
) -> dict[str, object]:
    """The values of a row of the file that differ from those of every plan."""
    return {key: row[key] for key in keys if key in row and all(row[key] != other[key] for other in plans)}


def _refuse_unknown(path: Path, what: str, asked: Mapping[str, object], known: list[str]) -> None:
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise SettingsError("S173", f"{path}: the model has no {what} {unknown[0]!r}{nearest(unknown[0], known)}")


def _settings(config: QuantConfig) -> dict[str, object]:
    return config.model_dump(mode="json", exclude=_OF_THE_RUN, exclude_none=True)


def _grid(grid: PlannedGrid, tensors: list[str]) -> GridRow:
    row: GridRow = {"dtype": grid.dtype, "symmetric": grid.symmetric, "method": grid.method, "tensors": tensors}
    if grid.fixed is not None:
        row["fixed"] = {"scale": grid.fixed[0], "zero_point": grid.fixed[1]}
    if grid.range is not None:
        row["range"] = {"low": grid.range.low, "high": grid.range.high}
    return row


def _weight(weight: WeightPlan) -> WeightRow:
    return {
        "tensor": weight.tensor,
        "dtype": weight.dtype,
        "symmetric": weight.symmetric,
        "per_channel": weight.axis is not None,
    }
