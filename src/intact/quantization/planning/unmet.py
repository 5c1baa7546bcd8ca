"""Refuses a precision that nothing of a model can have on its target: another one under its name would be a lie."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from intact.errors import TargetError
from intact.model import query
from intact.numbers.integer_types import bits
from intact.records import dataclass
from intact.results import QuantPlan
from intact.settings.config import QuantConfig
from intact.targets.spec import OpSpec, Signature, Target

_PRODUCTS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}


@dataclass(frozen=True, slots=True)
class UnmetLayer:
    """A node with the types that were asked for and those that it got; weights are None where it has none."""

    node: ir.Node
    asked: tuple[str, str | None]
    got: tuple[str, str | None]

    @property
    def is_met(self) -> bool:
        """True if it has the bits that were asked for; signed or not is the target's choice."""
        return all(_same_bits(a, g) for a, g in zip(self.asked, self.got, strict=True))


def refuse(model: ir.Model, plan: QuantPlan, target: Target, config: QuantConfig, types: Mapping[str, str]) -> None:
    """Refuse a plan in which no layer has the precision that was asked for.

    Layers are the nodes that multiply by weights; where there is none, all nodes. What `types` says of a node is what
    was asked for there; where weights have overrides, the user has decided about each.
    """
    layers = _layers(model, plan, config, types)
    if not layers or any(layer.is_met for layer in layers):
        return
    first = layers[0]
    spec = target.op(first.node.domain, first.node.op_type)
    assert spec is not None, "planned nodes are of operators that the target lists"
    asked, got, newer = _pair(first.asked), _pair(first.got), _newer(first, spec, target)
    raise TargetError(
        "T116",
        f"{target.name} takes no {asked} in this model: {first.node.name} ({first.node.op_type}) would have {got}",
        allowed=got + (f"; {asked} from v{newer} on" if newer is not None else ""),
        source=spec.source,
        fix="choose another --precision" + (f", or --arch v{newer} or newer" if newer is not None else ""),
    )


def _layers(model: ir.Model, plan: QuantPlan, config: QuantConfig, types: Mapping[str, str]) -> list[UnmetLayer]:
    nodes = {node.name or "": node for node in query.all_nodes(model) if node.name in plan.nodes}
    wanted = {name: types.get(name, config.activation_type) for name in nodes}
    products = [w for w in plan.weights if nodes[w.node].op_type in _PRODUCTS]
    if any(weight.tensor in config.overrides for weight in products):
        return []
    if products:
        asked = {name: (dtype, config.weight_type) for name, dtype in wanted.items()}
        return [UnmetLayer(nodes[w.node], asked[w.node], (plan.nodes[w.node], w.dtype)) for w in products]
    return [UnmetLayer(node, (wanted[name], None), (plan.nodes[name], None)) for name, node in nodes.items()]


def _newer(layer: UnmetLayer, spec: OpSpec, target: Target) -> int | None:
    """The oldest of the newer architectures that take what was asked for."""
    if target.arch is None:
        return None
    return min((s.arch for s in spec.signatures if s.arch > target.arch and _takes(s, layer.asked)), default=None)


def _takes(signature: Signature, asked: tuple[str, str | None]) -> bool:
    activation, weight = asked
    computed = any(activation in slot.types for slot in signature.inputs if not slot.constant)
    return computed and (weight is None or any(weight in slot.types for slot in signature.inputs if slot.constant))


def _same_bits(one: str | None, other: str | None) -> bool:
    return one == other or (one is not None and other is not None and bits(one) == bits(other))


def _pair(types: tuple[str, str | None]) -> str:
    activation, weight = types
    return f"{activation} activations" if weight is None else f"{weight} weights beside {activation} activations"
