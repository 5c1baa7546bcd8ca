"""Chooses the nodes to quantize, and for each the signature of the target that it will follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from intact.model import hoisting, query
from intact.model.deciding import deciding
from intact.settings.config import QuantConfig
from intact.targets import predicates
from intact.targets.spec import UNQUANTIZED, OpSpec, Signature, Slot, Target

FLOAT = "float"
# Types to try where a target does not take the wanted one: first the other of the same width, then another width.
_INSTEAD = {
    "uint8": ("int8", "uint16"),
    "int8": ("uint8", "uint16"),
    "uint16": ("int16", "uint8"),
    "int16": ("uint16", "uint8"),
}
# Activations whose only effect is to cut values off: a grid behind them does that, so they stay with their producer.
CLIPPING = {("", "Relu"), ("", "Clip")}


@dataclass(frozen=True, slots=True)
class Choice:
    """A node to quantize: what the target says of it, the signature chosen, the type of its activations."""

    node: ir.Node
    spec: OpSpec
    signature: Signature
    activation: str

    def input_type(self, index: int) -> str:
        """The type in which the node reads an activation: its own, unless the signature wants another there."""
        slot = self.signature.input(index)
        return self.activation if slot is None or self.activation in slot.types else slot.types[0]


def choose(model: ir.Model, target: Target, config: QuantConfig, types: Mapping[str, str]) -> list[Choice]:
    """The nodes to quantize, in graph order: those worth it by themselves, and those between them.

    `types` gives single nodes another activation type than the settings; `float` leaves a node alone. What decides a
    branch, a count or a shape stays exact, unless the settings name it.
    """
    exact = {node for node in deciding(model) if not _is_named(node, config, types)}
    nodes = (node for graph in reached(model, target) for node in graph if node not in exact)
    candidates = [choice for node in nodes if (choice := _candidate(node, target, config, types)) is not None]
    taken: set[ir.Node] = set()
    on_grid: set[ir.Value] = set()
    for start in (True, False):
        for choice in candidates:
            if choice.spec.start == start and (start or _surrounded(choice, on_grid)):
                taken.add(choice.node)
                on_grid.update(grid_inputs(choice))
                on_grid.update(grid_outputs(choice))
    if config.nodes is None:  # what the user asks for by name is quantized, useful or not
        _drop_idle(candidates, taken, target)
    return [choice for choice in candidates if choice.node in taken]


def reached(model: ir.Model, target: Target) -> list[ir.Graph]:
    """The graphs whose nodes may be quantized: a body runs on the CPU, where an NPU's grids would serve nobody."""
    return [model.graph] if target.npu else hoisting.open_graphs(model)


def _drop_idle(candidates: list[Choice], taken: set[ir.Node], target: Target) -> None:
    """Leave out what was only followed to a place where nothing is quantized: its rounding would serve nobody.

    What only moves values of one tensor or cuts them off stays: it rounds nothing that would not be rounded anyway.
    What joins tensors does not: the grid that they would share may be too coarse for the smaller of them. Where a chip
    would leave it to the CPU for that, what is seen of them decides later (see `uneven_joins`).
    """
    for choice in reversed(candidates):
        clips = (choice.node.domain, choice.node.op_type) in CLIPPING
        if choice.spec.start or choice.spec.grid == "input" or clips or choice.node not in taken:
            continue
        if choice.spec.joined_alone and not target.halves:
            continue
        readers = (reader for value in choice.node.outputs for reader in value.consumers())
        if not any(reader in taken for reader in readers):
            taken.discard(choice.node)


def _candidate(node: ir.Node, target: Target, config: QuantConfig, types: Mapping[str, str]) -> Choice | None:
    spec = target.op(node.domain, node.op_type)
    wanted = types.get(node.name or "", config.activation_type)
    if spec is None or wanted == FLOAT or not wanted_by(node, config):
        return None
    # An NPU computes in integers or not at all: where it lacks the wanted type, the next best keeps the node on it.
    for dtype in (wanted, *(_INSTEAD[wanted] if target.npu else ())):
        fitting = [s for s in target.signatures(spec) if _fits(node, s, dtype, target) and _obeys(node, s, config)]
        exact = [s for s in fitting if _has_weight_types(node, s, target, config)]
        asked = [s for s in exact if _has_channels_asked_for(node, s, config)]
        signature = next(iter(asked or exact or fitting), None)
        if signature is not None:
            return Choice(node, spec, signature, dtype)
    return None


def _has_weight_types(node: ir.Node, signature: Signature, target: Target, config: QuantConfig) -> bool:
    """True if each weight can have the type that the settings want, for all or, on an NPU, for itself.

    Elsewhere a type that only a single weight has may be computed in float, which nobody means by an override.
    """
    for index, value in enumerate(node.inputs):
        slot = signature.input(index)
        if value is None or slot is None or not slot.constant or is_bias(slot):
            continue
        override = config.overrides.get(value.name or "") if target.npu else None
        wanted = override.dtype if override is not None and override.dtype is not None else config.weight_type
        if wanted not in slot.types:
            return False
    return True


