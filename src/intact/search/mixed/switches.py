"""A model with a switch for each place where something can be rounded: a tensor, for everyone or for one group."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.numbers.encoding import Encoding, dequantize
from intact.quantization.calibration.resolve import Resolved
from intact.records import dataclass
from intact.search.mixed.groups import GroupedTensor, Structure
from intact.search.mixed.switchable_model import SwitchableModel
from intact.search.mixed.unseen import Beyond

# A tensor, and the one group that reads it rounded; None where its writer rounds it.
Place = tuple[str, int | None]


@dataclass(slots=True)
class Switches:
    """The switches of a model: of tensors by place, on grids of 8 and of 16 bits, and of the weights of each group.

    Grids of 16 bits have switches only where they cut values off: what they round does not count.
    """

    model: SwitchableModel
    found: Structure
    eight: dict[Place, str] = field(default_factory=dict)
    sixteen: dict[Place, str] = field(default_factory=dict)
    weights: dict[int, str] = field(default_factory=dict)

    def of_group(self, index: int) -> tuple[str, ...]:
        """All that is on if one group alone is in the lowest precision."""
        tensors = self.found.tensors
        written = [self.eight[t.name, None] for t in tensors if t.writer == index and t.rounded]
        read = [self.eight[t.name, index] for t in tensors if index in t.readers]
        own = [self.weights[index]] if index in self.weights else []
        return tuple(dict.fromkeys([*own, *written, *read]))


def put_switches(
    model: ir.Model, found: Structure, resolved: Resolved, sixteen: Mapping[str, Beyond], weight_noise: float
) -> Switches:
    """A copy of `model` with switches everywhere; weights have this share of the noise of rounding to the nearest."""
    result = Switches(SwitchableModel(model), found)
    arrays = {name: value.const_value for name, value in model.graph.initializers.items()}
    for index, group in enumerate(found.groups):
        inputs: dict[str, dict[int, np.ndarray]] = {}
        for weight in found.plan.weights:
            tensor = arrays[weight.tensor]
            if weight.node in group.nodes and tensor is not None:
                rounded = _rounded(tensor.numpy(), *resolved.constants[weight.node, weight.index], weight_noise)
                inputs.setdefault(weight.node, {})[weight.index] = rounded
        if inputs:
            result.weights[index] = result.model.switch_weights(inputs)
    values = {value.name: value for node in model.graph for value in node.outputs}
    values |= {value.name: value for value in model.graph.inputs}
    for tensor_ in found.tensors:
        value = values[tensor_.name]
        _switch_tensor(result, result.eight, tensor_, value, resolved.tensors[tensor_.name])
        if tensor_.name in sixteen:
            _switch_tensor(result, result.sixteen, tensor_, value, sixteen[tensor_.name].encoding)
    return result


def _rounded(values: np.ndarray, encoding: Encoding, integers: np.ndarray, noise: float) -> np.ndarray:
    """Weights on a grid, or as much nearer to what they were as leaves a share of the noise."""
    error = dequantize(integers, encoding, precision=np.float64) - values
    result: np.ndarray = (values + math.sqrt(noise) * error).astype(np.float32)
    return result


def _switch_tensor(
    result: Switches, switches: dict[Place, str], tensor: GroupedTensor, value: ir.Value, encoding: Encoding
) -> None:
    places: list[Place] = [(tensor.name, None)] if tensor.rounded else []
    places += [(tensor.name, group) for group in tensor.readers]
    found = result.found
    alone = len(tensor.readers) == 1 and _only_reader(value, found.groups[tensor.readers[0]].nodes)
    origin = _moved_from(value, found) if alone else None
    # What one group alone reads is the same to its writer and its reader, also if it was moved on the way.
    if origin is not None and (origin, None) in switches:
        switches[tensor.name, tensor.readers[0]] = switches[origin, None]
        return
    if alone and tensor.rounded:
        switches.update(dict.fromkeys(places, result.model.switch_tensor(tensor.name, encoding)))
        return
    for place in places:
        readers = None if place[1] is None else found.groups[place[1]].nodes
        switches[place] = result.model.switch_tensor(tensor.name, encoding, readers)


def _moved_from(value: ir.Value, found: Structure) -> str | None:
    """The tensor whose values these are, only moved, by nodes that alone read them; None where there is none."""
    rounded = {tensor.name for tensor in found.tensors if tensor.rounded}
    while (producer := value.producer()) is not None and value.name not in rounded:
        source = producer.inputs[0] if producer.inputs else None
        if source is None or source.name not in found.plan.tensors or query.only_consumer(source) is None:
            return None
        value = source
    return value.name if value.name in rounded else None


def _only_reader(value: ir.Value, nodes: tuple[str, ...]) -> bool:
    return not value.is_graph_output() and all(node.name in nodes for node, _ in value.uses())
