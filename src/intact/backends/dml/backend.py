"""For DirectML: a model file that ONNX Runtime loads on Windows; elsewhere it is prepared and not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from intact.backends.base import Backend, Compiled, Device
from intact.errors import NotAvailable, SettingsError, TargetError
from intact.model import io
from intact.results import Placement
from intact.runtime.ort_message import sentence
from intact.targets import provider_placement

PROVIDER = "DmlExecutionProvider"
# Documented: onnxruntime.ai/docs/execution-providers/DirectML-ExecutionProvider, and the provider's options.
OPTIONS = ("device_id", "performance_preference", "device_filter", "disable_metacommands", "enable_graph_capture")
NOT_RUN = (
    "prepared, not run here: DirectML needs Windows and onnxruntime-directml, so placement and speed are not known"
)


def is_here() -> bool:
    """True if this machine has ONNX Runtime with the DirectML provider."""
    return PROVIDER in ort.get_available_providers()


class DmlBackend(Backend):
    """GPUs and NPUs of Windows, through ONNX Runtime's DirectML provider."""

    title = "DirectML devices"
    table = Path(__file__).with_name("table.toml")

    def check(self, ep_options: Mapping[str, str]) -> None:
        """Refuse options that the provider does not have."""
        unknown = [name for name in ep_options if name not in OPTIONS]
        if unknown:
            raise SettingsError(
                "S184", f"provider option {unknown[0]}: DirectML has none such", allowed=", ".join(OPTIONS)
            )

    def compile(self, model: ir.Model, device: Device, folder: Path, on_cpu: Mapping[str, str]) -> Compiled:
        """Save `model` and, where DirectML is, make sure that it takes it; otherwise say that nothing was run."""
        self.check(device.ep_options)
        files = io.save(model, folder / "model.onnx")
        if not is_here():
            return Compiled(files[0], files, Placement((), (), 0, known=False), (NOT_RUN,), "not run", runs=False)
        placement = _placement(model, _session(files[0], device.ep_options), on_cpu)
        return Compiled(files[0], files, placement, (), f"onnxruntime {ort.__version__}, DirectML")

    def load(self, path: Path, device: Device) -> None:
        """Load a model where DirectML is; elsewhere it was said that nothing is run."""
        if is_here():
            _session(path, device.ep_options)

    def run(
        self, path: Path, samples: Sequence[Mapping[str, np.ndarray]], device: Device
    ) -> list[dict[str, np.ndarray]]:
        """Outputs of the model at `path` on the GPU or NPU of this machine."""
        if not is_here():
            raise NotAvailable(
                "E112", "DirectML is not on this machine", fix="on Windows: pip install onnxruntime-directml"
            )
        session = _session(path, device.ep_options)
        names = [value.name for value in session.get_outputs()]
        return [dict(zip(names, session.run(names, dict(sample)), strict=True)) for sample in samples]


def _session(path: Path, ep_options: Mapping[str, str]) -> ort.InferenceSession:
    options = ort.SessionOptions()
    # The provider allocates by itself and runs one node after another: it refuses sessions that plan memory.
    options.enable_mem_pattern = False
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        return ort.InferenceSession(
            str(path), options, providers=[(PROVIDER, dict(ep_options))], enable_fallback=0, read_config_from_model=0
        )
    # ORT's exception classes have no common base but Exception.
    except Exception as error:
        raise TargetError("T123", f"DirectML refuses the model: {sentence(error)}") from error


def _placement(model: ir.Model, session: ort.InferenceSession, on_cpu: Mapping[str, str]) -> Placement:
    assigned: list[provider_placement.AssignedNodes] = [
        {"provider": graph.ep_name, "nodes": [(node.name, node.op_type) for node in graph.get_nodes()]}
        for graph in session.get_provider_graph_assignment_info()
    ]
    partitions = sum(group["provider"] == PROVIDER for group in assigned)
    return provider_placement.place(provider_placement.node_ops(model), assigned, PROVIDER, on_cpu, partitions)


BACKEND = DmlBackend()
