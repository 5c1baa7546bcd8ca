"""Decides which tensors get which grid: from the target's table and the settings, before anything is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from intact.config import QuantConfig, TensorOverride, nearest
from intact.errors import SettingsError, TargetError
from intact.results import BiasPlan, Grid, QuantPlan, Range, WeightPlan
from intact.targets.spec import OpSpec, Signature, Slot, Target

# An activation whose only effect is to cut values off: the grid after it does that, so it stays with its producer.
_CLIPPING = {("", "Relu"), ("", "Clip")}


def plan(model: ir.Model, target: Target, config: QuantConfig) -> QuantPlan:
    """The plan for `model` on `target`: every node that the target takes at these types, and its tensors' grids."""
    _check_names(model, config)
    chosen = _choose_nodes(model, target, config)
    if not chosen:
        raise TargetError(
            "T110",
            f"{target.name} takes no node of this model at "
            f"{config.activation_type} activations and {config.weight_type} weights",
            fix="choose another --precision, or see what the target takes in docs/targets",
        )
    draft = _Draft(target, config)
    for node, spec, signature in chosen:
        draft.add(node, spec, signature)
    return draft.finish([node for node, _, _ in chosen])


def _check_names(model: ir.Model, config: QuantConfig) -> None:
    """A name in the settings that is not in the model is a mistake, not a wish without effect."""
    nodes = {node.name or "" for node in model.graph}
    tensors = {value.name or "" for node in model.graph for value in (*node.inputs, *node.outputs) if value is not None}
    kinds = {node.op_type for node in model.graph}
    for what, asked, known in (
        ("node", (*(config.nodes or ()), *config.exclude_nodes), nodes),
        ("tensor", tuple(config.overrides), tensors),
        ("operator", (*(config.op_types or ()), *config.exclude_op_types), kinds),
    ):
        missing = [name for name in asked if name not in known]
        if missing:
            hint = nearest(missing[0], sorted(known))
            raise SettingsError("S130", f"the model has no {what} {missing[0]!r}{hint}")


def _choose_nodes(model: ir.Model, target: Target, config: QuantConfig) -> list[tuple[ir.Node, OpSpec, Signature]]:
    """The nodes to quantize, in order: first those worth it by themselves, then those between them."""
    taken: dict[ir.Node, tuple[OpSpec, Signature]] = {}
    candidates = []
    for node in model.graph:
        spec = target.op(node.domain, node.op_type)
        signature = _signature(node, spec, target, config) if spec is not None and _wanted(node, config) else None
        if spec is not None and signature is not None:
            candidates.append((node, spec, signature))
    on_grid: set[ir.Value] = set()
    for start in (True, False):
        for node, spec, signature in candidates:
            if spec.start == start and (start or _surrounded(node, signature, on_grid)):
                taken[node] = (spec, signature)
                on_grid.update(_grid_inputs(node, signature))
                on_grid.update(v for i, v in enumerate(node.outputs) if _on_grid(signature.output(i)))
    return [(node, *taken[node]) for node in model.graph if node in taken]


def _wanted(node: ir.Node, config: QuantConfig) -> bool:
    if config.op_types is not None and node.op_type not in config.op_types:
        return False
    if config.nodes is not None and node.name not in config.nodes:
        return False
    return node.op_type not in config.exclude_op_types and node.name not in config.exclude_nodes


def _surrounded(node: ir.Node, signature: Signature, on_grid: set[ir.Value]) -> bool:
    """Whether every computed float input is on a grid already, so that quantizing costs no accuracy of its own."""
    computed = [value for value in _grid_inputs(node, signature) if not _constant(value)]
    return bool(computed) and all(value in on_grid for value in computed)


def _grid_inputs(node: ir.Node, signature: Signature) -> list[ir.Value]:
    found = []
    for index, value in enumerate(node.inputs):
        slot = signature.input(index)
        if value is not None and slot is not None and _on_grid(slot):
            found.append(value)
    return found


def _signature(node: ir.Node, spec: OpSpec, target: Target, config: QuantConfig) -> Signature | None:
    """The signature to use for a node: one with the wanted weight type if there is one, else the first that fits."""
    fitting = [s for s in target.signatures(spec) if _fits(node, s, config)]
    exact = [s for s in fitting if all(config.weight_type in slot.types for slot in _weight_slots(node, s))]
    return next(iter(exact or fitting), None)


