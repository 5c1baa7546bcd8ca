"""Moves the difficulty of outlying channels from activations into weights (SmoothQuant, Xiao et al., 2022).

Where x feeds linear layers, x · W = (x / s) · (s · W) for any scale s per channel. The scale is folded into a
normalization before x if nothing else reads it; otherwise one Mul in front of the layers carries it. How far to go is
chosen for each tensor: the exponent with the least error expected in the layers' outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from intact.graph import edit, query
from intact.quantize.improve.linear import MatrixProduct, linear
from intact.quantize.observe import watch
from intact.results import QuantPlan, WeightPlan

# Beyond 0.7 every channel would end at the limit of the grid, with no room for values that calibration has not seen.
_EXPONENTS = np.linspace(0.0, 0.7, 15)
# How many times less error must be expected: smoothing takes room from channels that new values may need, and where no
# channel stands out it costs more than it gains (measured on trained and random transformers).
_WORTH_IT = 2.5
# Error feedback in rounding leaves about this share of the weights' error in the outputs.
_AFTER_FEEDBACK = 0.4
# Channels and weights that are always zero get a scale all the same.
_LEAST = 1e-5
_NORMALIZATIONS = ("LayerNormalization", "RMSNormalization")


@dataclass(slots=True)
class _Channels:
    """Extremes and second moments of the channels (last axis) of one tensor.

    Extremes are kept for every other sample apart, so that scales found on one half are judged on the other.
    """

    halves: list[np.ndarray] = field(default_factory=list)
    squares: np.ndarray | None = None
    rows: int = 0
    samples: int = 0

    def add(self, x: np.ndarray) -> None:
        flat = np.asarray(x, np.float32).reshape(-1, x.shape[-1])
        flat = flat[np.isfinite(flat).all(axis=1)]
        if not len(flat):
            return
        reach, squares = np.abs(flat).max(axis=0), np.square(flat, dtype=np.float64).sum(axis=0)
        if self.samples < 2:
            self.halves.append(reach)
        else:
            half = self.halves[self.samples % 2]
            np.maximum(half, reach, out=half)
        self.squares = squares if self.squares is None else self.squares + squares
        self.rows += len(flat)
        self.samples += 1

    @property
    def reach(self) -> np.ndarray:
        """The largest absolute value of each channel, at least a little above zero."""
        return np.asarray(np.maximum(np.max(self.halves, axis=0).astype(np.float64), _LEAST))


@dataclass(slots=True)
class _Site:
    """A tensor and the layers that read it, with their weights as [outputs, inputs]."""

    tensor: str
    layers: list[WeightPlan] = field(default_factory=list)
    matrices: list[np.ndarray] = field(default_factory=list)
    seen: _Channels = field(default_factory=_Channels)


def smooth(
    model: ir.Model, plan: QuantPlan, rows: Iterable[Mapping[str, np.ndarray]], *, by_nodes: bool
) -> tuple[ir.Model, tuple[str, ...]]:
    """A copy of `model` that computes the same with smoother inputs of its layers; the tensors smoothed are named.

    `by_nodes` allows a Mul where scales do not fold: it pays where the Mul is computed in float.
    """
    sites = _sites(model, plan)
    if not sites:
        return model, ()
    watch(model, {site.tensor: [site.seen.add] for site in sites}, rows)
    result = model.clone()
    # A Mul between integers would round once more: it pays only behind a tensor that is computed in float.
    editor = _Editor(result, _produced(model, plan) if by_nodes else None)
    done = []
    for site in (site for site in sites if site.seen.rows):
        exponent, gain = _best_exponent(site)
        if editor.apply(site, _scales(site, site.seen.reach, exponent), gain):
            done.append(site.tensor)
    edit.prune(result)
    return result, tuple(done)


def _sites(model: ir.Model, plan: QuantPlan) -> list[_Site]:
    nodes = {node.name: node for node in model.graph}
    sites: dict[str, _Site] = {}
    for weight in plan.weights:
        node = nodes[weight.node]
        source, tensor = node.inputs[0], model.graph.initializers[weight.tensor].const_value
        assert source is not None and source.name and tensor is not None, "planned weights are constants"
        view = linear(node, tensor.numpy(), weight.index)
        eight_bits = plan.nodes[weight.node] in ("uint8", "int8")
        if not isinstance(view, MatrixProduct) or view.input_transposed or not eight_bits or source.const_value:
            continue
        site = sites.setdefault(source.name, _Site(source.name))
        site.layers.append(weight)
        site.matrices.append(np.asarray(view.matrix(tensor.numpy())[0], np.float64))
    return list(sites.values())


def _produced(model: ir.Model, plan: QuantPlan) -> set[str]:
    """The tensors that quantized nodes write as integers."""
    nodes = [node for node in model.graph if node.name in plan.nodes]
    return {value.name or "" for node in nodes for value in node.outputs if value.name in plan.tensors}


def _scales(site: _Site, reach: np.ndarray, exponent: float) -> np.ndarray:
    weights = np.maximum(np.max([np.abs(m).max(axis=0) for m in site.matrices], axis=0), _LEAST)
    scales = reach**exponent / weights ** (1 - exponent)
    # Only ratios matter; a mean of 1 keeps ranges where they were. Powers of two would be exact, but cost fit.
    return np.asarray(np.clip(scales / np.exp(np.log(scales).mean()), 1e-4, 1e4), np.float64)


def _best_exponent(site: _Site) -> tuple[float, float]:
    """The exponent with the least expected error, and how many times less that is than without smoothing."""
    plain = _expected_error(site, None)
    errors = [_expected_error(site, exponent) for exponent in _EXPONENTS]
    best = int(np.argmin(errors))
    return float(_EXPONENTS[best]), plain / max(errors[best], 1e-300)


def _expected_error(site: _Site, exponent: float | None) -> float:
    """Expected squared error with scales from one half of the samples on the other half, both ways round."""
    halves = [np.maximum(half.astype(np.float64), _LEAST) for half in site.seen.halves]
    pairs = list(zip(halves, reversed(halves), strict=True))
    ones = np.ones_like(halves[0])
    return sum(_error_of(site, ones if exponent is None else _scales(site, a, exponent), b) for a, b in pairs)


def _error_of(site: _Site, scales: np.ndarray, reach: np.ndarray) -> float:
    """Expected squared error of all outputs: that of rounding the input, and that of rounding the weights."""
    assert site.seen.squares is not None, "the site was observed"
    step = 2 * float((reach / scales).max()) / 255
    power = float((site.seen.squares / site.seen.rows / scales**2).sum())
    total = 0.0
    for matrix in site.matrices:
        scaled = matrix * scales
        weight_steps = np.abs(scaled).max(axis=1) / 127
        error = step**2 / 12 * float((scaled**2).sum())
        error += _AFTER_FEEDBACK * float((weight_steps**2).sum()) / 12 * power
        total += error / max(float((matrix**2).sum()), 1e-30)
    return total


class _Editor:
    """Writes scales into a copy of the model."""

    def __init__(self, model: ir.Model, on_grid: set[str] | None) -> None:
        self.graph = model.graph
        self.on_grid = on_grid
        self.names = edit.Names(model)
        self.nodes = {node.name: node for node in model.graph}

    def apply(self, site: _Site, scales: np.ndarray, gain: float) -> bool:
        """Fold the scales of one site, or put a Mul there, if the gain is worth it."""
        source = self.nodes[site.layers[0].node].inputs[0]
        assert source is not None, "a layer has an input"
        folds = self._folds(source, site)
        by_node = self.on_grid is not None and source.name not in self.on_grid
        if gain < _WORTH_IT or not (folds or by_node):
            return False
        if folds:
            self._fold(source, scales)
        else:
            self._multiply(source, site, scales)
        for weight in site.layers:
            self._scale_weight(weight, scales)
        return True

    def _folds(self, source: ir.Value, site: _Site) -> bool:
        producer = source.producer()
        readers = {weight.node for weight in site.layers}
        return (
            producer is not None
            and producer.op_type in _NORMALIZATIONS
            and query.int_(producer, "axis", -1) in (-1, (query.rank(source) or 0) - 1)
            and all(query.is_constant(value) for value in producer.inputs[1:] if value is not None)
            and not source.is_graph_output()
            and all(node.name in readers for node in source.consumers())
        )

    def _fold(self, source: ir.Value, scales: np.ndarray) -> None:
        producer = source.producer()
        assert producer is not None, "only a normalization folds"
        for index, value in enumerate(producer.inputs[1:], 1):
            array = query.constant(value)
            if array is not None:
                self._replace(producer, index, array / scales)

    def _multiply(self, source: ir.Value, site: _Site, scales: np.ndarray) -> None:
        factors = self._constant((1 / scales).astype(np.float32), f"{source.name}_smoothing")
        node = ir.node("Mul", [source, factors], name=self.names.take(f"{source.name}_smooth"))
        node.outputs[0].name = self.names.take(f"{source.name}_smoothed")
        edit.describe_as(node.outputs[0], source)
        producer = source.producer()
        if producer is not None:
            self.graph.insert_after(producer, node)
        else:
            self.graph.insert_before(self.graph[0], node)
        for weight in site.layers:
            self.nodes[weight.node].replace_input_with(0, node.outputs[0])

    def _scale_weight(self, weight: WeightPlan, scales: np.ndarray) -> None:
        node = self.nodes[weight.node]
        array = query.constant(node.inputs[weight.index])
        assert array is not None, "planned weights are constants"
        view = linear(node, array, weight.index)
        assert view is not None, "only linear layers are smoothed"
        self._replace(node, weight.index, view.weight(view.matrix(array) * scales))

    def _replace(self, node: ir.Node, index: int, array: np.ndarray) -> None:
        """Give a node another constant; under the same name, unless others read the old one."""
        value = node.inputs[index]
        assert value is not None, "only present inputs are replaced"
        stored = np.ascontiguousarray(array, np.float32)
        if len(value.uses()) == 1 and not value.is_graph_output():
            value.const_value = ir.tensor(stored, name=value.name)
        else:
            node.replace_input_with(index, self._constant(stored, f"{value.name}_smooth"))

    def _constant(self, array: np.ndarray, name: str) -> ir.Value:
        return edit.add_initializer(self.graph, array, self.names.take(name))
