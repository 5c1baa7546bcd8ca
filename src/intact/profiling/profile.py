"""Times of a model's nodes from ONNX Runtime's record, by operator, and two models beside each other."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from intact.records import dataclass

# Kernels for the same work under other names: what is before and after the name of the operator.
_DRESS = re.compile(r"^(Nhwc|QLinear|Q(?=[A-Z])|Fused|DynamicQuantize)+|(Integer|ToFloat|NBits)+$")
_SAME_WORK = {
    "Gemm": "MatMul",
    "FullyConnected": "MatMul",
    "FullyConnectedQuantizedLegacy": "MatMul",
    "Convolution": "Conv",
    "GroupConvolution": "Conv",
}
# An operator whose time grew by less of the slower model's time than this is not to blame.
_LEAST_BLAME = 0.01


@dataclass(frozen=True, slots=True)
class NodeTime:
    """A node as it ran, after fusions, and its time in one inference."""

    name: str
    op: str
    seconds: float


@dataclass(frozen=True, slots=True)
class OpTime:
    """All nodes of one operator: how many, their time in one inference, and its share of the whole."""

    op: str
    count: int
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class Blame:
    """Work that takes longer than in the first model: `ops` do it here, `first_ops` there (none: it is new)."""

    ops: tuple[str, ...]
    first_ops: tuple[str, ...]
    seconds: float
    first_seconds: float

    @property
    def grown(self) -> float:
        """Seconds that this adds to an inference."""
        return self.seconds - self.first_seconds


def read_profile(record: Path, skip: int) -> list[NodeTime]:
    """The nodes of a record, each with its median time over the runs after the first `skip`."""
    runs: dict[tuple[str, str], list[float]] = {}
    for event in json.loads(record.read_text(encoding="utf-8")):
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            key = (event["name"].removesuffix("_kernel_time"), event["args"]["op_name"])
            runs.setdefault(key, []).append(event["dur"] / 1e6)
    return [NodeTime(name, op, median(times[skip:] or times)) for (name, op), times in runs.items()]


def by_op(nodes: Sequence[NodeTime]) -> tuple[OpTime, ...]:
    """Times summed by operator, the slowest first."""
    total = sum(node.seconds for node in nodes) or 1.0
    ops: dict[str, list[float]] = {}
    for node in nodes:
        ops.setdefault(node.op, []).append(node.seconds)
    found = [OpTime(op, len(times), sum(times), sum(times) / total) for op, times in ops.items()]
    return tuple(sorted(found, key=lambda row: -row.seconds))


def blame(first: Sequence[OpTime], other: Sequence[OpTime]) -> tuple[Blame, ...]:
    """The work whose time grew from the first model to the other, the worst first."""
    before, after = _by_work(first), _by_work(other)
    least = _LEAST_BLAME * sum(row.seconds for row in other)
    found = []
    for work, rows in after.items():
        old = before.get(work, [])
        one = Blame(
            ops=tuple(row.op for row in rows),
            first_ops=tuple(row.op for row in old),
            seconds=sum(row.seconds for row in rows),
            first_seconds=sum(row.seconds for row in old),
        )
        found += [one] if one.grown > least else []
    return tuple(sorted(found, key=lambda row: -row.grown))


def work_of(op: str) -> str:
    """The operator whose work a kernel does: Conv for QLinearConv, MatMul for QGemm."""
    bare = _DRESS.sub("", op) or op
    return _SAME_WORK.get(bare, bare)


def _by_work(rows: Sequence[OpTime]) -> dict[str, list[OpTime]]:
    found: dict[str, list[OpTime]] = {}
    for row in rows:
        found.setdefault(work_of(row.op), []).append(row)
    return found
