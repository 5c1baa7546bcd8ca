"""The meaning of `--precision`, and the one function that turns what a user set into a complete configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from intact.errors import SettingsError
from intact.model.detect import Quantized
from intact.quantization.planning import plan_file
from intact.settings.config import BuildConfig, QuantConfig, merge
from intact.settings.contradictions import AUTO
from intact.targets.offer import check_precision
from intact.targets.registry import load_target
from intact.targets.spec import Target

DEFAULT_PRECISION = "uint8"
HALF = "fp16"


class Preset(TypedDict):
    """The settings of quantization that a precision stands for."""

    activation_type: str
    weight_type: str
    block_size: NotRequired[int]
    rescue: NotRequired[bool]


# The one table of precisions. Biases are int32 throughout. Which of these a device takes, and the types of
# constants that it wants otherwise (LayerNormalization and embedding tables, say), is in its target table.
PRECISIONS: dict[str, Preset | None] = {
    "fp32": None,
    "fp16": {"activation_type": "float16", "weight_type": "float16"},
    "uint8": {"activation_type": "uint8", "weight_type": "int8"},
    "w8a8": {"activation_type": "uint8", "weight_type": "int8"},
    "int8": {"activation_type": "int8", "weight_type": "int8"},
    "int16": {"activation_type": "uint16", "weight_type": "int16"},
    "w8a16": {"activation_type": "uint16", "weight_type": "int8"},
    "w4a16": {"activation_type": "uint16", "weight_type": "int4"},
    "w8": {"activation_type": "float", "weight_type": "int8", "block_size": 32},
    "w4": {"activation_type": "float", "weight_type": "int4", "block_size": 32},
    # Where a search starts, which gives single nodes more: it decides, so that nothing else does.
    AUTO: {"activation_type": "uint8", "weight_type": "int8", "rescue": False},
}
# Settings of QuantConfig that only say where inputs come from; they matter for verification too.
_DATA = {"load_path", "samples", "distribution", "seed"}
_NODES = {"op_types", "exclude_op_types", "nodes", "exclude_nodes"}
_TYPES = {"activation_type", "weight_type"}
# The settings that mean something where activations have no grids.
_MEANT = {
    "float16": _DATA | _NODES | _TYPES,
    "float": _DATA | _NODES | _TYPES | {"weight_symmetric", "block_size", "accuracy_level", "effort"},
}


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
    precision = config.precision or DEFAULT_PRECISION
    check_available(target, precision)
    preset = None if precision == HALF and target.halves_alone else PRECISIONS[precision]
    if preset is None:
        _refuse_quantization(config, f"--precision {precision} quantizes nothing")
        _refuse_integer_io(config, f"--precision {precision}")
        return _without_quantization(config, precision)
    complete = _with_preset(config, precision, preset)
    _refuse_idle(complete)
    return complete


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
    wanted = _DATA if preset is None else _MEANT.get(preset["activation_type"])
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
        check_available(target, config.precision or DEFAULT_PRECISION)
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
    if config.precision is not None:
        raise SettingsError(
            "S116", f"--precision {config.precision}: the plan {path} decides the types", fix="leave it out"
        )
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
    _refuse_quantization(config, str(quantized))


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


def _refuse_quantization(config: BuildConfig, why: str) -> None:
    quant = config.quantization
    extra = sorted(quant.model_fields_set - _DATA) if quant is not None else []
    if extra:
        raise SettingsError("S113", f"{why}: {', '.join(extra)} would have no effect", fix="leave them out")


def _refuse_integer_io(config: BuildConfig, asked: str) -> None:
    if config.compile.io == "quantized":
        raise SettingsError("S115", f"{asked} has no integers for --io quantized to hand over")


def _refuse_idle(config: BuildConfig) -> None:
    """Settings that mean nothing without grids are an error where they are not the defaults."""
    quant = config.quantization
    if quant is None or quant.has_grids:
        return
    asked = f"{quant.activation_type} activations"
    plain = QuantConfig().model_dump()
    idle = sorted(k for k, v in quant.model_dump().items() if k not in _MEANT[quant.activation_type] and v != plain[k])
    if idle:
        raise SettingsError("S119", f"{asked}: {', '.join(idle)} would have no effect", fix="leave them out")
    _refuse_integer_io(config, asked)


def describe(config: QuantConfig) -> str:
    """A quantization in one line, for logs."""
    if config.activation_type == "float16":
        return "float16 throughout, inputs and outputs as they are"
    if config.activation_type == "float":
        return f"activations float, weights {config.weight_type} in blocks of {config.block_size}"
    weights = f"{config.weight_type} {'per channel' if config.per_channel else 'per tensor'}"
    return f"activations {config.activation_type}, weights {weights}, {config.method}"
