"""Compares how a node is used with what a target's table allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from intact.records import dataclass
from intact.targets import predicates
from intact.targets.operands import COMPUTED, NodeOperand, Use, describe
from intact.targets.spec import MADE_FLOAT, UNQUANTIZED, OpSpec, Requirement, Signature, Slot, Target

# In the order of how much would have to change, the least first.
Kind = Literal[
    "arch", "symmetry", "axis", "granularity", "check", "form", "constant", "scale", "blocks", "type", "arity", "group"
]
_COST: dict[Kind, int] = {
    "arch": 1,
    "symmetry": 2,
    "axis": 3,
    "granularity": 6,
    "check": 7,
    "form": 7,
    "constant": 8,
    "scale": 8,
    # Farther than what a row for blocks may ask of them, so that the advice is about blocks.
    "blocks": 15,
    "type": 16,
    "arity": 64,
    # A row for floats is no advice to what is on a grid.
    "group": 1000,
}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One thing that keeps a node from a signature: what kind it is, where, what was found and what is wanted."""

    kind: Kind
    place: str
    found: str
    wanted: str


def mismatches(use: Use, signature: Signature, spec: OpSpec, target: Target) -> list[Mismatch]:
    """Everything that keeps `use` from `signature`; nothing where it fits."""
    found = [Mismatch("arch", "", target.name, f"v{signature.arch}")] if _too_new(signature, target) else []
    if len(use.inputs) > len(signature.inputs) and not signature.repeats:
        found.append(Mismatch("arity", "inputs", str(len(use.inputs)), f"at most {len(signature.inputs)}"))
    if signature.runs == "float" and _is_of_floats(signature) and _grouped(use, spec):
        found.append(Mismatch("group", "types", describe(use.inputs), "types that no integer kernel takes"))
    for rule in signature.require:
        failed = predicates.check(use.node, rule)
        found += [] if failed is None else [Mismatch(_kind(rule, use), "node", failed[1], failed[0])]
    for index, operand in enumerate(use.inputs):
        slot = signature.input(index)
        if operand is not None and slot is not None:
            axis = spec.weight_axis.at(_integers(use)) if slot.granularity == "channel" else None
            found += _against(operand, slot, f"input {index} ({operand.name})", axis, spec)
    for index, operand in enumerate(use.outputs):
        found += _against(operand, signature.output(index), f"output {index} ({operand.name})", None, spec)
    return found


def _kind(rule: Requirement, use: Use) -> Kind:
    """The kind of a requirement that is not met: where it is about a weight in blocks, it is about their form."""
    index = rule.get("index")
    operand = use.inputs[index] if isinstance(index, int) and index < len(use.inputs) else None
    return "form" if operand is not None and operand.granularity == "block" else "check"


def _is_of_floats(signature: Signature) -> bool:
    """True if a row is for floats; one that names the types of a grid takes them as they are grouped."""
    return bool(signature.inputs) and signature.inputs[0].types[0] in UNQUANTIZED


def nearest(use: Use, spec: OpSpec, target: Target) -> tuple[Signature, list[Mismatch]] | None:
    """The signature that the node is closest to, with what keeps it from it; None where there is no signature."""
    ranked = [(mismatches(use, signature, spec, target), signature) for signature in spec.signatures]
    if not ranked:
        return None
    found, signature = min(ranked, key=lambda pair: sum(_COST[mismatch.kind] for mismatch in pair[0]))
    return signature, found


def _grouped(use: Use, spec: OpSpec) -> bool:
    """True if the device takes the node together with its Q/DQ nodes, as one piece."""
    outputs = {operand.type for operand in use.outputs if operand.on_grid}
    if spec.group == "never" or len(outputs) != 1 or not use.inputs:
        return False
    if spec.group == "first":
        return use.inputs[0] is not None and use.inputs[0].on_grid and use.inputs[0].type in outputs
    reals = [operand for operand in use.inputs if operand is not None and (operand.on_grid or operand.type == "float")]
    activations = [operand for operand in reals if operand.on_grid or not operand.constant]
    return all(operand.on_grid and operand.type in outputs for operand in activations)


def _too_new(signature: Signature, target: Target) -> bool:
    return target.arch is not None and signature.arch > target.arch


def _against(operand: NodeOperand, slot: Slot, place: str, axis: int | None, spec: OpSpec) -> Iterator[Mismatch]:
    if slot.types == ("any",):
        return
    if slot.types == ("real",):
        if not _is_real(operand):
            yield Mismatch("type", place, str(operand), str(slot))
        return
    if operand.type not in slot.types:
        yield Mismatch("type", place, str(operand), str(slot))
        return
    if slot.constant and not operand.constant:
        yield Mismatch("constant", place, "computed", str(slot))
    if not operand.on_grid:
        return
    if operand.granularity == COMPUTED:
        yield Mismatch("scale", place, "its scale is computed or an input", "scales are constants")
    elif not _granular(operand, slot, spec):
        kind: Kind = "blocks" if operand.granularity == "block" else "granularity"
        yield Mismatch(kind, place, f"one scale per {operand.granularity}", _allowed(slot, spec))
    elif operand.granularity == "channel" and axis is not None and not _same_axis(operand, axis):
        yield Mismatch("axis", place, f"scales along axis {operand.axis}", f"scales along axis {axis}")
    if slot.symmetric and not operand.symmetric:
        yield Mismatch("symmetry", place, f"zero point {_points(operand)}", "a zero point in the middle of the type")


def _is_real(operand: NodeOperand) -> bool:
    """True if the operand is a float, or can be made one by a device: not int32, and not a scale per channel."""
    if not operand.on_grid:
        return operand.type == "float"
    return operand.type in MADE_FLOAT and operand.granularity == "tensor"


def _granular(operand: NodeOperand, slot: Slot, spec: OpSpec) -> bool:
    if slot.types == ("int32",):
        # The scales of a bias follow from those of the weight.
        return operand.granularity != "block"
    if operand.granularity == "tensor":
        return slot.granularity == "tensor" or (
            slot.granularity == "channel" and (operand.is_one_channel or not slot.only)
        )
    if operand.granularity != slot.granularity:
        return False
    return operand.granularity == "block" or spec.channel_rank in (None, operand.rank)


def _allowed(slot: Slot, spec: OpSpec) -> str:
    rank = f" of a weight of rank {spec.channel_rank}" if slot.granularity == "channel" and spec.channel_rank else ""
    return f"one scale per {slot.granularity}{rank}"


def _same_axis(operand: NodeOperand, axis: int) -> bool:
    if operand.axis == axis or operand.rank is None or operand.axis is None:
        return operand.axis == axis
    return operand.axis % operand.rank == axis % operand.rank


def _points(operand: NodeOperand) -> str:
    assert operand.zero_point is not None, "only what is on a grid is compared"
    distinct = sorted({int(point) for point in operand.zero_point.reshape(-1)})
    return ", ".join(map(str, distinct[:3])) + (", …" if len(distinct) > 3 else "")


def _integers(use: Use) -> dict[str, int]:
    return {name: a.as_int() for name, a in use.node.attributes.items() if a.type.name == "INT"}
