"""For the CPU: a model file that ONNX Runtime loads with all its optimizations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from onnx_ir.passes.common import DeduplicateInitializersPass

from intact.backends.base import Backend, Compiled, Device, NativeProvider, Snippet
from intact.errors import SettingsError
from intact.model import io
from intact.model.copying import copied
from intact.model.garbage_pause import give_back
from intact.results import PlacedNode, Placement
from intact.runtime import idle_optimizers, loads, ort_cpu
from intact.targets.provider_placement import compute_nodes, node_ops

REASON = "the target is the CPU"

# ONNX Runtime loads a model in a time that grows with the square of its constants: half a minute for 32,000 nodes.
MOST_LOADED_TWICE = 10_000

# An optimizer that gives 8-bit convolutions another layout, and changes no number by it. It compares the name of each
# node that it adds with those of all others, which takes as long as all the rest for 30,000 nodes.
LAYOUT = "NhwcTransformer"
MOST_IN_LAYOUT = 20_000


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
        """Save `model` and make sure that ONNX Runtime takes it; a long one is loaded once, by whoever runs it."""
        self.check(device.ep_options)
        is_long = len(model.graph) > MOST_LOADED_TWICE
        files = io.save(_with_shared_constants(model) if is_long else model, folder / "model.onnx")
        if not is_long:
            self.load(files[0], device)
        nodes = [PlacedNode(name, op, REASON) for name, op in node_ops(model).items()]
        placement = Placement(npu_nodes=(), cpu_nodes=tuple(compute_nodes(nodes)), partitions=0)
        runtime = f"onnxruntime {ort.__version__}"
        if len(model.graph) > MOST_IN_LAYOUT:
            runtime = f"{runtime} without {LAYOUT}, which takes long for {len(model.graph)} nodes"
        return Compiled(files[0], files, placement, (), runtime, loaded=not is_long)

    def load(self, path: Path, device: Device) -> None:
        """Refuse a model that ONNX Runtime does not load with all its optimizations, or that ends its process."""
        loads.check(path, timeout=device.timeout)

    def run(
        self, path: Path, samples: Sequence[Mapping[str, np.ndarray]], device: Device
    ) -> list[dict[str, np.ndarray]]:
        """Outputs of the model as it will be deployed: with all optimizations that find something to do in it.

        One that only changes the layout is left out where that takes long, as `runtime` says.
        """
        nodes = device.nodes or 0
        if nodes <= MOST_LOADED_TWICE:
            session = ort_cpu.Session(path, optimize=True)
            return [session.run(sample) for sample in samples]
        left_out = (*idle_optimizers.idle(path), *([LAYOUT] if nodes > MOST_IN_LAYOUT else []))
        give_back()
        session = ort_cpu.Session(path, optimize=left_out)
        # An array of a session holds on to all the memory that the session had.
        found = [{name: array.copy() for name, array in session.run(sample).items()} for sample in samples]
        del session
        give_back()
        return found

    def snippet(self, ep_options: Mapping[str, str], *, whole: bool) -> Snippet:
        """A session with the CPU provider."""
        lines = (
            "import onnxruntime as ort",
            "",
            'session = ort.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])',
        )
        return Snippet(lines, "session.run([{outputs}], inputs)")


def _with_shared_constants(model: ir.Model) -> ir.Model:
    """A copy in which equal constants are one: zero points, mostly, which are a third of those of a chain of layers.

    Types and shapes of constants are with their tensors alone: ONNX Runtime keeps what a file says beside them.
    """
    result = copied(model)
    DeduplicateInitializersPass()(result)
    for value in result.graph.initializers.values():
        if not value.is_graph_input() and not value.is_graph_output():
            value.type = value.shape = None
    return result


BACKEND = CpuBackend()
