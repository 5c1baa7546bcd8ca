"""The placement of a model's nodes as the QNN provider decides it, with the reasons that it logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from intact import scratch
from intact.backends.qnn import client as qnn_client
from intact.backends.qnn.client import Attempt, Chip, LeftToCpu
from intact.model import io
from intact.results import PlacedNode, Placement
from intact.runtime import pinning
from intact.targets import provider_placement

_MODEL = "model.onnx"


def place(model: ir.Model, chip: Chip, timeout: float) -> Placement:
    """Ask the compiler to take `model`: all of it if it can, otherwise with the rest on the CPU."""
    ops = provider_placement.node_ops(model)
    with scratch.folder("analyze") as folder:
        io.save(model, Path(folder) / _MODEL)
        attempt = qnn_client.compile_context(Path(folder), _MODEL, None, chip, rest=LeftToCpu.NOTHING, timeout=timeout)
        if attempt.error is not None:
            attempt = qnn_client.compile_context(
                Path(folder), _MODEL, None, chip, rest=LeftToCpu.REFUSED, timeout=timeout
            )
        if attempt.error is not None and attempt.reasons:
            attempt = _without_refused(model, Path(folder), attempt, chip, timeout)
    found = _failed(ops, attempt) if attempt.error is not None else _placed(ops, attempt)
    compute = provider_placement.compute_nodes(found.npu_nodes), provider_placement.compute_nodes(found.cpu_nodes)
    return Placement(tuple(compute[0]), tuple(compute[1]), found.partitions if compute[0] else 0)


def _attempt(folder: Path, chip: Chip, rest: LeftToCpu, timeout: float) -> Attempt:
    return qnn_client.compile_context(folder, _MODEL, None, chip, rest=rest, timeout=timeout)


def _without_refused(model: ir.Model, folder: Path, failed: Attempt, chip: Chip, timeout: float) -> Attempt:
    """The rest of the model: ONNX Runtime cannot put back on the CPU what it had changed for the NPU by itself."""
    refused = provider_placement.refused(provider_placement.node_ops(model), failed.reasons)
    pinning.pin(model, {node.name for node in refused})
    io.save(model, folder / _MODEL)
    attempt = _attempt(folder, chip, LeftToCpu.PINNED, timeout)
    return replace(attempt, reasons={**failed.reasons, **attempt.reasons})


def _placed(ops: dict[str, str], attempt: Attempt) -> Placement:
    pieces = sum(group["provider"] == qnn_client.PROVIDER for group in attempt.assigned)
    return provider_placement.place(ops, attempt.assigned, qnn_client.PROVIDER, attempt.reasons, pieces)


def _failed(ops: dict[str, str], attempt: Attempt) -> Placement:
    """Nothing runs where the compiler fails: nodes that it refused have their own reason, the others its error."""
    why = {node.name: node.reason for node in provider_placement.refused(ops, attempt.reasons)}
    error = f"the compiler fails on the whole model: {attempt.error}"
    return Placement((), tuple(PlacedNode(name, op, why.get(name, error)) for name, op in ops.items()), 0)
