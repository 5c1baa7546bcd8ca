"""A graph that computes each replaced tensor twice from the same inputs: as it was, and as it came.

One changed integer upstream then blames no rule downstream.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from intact.matching import rewriter
from intact.matching.rewriter import NEAR, Firing, Rewritten, Rule
from intact.model import edit, message, query
from intact.model.copying import copied
from intact.results import Application
from intact.rules.proof.noted_graph import NotedGraph, NotedNode, NotedValue, Tensor

# As many values may be known before a look at those that are gone.
LEAST_KNOWN = 4096


@dataclass(frozen=True, slots=True)
class Pair:
    """The names of one replaced tensor, old and new; floats have the step that `grid_step` or `sum_step` finds."""

    application: Application
    old: str
    new: str
    step: float | None
    sum_step: float | None


@dataclass(frozen=True)
class Witness:
    """A graph on the inputs of a model, and the pairs of tensors among its outputs."""

    base: ir.Model
    graph: NotedGraph
    pairs: tuple[Pair, ...]

    @property
    def as_noted(self) -> ir.Model | None:
        """The graph, seen as a model to be run, if it stands on the inputs alone."""
        return None if len(self.base.graph) else self.graph.as_model(self.base.ir_version or 0)

    @functools.cached_property
    def model(self) -> ir.Model:
        """The whole as a model, which takes five times the memory."""
        result = copied(self.base)
        values = {value.name: value for value in _values(result.graph)}
        self.graph.written_into(result.graph, values)
        edit.prune(result)
        return result


def rewrite(model: ir.Model, rules: Sequence[Rule], *, every: int = 1) -> tuple[Rewritten, Witness]:
    """Apply `rules` to a copy of `model`, and record what they do.

    One in so many applications of a rule as `every` says leaves pairs, the first of them included; all of one that
    depends on the numbers of a weight do. A firing in the body of an If or Loop leaves none.
    """
    subject = copied(model)
    recorder = _Recorder(model, subject, every)
    done = rewriter.apply(subject, rules, watch=recorder.see)
    return done, recorder.witness()


def of(model: ir.Model, rules: Sequence[Rule]) -> Witness:
    """Record what `rules` do to `model`."""
    return rewrite(model, rules)[1]


class _Recorder:
    """Notes both sides of every firing in one growing graph, and before them what they read."""

    def __init__(self, model: ir.Model, subject: ir.Model, every: int) -> None:
        self._graph = subject.graph
        self._every = every
        self._fired: Counter[str] = Counter()
        # Bodies read from the graph around them: such a graph is copied as a whole.
        is_flat = message.is_flat(model)
        self._base = _with_inputs_alone(model) if is_flat else copied(model)
        self._nodes: list[NotedNode] = []
        self._pairs: list[tuple[Application, Tensor, Tensor, float | None, float | None]] = []
        copies = {value.name: value for value in _values(self._base.graph)}
        self._known: dict[ir.Value, Tensor] = {
            value: copies[value.name] for value in _values(self._graph) if value.name in copies
        }
        self._most_known = max(LEAST_KNOWN, 2 * len(self._known))
        self._prefix = _free_prefix(copies)
        self._count = 0

    def see(self, firing: Firing) -> None:
        """Add the nodes of the match and those that replace them, side by side."""
        if firing.graph is not self._graph:
            return
        if len(self._known) > self._most_known:
            self._forget()
        is_held = self._is_held(firing.application)
        before = self._copy(firing.covered, {}) if is_held else {}
        # What replaces a match may read from nodes of it that stay: from the same copies then as the match itself.
        self._known |= self._copy(firing.created, dict(before))
        for old, new in zip(firing.old, firing.new, strict=True):
            copy = self._value(new)
            # New nodes have no types yet. With them, nobody needs to infer those of the whole model.
            copy.type = copy.type or old.type
            if not is_held:
                continue
            # Asked now: rules that fire later take the nodes apart that say it.
            step = grid_step(firing.new[0]) or grid_step(firing.old[0])
            copies = before[old], copy
            was, came = (self._readable(copy, old.dtype or new.dtype) for copy in copies)
            self._pairs.append((firing.application, was, came, step, sum_step(firing.new[0])))

    def _is_held(self, application: Application) -> bool:
        """True if an application is one of those that leave pairs."""
        self._fired[application.rule] += 1
        return application.exactness == NEAR or self._fired[application.rule] % self._every == 1 % self._every

    def _forget(self) -> None:
        """Do without values that are gone: nothing reads from them again."""
        self._known = {value: known for value, known in self._known.items() if not _is_gone(value)}
        self._most_known = max(LEAST_KNOWN, 2 * len(self._known))

    def witness(self) -> Witness:
        """The graph with nothing but the pairs as its outputs."""
        outputs: dict[Tensor, NotedValue] = {}
        pairs = tuple(
            Pair(application, self._output(old, outputs), self._output(new, outputs), *steps)
            for application, old, new, *steps in self._pairs
        )
        return Witness(self._base, NotedGraph(self._base.graph, self._nodes, list(outputs.values())), pairs)

    def _copy(self, nodes: Sequence[ir.Node], made: dict[ir.Value, Tensor]) -> dict[ir.Value, Tensor]:
        """Copies of nodes, each after those of them that it reads from; returns what became of their outputs."""
        inside = set(nodes)
        for node in nodes:
            self._copy_node(node, inside, made)
        return made

    def _copy_node(self, node: ir.Node, inside: set[ir.Node], made: dict[ir.Value, Tensor]) -> None:
        if node.outputs[0] in made:
            return
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer in inside and producer is not None:
                self._copy_node(producer, inside, made)
        inputs = [made.get(value) or self._value(value) if value is not None else None for value in node.inputs]
        known = self._known[node.outputs[0]].producer() if node.outputs[0] in self._known else None
        if known is None or not all(map(operator.is_, known.inputs, inputs)):
            made |= self._added(node, inputs)
            return
        made |= dict(zip(node.outputs, known.outputs, strict=True))

    def _added(self, node: ir.Node, inputs: Sequence[Tensor | None]) -> dict[ir.Value, NotedValue]:
        """Add a copy of a node that reads these values; return what became of its outputs."""
        types = [value.type for value in node.outputs]
        copy = self._noted((node.domain, node.op_type), inputs, node.attributes.data, types)
        self._base.opset_imports.setdefault(node.domain, 1)
        return dict(zip(node.outputs, copy.outputs, strict=True))

    def _noted(
        self,
        key: tuple[str, str],
        inputs: Sequence[Tensor | None],
        attributes: Mapping[str, ir.Attr],
        types: Sequence[ir.TypeProtocol | None],
    ) -> NotedNode:
        node = NotedNode(key, inputs, attributes, [self._name() for _ in types], types)
        self._nodes.append(node)
        return node

    def _name(self) -> str:
        self._count += 1
        return f"{self._prefix}{self._count}"

    def _value(self, value: ir.Value) -> Tensor:
        producer = value.producer()
        if value not in self._known and producer is not None and producer.op_type != "Constant":
            self._fetch(producer)
        if value not in self._known:
            tensor = query.constant_tensor(value)
            assert tensor is not None, f"{value.name!r} comes from nowhere"
            kind = value.type or ir.TensorType(tensor.dtype)
            shape = value.shape if value.const_value is tensor else ir.Shape(tensor.shape.numpy())
            # It shares the tensor: weights may be large.
            self._known[value] = NotedValue(self._name(), None, kind, tensor, shape)
        return self._known[value]

    def _fetch(self, node: ir.Node) -> None:
        """Copy a node that no rule has changed, and those before it that were not read so far."""
        pending = [node]
        while pending:
            sources = (
                value.producer() for value in pending[-1].inputs if value is not None and value not in self._known
            )
            missing = [source for source in sources if source is not None and source.op_type != "Constant"]
            if missing:
                pending += missing
                continue
            found = pending.pop()
            if found.outputs[0] not in self._known:
                inputs = [None if value is None else self._value(value) for value in found.inputs]
                self._known |= self._added(found, inputs)

    def _readable(self, value: Tensor, dtype: ir.DataType | None) -> Tensor:
        """Integers of fewer than eight bits as int8: no array can hold them as they are."""
        if dtype is None or not dtype.is_integer() or dtype.bitwidth >= 8:
            return value
        return self._noted(("", "Cast"), [value], {"to": ir.AttrInt64("to", ir.DataType.INT8)}, [None]).outputs[0]

    def _output(self, value: Tensor, outputs: dict[Tensor, NotedValue]) -> str:
        """The name of a value as an output; what no noted node computes gets a copy that can be one."""
        if value not in outputs:
            if isinstance(value, NotedValue) and value.producer() is not None:
                outputs[value] = value
            else:
                outputs[value] = self._noted(("", "Identity"), [value], {}, [value.type]).outputs[0]
            outputs[value].read_outside()
        return outputs[value].name


def _is_gone(value: ir.Value) -> bool:
    """True for a value that belonged to a graph once."""
    node = value.producer()
    return node.graph is None if node is not None else not (value.is_initializer() or value.is_graph_input())


def _free_prefix(names: Collection[str | None]) -> str:
    """A beginning of names that none of these has."""
    prefix = "witness/"
    while any((name or "").startswith(prefix) for name in names):
        prefix = f"_{prefix}"
    return prefix


def _with_inputs_alone(model: ir.Model) -> ir.Model:
    """A model with the inputs of another, and nothing in it."""
    inputs = [ir.Value(name=value.name, type=value.type, shape=value.shape) for value in model.graph.inputs]
    opsets = dict(model.opset_imports)
    return ir.Model(ir.Graph(inputs, [], nodes=(), opset_imports=opsets, name="witness"), ir_version=model.ir_version)


def _values(graph: ir.Graph) -> Iterable[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def grid_step(value: ir.Value) -> float | None:
    """The largest step of the grid that a float is on, where a DequantizeLinear says it."""
    node = value.producer()
    return None if node is None or node.op_type != "DequantizeLinear" else _largest(node.inputs[1])


def sum_step(value: ir.Value) -> float | None:
    """The largest step of the sums that a float is one of, where both factors are on a grid."""
    node = value.producer()
    if node is None:
        return None
    factors = [_largest(scale) for scale in _scales(node)]
    if len(factors) != 2 or factors[0] is None or factors[1] is None:
        return None
    return factors[0] * factors[1] * abs(query.float_(node, "alpha", 1.0))


def _scales(node: ir.Node) -> list[ir.Value | None]:
    """The scales of both operands of a layer on grids, whose bias is rounded to steps of its sums."""
    if node.op_type == "QGemm":
        return [query.input_(node, 1), query.input_(node, 4)]
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm"):
        return []
    sources = [None if value is None else value.producer() for value in node.inputs[:2]]
    return [item.inputs[1] for item in sources if item is not None and item.op_type == "DequantizeLinear"]


def _largest(scale: ir.Value | None) -> float | None:
    scales = query.constant(scale)
    return None if scales is None else float(scales.max())
