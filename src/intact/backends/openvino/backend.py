"""For Intel CPUs, GPUs and NPUs: a blob that OpenVINO loads, and the model that it was made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact.backends.base import Compiled, Device
from intact.backends.openvino import client as openvino_client
from intact.backends.openvino.client import Plugin, PluginLayer, plugin_of
from intact.errors import ModelError, TargetError
from intact.model import io, normalize, query
from intact.results import PlacedLayer, PlacedNode, Placement
from intact.targets import provider_placement

MODEL = "model.onnx"
BLOB = f"model{openvino_client.BLOB}"
# Layers that do not run.
_IDLE = ("Const", "Input", "Output")


def check(ep_options: Mapping[str, str]) -> None:
    """Refuse a device that is not on this machine, and options that it does not have."""
    if ep_options:
        openvino_client.check(plugin_of(ep_options))


def compile(model: ir.Model, device: Device, folder: Path, on_cpu: Mapping[str, str]) -> Compiled:
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


def load(path: Path, device: Device) -> None:
    """Refuse a blob that OpenVINO does not load on the device that it was compiled for."""
    run(path, [], device)


def run(path: Path, samples: Sequence[Mapping[str, np.ndarray]], device: Device) -> list[dict[str, np.ndarray]]:
    """The outputs of the blob at `path` on the device that it was compiled for."""
    outputs = [value.name or "" for value in io.load(origin(path)).graph.outputs]
    return openvino_client.run(path, samples, outputs, plugin_of(device.ep_options), timeout=device.timeout)


def origin(blob: Path) -> Path:
    """The ONNX model that a blob was made from, which lies beside it and says what its inputs and outputs are."""
    path = blob.with_name(MODEL)
    if not path.is_file():
        raise ModelError("M161", f"{blob}: the model that it was made from ({MODEL}) does not lie beside it")
    return path


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
