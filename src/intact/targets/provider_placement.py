"""From a provider's list of subgraphs to what is on the NPU and what is not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

import onnx_ir as ir

from intact.model import query
from intact.results import PlacedNode, Placement

NO_REASON = "the {provider} provider did not claim it; no reason was logged"
INSERTED = "ORT inserted it beside nodes that the NPU does not take"

# They move numbers between grids and compute nothing.
CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear"})


class AssignedNodes(TypedDict):
    """A subgraph of a provider: its nodes as (name, operator)."""

    provider: str
    nodes: Sequence[tuple[str, str]]


def node_ops(model: ir.Model) -> dict[str, str]:
    """The op type of every node of `model`, by name, constants left out: they become weights."""
    return {node.name: node.op_type for node in query.all_nodes(model) if node.name and node.op_type != "Constant"}


def place(
    ops: Mapping[str, str],
    assigned: Iterable[AssignedNodes],
    npu: str,
    reasons: Mapping[str, str],
    partitions: int,
) -> Placement:
    """The placement of the nodes in `ops`, given the subgraphs that each provider was assigned.

    A node that nobody was assigned was absorbed: the layout pass cancels Transposes and moves conversions. It
    counts for the NPU, unless nothing at all is there.
    """
    listed = [(group["provider"] == npu, name, op) for group in assigned for name, op in group["nodes"]]
    on_npu = {known_name(name, ops) for is_npu, name, _ in listed if is_npu} - {None}
    on_cpu = {known_name(name, ops) for is_npu, name, _ in listed if not is_npu} - on_npu - {None}
    why = {known_name(name, ops): reason for name, reason in reasons.items()}
    inserted = [
        PlacedNode(name or op, op, INSERTED)
        for is_npu, name, op in listed
        if not is_npu and known_name(name, ops) is None
    ]
    if not on_npu:
        on_cpu = set(ops)
    unclaimed = NO_REASON.format(provider=npu.removesuffix("ExecutionProvider"))
    return Placement(
        npu_nodes=tuple(PlacedNode(name, op) for name, op in ops.items() if name not in on_cpu),
        cpu_nodes=(*(PlacedNode(n, op, why.get(n, unclaimed)) for n, op in ops.items() if n in on_cpu), *inserted),
        partitions=partitions,
    )


def refused(ops: Mapping[str, str], reasons: Mapping[str, str]) -> list[PlacedNode]:
    """The compute nodes that the provider gave a reason against, as PlacedNodes."""
    why = {known_name(name, ops): reason for name, reason in reasons.items()}
    return compute_nodes(PlacedNode(name, op, why[name]) for name, op in ops.items() if name in why)


def unforeseen(placement: Placement, on_cpu: Mapping[str, str]) -> tuple[PlacedNode, ...]:
    """The nodes of a model that a compiler left to the CPU by itself: none of those that were meant to be there."""
    off = compute_nodes(placement.cpu_nodes)
    return tuple(node for node in off if node.name not in on_cpu and node.reason != INSERTED)


def compute_nodes(nodes: Iterable[PlacedNode]) -> list[PlacedNode]:
    """The nodes that compute something."""
    return [node for node in nodes if node.op not in CONVERSIONS]


def known_name(name: str, names: Mapping[str, str]) -> str | None:
    """The model's own name of a node that ORT's layout pass renamed (`conv_token_7` was `conv`)."""
    while name not in names:
        shorter = re.sub(r"_token_\d+$", "", name)
        if shorter == name:
            return None
        name = shorter
    return name
