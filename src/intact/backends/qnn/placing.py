"""The placement of a model's nodes as the QNN provider decides it, with the reasons that it logs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from intact import scratch
from intact.backends.qnn import client as qnn_client
from intact.backends.qnn.client import Attempt, Chip, LeftToCpu
from intact.model import io, shapes
from intact.results import PlacedNode, Placement
from intact.runtime import pinning
from intact.targets import provider_placement

_MODEL = "model.onnx"


def place(model: ir.Model, chip: Chip, timeout: float) -> Placement:
    """Ask the compiler to take `model`: all of it if it can, otherwise with the rest on the CPU."""
    ops = provider_placement.node_ops(model)
    with scratch.folder("analyze") as folder:
        source = io.save(model, Path(folder) / _MODEL)[0]

        def attempt(rest: LeftToCpu) -> Attempt:
            return qnn_client.compile_context(Path(folder), _MODEL, None, chip, rest=rest, timeout=timeout)

        found = attempt(LeftToCpu.NOTHING)
        if found.error is not None:
            found = without_refused(model, source, attempt)
    placement = _failed(ops, found) if found.error is not None else _placed(ops, found)
    compute = (
        provider_placement.compute_nodes(placement.npu_nodes),
        provider_placement.compute_nodes(placement.cpu_nodes),
    )
    return Placement(tuple(compute[0]), tuple(compute[1]), placement.partitions if compute[0] else 0)


def kept_off(model: ir.Model, names: Collection[str]) -> ir.Model:
    """The model with these nodes hidden from a compiler that takes fixed shapes only."""
    result = model.clone()
    shapes.infer_shapes(result)
    pinning.hide(result, names)
    return result


def without_refused(model: ir.Model, source: Path, attempt: Callable[[LeftToCpu], Attempt]) -> Attempt:
    """The compilation of the model in the file `source` with all that the compiler refuses on the CPU.

    ONNX Runtime cannot put back there by itself what it had changed for the NPU; where it fails for that, the nodes
    that were refused are hidden in the file.
    """
    found = attempt(LeftToCpu.REFUSED)
    if found.error is None or not found.reasons:
        return found
    refused = provider_placement.refused(provider_placement.node_ops(model), found.reasons)
    # Not by annotation: it cannot split a graph around an annotated node that others depend on.
    io.save(kept_off(model, {node.name for node in refused}), source)
    again = attempt(LeftToCpu.REFUSED)
    return replace(again, reasons={**again.reasons, **found.reasons})


def _placed(ops: dict[str, str], attempt: Attempt) -> Placement:
    pieces = sum(group["provider"] == qnn_client.PROVIDER for group in attempt.assigned)
    return provider_placement.place(ops, attempt.assigned, qnn_client.PROVIDER, attempt.reasons, pieces)


def _failed(ops: dict[str, str], attempt: Attempt) -> Placement:
    """Nothing runs where the compiler fails: nodes that it refused have their own reason, the others its error."""
    why = {node.name: node.reason for node in provider_placement.refused(ops, attempt.reasons)}
    error = f"the compiler fails on the whole model: {attempt.error}"
    return Placement((), tuple(PlacedNode(name, op, why.get(name, error)) for name, op in ops.items()), 0)
