"""For Hexagon NPUs: an EPContext model and its binary, made by the vendor's compiler."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact import scratch
from intact.backends.base import Backend, Compiled, Device, Library, NativeProvider, Snippet, Step
from intact.backends.qnn import client as qnn_client
from intact.backends.qnn import placing, repro_script
from intact.backends.qnn.client import Attempt, Chip, LeftToCpu
from intact.backends.qnn.toolchain import TOOLCHAIN
from intact.errors import TargetError
from intact.model import io, normalize
from intact.results import PlacedNode, Placement
from intact.runtime.pinning import pin
from intact.targets import provider_placement

# Constant names: the compiler hashes the path of what it reads.
SOURCE = "source.onnx"
MODEL = "model.onnx"
OUTPUT = "output"

NODES_SHOWN = 5


def _probe_reasons(log: str) -> dict[int, str]:
    # What builds models for probes is not needed by any build.
    from intact.backends.qnn import probe_log

    return probe_log.reasons(log)


# Documented: github.com/onnxruntime/onnxruntime-qnn (platforms), onnxruntime.ai/docs/execution-providers (QNN), and the
# packages of these names. The provider opens the binary by its path, beside the model.
_SYSTEMS = {
    "Windows on Snapdragon": "Python for ARM64: pip install onnxruntime onnxruntime-qnn; C++ and C#: the NuGet package "
    "Microsoft.ML.OnnxRuntime.QNN. Copy {files} into the folder of the program.",
    "Android": "Gradle: com.microsoft.onnxruntime:onnxruntime-android-qnn, for arm64-v8a. Copy {files} from the assets "
    "into the app's filesDir before the session is made, since the binary is opened by its path; to try it, "
    "adb push them to /data/local/tmp.",
    "Linux on Qualcomm boards": "Python for ARM64: pip install onnxruntime onnxruntime-qnn. Copy {files} into one "
    "folder.",
}


class QnnBackend(Backend):
    """Hexagon NPUs: the vendor's compiler and simulator, through the QNN provider of ONNX Runtime."""

    title = "Qualcomm Hexagon NPU, through QNN"
    table = Path(__file__).with_name("table.toml")
    packages = (qnn_client.PACKAGE,)
    install = qnn_client.INSTALL
    toolchain = TOOLCHAIN
    # Documented: onnxruntime.ai/docs/execution-providers/QNN-ExecutionProvider, and addQnn of its Java API.
    native = NativeProvider("QNN", {"backend_type": "htp"}, "addQnn", _SYSTEMS)
    untimed = "the time of the simulator is not latency"
    library = Library(qnn_client.PACKAGE, qnn_client.version, "intact.backends.qnn.ask", _probe_reasons, joins=True)

    def __init__(self) -> None:
        self.simulator = QnnSimulator()

    def compile(self, model: ir.Model, device: Device, folder: Path, on_cpu: Mapping[str, str]) -> Compiled:
        """Compile `model` whole for the NPU if the compiler can, otherwise with the rest of it on the CPU."""
        _refuse_free_dimensions(model)
        # Nodes are told apart by name.
        named = model.clone()
        normalize.name_nodes(named)
        pin(named, on_cpu)
        chip = chip_of(device)
        with scratch.folder("qnn") as work:
            io.save(named, work / SOURCE)
            attempt, refusal = _compile(named, work, chip, on_cpu, device.timeout)
            placement = _placement(named, attempt, on_cpu, work)
            _refuse_nothing_on_npu(placement, chip)
            files = tuple(_move(file, folder) for file in sorted((work / OUTPUT).iterdir()))
        warnings = [] if refusal is None else [_left_on_cpu(placement, refusal)]
        warnings += _taken_after_all(placement, on_cpu)
        left = provider_placement.unforeseen(placement, on_cpu)
        return Compiled(folder / MODEL, files, placement, tuple(warnings), _runtime(chip), unforeseen=left)

    def kept_off(self, model: ir.Model, names: Collection[str]) -> ir.Model:
        """The model with these nodes hidden from the compiler."""
        return placing.kept_off(model, names)

    def load(self, path: Path, device: Device) -> None:
        """Refuse a compiled model that the vendor's simulator does not load."""
        qnn_client.load(path, chip_of(device), timeout=device.timeout)

    def run(
        self, path: Path, samples: Sequence[Mapping[str, np.ndarray]], device: Device
    ) -> list[dict[str, np.ndarray]]:
        """Outputs of the model at `path` in the vendor's simulator."""
        return qnn_client.run(path, samples, chip_of(device), timeout=device.timeout, done=device.done)

    def opened(self, path: Path, device: Device) -> AbstractContextManager[Step]:
        """The model at `path` in one simulator that stays for all samples."""
        return qnn_client.opened(path, chip_of(device), timeout=device.timeout)

    def place(self, model: ir.Model, device: Device) -> Placement:
        """Ask the compiler to take `model`: all of it if it can, otherwise with the rest on the CPU."""
        return placing.place(model, chip_of(device), device.timeout)

    def made(self, model: ir.Model) -> bool:
        """True if an EPContext node is from the QNN provider, or does not say where it is from."""
        sources = [node.attributes.get_string("source", "") for node in model.graph if node.op_type == "EPContext"]
        return any(not source or source.upper().startswith("QNN") for source in sources)

    def repro_script(self, device: Device) -> str:
        """A comparison of the CPU with the simulator, which needs the vendor's package alone."""
        chip = {"htp_arch": device.arch, "soc_model": device.soc_id}
        options = {**{name: str(value) for name, value in chip.items() if value is not None}, **device.ep_options}
        return repro_script.write(options, qnn_client.environment())

    def snippet(self, ep_options: Mapping[str, str], *, whole: bool) -> Snippet:
        """A session with the QNN provider, which refuses to leave nodes to the CPU where none are meant to be there."""
        strict = 'options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")  # an error, never a CPU run'
        lines = (
            "import onnxruntime as ort",
            "import onnxruntime_qnn as qnn",
            "",
            'provider = "QNNExecutionProvider"',
            "ort.register_execution_provider_library(provider, qnn.get_library_path())",
            "devices = [device for device in ort.get_ep_devices() if device.ep_name == provider]",
            "options = ort.SessionOptions()",
            'options.add_provider_for_devices(devices, {"backend_path": qnn.get_qnn_htp_path()})',
            *([strict] if whole else []),
            'session = ort.InferenceSession("model.onnx", options, enable_fallback=0)',
        )
        return Snippet(lines, "session.run([{outputs}], inputs)")


