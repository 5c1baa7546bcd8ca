"""A check: a fault that it finds at a node, its severity, an explanation for the user, and the repair."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from intact.linting import nearby
from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import EXACT, Rule
from intact.model import query
from intact.records import dataclass

UNAFFECTED = "nothing is wrong here"
"""The refusal of a repair on a sound node, which is of no interest to anyone."""


class Severity(enum.StrEnum):
    """The weight of a finding; `at_least` compares."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    def at_least(self, other: Severity) -> bool:
        """True if this is as bad as `other`, or worse."""
        order = list(Severity)
        return order.index(self) <= order.index(other)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong at one node; `fixable` says that `fix` puts it right."""

    code: str
    severity: Severity
    node: str
    op: str
    message: str
    fix: str
    fixable: bool

    def __str__(self) -> str:
        return f"{self.severity}[{self.code}]: {self.node} ({self.op}): {self.message}"


class Check:
    """One thing that can be wrong with a quantized model; the docstring is what `intact explain` prints.

    Its first line says what is wrong, its last paragraph how to put it right.
    """

    code: ClassVar[str]
    severity: ClassVar[Severity]
    remedy: ClassVar[str]
    """The action of --fix, or of the user."""
    since: ClassVar[int] = 1
    """The opset from which on a file is affected."""
    ops: ClassVar[tuple[str, ...]] = ()
    """The types of the nodes that are looked at; none stands for all."""
    domains: ClassVar[tuple[str, ...]] = ("",)
    """The domains of these types."""

    def find(self, model: ir.Model) -> Iterator[Finding]:
        """Every place in the model where this is wrong, in the order of its nodes."""
        for node in query.all_nodes(model):
            fault = self.fault(node) if self.concerns(node) else None
            if fault is not None:
                yield self.finding(node, fault)

    def concerns(self, node: ir.Node) -> bool:
        """True if the node is one to look at."""
        return not self.ops or (node.op_type in self.ops and node.domain in self.domains)

    def fault(self, node: ir.Node) -> str | None:
        """Describe the fault of the node, or return None."""
        raise NotImplementedError(f"{type(self).__name__}.fault")

    def fixable(self, node: ir.Node) -> bool:
        """True if a repair puts the fault at this node right."""
        return isinstance(self, Rule)

    def finding(self, node: ir.Node, message: str) -> Finding:
        """The fault as it is reported."""
        return Finding(
            self.code, self.severity, node.name or "", node.op_type, message, self.remedy, self.fixable(node)
        )

    @classmethod
    def title(cls) -> str:
        """The fault in one sentence."""
        return cls.explanation().splitlines()[0]

    @classmethod
    def explanation(cls) -> str:
        """The whole text: what is wrong, why it matters, what was measured, how to put it right."""
        return inspect.cleandoc(cls.__doc__ or "")


class Isolated(Check, Rule):
    """f(DQ(x), DQ(w)) = f(Min(DQ(x), largest float), w'): no fusion sees the node, and it computes the same.

    ONNX Runtime fuses a node with the DequantizeLinear nodes that it reads. A Min with the largest float changes no
    number, is not removed by any of its optimizers, and stands between the two; constants behind a DequantizeLinear
    become the floats that they stand for.
    """

    exactness = EXACT
    creates = (("", "Min"),)
    ops_in_half: ClassVar[tuple[str, ...]] = ()
    """Those that are fused between grids of float16 as well: where kernels want float32, nothing is fused."""
    remedy = "--fix keeps the node out of the fusion: an input passes a Min that changes nothing, constants are float"

    def concerns(self, node: ir.Node) -> bool:
        """True if the node is one to look at: ONNX Runtime fuses most only where their numbers are float32."""
        in_half = node.op_type in self.ops_in_half
        return super().concerns(node) and (in_half or not any(map(nearby.is_half, node.inputs)))

    def fenced(self, node: ir.Node) -> tuple[int, ...]:
        """The inputs to be kept apart from what produces them: by default the first that is dequantized."""
        dynamic = [i for i, value in enumerate(node.inputs) if nearby.dequantizer(value) and not _is_folded(value)]
        return tuple(dynamic[:1])

    def pattern(self, op: Patterns, inputs: Var | None = None) -> Roots:
        return op.any_of(*(op.node(self.ops, op.each(inputs), _domain=d, _name="node") for d in self.domains))

    def check(self, node: ir.Node) -> str | None:
        return None if self.concerns(node) and self.fault(node) is not None else UNAFFECTED

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        inputs = [_folded(op, value) for value in node.inputs]
        for index in self.fenced(node):
            value = node.inputs[index]
            assert value is not None, "a fence stands in front of a value"
            inputs[index] = fence(op, value)
        return op.like(node, *inputs)


def fence(op: Builder, value: ir.Value) -> ir.Value:
    """The same numbers, behind a node that no optimizer of ONNX Runtime sees through."""
    dtype = value.dtype or ir.DataType.FLOAT
    largest = ir.tensor(dtype.max, dtype=dtype)
    return op.Min(value, op.constant(largest, "largest"))


def _is_folded(value: ir.Value | None) -> bool:
    return nearby.constant_reals(value) is not None


def _folded(op: Builder, value: ir.Value | None) -> ir.Value | None:
    """A float constant in place of a constant behind a DequantizeLinear; anything else as it is."""
    reals = nearby.constant_reals(value)
    if reals is None:
        return value
    return op.constant(reals, "dequantized")
