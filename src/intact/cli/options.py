"""Options that commands share: each is defined once, together with the setting that it sets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from intact.settings.places import PLACES


@dataclass(frozen=True, slots=True)
class Option:
    """A flag: its name in code, its type, its declaration, and the path of the setting that it sets, if any."""

    name: str
    kind: Any
    declaration: Any
    setting: tuple[str, ...] = ()


def _option(name: str, kind: Any, help: str, *, flags: tuple[str, ...] = (), **more: Any) -> Option:
    flags = flags or (f"--{name.replace('_', '-')}",)
    return Option(name, kind, typer.Option(*flags, help=help, show_default=False, **more), PLACES.get(name, ()))


MODEL = (
    Option("model", Path | None, typer.Argument(help="The ONNX model.", show_default=False)),
    _option("onnx", Path | None, "The ONNX model; the same as the first argument."),
)
HF = (
    _option("hf", str | None, "In place of a file: a Hugging Face model, as FOLDER, ID or ID@REVISION.", metavar="ID"),
    _option(
        "task",
        str | None,
        "What the Hugging Face model is for, such as text-classification. [default: what its config says]",
    ),
    _option(
        "sequence_length",
        int | None,
        "Tokens of a text that the Hugging Face model takes. [default: 128]",
    ),
    _option(
        "dynamic",
        bool | None,
        "Leave the batch and the length of text free, or fix them. [default: fixed]",
        flags=("--dynamic/--fixed",),
    ),
    _option(
        "trust_remote_code",
        bool | None,
        "Run Python code that the Hugging Face model brings along.",
        flags=("--trust-remote-code",),
    ),
)
CONFIG = (_option("config", Path | None, "A TOML or JSON file of settings; flags override it."),)
TARGET = (
    _option(
        "device",
        str | None,
        "cpu, qnn, openvino, dml, or the path of a target table. [default: cpu]",
    ),
    _option("arch", str | None, "Architecture, for example v73. [default for qnn: v73]"),
    _option("soc", str | None, "Chip, for example SM8550; it decides the architecture."),
    _option(
        "assume_vnni",
        bool | None,
        "Whether the x86 CPU that will run the model has VNNI. [default: what this one has]",
        flags=("--assume-vnni/--assume-no-vnni",),
    ),
    _option(
        "assume_ort",
        str | None,
        "The version of ONNX Runtime that will run the model on a CPU. [default: the one installed]",
    ),
)
DIMS = (_option("dim", list[str] | None, "Size of a free dimension, as name=size; repeatable."),)
IMAGES = (
    _option("image_size", str | None, "Of images, as HxW. [default: that of the model's input]"),
    _option("image_mean", str | None, "Subtracted from pixels of 0 to 1, as m or r,g,b."),
    _option("image_std", str | None, "What pixels are divided by after that."),
    _option("image_order", str | None, "Order of channels: rgb or bgr. [default: rgb]"),
    _option("image_layout", str | None, "nchw or nhwc. [default: that of the model's input]"),
)
TEXT = (
    _option(
        "tokenizer",
        str | None,
        "Of lines of a text file: a folder, or a Hugging Face ID. [default: that of --hf]",
    ),
)
DATA = (
    _option(
        "data",
        str | None,
        "Inputs: an .npz keyed by input name, a folder of images, a .txt of one sample a line, or module:function.",
    ),
    _option(
        "test_data",
        str | None,
        "Inputs for verification; without it rows of --data are held back.",
    ),
    _option("samples", int | None, "At most this many rows to calibrate on. [default: 128]"),
    _option("distribution", str | None, "Of synthetic float inputs: normal or uniform."),
    _option("seed", int | None, "Of synthetic inputs. [default: 0]"),
    *IMAGES,
    *TEXT,
)
QUANT = (
    _option(
        "precision",
        str | None,
        "fp32, fp16, uint8, int8, int16, w8a8, w8a16, w4a16, w8 and w4 (weights only), or auto: the cheapest mix "
        "that meets --min-sqnr, --min-cosine or --max-accuracy-drop. [default: uint8]",
    ),
    _option(
        "method",
        str | None,
        "How ranges are chosen: minmax, percentile, entropy, mse or auto.",
    ),
    _option("plan", str | None, "A plan file, as `intact plan` writes it."),
    _option("effort", str | None, "fast (ranges only), normal or high. [default: normal]"),
    _option(
        "rescue",
        bool | None,
        "Keep tensors that 8 bits cannot hold in 16 bits or float, or not. [default: rescue]",
        flags=("--rescue/--no-rescue",),
    ),
    _option("weight_type", str | None, "Type of weights; the precision sets it."),
    _option(
        "activation_type",
        str | None,
        "Type of activations; the precision sets it.",
    ),
    _option(
        "per_channel",
        bool | None,
        "One scale per output channel of a weight, or per tensor.",
        flags=("--per-channel/--per-tensor",),
    ),
    _option(
        "block_size",
        int | None,
        "One scale for this many values of a weight of 4 bits or fewer. [default: one per channel; w8, w4: 32]",
    ),
    _option(
        "accuracy_level",
        int | None,
        "Of MatMulNBits (w8, w4): 4 rounds activations to int8 for speed. [default: 0, float32]",
    ),
    _option(
        "weight_symmetric",
        bool | None,
        "Weights with zero point 0, or not.",
        flags=("--weight-symmetric/--weight-asymmetric",),
    ),
    _option(
        "weight_symmetry",
        str | None,
        "symmetric or asymmetric: the same as --weight-symmetric and --weight-asymmetric.",
    ),
    _option(
        "activation_symmetric",
        bool | None,
        "Activations with the zero point in the middle, or not.",
        flags=("--activation-symmetric/--activation-asymmetric",),
    ),
    _option("op_type", list[str] | None, "Quantize nodes of this type only; repeatable."),
    _option(
        "exclude_op_type",
        list[str] | None,
        "Never quantize nodes of this type, nor bring them to fp16; repeatable.",
    ),
    _option("node", list[str] | None, "Quantize this node only; repeatable."),
    _option("exclude_node", list[str] | None, "Never quantize this node; repeatable."),
    _option(
        "encodings",
        str | None,
        "Use the encodings of this file (AIMET or ONNX Runtime overrides, JSON) and calibrate nothing.",
    ),
    _option(
        "calibrate_missing",
        bool | None,
        "Calibrate the tensors that --encodings says nothing about.",
        flags=("--calibrate-missing/--refuse-missing",),
    ),
)
COMPILE = (
    _option(
        "strict",
        bool | None,
        "Refuse nodes that the NPU does not take, or warn and leave them on the CPU. [default: strict]",
        flags=("--strict/--no-strict",),
    ),
    _option(
        "ep_option",
        list[str] | None,
        "Option of the vendor's provider, as key=value; repeatable. For openvino, device=GPU or device=NPU names the "
        "device. [default: device=CPU]",
    ),
    _option("io", str | None, "Types of the graph's inputs and outputs: float or quantized."),
    _option(
        "timeout",
        float | None,
        "Seconds that one call of the vendor's toolchain may take.",
    ),
)
GATES = (
    _option("min_sqnr", float | None, "Gate: least SQNR in dB of every output of every form."),
    _option(
        "min_cosine",
        float | None,
        "Gate: least cosine between every output and the original's, for example 0.999.",
    ),
    _option(
        "labels",
        str | None,
        "The right class of every row of the inputs, as integers: an .npy file, or an .npz with the key `labels` or "
        "the name of the output. The accuracy of every form is then shown.",
    ),
    _option(
        "max_accuracy_drop",
        float | None,
        "Gate: most percentage points of accuracy that a form may lose; needs --labels.",
    ),
)
LATENCY = (
    _option(
        "max_latency_ratio",
        float | None,
        "Gate: most time of an inference, as a multiple of the original's; 1.0 means no slower. Not for qnn: "
        "a simulator's time is not latency.",
    ),
)
PLACEMENT = (_option("require_npu", float | None, "Gate: least percent of compute nodes on the NPU."),)
OUTPUT = (
    _option("output", Path, "Where the result goes.", flags=("-o", "--output")),
    _option("overwrite", bool, "Replace what is there.", flags=("--overwrite",)),
)
TALK = (
    _option("as_json", bool, "Print the result as JSON on stdout; logs go to stderr.", flags=("--json",)),
    _option("quiet", bool, "Print errors and warnings only.", flags=("--quiet", "-q")),
    _option("debug", bool, "Show a traceback when something goes wrong.", flags=("--debug",)),
)


def takes(*groups: Iterable[Option]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these groups; it receives them as one dictionary."""
    options = [option for group in groups for option in group]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**values: Any) -> None:
            command(values)

        run.__doc__ = command.__doc__
        run.__signature__ = inspect.Signature([_parameter(option) for option in options])  # type: ignore[attr-defined]
        return run

    return decorate


def _parameter(option: Option) -> inspect.Parameter:
    required = option.kind in (Path, str, list[Path])
    default = False if option.kind is bool else inspect.Parameter.empty if required else None
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[option.kind, option.declaration],
    )