class QnnSimulator:
    """The compiler and the simulator on a QDQ model, as it stands: a build compiles it like that."""

    def run(
        self, path: Path, samples: Sequence[Mapping[str, np.ndarray]], device: Device
    ) -> list[dict[str, np.ndarray]]:
        """Outputs in the simulator; ONNX Runtime's own optimizations could hide what the compiler gets wrong."""
        return qnn_client.run(path, samples, chip_of(device), timeout=device.timeout, optimize=False)

    def failure(self, path: Path, device: Device) -> str | None:
        """The compiler's error, nodes on the CPU allowed; None where it compiles."""
        chip, rest = chip_of(device), LeftToCpu.REFUSED
        return qnn_client.compile_context(path.parent, path.name, MODEL, chip, rest=rest, timeout=device.timeout).error


def chip_of(device: Device) -> Chip:
    """The chip of a device, with the options of its provider."""
    return Chip(device.arch, device.soc_id, device.ep_options, device.toolchain)


def _compile(
    model: ir.Model, work: Path, chip: Chip, on_cpu: Mapping[str, str], timeout: float
) -> tuple[Attempt, str | None]:
    """The compilation that counts, and why it is not of the whole model."""
    first = LeftToCpu.PINNED if on_cpu else LeftToCpu.NOTHING
    found = _attempt(work, chip, timeout, first)
    why = "other nodes are left to the CPU" if on_cpu else found.error
    if found.error is not None:
        # ONNX Runtime cannot split a graph around an annotated node that others depend on: there the provider's own
        # refusals have to do.
        found = placing.without_refused(model, work / SOURCE, partial(_attempt, work, chip, timeout))
    return found, why


