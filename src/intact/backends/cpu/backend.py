"""For the CPU: a model file that ONNX Runtime loads with all its optimizations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from intact.backends.base import Backend, Compiled, Device, NativeProvider, Snippet
from intact.errors import SettingsError
from intact.model import io
from intact.results import PlacedNode, Placement
from intact.runtime import loads, ort_cpu
from intact.targets.provider_placement import compute_nodes, node_ops

REASON = "the target is the CPU"


class CpuBackend(Backend):
    """ONNX Runtime's CPU provider, on this machine."""

    title = "CPU, through ONNX Runtime"
    table = Path(__file__).with_name("table.toml")
    untimed = None
    native = NativeProvider(
        systems={
            "Windows and Linux": "Python: pip install onnxruntime; C#: the NuGet package Microsoft.ML.OnnxRuntime. "
            "Copy {files} into the folder of the program.",
            "Android": "Gradle: com.microsoft.onnxruntime:onnxruntime-android. Copy {files} into the app's assets.",
        }
    )

    def check(self, ep_options: Mapping[str, str]) -> None:
        """Refuse every option."""
        if ep_options:
            raise SettingsError("S127", f"provider options {', '.join(ep_options)}: the CPU provider has none")

    def compile(self, model: ir.Model, device: Device, folder: Path, on_cpu: Mapping[str, str]) -> Compiled:
        """Save `model` and make sure that ONNX Runtime takes it."""
        self.check(device.ep_options)
        files = io.save(model, folder / "model.onnx")
        self.load(files[0], device)
        nodes = [PlacedNode(name, op, REASON) for name, op in node_ops(model).items()]
        placement = Placement(npu_nodes=(), cpu_nodes=tuple(compute_nodes(nodes)), partitions=0)
        return Compiled(files[0], files, placement, (), f"onnxruntime {ort.__version__}", loaded=True)

    def load(self, path: Path, device: Device) -> None:
        """Refuse a model that ONNX Runtime does not load with all its optimizations, or that ends its process."""
        loads.check(path, timeout=device.timeout)

    def run(
        self, path: Path, samples: Sequence[Mapping[str, np.ndarray]], device: Device
    ) -> list[dict[str, np.ndarray]]:
        """Outputs of the model as it will be deployed: with all optimizations."""
        session = ort_cpu.Session(path, optimize=True)
        return [session.run(sample) for sample in samples]

    def snippet(self, ep_options: Mapping[str, str], *, whole: bool) -> Snippet:
        """A session with the CPU provider."""
        lines = (
            "import onnxruntime as ort",
            "",
            'session = ort.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])',
        )
        return Snippet(lines, "session.run([{outputs}], inputs)")


BACKEND = CpuBackend()