def _weight_slots(node: ir.Node, signature: Signature) -> list[Slot]:
    slots = [signature.input(i) for i, value in enumerate(node.inputs) if value is not None]
    return [slot for slot in slots if slot is not None and slot.constant and slot.types != ("int32",)]


def _fits(node: ir.Node, signature: Signature, config: QuantConfig) -> bool:
    inputs = [(signature.input(i), value) for i, value in enumerate(node.inputs) if value is not None]
    if not any(slot is not None and _on_grid(slot) and not slot.constant for slot, _ in inputs):
        return False
    wanted = config.activation_type
    outputs = [(signature.output(i), value) for i, value in enumerate(node.outputs)]
    return all(_fits_input(slot, value, wanted) for slot, value in inputs) and all(
        not _on_grid(slot) or (_is_float(value) and wanted in slot.types) for slot, value in outputs
    )


def _fits_input(slot: Slot | None, value: ir.Value, wanted: str) -> bool:
    if slot is None:
        return False
    if not _on_grid(slot):
        return _fits_unquantized(slot, value)
    if not _is_float(value):
        return False
    return _constant(value) if slot.constant else wanted in slot.types


def _fits_unquantized(slot: Slot, value: ir.Value) -> bool:
    if slot.types[0] == "index":
        return value.dtype in (ir.DataType.INT32, ir.DataType.INT64)
    if slot.types[0] == "bool":
        return value.dtype == ir.DataType.BOOL
    return True


def _on_grid(slot: Slot) -> bool:
    return slot.types[0] not in ("float", "float16", "index", "bool", "any")


def _is_float(value: ir.Value) -> bool:
    return value.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def _constant(value: ir.Value) -> bool:
    return value.const_value is not None and value.is_initializer()


def _name(value: ir.Value) -> str:
    assert value.name, "models are normalised before they are planned: every value has a name"
    return value.name


