"""For Rockchip NPUs: an .rknn file, made by the vendor's compiler, and the model that it was made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from intact import scratch
from intact.backends.base import Backend, Compiled, Device, Library, Snippet
from intact.backends.rknn import client as rknn_client
from intact.backends.rknn import native, placing
from intact.backends.rknn.client import CompiledRknn, Platform
from intact.backends.rknn.log import CompilerReport
from intact.backends.rknn.readable import readable
from intact.backends.rknn.toolchain import TOOLCHAIN
from intact.errors import ModelError, TargetError
from intact.model import io, normalize, streamed
from intact.results import Cost, PlacedNode, Placement
from intact.targets import provider_placement
from intact.targets.spec import Soc

MODEL = "model.onnx"
SUFFIX = ".rknn"
RKNN = f"model{SUFFIX}"


class RknnBackend(Backend):
    """Rockchip NPUs: the vendor's compiler and simulator, in an environment of their own."""

    title = "Rockchip NPU, through RKNN"
    table = Path(__file__).with_name("table.toml")
    suffix = SUFFIX
    untimed = "the time of the simulator is not latency"
    estimates = True
    toolchain = TOOLCHAIN
    # Halves are made of floats by the compiler itself; it reads no grids of 16 bits.
    library = Library(
        rknn_client.PACKAGE,
        rknn_client.version,
        "intact.backends.rknn.answering",
        apart=True,
        types=("int8", "float"),
    )

    def __init__(self) -> None:
        self.simulator = RknnSimulator()

    def check(self, ep_options: Mapping[str, str]) -> None:
        """Refuse options that the compiler does not take."""
        rknn_client.parsed(ep_options)

    def on_host(self, ep_options: Mapping[str, str]) -> bool:
        return False

    def compile(self, model: ir.Model, device: Device, folder: Path, on_cpu: Mapping[str, str]) -> Compiled:
        """Compile `model` whole: the compiler itself leaves to the CPU what the NPU does not take."""
        named = _named(model)
        made_from = io.save(readable(named, halves=device.halves), folder / MODEL)
        platform = platform_of(device)
        found = rknn_client.compile_rknn(folder / MODEL, folder / RKNN, platform, timeout=device.timeout)
        _refuse_failure(found, platform)
        placed = placing.placement(named, found.report.layers, halves=device.halves)
        _refuse_nothing_on_npu(placed, platform)
        return Compiled(
            folder / RKNN,
            (folder / RKNN, *made_from),
            placed,
            _warnings(placed, on_cpu),
            f"{rknn_client.PACKAGE} {rknn_client.version(device.toolchain)}, simulator of {platform.name}",
            made_from=made_from,
            cost=_cost(found.report, device.soc),
            unforeseen=provider_placement.unforeseen(placed, on_cpu),
        )

    def load(self, path: Path, device: Device) -> None:
        """Refuse a model that the simulator does not load; it loads what the file was made from."""
        found = rknn_client.compile_rknn(self.origin(path), None, platform_of(device), timeout=device.timeout)
        _refuse_failure(found, platform_of(device))

    def run(
        self, path: Path, samples: Sequence[Mapping[str, np.ndarray]], device: Device
    ) -> list[dict[str, np.ndarray]]:
        """Outputs in the vendor's simulator, which builds again what the file at `path` was made from."""
        return _simulate(self.origin(path), samples, device)

    def place(self, model: ir.Model, device: Device) -> Placement:
        """Ask the compiler where it would compute the nodes of `model`; one that it refuses is nowhere on the NPU."""
        with scratch.folder("analyze") as folder:
            io.save(readable(model, halves=device.halves), folder / MODEL)
            found = rknn_client.compile_rknn(folder / MODEL, None, platform_of(device), timeout=device.timeout)
        if found.error is not None:
            nodes = [PlacedNode(name, op, found.error) for name, op in provider_placement.node_ops(model).items()]
            return Placement((), tuple(provider_placement.compute_nodes(nodes)), 0)
        placed = placing.placement(model, found.report.layers, halves=device.halves)
        on_npu, off = (provider_placement.compute_nodes(nodes) for nodes in (placed.npu_nodes, placed.cpu_nodes))
        return Placement(tuple(on_npu), tuple(off), placed.partitions, layers=placed.layers)

    def usual_cycles(self, model: ir.Model, sample: Mapping[str, np.ndarray], device: Device) -> int | None:
        """The cycles that the compiler estimates after its own quantizer, which one sample is enough for."""
        with scratch.folder("usual") as folder:
            io.save(readable(model), folder / MODEL)
            found = rknn_client.compile_quantized(folder / MODEL, sample, platform_of(device), timeout=device.timeout)
        return None if found.error is not None else found.report.cycles

    def origin(self, path: Path) -> Path:
        """The ONNX model that a file was made from, which lies beside it."""
        found = path.with_name(MODEL)
        if not found.is_file():
            raise ModelError("M171", f"{path}: the model that it was made from ({MODEL}) does not lie beside it")
        return found

    def snippet(self, ep_options: Mapping[str, str], *, whole: bool) -> Snippet:
        """The vendor's runtime for boards, rknn-toolkit-lite2; images are NHWC there unless it is told otherwise."""
        lines = (
            "from rknnlite.api import RKNNLite  # rknn-toolkit-lite2, on the board",
            "",
            "model = RKNNLite()",
            f'assert model.load_rknn("{RKNN}") == 0',
            "assert model.init_runtime() == 0",
        )
        return Snippet(lines, 'model.inference(inputs=list(inputs.values()), data_format=["nchw"] * len(inputs))')

    def native_code(
        self, inputs: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]]
    ) -> tuple[str, str] | None:
        """The vendor's C API."""
        code = native.program(RKNN, inputs, outputs)
        return None if code is None else ("C", code)


