"""Options that commands share: each is defined once, together with the setting that it sets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from intact.errors import IntactError
from intact.settings import devices
from intact.settings.places import PLACES


@dataclass(frozen=True, slots=True)
class Option:
    """A flag: its name in code, its type, its declaration, and the path of the setting that it sets, if any."""

    name: str
    kind: object
    declaration: object
    setting: tuple[str, ...] = ()


class Flags(TypedDict, total=False):
    """The values of a command's flags that are no settings; each command has some of them.

    Where an output or a reference may be left out, `get` tells.
    """

    model: Path | None
    models: list[Path]
    builds: list[Path]
    onnx: Path | None
    hf: str | None
    source: str
    reference: Path
    candidate: Path | None
    output: Path
    overwrite: bool
    device: str | None
    arch: str | None
    op: list[str] | None
    type: list[str] | None
    devices: str
    precisions: str
    live: bool
    numeric: bool
    to: str | None
    exact: bool | None
    explain: str | None
    fix: bool
    sarif: Path | None
    junit: Path | None
    learn: bool
    verbose: bool
    severity: str | None
    runs: int | None
    threads: int | None
    workers: int | None
    cluster: str | None
    resume: bool
    as_json: bool
    quiet: bool
    log_json: bool
    debug: bool


def option(
    name: str, help: str, kind: object = str | None, *flags: str, metavar: str | None = None, min: int | None = None
) -> Option:
    """A flag, called after its name unless `flags` are given; it sets the setting of that name, if there is one."""
    given = flags or (f"--{name.replace('_', '-')}",)
    declaration = typer.Option(*given, help=help, show_default=False, metavar=metavar, min=min)
    return Option(name, kind, declaration, PLACES.get(name, ()))


MODEL = (
    Option("model", Path | None, typer.Argument(help="The ONNX model.", show_default=False)),
    option("onnx", "The ONNX model; the same as the first argument.", Path | None),
)
HF = (
    option("hf", "In place of a file: a Hugging Face model, as FOLDER, ID or ID@REVISION.", metavar="ID"),
    option("task", "What the Hugging Face model is for, such as text-classification. [default: what its config says]"),
    option("sequence_length", "Tokens of a text that the Hugging Face model takes. [default: 128]", int | None),
    option(
        "dynamic",
        "Leave the batch and the length of text free, or fix them. [default: fixed]",
        bool | None,
        "--dynamic/--fixed",
    ),
    option("trust_remote_code", "Run Python code that the Hugging Face model brings along.", bool | None),
)
CONFIG = (option("config", "A TOML or JSON file of settings; flags override it.", Path | None),)
TARGET = (
    option("device", f"{', '.join(devices.known())}, or the path of a target table. [default: {devices.HOST}]"),
    option("arch", "Architecture, for example v73. [default: the one that the table of the device names]"),
    option("soc", "Chip, for example SM8550; it decides the architecture."),
    option(
        "assume_vnni",
        "Whether the x86 CPU that will run the model has VNNI. [default: what this one has]",
        bool | None,
        "--assume-vnni/--assume-no-vnni",
    ),
    option("assume_ort", "The version of ONNX Runtime that will run the model on a CPU. [default: the one installed]"),
)
DIMS = (
    option("dim", "Size of a free dimension, as name=size; repeatable.", list[str] | None, metavar="NAME=SIZE"),
    option(
        "set",
        "Make an input a constant, as name=value, the value as JSON: sr=16000, mask=[1,0]. The deployed model does not "
        "take it any more; repeatable.",
        list[str] | None,
        metavar="NAME=VALUE",
    ),
)
IMAGES = (
    option("image_size", "Of images, as HxW. [default: that of the model's input]"),
    option("image_mean", "Subtracted from pixels of 0 to 1, as m or r,g,b."),
    option("image_std", "What pixels are divided by after that."),
    option("image_order", "Order of channels: rgb or bgr. [default: rgb]"),
    option("image_layout", "nchw or nhwc. [default: that of the model's input]"),
)
TEXT = (option("tokenizer", "Of lines of a text file: a folder, or a Hugging Face ID. [default: that of --hf]"),)
DATA = (
    option(
        "data",
        "Inputs: an .npz keyed by input name, a folder of images, a .txt of one sample a line, or module:function.",
    ),
    option("test_data", "Inputs for verification; without it rows of --data are held back."),
    option("samples", "At most this many rows to calibrate on. [default: 128]", int | None),
    option("distribution", "Of synthetic float inputs: normal or uniform."),
    option("seed", "Of synthetic inputs. [default: 0]", int | None),
    *IMAGES,
    *TEXT,
)
QUANT = (
    option(
        "precision",
        "fp32, fp16, uint8, int8, int16, w8a8, w8a16, w4a16, w8 and w4 (weights only), or auto: the cheapest mix "
        "that meets --min-sqnr, --min-cosine or --max-accuracy-drop. [default: uint8; int8 on rknn]",
    ),
    option("method", "How ranges are chosen: minmax, percentile, entropy, mse or auto."),
    option("plan", "A plan file, as `intact plan` writes it."),
    option("effort", "fast (ranges only) or normal. [default: normal]"),
    option(
        "rescue",
        "Keep tensors that 8 bits cannot hold in 16 bits or float, or not. [default: rescue]",
        bool | None,
        "--rescue/--no-rescue",
    ),
    option("weight_type", "Type of weights; the precision sets it."),
    option("activation_type", "Type of activations; the precision sets it."),
    option(
        "per_channel",
        "One scale per output channel of a weight, or per tensor.",
        bool | None,
        "--per-channel/--per-tensor",
    ),
    option(
        "block_size",
        "One scale for this many values of a weight of 4 bits or fewer. [default: one per channel; w8, w4: 32]",
        int | None,
    ),
    option(
        "accuracy_level",
        "Of MatMulNBits (w8, w4): 4 rounds activations to int8 for speed. [default: 0, float32]",
        int | None,
    ),
    option(
        "headroom",
        "How much farther than what was seen 16-bit grids reach at least, as a share. "
        "[default: 0.25; 4 for models with state]",
        float | None,
    ),
    option(
        "weight_symmetric", "Weights with zero point 0, or not.", bool | None, "--weight-symmetric/--weight-asymmetric"
    ),
    option("weight_symmetry", "symmetric or asymmetric: the same as --weight-symmetric and --weight-asymmetric."),
    option(
        "activation_symmetric",
        "Activations with the zero point in the middle, or not.",
        bool | None,
        "--activation-symmetric/--activation-asymmetric",
    ),
    option("op_type", "Quantize nodes of this type only; repeatable.", list[str] | None, metavar="TYPE"),
    option(
        "exclude_op_type",
        "Never quantize nodes of this type, nor bring them to fp16; repeatable.",
        list[str] | None,
        metavar="TYPE",
    ),
    option("node", "Quantize this node only; repeatable.", list[str] | None, metavar="NAME"),
    option("exclude_node", "Never quantize this node; repeatable.", list[str] | None, metavar="NAME"),
    option(
        "encodings", "Use the encodings of this file (AIMET or ONNX Runtime overrides, JSON) and calibrate nothing."
    ),
    option(
        "calibrate_missing",
        "Calibrate the tensors that --encodings says nothing about.",
        bool | None,
        "--calibrate-missing/--refuse-missing",
    ),
    option(
        "optimize",
        "Bring the float model to fewer and friendlier operators first, or leave it as it is. [default: optimize]",
        bool | None,
        "--optimize/--no-optimize",
    ),
)
TOOLCHAIN = (
    option(
        "toolchain",
        "Version of the vendor's toolchain, as `intact toolchain list` has it, or the folder of an environment. "
        "[default: the usual one]",
    ),
)
COMPILE = (
    option(
        "strict",
        "Refuse nodes that the NPU does not take, or warn and let the CPU run them. [default: strict]",
        bool | None,
        "--strict/--no-strict",
    ),
    option(
        "ep_option",
        "Option of the vendor's provider, as key=value; repeatable. For openvino, device=GPU or device=NPU names the "
        "device. [default: device=CPU]",
        list[str] | None,
        metavar="KEY=VALUE",
    ),
    *TOOLCHAIN,
    option("io", "Types of the graph's inputs and outputs: float or quantized."),
    option("timeout", "Seconds that one call of the vendor's toolchain may take.", float | None),
)
STATES = (
    option(
        "state",
        "A state, as input=output: verification runs the rows as steps, and feeds the output back to the input; "
        "repeatable. [default: those whose names, types and shapes agree]",
        list[str] | None,
        metavar="INPUT=OUTPUT",
    ),
)
GATES = (
    *STATES,
    option("min_sqnr", "Gate: least SQNR in dB of every output of every form.", float | None),
    option(
        "min_cosine", "Gate: least cosine between every output and the original's, for example 0.999.", float | None
    ),
    option(
        "labels",
        "The right class of every row of the inputs, as integers: an .npy file, or an .npz with the key `labels` or "
        "the name of the output. The accuracy of every form is then shown.",
    ),
    option(
        "max_accuracy_drop",
        "Gate: most percentage points of accuracy that a form may lose; needs --labels.",
        float | None,
    ),
)
LATENCY = (
    option(
        "max_latency_ratio",
        "Gate: most time of an inference, as a multiple of the original's; 1.0 means no slower. Not on a "
        "simulator, whose time is not latency.",
        float | None,
    ),
)
PLACEMENT = (
    option("require_npu", "Gate: least percent of compute nodes on the NPU.", float | None),
    option(
        "max_cycles",
        "Gate: most cycles of an inference, as the vendor's compiler estimates them; for devices whose compiler does.",
        int | None,
    ),
)
MEMORY = (
    option(
        "max_memory",
        "Most memory that the build may take, such as 4G: it is refused beforehand if it needs more, and stopped if it "
        "takes more. [default: no limit]",
        metavar="SIZE",
    ),
)
OUTPUT = (
    option("output", "Where the result goes.", Path, "-o", "--output"),
    option("overwrite", "Replace what is there.", bool),
)
CLUSTER = (
    option(
        "cluster",
        "Share out what splits (calibration, searches, simulators) to a cluster, with the same result: tcp://HOST:8786 "
        "of a Dask scheduler, ray://HOST:PORT, or local (local:N) for processes here.",
        metavar="ADDRESS",
    ),
)
RESUME = (
    option(
        "resume",
        "Keep finished stages beside the output until the work ends well, and go on from those of a run that died.",
        bool,
    ),
)
TALK = (
    option("as_json", "Print the result as JSON on stdout; logs go to stderr.", bool, "--json"),
    option("quiet", "Print errors and warnings only.", bool, "--quiet", "-q"),
    option("log_json", "Write stages, notes, warnings and errors as JSON, one object a line on stderr.", bool),
    option("debug", "Show a traceback when something goes wrong.", bool),
)


def takes(*groups: Iterable[Option]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these groups; it receives them as one dictionary."""
    options = [option for group in groups for option in group]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**values: object) -> None:
            try:
                command(values)
            except IntactError as error:
                error.name_files(_files(values))
                raise

        run.__doc__ = command.__doc__
        run.__signature__ = inspect.Signature([_parameter(option) for option in options])  # type: ignore[attr-defined]
        return run

    return decorate


def _files(values: Mapping[str, object]) -> dict[str, str]:
    """The models and the settings file that a command was given, for an error that does not name them."""
    given = [values.get(name) for name in ("model", "onnx", "reference", "candidate", "hf")]
    models = values.get("models")
    paths = dict.fromkeys(str(path) for path in [*given, *(models if isinstance(models, list) else [])] if path)
    kinds = {"model" if number == 0 else f"model {number + 1}": path for number, path in enumerate(paths)}
    return kinds | ({} if values.get("config") is None else {"settings": str(values["config"])})


def _parameter(option: Option) -> inspect.Parameter:
    required = option.kind in (Path, str, list[Path])
    default = False if option.kind is bool else inspect.Parameter.empty if required else None
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[option.kind, option.declaration],
    )
