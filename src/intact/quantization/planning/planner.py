"""Decides which tensors get which grid: from the target's table and the settings, before anything is run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from intact.errors import ModelError, SettingsError
from intact.model import query
from intact.model.garbage_pause import no_collection
from intact.numbers.integer_types import bits
from intact.quantization.planning import unmet, unquantizable
from intact.quantization.planning.attention_scores import ROOM_FOR_SCORES, attention_scores
from intact.quantization.planning.choose import (
    CLIPPING,
    Choice,
    choose,
    grid_outputs,
    has_own_channels,
    is_bias,
    is_on_grid,
)
from intact.quantization.planning.value_bounds import hull, value_bounds
from intact.results import BiasPlan, Conversion, PlannedGrid, QuantPlan, Range, WeightPlan
from intact.settings.config import QuantConfig, TensorOverride, nearest
from intact.targets.spec import Slot, Target

# They divide by the size of what they read, so that cutting off its largest values would shift every other.
NORMALIZATIONS = {
    "LayerNormalization",
    "RMSNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "LpNormalization",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
}

# Their outputs cannot leave a range that the operator itself has.
BOUNDED = {"Clip", "Sigmoid", "HardSigmoid", "Softmax", "Tanh"}

# They change by less than 0.0004 where their input is farther from 0 than this.
SATURATING, SATURATED = {"Sigmoid", "Tanh"}, 8.0
# The headroom from which on grids hold what was never seen, too.
MUCH_ROOM = 1.0

_AS_PLANNED = TensorOverride()


def plan(
    model: ir.Model,
    target: Target,
    config: QuantConfig,
    types: Mapping[str, str] | None = None,
    ranges: Mapping[str, Range] | None = None,
) -> QuantPlan:
    """The plan for `model` on `target`: every node that the target takes at these types, and its tensors' grids.

    `types` gives single nodes, by name, another activation type than the settings; `float` leaves a node alone.
    """
    with no_collection():
        return _plan(model, target, config, types or {}, ranges or {})


def _plan(
    model: ir.Model, target: Target, config: QuantConfig, types: Mapping[str, str], ranges: Mapping[str, Range]
) -> QuantPlan:
    check_names(model, config)
    chosen = choose(model, target, config, types)
    if not chosen:
        _refuse_half_precision(model)
        raise unquantizable.refusal(model, target, config, types)
    bounds = {value.name or "": known for value, known in value_bounds(query.all_nodes(model)).items()}
    scores = attention_scores(choice.node for choice in chosen)
    draft = _Draft(target, config, _base_types(chosen), ranges, bounds, scores)
    for choice in chosen:
        draft.add(choice)
    result = draft.finish(chosen)
    _check_overrides(result, config)
    _refuse_wider_weights(model, result, target, config)
    unmet.refuse(model, result, target, config, types)
    return result


def _refuse_wider_weights(model: ir.Model, result: QuantPlan, target: Target, config: QuantConfig) -> None:
    """Fewer bits than the target takes are an error: weights that are all larger than asked for serve nobody."""
    constants = query.initializers(model)
    matrices = [weight for weight in result.weights if len(constants[weight.tensor].shape or ()) > 1]
    if not matrices or any(weight.tensor in config.overrides for weight in matrices):
        return
    if min(bits(weight.dtype) for weight in matrices) > bits(config.weight_type):
        beside = f"{config.weight_type} weights beside {config.activation_type} activations"
        allowed = ", ".join(dict.fromkeys(weight.dtype for weight in matrices))
        fix = "choose another --weight-type, or a --precision that it is for"
        raise SettingsError("S159", f"{target.name} takes no {beside} in this model", allowed=allowed, fix=fix)


def _refuse_half_precision(model: ir.Model) -> None:
    if any(value.dtype == ir.DataType.FLOAT16 for node in query.all_nodes(model) for value in node.outputs):
        raise ModelError("M142", "the model is in half precision", allowed="float32", fix="export it in float32")


def check_names(model: ir.Model, config: QuantConfig) -> None:
    """A name in the settings that is not in the model is a mistake, not a wish without effect."""
    every = list(query.all_nodes(model))
    nodes = {node.name or "" for node in every}
    tensors = {value.name or "" for node in every for value in (*node.inputs, *node.outputs) if value is not None}
    kinds = {node.op_type for node in every}
    for what, asked, known in (
        ("node", (*(config.nodes or ()), *config.exclude_nodes, *config.types), nodes),
        ("tensor", tuple(config.overrides), tensors),
        ("operator", (*(config.op_types or ()), *config.exclude_op_types), kinds),
    ):
        missing = [name for name in asked if name not in known]
        if missing:
            hint = nearest(missing[0], sorted(known))
            raise SettingsError("S150", f"the model has no {what} {missing[0]!r}{hint}")


def _check_overrides(result: QuantPlan, config: QuantConfig) -> None:
    """An override that changes nothing is a mistake too."""
    weights = {weight.tensor for weight in result.weights}
    activations = {result.source(entry) for entry in result.tensors}
    for name, override in config.overrides.items():
        asked = {key for key, value in override.to_dict().items() if value is not None}
        if name not in weights | activations:
            raise SettingsError("S153", f"{name}: its override has no effect, because it is not quantized")
        idle = asked & ({"per_channel"} if name in activations else {"low", "high", "method"})
        if idle:
            kind = "an activation" if name in activations else "a weight"
            raise SettingsError("S153", f"{name}: {', '.join(sorted(idle))} has no effect on {kind}")


def _base_types(chosen: list[Choice]) -> dict[str, str]:
    """The type that each tensor is written in: its producer's, or that of its first reader where it comes as float."""
    types: dict[str, str] = {}
    for choice in chosen:
        for value in grid_outputs(choice):
            types[_name(value)] = choice.activation
    for choice in chosen:
        for index, source in enumerate(choice.node.inputs):
            slot = choice.signature.input(index)
            if source is not None and slot is not None and is_on_grid(slot):
                types.setdefault(_name(source), choice.input_type(index))
    return types


