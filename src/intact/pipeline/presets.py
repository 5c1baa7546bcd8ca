"""The meaning of `--precision`, and the one function that turns what a user set into a complete configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intact.errors import SettingsError
from intact.model.detect import Quantized
from intact.quantization.planning import plan_file
from intact.settings import preset_table
from intact.settings.config import BuildConfig, QuantConfig, merge
from intact.settings.preset_table import PRECISIONS as PRECISIONS
from intact.settings.preset_table import Preset
from intact.targets.offer import check_precision
from intact.targets.registry import load_target
from intact.targets.spec import Target


def resolve(config: BuildConfig, *, quantized: Quantized | None = None) -> BuildConfig:
    """`config` with its preset filled in under what the user set, for a float or a quantized model."""
    target = available(config)
    if target.arch is not None:
        config = BuildConfig.from_dict(merge(_asked(config), {"compile": {"arch": f"v{target.arch}"}}))
    if quantized is not None:
        _refuse_contradiction(config, quantized)
        return _without_quantization(config, config.precision)
    if config.quantization is not None and config.quantization.plan is not None:
        return _with_plan(config, Path(config.quantization.plan))
    precision = config.precision or target.usual_precision
    check_available(target, precision)
    preset_table.check_meant(config, precision, halves_alone=target.halves_alone)
    preset = preset_table.preset_of(precision, halves_alone=target.halves_alone)
    if preset is None:
        return _without_quantization(config, precision)
    return _with_preset(config, precision, preset)


def usual(config: BuildConfig) -> BuildConfig:
    """The settings of the same precision on the same device where the user sets nothing else."""
    preset = PRECISIONS[config.precision] if config.precision is not None else None
    layer = None if config.quantization is None else dict(preset or {})
    compiling: dict[str, object] = {"device": config.compile.device, "arch": config.compile.arch}
    if config.compile.quant is not None:
        return BuildConfig.from_dict({"precision": config.precision, "compile": {**compiling, "quant": layer}})
    return BuildConfig.from_dict({"precision": config.precision, "compile": compiling, "quant": layer})


def meant(config: BuildConfig, precision: str) -> tuple[BuildConfig, tuple[str, ...]]:
    """`config` for one precision of several, without the settings of quantization that mean nothing at it."""
    preset, asked = PRECISIONS.get(precision), _asked(config)
    wanted = preset_table.DATA if preset is None else preset_table.MEANT.get(preset["activation_type"])
    if precision not in PRECISIONS or wanted is None:
        return config, ()
    quant = asked.get("quant") or asked.get("compile", {}).get("quant") or {}
    idle = tuple(sorted(set(quant) - wanted))
    for name in idle:
        del quant[name]
    return BuildConfig.from_dict(asked), idle


def available(config: BuildConfig) -> Target:
    """The target of a build; one that is not built yet, or a precision that it has no use for, is refused."""
    target = load_target(config.compile.device, arch=config.compile.arch, soc=config.compile.soc)
    if config.precision is not None or not target.precisions:
        check_available(target, config.precision or target.usual_precision)
    return target


def check_available(target: Target, precision: str) -> None:
    """Refuse a precision that the device has no use for (status 2), or that is not built yet (status 5)."""
    check_precision(target.backend, precision, target)


def _with_preset(config: BuildConfig, precision: str | None, preset: Mapping[str, object]) -> BuildConfig:
    inside_compile = config.compile.quant is not None
    layer = {"compile": {"quant": preset}} if inside_compile else {"quant": preset}
    return BuildConfig.from_dict(merge(layer, _asked(config), {"precision": precision}))


def _with_plan(config: BuildConfig, path: Path) -> BuildConfig:
    """The settings that a plan file was made with, under what the user set."""
    preset_table.check_plan(config)
    values = plan_file.read_plan(path)
    device, arch = values.target.device, values.target.arch
    found = (config.compile.device, config.compile.arch if arch is not None else None)
    if found != (device, arch):
        raise SettingsError("S117", f"{path} is for {device} {arch or ''}, not for {found[0]} {found[1] or ''}")
    return _with_preset(config, None, values.settings.model_dump(mode="json", exclude_unset=True))


def _asked(config: BuildConfig) -> dict[str, Any]:
    """The settings that were set, without the defaults of the rest."""
    return config.model_dump(mode="json", exclude_unset=True)


def _without_quantization(config: BuildConfig, precision: str | None) -> BuildConfig:
    """The configuration of a build that calibrates nothing: its inputs are for verification only."""
    quant = config.quantization
    asked = _asked(config)
    asked.pop("quant", None)
    asked.get("compile", {}).pop("quant", None)
    if quant is not None and config.test_path is None:
        asked["test_path"] = quant.load_path
    return BuildConfig.from_dict(merge(asked, {"precision": precision} if precision else {}))


def _refuse_contradiction(config: BuildConfig, quantized: Quantized) -> None:
    """A precision or setting that an already quantized model cannot obey is an error, not a silent no-op."""
    asked = None if config.precision is None else _contradiction(PRECISIONS[config.precision], quantized)
    if asked is not None:
        raise SettingsError(
            "S112",
            f"{quantized}, but --precision {config.precision} means {asked}",
            fix="leave --precision out to keep the model's types, or start from the float model",
        )
    preset_table.refuse_quantization(config, str(quantized))


def _contradiction(preset: Preset | None, quantized: Quantized) -> str | None:
    """The part of a preset that an already quantized model does not have; types that cannot be seen are not had."""
    if preset is None:
        return "a float model"
    activation, weight = preset["activation_type"], preset["weight_type"]
    if activation == "float":
        return "float activations" if quantized.activation_types else None
    if not quantized.activation_types:
        return f"activations on measured {activation} grids, of which this model has none"
    if activation not in quantized.activation_types:
        return f"{activation} activations"
    # Signed or not is the target's choice; the number of bits is not.
    if quantized.weight_types and _bits(weight) not in map(_bits, quantized.weight_types):
        return f"{weight} weights"
    return None


def _bits(dtype: str) -> str:
    return dtype.removeprefix("u")


def describe(config: QuantConfig) -> str:
    """A quantization in one line, for logs."""
    if config.activation_type == "float16":
        return "float16 throughout, inputs and outputs as they are"
    if config.activation_type == "float":
        return f"activations float, weights {config.weight_type} in blocks of {config.block_size}"
    weights = f"{config.weight_type} {'per channel' if config.per_channel else 'per tensor'}"
    return f"activations {config.activation_type}, weights {weights}, {config.method}"
