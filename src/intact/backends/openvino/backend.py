"""For Intel CPUs, GPUs and NPUs: a blob that OpenVINO loads, and the model that it was made from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact import scratch
from intact.backends.base import Backend, Compiled, Device, Library, Snippet
from intact.backends.openvino import client as openvino_client
from intact.backends.openvino.client import Plugin, PluginLayer, plugin_of
from intact.errors import ModelError, TargetError
from intact.model import io, normalize, query
from intact.records import dataclass
from intact.results import PlacedLayer, PlacedNode, Placement
from intact.targets import provider_placement

MODEL = "model.onnx"
BLOB = f"model{openvino_client.BLOB}"
# Layers that do not run.
_IDLE = ("Const", "Input", "Output")


class OpenVinoBackend(Backend):
    """Intel CPUs, GPUs and NPUs, through OpenVINO."""

    title = "Intel devices, through OpenVINO"
    table = Path(__file__).with_name("table.toml")
    packages = (openvino_client.PACKAGE,)
    install = openvino_client.INSTALL
    suffix = openvino_client.BLOB
    untimed = None
    library = Library(openvino_client.PACKAGE, openvino_client.version, "intact.backends.openvino.ask", lambda log: {})

    def check(self, ep_options: Mapping[str, str]) -> None:
        """Refuse a device that is not on this machine, and options that it does not have."""
        if ep_options:
            openvino_client.check(plugin_of(ep_options))

    def on_host(self, ep_options: Mapping[str, str]) -> bool:
        return plugin_of(ep_options).device == openvino_client.CPU.device

    def compile(self, model: ir.Model, device: Device, folder: Path, on_cpu: Mapping[str, str]) -> Compiled:
        """Compile `model` whole: OpenVINO leaves no node to another device."""
        # Nodes are told apart by name.
        named = model.clone()
        normalize.name_nodes(named)
        plugin = plugin_of(device.ep_options)
        made_from = io.save(named, folder / MODEL)
        found = openvino_client.compile_blob(folder / MODEL, folder / BLOB, plugin, timeout=device.timeout)
        if found.error is not None:
            raise TargetError("T124", f"OpenVINO does not compile the model for {plugin.device}: {found.error}")
        return Compiled(
            folder / BLOB,
            (folder / BLOB, *made_from),
            _placement(named, found.layers, plugin),
            _warnings(on_cpu),
            f"{openvino_client.PACKAGE} {openvino_client.version()}, {plugin}",
            made_from=made_from,
        )

    def load(self, path: Path, device: Device) -> None:
        """Refuse a blob that OpenVINO does not load on the device that it was compiled for."""
        self.run(path, [], device)

    def run(
        self, path: Path, samples: Sequence[Mapping[str, np.ndarray]], device: Device
    ) -> list[dict[str, np.ndarray]]:
        """Outputs of the blob at `path` on the device that it was compiled for."""
        outputs = [value.name or "" for value in io.load(self.origin(path)).graph.outputs]
        return openvino_client.run(
            path, samples, outputs, plugin_of(device.ep_options), timeout=device.timeout, done=device.done
        )

    def place(self, model: ir.Model, device: Device) -> Placement:
        """OpenVINO takes a model whole or not at all; its plugin for the CPU is on every machine."""
        with scratch.folder("analyze") as folder:
            io.save(model, Path(folder) / MODEL)
            found = openvino_client.compile_blob(Path(folder) / MODEL, None, timeout=device.timeout)
        nodes = [PlacedNode(name, op, found.error or "") for name, op in provider_placement.node_ops(model).items()]
        compute = tuple(provider_placement.compute_nodes(nodes))
        return Placement(compute, (), 1) if found.error is None else Placement((), compute, 0)

    def origin(self, path: Path) -> Path:
        """The ONNX model that a blob was made from, which lies beside it."""
        found = path.with_name(MODEL)
        if not found.is_file():
            raise ModelError("M161", f"{path}: the model that it was made from ({MODEL}) does not lie beside it")
        return found

    def timer(self, ep_options: Mapping[str, str]) -> PluginTimer:
        """The plugin that the blob was compiled for, in a child process."""
        return PluginTimer(plugin_of(ep_options))

    def snippet(self, ep_options: Mapping[str, str], *, whole: bool) -> Snippet:
        """OpenVINO's own way to load a blob."""
        plugin = plugin_of(ep_options)
        options = json.dumps(dict(plugin.options))
        lines = (
            "from pathlib import Path",
            "",
            "import openvino",
            "",
            'blob = Path("model.blob").read_bytes()',
            f"model = openvino.Core().import_model(blob, {json.dumps(plugin.device)}, {options})",
        )
        return Snippet(lines, "model(inputs)")


@dataclass(frozen=True, slots=True)
class PluginTimer:
    """Times blobs in a plugin, with as many threads as other models have; only that for the CPU has threads."""

    plugin: Plugin
    module: str = "intact.backends.openvino.job"

    def order(self, threads: int) -> dict[str, object]:
        """The plugin's device and options."""
        plugin = self._with(threads)
        return {"device": plugin.device, "options": dict(plugin.options)}

    def runtime(self, threads: int) -> str:
        """OpenVINO's version, the device and the options."""
        return f"{openvino_client.PACKAGE} {openvino_client.version()}, {self._with(threads)}"

    def _with(self, threads: int) -> Plugin:
        if not threads or self.plugin.device != openvino_client.CPU.device:
            return self.plugin
        return replace(self.plugin, options={**self.plugin.options, "INFERENCE_NUM_THREADS": str(threads)})


def _placement(model: ir.Model, layers: Sequence[PluginLayer], plugin: Plugin) -> Placement:
    """All nodes in one piece on the device, with the layers that were made of them."""
    nodes = tuple(PlacedNode(name, op) for name, op in provider_placement.node_ops(model).items())
    running = [layer for layer in layers if layer.kind not in _IDLE]
    return Placement(nodes, (), 1, place=plugin.device, layers=_placed(model, running))


def _placed(model: ir.Model, layers: Sequence[PluginLayer]) -> tuple[PlacedLayer, ...]:
    """The layers that nodes of `model` are in.

    OpenVINO names what it makes of a node after the node, after its output, or by more words behind the node's name.
    The latter may also be about its weight, so that they count only where nothing else tells.
    """
    names = {name: name for name in provider_placement.node_ops(model)}
    outputs = {value.name: node.name for node in query.all_nodes(model) for value in node.outputs if value.name}
    known = {name: node for name, node in {**outputs, **names}.items() if node in names}
    plain = {known[name] for layer in layers for name in layer.nodes if name in known}
    found = []
    for layer in layers:
        nodes = [known.get(name) or _within(name, known, plain) for name in layer.nodes]
        held = tuple(dict.fromkeys(node for node in nodes if node is not None))
        found += [PlacedLayer(layer.kind, layer.kernel, layer.computes_in, held)] if held else []
    return tuple(found)


def _within(name: str, known: Mapping[str, str], plain: set[str]) -> str | None:
    """The node whose name `name` begins with (`gemm` of `gemm/WithoutBiases`), unless its place is plain already."""
    while name and name not in known:
        name = name.rpartition("/")[0]
    node = known.get(name)
    return None if node in plain else node


def _warnings(on_cpu: Mapping[str, str]) -> tuple[str, ...]:
    if not on_cpu:
        return ()
    nodes = ", ".join(on_cpu)
    return (f"OpenVINO takes a model whole: {nodes} are compiled all the same, and may be computed wrongly",)


BACKEND = OpenVinoBackend()
