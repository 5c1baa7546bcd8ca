"""The settings that a precision stands for, and those that mean nothing at it. Loads nothing, to be asked at once."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from intact.errors import SettingsError
from intact.settings.config import BuildConfig, QuantConfig
from intact.settings.contradictions import AUTO

HALF = "fp16"
IN_BLOCKS = ("int4", "uint4", "int2")
"""Types of weights that have a scale for each block of values beside activations on grids."""


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
DATA = {"load_path", "samples", "distribution", "seed"}
_NODES = {"op_types", "exclude_op_types", "nodes", "exclude_nodes"}
_TYPES = {"activation_type", "weight_type"}
# The settings that mean something where activations have no grids.
MEANT = {
    "float16": DATA | _NODES | _TYPES,
    "float": DATA | _NODES | _TYPES | {"weight_symmetric", "block_size", "accuracy_level", "effort"},
}


def preset_of(precision: str, *, halves_alone: bool) -> Preset | None:
    """The preset of a precision; None where nothing is quantized, or the toolchain makes half precision by itself."""
    return None if precision == HALF and halves_alone else PRECISIONS[precision]


def check_meant(config: BuildConfig, precision: str, *, halves_alone: bool) -> None:
    """Refuse settings that have no effect at a precision, whatever the model is."""
    quant, preset = config.quantization, preset_of(precision, halves_alone=halves_alone)
    if preset is None:
        refuse_quantization(config, f"--precision {precision} quantizes nothing")
        _refuse_integer_io(config, f"--precision {precision}")
        return
    asked = {} if quant is None else quant.model_dump(mode="json", exclude_unset=True)
    complete = QuantConfig.from_dict({**preset, **asked})
    if complete.has_grids:
        check_blocks(complete)
        check_missing(complete)
    else:
        _refuse_idle(complete, config)


def check_plan(config: BuildConfig) -> None:
    """Refuse a precision beside a plan, which has the types of everything."""
    quant = config.quantization
    if config.precision is not None and quant is not None and quant.plan is not None:
        raise SettingsError(
            "S116", f"--precision {config.precision}: the plan {quant.plan} decides the types", fix="leave it out"
        )


def check_blocks(quant: QuantConfig) -> None:
    """Refuse --block-size for weights that cannot have a scale for each block."""
    if not quant.block_size:
        return
    asked = f"--block-size {quant.block_size}"
    if quant.weight_type not in IN_BLOCKS or not quant.per_channel or not quant.weight_symmetric:
        allowed = f"symmetric weights per channel of {', '.join(IN_BLOCKS)}"
        raise SettingsError("S154", f"{asked}: other weights have no blocks", allowed=allowed, fix="--precision w4a16")
    if quant.encodings is not None:
        raise SettingsError("S155", f"{asked}: {quant.encodings} says how weights are quantized", fix="leave one out")


def check_missing(quant: QuantConfig) -> None:
    """Refuse to calibrate what a file of encodings leaves out where there is no such file."""
    if quant.calibrate_missing and quant.encodings is None:
        raise SettingsError("S163", "calibrate_missing has no effect without encodings", fix="give --encodings")


def refuse_quantization(config: BuildConfig, why: str) -> None:
    """Refuse settings of quantization where nothing is quantized."""
    quant = config.quantization
    extra = sorted(quant.model_fields_set - DATA) if quant is not None else []
    if extra:
        raise SettingsError("S113", f"{why}: {', '.join(extra)} would have no effect", fix="leave them out")


def _refuse_integer_io(config: BuildConfig, asked: str) -> None:
    """Refuse integers at inputs and outputs of a model that has none."""
    if config.compile.io == "quantized":
        raise SettingsError("S115", f"{asked}: there are no integers for --io quantized to hand over")


def _refuse_idle(quant: QuantConfig, config: BuildConfig) -> None:
    """Refuse settings that mean nothing without grids where they are not the defaults."""
    asked = f"{quant.activation_type} activations"
    plain = QuantConfig().model_dump()
    idle = sorted(k for k, v in quant.model_dump().items() if k not in MEANT[quant.activation_type] and v != plain[k])
    if idle:
        raise SettingsError("S119", f"{asked}: {', '.join(idle)} would have no effect", fix="leave them out")
    _refuse_integer_io(config, asked)
