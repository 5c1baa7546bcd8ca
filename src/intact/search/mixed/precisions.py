"""The precisions of a target that give everything one level of its costs: what every mix is held against."""

from __future__ import annotations

from intact.numbers.integer_types import width
from intact.settings.config import BuildConfig, QuantConfig
from intact.settings.contradictions import AUTO
from intact.settings.preset_table import PRECISIONS
from intact.targets.spec import Target

HALF = "float16"
# What has a meaning in half precision: where rows come from, and which nodes take part.
_OF_HALVES = ("load_path", "samples", "distribution", "seed", "op_types", "exclude_op_types", "nodes", "exclude_nodes")


def throughout(target: Target, config: BuildConfig) -> dict[str, int]:
    """The precisions that a build with these settings could have throughout, each with the position of its level.

    Of two names for the same types the first counts. Half precision is one where the target computes floats in it.
    """
    assert target.costs is not None, "only what is priced can be compared"
    positions: dict[tuple[int, int], int] = {}
    for position, level in enumerate(target.costs.levels):
        positions.setdefault((width(level.activation), width(level.weight)), position)
    found: dict[tuple[str, str], tuple[str, int]] = {}
    for name in target.precisions:
        preset = PRECISIONS[name] if name != AUTO else None
        types = (preset["activation_type"], preset["weight_type"]) if preset is not None else None
        if types is None or types[0] == "float" or (types[0] == HALF and not _takes_halves(target, config)):
            continue
        bits = (width(types[0]), width(types[1]))
        if bits in positions:
            found.setdefault(types, (name, positions[bits]))
    return dict(found.values())


def _takes_halves(target: Target, config: BuildConfig) -> bool:
    """True if a model written in half precision is of use, and nothing in the settings needs grids."""
    quant = config.quantization
    return (
        target.halves
        and not target.halves_alone
        and config.compile.io != "quantized"
        and not (quant is not None and quant.overrides)
    )


def quantization(quant: QuantConfig, precision: str) -> QuantConfig:
    """The settings of the quantizer for one precision throughout, as a build of that precision has them."""
    preset = PRECISIONS[precision]
    assert preset is not None, "float throughout quantizes nothing"
    values = quant.to_dict()
    if preset["activation_type"] == HALF:
        return QuantConfig.from_dict({key: values[key] for key in _OF_HALVES} | preset)
    return QuantConfig.from_dict(values | {"rescue": QuantConfig().rescue} | preset)