class RknnSimulator:
    """The compiler and the simulator on a QDQ model, as it stands: a build compiles it like that."""

    def run(
        self, path: Path, samples: Sequence[Mapping[str, np.ndarray]], device: Device
    ) -> list[dict[str, np.ndarray]]:
        """Outputs in the simulator."""
        with _readable(path, device) as model:
            return _simulate(model, samples, device)

    def failure(self, path: Path, device: Device) -> str | None:
        """The compiler's error, nodes on the CPU allowed; None where it compiles."""
        with _readable(path, device) as model:
            return rknn_client.compile_rknn(model, None, platform_of(device), timeout=device.timeout).error


def platform_of(device: Device) -> Platform:
    """The chip of a device as the toolkit names it, with the options of its compiler."""
    assert device.soc is not None, "the table of this backend has a chip for every architecture"
    return Platform(device.soc.name.lower(), rknn_client.parsed(device.ep_options), device.toolchain)


def _named(model: ir.Model) -> ir.Model:
    """A copy of `model` whose nodes are told apart by name."""
    named = model.clone()
    normalize.name_nodes(named)
    return named


@contextmanager
def _readable(path: Path, device: Device) -> Iterator[Path]:
    """The model at `path` in a form that the compiler reads, in a file of its own."""
    with scratch.folder("rknn") as folder:
        yield io.save(readable(io.load(path), halves=device.halves), folder / MODEL)[0]


def _simulate(model: Path, samples: Sequence[Mapping[str, np.ndarray]], device: Device) -> list[dict[str, np.ndarray]]:
    # Weights are read to say what is wrong with a file, and for nothing else here.
    outputs = streamed.outputs_of(model) or [value.name or "" for value in io.load(model).graph.outputs]
    platform = platform_of(device)
    return rknn_client.run(model, samples, outputs, platform, timeout=device.timeout, done=device.done)


def _refuse_failure(found: CompiledRknn, platform: Platform) -> None:
    if found.error is not None:
        raise TargetError(
            "T126",
            f"the compiler does not take the model for {platform.name}: {found.error}",
            fix="intact debug finds the node; another precision, or --exclude-nodes for it, may be taken",
        )


def _refuse_nothing_on_npu(placed: Placement, platform: Platform) -> None:
    if not provider_placement.compute_nodes(placed.npu_nodes):
        raise TargetError("T127", f"no compute node of the model runs on the NPU of {platform.name}")


def _warnings(placed: Placement, on_cpu: Mapping[str, str]) -> tuple[str, ...]:
    """Say which nodes the compiler placed otherwise than the table."""
    off = {node.name for node in placed.cpu_nodes}
    taken = [name for name in on_cpu if name not in off]
    more = [node.name for node in provider_placement.unforeseen(placed, on_cpu)]
    words = {
        "on the NPU after all, since its compiler takes what the table refuses": taken,
        "on the CPU, which the table does not know": more,
    }
    return tuple(f"{', '.join(names)}: {text}" for text, names in words.items() if names)


def _cost(report: CompilerReport, soc: Soc | None) -> Cost:
    clock = None if soc is None else soc.clock_mhz
    milliseconds = None if clock is None else round(report.cycles / clock / 1000, 4)
    return Cost(report.cycles, report.weight_bytes, report.activation_bytes, milliseconds)


BACKEND = RknnBackend()