def _attempt(work: Path, chip: Chip, timeout: float, rest: LeftToCpu) -> Attempt:
    shutil.rmtree(work / OUTPUT, ignore_errors=True)  # what a failed attempt left
    (work / OUTPUT).mkdir()
    return qnn_client.compile_context(work, SOURCE, f"{OUTPUT}/{MODEL}", chip, rest=rest, timeout=timeout)


def _placement(model: ir.Model, attempt: Attempt, on_cpu: Mapping[str, str], work: Path) -> Placement:
    ops = provider_placement.node_ops(model)
    if attempt.error is not None:
        raise _compiler_failed(attempt.error, provider_placement.refused(ops, attempt.reasons))
    # ORT writes no context file where the NPU gets nothing.
    context = work / OUTPUT / MODEL
    partitions = sum(node.op_type == "EPContext" for node in ir.load(context).graph) if context.exists() else 0
    return provider_placement.place(
        ops, attempt.assigned, qnn_client.PROVIDER, {**attempt.reasons, **on_cpu}, partitions
    )


def _move(file: Path, folder: Path) -> Path:
    return Path(shutil.move(file, folder / file.name))


def _refuse_free_dimensions(model: ir.Model) -> None:
    free = normalize.free_dims(model)
    if free:
        raise TargetError(
            "T122",
            f"dimensions of the inputs are free: {', '.join(free)}",
            allowed="fixed shapes: the Hexagon compiler plans all memory beforehand",
            fix=normalize.advised_dims(model),
        )


def _refuse_nothing_on_npu(placement: Placement, chip: Chip) -> None:
    if placement.partitions and provider_placement.compute_nodes(placement.npu_nodes):
        return
    nodes = _listed(provider_placement.compute_nodes(placement.cpu_nodes)) or " it has none"
    raise TargetError("T120", f"no compute node of the model runs on the NPU ({_arch(chip)}):{nodes}")


def _taken_after_all(placement: Placement, on_cpu: Mapping[str, str]) -> list[str]:
    taken = [node.name for node in placement.npu_nodes if node.name in on_cpu]
    return [f"{', '.join(taken)}: on the NPU after all, since its compiler takes what the table refuses"] * bool(taken)


def _compiler_failed(error: str, refused: list[PlacedNode]) -> TargetError:
    """ORT cannot put every node that the NPU refuses on the CPU, and a graph of accepted nodes may still fail."""
    nodes = f"\nIt refuses these nodes, which may be the cause:{_listed(refused)}" if refused else ""
    fix = "change the nodes that it refuses" if refused else "cut the model at intermediate tensors to find the node"
    return TargetError("T121", f"the Hexagon compiler fails: {error}{nodes}", fix=fix)


def _left_on_cpu(placement: Placement, error: str) -> str:
    compute = provider_placement.compute_nodes(placement.cpu_nodes)
    if not compute:
        return f"{len(placement.cpu_nodes)} conversions between float and integer stay on the CPU: {error}"
    total = len(compute) + len(provider_placement.compute_nodes(placement.npu_nodes))
    return f"{len(compute)} of {total} compute nodes stay on the CPU:{_listed(compute)}"


def _listed(nodes: list[PlacedNode]) -> str:
    lines = [f"\n  {node.name} ({node.op}): {node.reason}" for node in nodes[:NODES_SHOWN]]
    more = len(nodes) - NODES_SHOWN
    return "".join(lines) + (f"\n  and {more} more" if more > 0 else "")


def _arch(chip: Chip) -> str:
    return "default architecture" if chip.arch is None else f"v{chip.arch}"


def _runtime(chip: Chip) -> str:
    return f"{qnn_client.PACKAGE} {qnn_client.version(chip)}, simulator of {_arch(chip)}"


BACKEND = QnnBackend()