def _name(value: ir.Value) -> str:
    assert value.name, "models are normalised before they are planned: every value has a name"
    return value.name


@dataclass(slots=True)
class _Draft:
    """A plan in the making: tensors joined into grids as nodes are added.

    A tensor that a node reads in another type than it is written in has a second entry, `tensor:type`.
    """

    target: Target
    config: QuantConfig
    base: Mapping[str, str]
    ranges: Mapping[str, Range]
    bounds: Mapping[str, Range]
    scores: Collection[str]
    parent: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, tuple[float, int]] = field(default_factory=dict)
    rigid: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    uses: dict[str, tuple[int, ...]] = field(default_factory=dict)
    weights: list[WeightPlan] = field(default_factory=list)
    biases: list[BiasPlan] = field(default_factory=list)
    conversions: dict[str, Conversion] = field(default_factory=dict)
    symmetric: set[str] = field(default_factory=set)
    skipped: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    unclipped: set[str] = field(default_factory=set)
    results: set[str] = field(default_factory=set)
    bounded: set[str] = field(default_factory=set)
    saturating: set[str] = field(default_factory=set)
    least_scales: dict[str, float] = field(default_factory=dict)

    def add(self, choice: Choice) -> None:
        """Put the inputs and outputs of one node on grids."""
        node, spec = choice.node, choice.spec
        keys = [self._add_input(choice, index) for index in range(len(node.inputs))]
        for index, value in enumerate(node.outputs):
            self._check_type(_name(value), choice.signature.output(index))
        outputs = [self._entry(_name(v), choice.activation) for v in grid_outputs(choice)]
        self.uses[node.name or ""] = tuple(index for index, key in enumerate(keys) if key is not None)
        self.nodes[node.name or ""] = choice.activation
        tensors = [key for key in keys if key]
        if node.op_type in NORMALIZATIONS:
            self.unclipped.update(tensors[:1])
        else:
            # NPUs compute normalizations with an error that grows with the grid of their result: that is left as it is.
            self.results.update(_name(value) for value in node.outputs if value.is_graph_output())
        if node.op_type in SATURATING:
            self.saturating.update(tensors[:1])
        if node.op_type in BOUNDED:
            self.bounded.update(outputs)
        for index, key in enumerate(keys):
            if key:
                least = spec.least_scale(index, self.types[key])
                self.least_scales[key] = max(least, self.least_scales.get(key, 0.0))
        if spec.grid != "own" and not (spec.grid == "common" and not spec.must_share and self._clash(tensors)):
            self._join([*(tensors[:1] if spec.grid == "input" else tensors), *outputs])
            self.moved.update(outputs)
        elif choice.activation in spec.fixed:
            self.fixed.update(dict.fromkeys(outputs, spec.fixed[choice.activation]))
            self.rigid.update(outputs if spec.must_have_fixed(choice.activation) else ())
        self._keep_with_producer(choice)

    def _entry(self, key: str, dtype: str) -> str:
        self.parent.setdefault(key, key)
        self.types.setdefault(key, dtype)
        return key

    def _add_input(self, choice: Choice, index: int) -> str | None:
        """The entry of an activation, the empty string for a weight or bias, None for what stays as it is."""
        node, value, slot = choice.node, choice.node.inputs[index], choice.signature.input(index)
        if value is None or slot is None or not is_on_grid(slot):
            return None
        self._check_type(_name(value), slot)
        if not slot.constant:
            key = self._read(_name(value), choice, index)
            self.symmetric.update([key] if slot.symmetric else [])
            return key
        if is_bias(slot):
            self.biases.append(BiasPlan(node.name or "", index, _name(value)))
        else:
            self.weights.append(self._weight(choice, slot, index, value))
        return ""

    def _check_type(self, tensor: str, slot: Slot) -> None:
        wanted = self.config.overrides.get(tensor, _AS_PLANNED).dtype
        if wanted is not None and is_on_grid(slot) and wanted not in slot.types:
            raise SettingsError(
                "S151",
                f"{tensor}: {wanted} is not a type that {self.target.name} takes there",
                allowed=", ".join(slot.types),
                fix="change the override of this tensor",
            )

    def _read(self, tensor: str, choice: Choice, index: int) -> str:
        dtype = choice.input_type(index)
        if self.base[tensor] == dtype:
            return self._entry(tensor, dtype)
        key = f"{tensor}:{dtype}"
        known = self.conversions.get(key, Conversion(tensor, ()))
        self.conversions[key] = replace(known, readers=(*known.readers, (choice.node.name or "", index)))
        return self._entry(key, dtype)

    def _weight(self, choice: Choice, slot: Slot, index: int, value: ir.Value) -> WeightPlan:
        override = self.config.overrides.get(_name(value), _AS_PLANNED)
        wanted = override.dtype or self.config.weight_type
        dtype = wanted if wanted in slot.types else slot.types[0]
        per_channel = self.config.per_channel if override.per_channel is None else override.per_channel
        symmetric = self.config.weight_symmetric if override.symmetric is None else override.symmetric
        rank = query.rank(value) or 0
        fits = rank > 1 and rank == (choice.spec.channel_rank or rank) and has_own_channels(choice.node)
        channels = per_channel and slot.granularity == "channel" and fits
        axis = choice.spec.weight_axis.at(_integers(choice.node)) % rank if channels else None
        # Zero points other than 0 are for types that the settings chose; another type comes with its own custom.
        symmetric = symmetric if dtype == wanted else slot.symmetric or dtype.startswith("int")
        symmetric = symmetric or (slot.symmetric and not self._rewritten(choice, axis))
        return WeightPlan(choice.node.name or "", index, _name(value), dtype, symmetric, axis)

    def _rewritten(self, choice: Choice, axis: int | None) -> bool:
        """True if rewriting for the target takes zero points of each channel out of the weight again."""
        return axis is not None and choice.node.op_type in self.target.rewrite.makes_symmetric

    def _keep_with_producer(self, choice: Choice) -> None:
        """Leave out the grid between a producer and a Relu or Clip that is its only reader.

        The grid after the clipping holds no value that it would cut off, so a second rounding before it would
        cost accuracy for nothing. A symmetric grid does not clip at zero, one that other tensors share or that the
        settings fix may hold more values, and a producer may insist on a grid of its own: there both stay.
        """
        node = choice.node
        value = node.inputs[0] if node.inputs else None
        if (node.domain, node.op_type) not in CLIPPING or value is None or self.config.activation_symmetric:
            return
        producer, name = value.producer(), _name(value)
        if producer is None or producer.graph is not node.graph or query.only_consumer(value) is None:
            return
        if self.nodes.get(producer.name or "") != choice.activation:
            return
        output = _name(node.outputs[0])
        may_go = name in self.parent and name not in self.moved and name not in self.rigid
        if may_go and not {name, output} & set(self.config.overrides):
            self.skipped[name] = output

    def _join(self, names: Iterable[str]) -> None:
        first, *others = [self._root(name) for name in names]
        for root in others:
            self.parent[root] = first

    def _clash(self, tensors: list[str]) -> bool:
        """True if one of the tensors has a fixed grid that the target insists on, and another does not have the same.

        Where the target lets them, each then keeps a grid of its own.
        """
        roots = {self._root(key) for key in tensors}
        fixed = {self.fixed.get(key) for key in self.parent if key not in self.moved and self._root(key) in roots}
        return len(fixed) > 1 and any(self._root(key) in roots for key in self.rigid)

    def _root(self, name: str) -> str:
        while self.parent[name] != name:
            self.parent[name] = self.parent[self.parent[name]]
            name = self.parent[name]
        return name

    def finish(self, chosen: list[Choice]) -> QuantPlan:
        """The plan, with one grid per set of joined tensors."""
        deciding = Counter(self._root(key) for key in self.parent if key not in self.moved)
        self.skipped = {key: clip for key, clip in self.skipped.items() if deciding[self._root(clip)] == 1}
        tensors = {key: self._root(key) for key in self.parent if key not in self.skipped}
        members: dict[str, list[str]] = {}
        for key, root in tensors.items():
            members.setdefault(root, []).append(key)
        grids = {root: self._grid(keys) for root, keys in members.items()}
        return QuantPlan(
            nodes=dict(self.nodes),
            grids=grids,
            tensors=tensors,
            uses={choice.node.name or "": self._uses_of(choice.node) for choice in chosen},
            weights=tuple(self.weights),
            biases=tuple(self.biases),
            conversions=self.conversions,
            observed=tuple(key for key in tensors if key not in self.moved and _is_open(grids[tensors[key]])),
        )

    def _uses_of(self, node: ir.Node) -> tuple[int, ...]:
        inputs = node.inputs
        return tuple(i for i in self.uses[node.name or ""] if (v := inputs[i]) is None or v.name not in self.skipped)

    def _grid(self, keys: list[str]) -> PlannedGrid:
        deciding = [key for key in keys if key not in self.moved]
        fixed = {self.fixed.get(key) for key in deciding}
        grid = PlannedGrid(
            dtype=self.types[keys[0]],
            symmetric=self.config.activation_symmetric or any(key in self.symmetric for key in keys),
            method=self._method(keys),
            fixed=fixed.pop() if len(fixed) == 1 else None,
            range=next((self.ranges[key] for key in deciding if key in self.ranges and len(deciding) == 1), None),
            bounded=any(key in self.bounded for key in keys),
            is_result=any(key in self.results for key in keys),
            bounds=hull(self.bounds.get(key) for key in deciding) if self.config.headroom >= MUCH_ROOM else None,
            reach=SATURATED if self.config.headroom >= MUCH_ROOM and self.saturating.intersection(keys) else 0.0,
            headroom=self.config.headroom,
            least_scale=max(self.least_scales.get(key, 0.0) for key in keys),
            room_above=ROOM_FOR_SCORES if self._are_scores(keys) else 0.0,
        )
        return _overridden(grid, keys, self.config.overrides)

    def _method(self, keys: list[str]) -> str:
        """The range method: one that clips nothing where a normalization reads, whose result one outlier can decide.

        So can the highest score of a row, while the error of the tensor as a whole is less if it is cut off.
        """
        if not any(key in self.unclipped for key in keys):
            return "minmax" if self._are_scores(keys) else self.config.method
        # Of 16 bits `auto` clips nothing either, and has room for what was not seen. Where all else has 8 bits, that
        # room gains nothing, and costs a little on an NPU.
        is_fine = min(bits(self.types[keys[0]]), bits(self.config.activation_type)) > 8
        return "auto" if self.config.method == "auto" and is_fine else "minmax"

    def _are_scores(self, keys: list[str]) -> bool:
        """True of scores in 8 bits whose range is free to choose."""
        is_free = self.config.method == "auto" and bits(self.types[keys[0]]) <= 8
        return is_free and any(key in self.scores for key in keys)


def _is_open(grid: PlannedGrid) -> bool:
    """True if a grid is yet to be chosen from observed values."""
    return grid.fixed is None and grid.range is None


def _overridden(grid: PlannedGrid, names: list[str], overrides: Mapping[str, TensorOverride]) -> PlannedGrid:
    """The grid with the user's settings for any of its tensors; two that disagree are an error."""
    asked = [(name, overrides[name]) for name in names if name in overrides]
    if not asked:
        return grid
    first, override = asked[0]
    other = next((name for name, wish in asked if wish != override), None)
    if other is not None:
        raise SettingsError("S152", f"{first} and {other} share one grid, but their overrides differ")
    bounds = Range(override.low, override.high) if override.low is not None and override.high is not None else None
    return replace(
        grid,
        dtype=override.dtype or grid.dtype,
        symmetric=grid.symmetric if override.symmetric is None else override.symmetric,
        method=override.method or grid.method,
        range=bounds or grid.range,
        fixed=None if bounds or override.dtype else grid.fixed,
    )


def _integers(node: ir.Node) -> dict[str, int]:
    return {name: a.as_int() for name, a in node.attributes.items() if a.type == ir.AttributeType.INT}