def _has_channels_asked_for(node: ir.Node, signature: Signature, config: QuantConfig) -> bool:
    """True if each weight for which the settings want a scale a channel can have them.

    A table may name one scale for all channels first, because a device rounds less with it; a weight whose channels
    differ much in size loses more by that.
    """
    pairs = [(signature.input(index), value) for index, value in enumerate(node.inputs) if value is not None]
    weights = [(slot, value.name or "") for slot, value in pairs if slot is not None and slot.constant]
    asked = [slot for slot, name in weights if name in config.overrides and config.overrides[name].per_channel]
    return all(slot.granularity == "channel" for slot in asked)


def _obeys(node: ir.Node, signature: Signature, config: QuantConfig) -> bool:
    """True if the settings of weights and the table's requirements for the node allow a signature."""
    granular = [slot for slot in _weight_slots(node, signature) if slot.only or slot.granularity == "block"]
    granted = config.per_channel and has_own_channels(node)
    return (granted or not granular) and predicates.meets(node, signature.require)


def has_own_channels(node: ir.Node) -> bool:
    """False for a transposed convolution in groups: each channel of its weight is one of every group."""
    return node.op_type != "ConvTranspose" or query.int_(node, "group", 1) == 1


def wanted_by(node: ir.Node, config: QuantConfig) -> bool:
    """True if the settings let a node be quantized, by its name and its type."""
    if config.op_types is not None and node.op_type not in config.op_types:
        return False
    if config.nodes is not None and node.name not in config.nodes:
        return False
    return node.op_type not in config.exclude_op_types and node.name not in config.exclude_nodes


def _is_named(node: ir.Node, config: QuantConfig, types: Mapping[str, str]) -> bool:
    return node.name in (config.nodes or ()) or node.name in types


def _surrounded(choice: Choice, on_grid: set[ir.Value]) -> bool:
    """True if every computed float input is on a grid already, so that quantizing costs no accuracy of its own."""
    computed = [value for value in grid_inputs(choice) if not query.is_constant(value)]
    return bool(computed) and all(value in on_grid for value in computed)


def grid_inputs(choice: Choice) -> list[ir.Value]:
    """The inputs of a node that its signature wants on a grid."""
    slots = [(choice.signature.input(i), value) for i, value in enumerate(choice.node.inputs)]
    return [value for slot, value in slots if value is not None and slot is not None and is_on_grid(slot)]


def grid_outputs(choice: Choice) -> list[ir.Value]:
    """The outputs of a node that its signature wants on a grid."""
    return [v for i, v in enumerate(choice.node.outputs) if is_on_grid(choice.signature.output(i))]


def is_on_grid(slot: Slot) -> bool:
    """True if a slot is for integers of a grid."""
    return slot.types[0] not in UNQUANTIZED


def is_bias(slot: Slot) -> bool:
    """True if a slot is for int32 constants whose scale follows from the input and the weight."""
    return slot.constant and slot.types == ("int32",)


def _weight_slots(node: ir.Node, signature: Signature) -> list[Slot]:
    slots = [signature.input(i) for i, value in enumerate(node.inputs) if value is not None]
    return [slot for slot in slots if slot is not None and slot.constant and not is_bias(slot)]


def _fits(node: ir.Node, signature: Signature, wanted: str, target: Target) -> bool:
    # Of the many signatures of an operator most are for other types: the outputs tell it soonest.
    for index, value in enumerate(node.outputs):
        slot = signature.output(index)
        if is_on_grid(slot) and (wanted not in slot.types or not _is_real(value)):
            return False
    inputs = [(signature.input(i), value) for i, value in enumerate(node.inputs) if value is not None]
    grids = [slot for slot, _ in inputs if slot is not None and is_on_grid(slot)]
    # Integer weights beside floats save memory wherever they run; an NPU is there to compute on integers.
    if not grids or (target.npu and all(slot.constant for slot in grids)):
        return False
    first = next((i for i, (slot, _) in enumerate(inputs) if slot is not None and is_on_grid(slot)), 0)
    return all(_fits_input(slot, value, wanted, i > first) for i, (slot, value) in enumerate(inputs))


def _fits_input(slot: Slot | None, value: ir.Value, wanted: str, convertible: bool) -> bool:
    """True if a value can stand in a slot; operands after the first may be converted to another type for it."""
    if slot is None:
        return False
    if not is_on_grid(slot):
        return _fits_unquantized(slot, value)
    if not _is_real(value):
        return False
    if slot.constant or wanted in slot.types:
        return query.is_constant(value) if slot.constant else True
    return convertible and not query.is_constant(value)


def _fits_unquantized(slot: Slot, value: ir.Value) -> bool:
    if slot.types[0] == "index":
        return value.dtype in (ir.DataType.INT32, ir.DataType.INT64)
    if slot.types[0] == "bool":
        return value.dtype == ir.DataType.BOOL
    return True


def _is_real(value: ir.Value) -> bool:
    # Half precision is not among them: the scale of a bias, the product of two scales, would be lost in it.
    return value.dtype == ir.DataType.FLOAT
