"""The only settings in the program: BuildConfig, QuantConfig, CompileConfig.

Each default stands here and nowhere else. Presets (what `--precision uint8` means on a device) are values for
these fields; they live in `pipeline/presets.py`, together with the one function that resolves flags, a settings
file and presets into a `BuildConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt, ValidationError, field_validator, model_validator

from intact.errors import SettingsError
from intact.settings import devices, hand_written, memory_size
from intact.settings.frozen import Settings
from intact.settings.hand_written import nearest as nearest

QuantType = Literal["uint8", "int8", "uint16", "int16", "uint4", "int4", "int2"]
# `float16` stands in both types or in neither; `float` leaves activations as they are and quantizes weights only.
WeightType = Literal[QuantType, "float16"]
ActivationType = Literal["uint8", "int8", "uint16", "int16", "float16", "float"]
Method = Literal["minmax", "percentile", "entropy", "mse", "auto"]
Effort = Literal["fast", "normal"]
Distribution = Literal["normal", "uniform"]
ExportTask = Literal[
    "feature-extraction",
    "text-classification",
    "token-classification",
    "question-answering",
    "fill-mask",
    "image-classification",
    "object-detection",
    "semantic-segmentation",
    "depth-estimation",
]
Precision = Literal["fp32", "fp16", "uint8", "int8", "int16", "w8a8", "w8a16", "w4a16", "w8", "w4", "auto"]
NodeType = Literal["uint8", "int8", "uint16", "int16", "float"]


class TensorOverride(Settings):
    """The grid that the user fixes for one tensor; fields left out follow the plan."""

    dtype: QuantType | None = None
    symmetric: bool | None = None
    per_channel: bool | None = None
    method: Method | None = None
    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def _range_is_whole(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high make a range together: set both or neither")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self


class ImageConfig(Settings):
    """Preparation of images as inputs: `(pixel / 255 - mean) / std`, at a size, in an order and a layout."""

    size: tuple[PositiveInt, PositiveInt] | None = Field(
        default=None, description="Height and width, also as 224x320 or 224; None: those of the model's input."
    )
    mean: tuple[float, ...] = Field(
        default=(0.0,), description="Subtracted from pixels of 0 to 1: one number, or one a channel."
    )
    std: tuple[PositiveFloat, ...] = Field(
        default=(1.0,), description="Divided by after that: one number, or one a channel."
    )
    order: Literal["rgb", "bgr"] = Field(default="rgb", description="Order of the channels.")
    layout: Literal["nchw", "nhwc"] | None = Field(
        default=None, description="None: as the shape of the model's input says."
    )

    @field_validator("size", mode="before")
    @classmethod
    def _size_as_text(cls, value: object) -> object:
        if not isinstance(value, str | int):
            return value
        parts = str(value).lower().split("x")
        return parts * 2 if len(parts) == 1 else parts

    @field_validator("mean", "std", mode="before")
    @classmethod
    def _numbers_as_text(cls, value: object) -> object:
        return value.split(",") if isinstance(value, str) else (value,) if isinstance(value, int | float) else value


class ExportConfig(Settings):
    """The export of a Hugging Face model to an ONNX file; shapes are fixed, as NPUs want them, unless `dynamic`."""

    task: ExportTask | None = Field(default=None, description="What the model is for; None: what its config says.")
    sequence_length: PositiveInt | None = Field(
        default=None,
        description="Tokens of a text; None: 128, or as many as the model has positions if those are fewer.",
    )
    dynamic: bool = Field(default=False, description="Leave the batch, and the length of text, free.")
    trust_remote_code: bool = Field(default=False, description="Run Python code that the model brings along.")


class QuantConfig(Settings):
    """Settings of quantization: the single source of truth, used by every part of the program."""

    weight_type: WeightType = Field(default="int8", description="Type of weights.")
    activation_type: ActivationType = Field(
        default="uint8",
        description="Type of activations; float: only weights are quantized; float16: both are half precision.",
    )
    per_channel: bool = Field(
        default=True, description="One scale per output channel of a weight, where the target takes it."
    )
    weight_symmetric: bool = Field(default=True, description="Weights with zero point 0.")
    activation_symmetric: bool = Field(
        default=False, description="Activations with the zero point in the middle of the type."
    )
    effort: Effort = Field(
        default="normal",
        description="fast: ranges only; normal: also smoothing, equalization, rounding with feedback, bias correction.",
    )
    rescue: bool = Field(default=True, description="Keep what 8 bits cannot hold in more, visibly.")
    method: Method = Field(default="auto", description="How ranges are chosen from what was observed.")
    headroom: float = Field(
        default=0.25,
        ge=0,
        description="How much farther than what was seen 16-bit grids reach at least, as a share; more for models with "
        "state.",
    )
    samples: int = Field(default=128, ge=1, description="At most this many rows are used for calibration.")
    load_path: str | None = Field(
        default=None,
        description="Calibration inputs: .npz, a folder of images, .txt, or module:function. None: synthetic.",
    )
    distribution: Distribution = Field(default="normal", description="Distribution of synthetic float inputs.")
    seed: int = Field(default=0, ge=0, description="Seed of synthetic inputs.")
    op_types: tuple[str, ...] | None = Field(
        default=None, description="Quantize nodes of these types only; None: what the target takes."
    )
    exclude_op_types: tuple[str, ...] = Field(
        default=(), description="Never quantize nodes of these types; in half precision: they stay in float32."
    )
    nodes: tuple[str, ...] | None = Field(default=None, description="Quantize these nodes only, by name; None: all.")
    exclude_nodes: tuple[str, ...] = Field(default=(), description="Never quantize these nodes.")
    types: dict[str, NodeType] = Field(
        default={}, description="Types of the activations of single nodes, by name; float: the node is not quantized."
    )
    overrides: dict[str, TensorOverride] = Field(default={}, description="Settings of single tensors, by name.")
    plan: str | None = Field(
        default=None, description="A plan file (see `intact plan`) whose settings and edits apply."
    )
    block_size: int = Field(
        default=0,
        ge=0,
        description="One scale for this many values of a weight of 4 bits or fewer; 0: one per channel.",
    )
    accuracy_level: int = Field(
        default=0,
        ge=0,
        le=4,
        description="Of MatMulNBits: 0 and 1 multiply in float32, 4 with activations rounded to int8.",
    )
    encodings: str | None = Field(
        default=None,
        description="Encodings to use in place of calibrated ranges: AIMET's JSON or ONNX Runtime's overrides.",
    )
    calibrate_missing: bool = Field(
        default=False, description="Calibrate tensors that `encodings` says nothing about; False: that is an error."
    )

    @model_validator(mode="after")
    def _half_precision_is_whole(self) -> Self:
        if (self.activation_type == "float16") != (self.weight_type == "float16"):
            raise ValueError("float16 is the type of activations and weights together: set both or neither")
        return self

    @property
    def has_grids(self) -> bool:
        """True if activations are put on grids, so that the result is a QDQ model."""
        return self.activation_type not in ("float", "float16")


class CompileConfig(Settings):
    """Settings of compilation for a device; all they say about quantization is one optional QuantConfig."""

    device: str = Field(
        default=devices.HOST,
        description="What the model is compiled for: a name that `intact targets` lists, or the path of a table.",
    )
    arch: str | None = Field(
        default=None, description="Architecture of the device, for example v73; None: its default."
    )
    soc: str | None = Field(default=None, description="Chip, for example SM8550; it decides the architecture.")
    assume_vnni: bool | None = Field(
        default=None, description="Whether the x86 CPU that will run the model has VNNI; None: what this one has."
    )
    assume_ort: str | None = Field(
        default=None,
        description="The version of ONNX Runtime that will run the model on a CPU; None: the one installed.",
    )
    ep_options: dict[str, str] = Field(
        default={},
        description="Options handed to the vendor's provider as they are; for openvino, `device` names the device.",
    )
    toolchain: str | None = Field(
        default=None,
        description="Version of the vendor's toolchain as `intact toolchain list` has it, or the folder of a virtual "
        "environment; None: the usual one.",
    )
    io: Literal["float", "quantized"] = Field(default="float", description="Types of the graph's inputs and outputs.")
    timeout: float = Field(
        default=1800.0, gt=0, description="Seconds that one call of the vendor's toolchain may take."
    )
    quant: QuantConfig | None = Field(default=None, description="Quantize a float model with these settings first.")

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not value.endswith(".toml") and not devices.is_known(value):
            known = devices.known()
            allowed = f"{', '.join(known)}, or the path of a table (.toml)"
            raise ValueError(f"unknown device {value!r}{nearest(value, known)} (allowed: {allowed})")
        return value


class VerdictConfig(Settings):
    """Limits of the verdict about a result; these are all of them, and they stand nowhere else."""

    suspect_below_db: float = Field(default=20.0, description="A form with less SQNR in dB is suspect.")
    broken_below_db: float = Field(default=6.0, description="A form with less SQNR in dB is broken.")
    most_lost_db: float = Field(
        default=6.0, ge=0, description="A later form that loses more than this against the quantized one is suspect …"
    )
    lost_below_db: float = Field(
        default=40.0, description="… while it is below this; below `suspect_below_db` it is broken."
    )
    least_agreement: float = Field(
        default=0.9, ge=0, le=1, description="Least share of clear decisions with the original's best class."
    )
    least_decisions: PositiveInt = Field(default=20, description="Fewer clear decisions than this say nothing.")


class BuildConfig(Settings):
    """A whole build. Quantization is set in `quant` or in `compile.quant`, never in both."""

    precision: Precision | None = Field(
        default=None, description="The preset that the quantization settings started from."
    )
    dims: dict[str, int] = Field(default={}, description="Sizes of free dimensions, by name.")
    fixed_inputs: dict[str, JsonValue] = Field(
        default={}, description="Values of inputs that become constants, by name: numbers, booleans, or lists of them."
    )
    states: dict[str, str] | None = Field(
        default=None,
        description="Inputs that are states, each with the output that is fed back to it in verification; None: those "
        "whose names agree. Empty: none.",
    )
    test_path: str | None = Field(
        default=None, description="Inputs for verification; None: rows of the calibration inputs are held back."
    )
    min_sqnr: float | None = Field(default=None, description="Gate: least SQNR in dB of every output of every form.")
    min_cosine: float | None = Field(
        default=None, le=1, description="Gate: least cosine of every output of every form."
    )
    labels: str | None = Field(
        default=None, description="Classes of the rows of the inputs (.npy or .npz), for the accuracy of every form."
    )
    max_accuracy_drop: float | None = Field(
        default=None, ge=0, description="Gate: most percentage points of accuracy that a form may lose; needs labels."
    )
    max_latency_ratio: float | None = Field(
        default=None,
        gt=0,
        description="Gate: most time of an inference as a multiple of the original's, where it can be timed.",
    )
    require_npu: float | None = Field(
        default=None, gt=0, le=100, description="Gate: least share of compute nodes on the NPU, in percent."
    )
    max_cycles: int | None = Field(
        default=None, gt=0, description="Gate: most cycles of an inference, as the vendor's compiler estimates them."
    )
    strict: bool = Field(
        default=True, description="Refuse a model with nodes that the NPU does not take; False: warn only."
    )
    optimize: bool = Field(
        default=True, description="Bring a float model to fewer and friendlier operators; False: leave it as it is."
    )
    max_memory: str | None = Field(
        default=None, description="Most memory that the build may take, such as 4G; it is refused if it needs more."
    )
    images: ImageConfig = Field(default=ImageConfig(), description="How inputs that are images are prepared.")
    tokenizer: str | None = Field(
        default=None,
        description="Turns lines of a text file into inputs: a folder, or a Hugging Face id, also as id@revision.",
    )
    export: ExportConfig | None = Field(
        default=None, description="How a Hugging Face model is exported; not for ONNX files."
    )
    verdict: VerdictConfig = Field(default=VerdictConfig(), description="Limits of the verdict about the result.")
    quant: QuantConfig | None = None
    compile: CompileConfig = CompileConfig()

    @field_validator("max_memory")
    @classmethod
    def _amount_of_memory(cls, value: str | None) -> str | None:
        if value is not None:
            memory_size.bytes_of(value)
        return value

    @model_validator(mode="after")
    def _one_quantization(self) -> Self:
        if self.quant is not None and self.compile.quant is not None:
            raise ValueError(
                "quant and compile.quant are both set: a model is quantized once, "
                "with one configuration; remove one of the two"
            )
        return self

    @property
    def quantization(self) -> QuantConfig | None:
        """The one quantization configuration of this build, wherever it was set."""
        return self.quant if self.quant is not None else self.compile.quant


def read_settings(path: Path) -> dict[str, object]:
    """The values of a TOML or JSON settings file."""
    parsers: dict[str, Callable[[str], object]] = {
        ".toml": hand_written.parse_toml,
        ".json": hand_written.parse_json,
    }
    parse = parsers.get(path.suffix.lower())
    if parse is None:
        raise SettingsError("S101", f"{path}: settings files are TOML or JSON", allowed=".toml, .json")
    try:
        values = parse(hand_written.read(path))
    except OSError as error:
        raise SettingsError("S102", f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError("S103", f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise SettingsError("S103", f"{path}: expected a table of settings, found {type(values).__name__}")
    return values


def checked_settings(path: Path) -> dict[str, object]:
    """The values of a settings file, each checked; an error names the file, the line of TOML, and the nearest key."""
    values = read_settings(path)
    try:
        BuildConfig.model_validate(values)
    except ValidationError as error:
        text = hand_written.read(path) if path.suffix.lower() == ".toml" else ""
        raise SettingsError("S104", hand_written.problems(error, path, text)) from None
    return values


def merge(*layers: Mapping[str, object]) -> dict[str, object]:
    """Nested dictionaries laid over each other; what a later layer sets wins, what it leaves out stays."""
    merged: dict[str, object] = {}
    for layer in layers:
        for key, value in layer.items():
            old = merged.get(key)
            merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