@dataclass(slots=True)
class _Draft:
    """A plan in the making: tensors joined into grids as nodes are added."""

    target: Target
    config: QuantConfig
    parent: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, tuple[float, int]] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)
    uses: dict[str, tuple[int, ...]] = field(default_factory=dict)
    weights: list[WeightPlan] = field(default_factory=list)
    biases: list[BiasPlan] = field(default_factory=list)
    symmetric: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)

    def add(self, node: ir.Node, spec: OpSpec, signature: Signature) -> None:
        """Put the inputs and outputs of one node on grids."""
        inputs = [self._add_input(node, spec, signature, index) for index in range(len(node.inputs))]
        outputs = [_name(v) for i, v in enumerate(node.outputs) if _on_grid(signature.output(i))]
        for name in outputs:
            self.parent.setdefault(name, name)
        self.uses[node.name or ""] = tuple(index for index, kind in enumerate(inputs) if kind)
        tensors = [_name(v) for v, kind in zip(node.inputs, inputs, strict=True) if v is not None and kind == "tensor"]
        if spec.grid == "input":
            self._join([tensors[0], *outputs])
            self.moved.update(outputs)
        elif spec.grid == "common":
            self._join([*tensors, *outputs])
            self.moved.update(outputs)
        elif self.config.activation_type in spec.fixed:
            self.fixed.update(dict.fromkeys(outputs, spec.fixed[self.config.activation_type]))
        self._keep_with_producer(node)

    def _add_input(self, node: ir.Node, spec: OpSpec, signature: Signature, index: int) -> str:
        """`weight`, `bias`, `tensor`, or nothing for an input that stays as it is."""
        value, slot = node.inputs[index], signature.input(index)
        if value is None or slot is None or not _on_grid(slot):
            return ""
        if not slot.constant:
            self.parent.setdefault(_name(value), _name(value))
            self.symmetric.update([_name(value)] if slot.symmetric else [])
            return "tensor"
        if slot.types == ("int32",):
            self.biases.append(BiasPlan(node.name or "", index, _name(value)))
            return "bias"
        self.weights.append(self._weight(node, spec, slot, index, value))
        return "weight"

    def _weight(self, node: ir.Node, spec: OpSpec, slot: Slot, index: int, value: ir.Value) -> WeightPlan:
        override = self.config.overrides.get(_name(value), TensorOverride())
        wanted = override.dtype or self.config.weight_type
        dtype = wanted if wanted in slot.types else slot.types[0]
        if override.dtype is not None and override.dtype not in slot.types:
            raise SettingsError(
                "S131",
                f"{_name(value)}: {override.dtype} is not a type that {self.target.name} takes there",
                allowed=", ".join(slot.types),
                fix="change the override of this tensor",
            )
        per_channel = self.config.per_channel if override.per_channel is None else override.per_channel
        symmetric = self.config.weight_symmetric if override.symmetric is None else override.symmetric
        rank = len(value.shape) if value.shape is not None else 0
        channels = per_channel and slot.granularity == "channel" and rank == (spec.channel_rank or rank) and rank > 1
        axis = spec.weight_axis.at(_integers(node)) % rank if channels else None
        return WeightPlan(node.name or "", index, _name(value), dtype, symmetric or slot.symmetric, axis)

    def _keep_with_producer(self, node: ir.Node) -> None:
        """Leave out the grid between a producer and a Relu or Clip that is its only reader.

        The grid after the clipping holds no value that it would cut off, so a second rounding before it would
        cost accuracy for nothing. A symmetric grid does not clip at zero: there both stay.
        """
        value = node.inputs[0] if node.inputs else None
        if (node.domain, node.op_type) not in _CLIPPING or value is None or self.config.activation_symmetric:
            return
        producer = value.producer()
        if producer is None or producer.name not in self.uses or value.is_graph_output() or len(value.uses()) > 1:
            return
        if _name(value) not in self.parent or _name(value) in self.moved or _name(value) in self.config.overrides:
            return
        self.skipped.add(_name(value))

    def _join(self, names: Iterable[str]) -> None:
        roots = [self._root(name) for name in names]
        for root in roots[1:]:
            self.parent[root] = roots[0] if root != roots[0] else root

    def _root(self, name: str) -> str:
        self.parent.setdefault(name, name)
        while self.parent[name] != name:
            self.parent[name] = self.parent[self.parent[name]]
            name = self.parent[name]
        return name

    def finish(self, nodes: list[ir.Node]) -> QuantPlan:
        """The plan, with one grid per set of joined tensors."""
        tensors = {name: self._root(name) for name in self.parent if name not in self.skipped}
        members: dict[str, list[str]] = {}
        for name, root in tensors.items():
            members.setdefault(root, []).append(name)
        grids = {root: self._grid(names) for root, names in members.items()}
        uses = {node.name or "": self._uses_of(node) for node in nodes}
        return QuantPlan(
            nodes=tuple(node.name or "" for node in nodes),
            grids=grids,
            tensors=tensors,
            uses=uses,
            weights=tuple(self.weights),
            biases=tuple(self.biases),
            observed=tuple(
                name
                for name, root in tensors.items()
                if name not in self.moved and grids[root].fixed is None and grids[root].range is None
            ),
        )

    def _uses_of(self, node: ir.Node) -> tuple[int, ...]:
        inputs = node.inputs
        return tuple(i for i in self.uses[node.name or ""] if (v := inputs[i]) is None or v.name not in self.skipped)

    def _grid(self, names: list[str]) -> Grid:
        deciding = [name for name in names if name not in self.moved]
        fixed = {self.fixed.get(name) for name in deciding}
        grid = Grid(
            dtype=self.config.activation_type,
            symmetric=self.config.activation_symmetric or any(name in self.symmetric for name in names),
            method=self.config.method,
            fixed=fixed.pop() if len(fixed) == 1 else None,
        )
        return _overridden(grid, names, self.config.overrides)


def _overridden(grid: Grid, names: list[str], overrides: Mapping[str, TensorOverride]) -> Grid:
    """The grid with the user's settings for any of its tensors; two that disagree are an error."""
    asked = [(name, overrides[name]) for name in names if name in overrides]
    if not asked:
        return grid
    first, override = asked[0]
    other = next((name for name, wish in asked if wish != override), None)
    if other is not None:
        raise SettingsError("S132", f"{first} and {other} share one grid, but their overrides differ")
    bounds = Range(override.low, override.high) if override.low is not None and override.high is not None else None
    return replace(
        grid,
        dtype=override.dtype or grid.dtype,
        symmetric=grid.symmetric if override.symmetric is None else override.symmetric,
        method=override.method or grid.method,
        range=bounds,
        fixed=None if bounds or override.dtype else grid.fixed,
    )


def _integers(node: ir.Node) -> dict[str, int]:
    return {name: a.as_int() for name, a in node.attributes.items() if a.type == ir.AttributeType.INT}
