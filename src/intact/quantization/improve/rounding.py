"""Rounds weights with error feedback, and moves what remains of the mean error into biases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from intact.model import mapped, query
from intact.model.copying import copied
from intact.numbers.encoding import Encoding, narrowest
from intact.quantization.calibration.resolve import Resolved
from intact.quantization.improve.gptq import round_with_feedback
from intact.quantization.improve.linear_layers import Linear, Moments
from intact.quantization.improve.study import Study
from intact.results import QuantPlan, WeightPlan
from intact.runtime import ort_cpu


def round_weights(resolved: Resolved, studies: Sequence[Study], progress: Callable[[], None]) -> Resolved:
    """The same grids with other integers for every studied weight; several weights are rounded at once."""
    layers = [(study, weight, matrix) for study in studies for weight, matrix in study.layers]
    constants = dict(resolved.constants)
    with ThreadPoolExecutor(ort_cpu.threads()) as pool:
        rounded = pool.map(lambda layer: _rounded(resolved, *layer), layers)
        for (_, weight, _), integers in zip(layers, rounded, strict=True):
            key = weight.node, weight.index
            constants[key] = (constants[key][0], mapped.aside(integers))
            progress()
    return replace(resolved, constants=constants)


def _rounded(resolved: Resolved, study: Study, weight: WeightPlan, matrix: np.ndarray) -> np.ndarray:
    """The integers of one weight."""
    # Quantizing the input adds step²/12 to each of its second moments.
    noise = float(resolved.tensors[study.entry].scale) ** 2 / 12 * study.moments.rows
    encoding, _ = resolved.constants[weight.node, weight.index]
    scale, zero_point = _of_weights(encoding, study.linear, matrix)
    integers = round_matrix(matrix, study.moments, scale, zero_point, encoding.dtype, noise)
    return np.ascontiguousarray(study.linear.weight(integers))


def round_matrix(
    matrix: np.ndarray, moments: Moments, scale: np.ndarray, zero_point: np.ndarray, dtype: str, noise: float
) -> np.ndarray:
    """Integers of a weight seen as `matrix`, one block of the inputs whose moments are known after the other."""
    integers = np.empty(matrix.shape, narrowest(dtype))
    for index, product in enumerate(moments.products):
        part = slice(index * moments.block, (index + 1) * moments.block)
        step, zero = (values if values.ndim == 2 else values[:, :, part] for values in (scale, zero_point))
        integers[:, :, part] = round_with_feedback(matrix[:, :, part], product, step, zero, dtype, noise)
    return integers


def correct_biases(
    model: ir.Model, plan: QuantPlan, resolved: Resolved, studies: Sequence[Study], chosen: Mapping[str, int]
) -> tuple[ir.Model, tuple[str, ...]]:
    """A copy of `model` whose biases make up for the mean error that quantization leaves in each layer's output.

    The constants that changed are named. A layer without a bias of its own stays as it is.
    """
    corrections: dict[str, np.ndarray] = {}
    nodes = {node.name: node for node in model.graph}
    for study in studies:
        after = study.mean_on_grid(chosen.get(plan.tensors[study.entry], 0))
        means = study.moments.mean, study.moments.mean - after
        before, moved = (mean[..., None].astype(np.float32) for mean in means)
        for weight, matrix in study.layers:
            name = _bias_of(nodes[weight.node], plan, weight)
            if name is None:
                continue
            encoding, integers = resolved.constants[weight.node, weight.index]
            scale, zero_point = _of_weights(encoding, study.linear, matrix)
            if scale.ndim == 2:
                scale, zero_point = scale[..., None], zero_point[..., None]
            rounded = (study.linear.matrix(integers) - zero_point.astype(np.float32)) * scale
            # W·before − R·after, as a sum of two small terms that float32 holds well.
            error = (matrix - rounded) @ before + rounded @ moved
            corrections[name] = error.reshape(-1)
    result = copied(model)
    for name, error in corrections.items():
        _shift(result.graph.initializers[name], error)
    return result, tuple(corrections)


def _of_weights(encoding: Encoding, linear: Linear, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and zero points as [groups, outputs], or where they come in blocks as [groups, outputs, inputs]."""
    both = encoding.scale, encoding.zero_point
    if encoding.block_size:
        scale, zero_point = (linear.matrix(np.repeat(v, encoding.block_size, axis=encoding.axis)) for v in both)
    else:
        groups, outputs, _ = matrix.shape
        every = (np.broadcast_to(values.reshape(-1), (groups * outputs,)) for values in both)
        scale, zero_point = (values.reshape(groups, outputs) for values in every)
    return scale, zero_point


def _bias_of(node: ir.Node, plan: QuantPlan, weight: WeightPlan) -> str | None:
    """The constant that is added to each output channel of a layer and to nothing else, if there is one."""
    bias = next((value for value in node.inputs[2:3] if value is not None), None)
    if bias is None:
        reader = query.only_consumer(node.outputs[0])
        if reader is None or reader.domain or reader.op_type != "Add":
            return None
        bias = next((value for value in reader.inputs if value is not None and query.is_constant(value)), None)
    channels = node.outputs[0].shape
    if bias is None or not query.is_constant(bias) or len(bias.uses()) != 1 or channels is None:
        return None
    shape = query.static_shape(bias)
    axis = 1 if node.op_type == "Conv" else -1
    wanted = channels[axis]
    is_own = bias in node.inputs
    if shape is None or int(np.prod(shape)) != wanted:
        return None
    if not is_own and node.op_type == "Conv" and (len(shape) < 3 or shape[-len(channels) + 1] != wanted):
        return None
    return bias.name if is_own or node.op_type == "Conv" or shape[-1] == wanted else None


def _shift(value: ir.Value, error: np.ndarray) -> None:
    tensor = value.const_value
    assert tensor is not None, "biases are constants"
    array = tensor.numpy()
    value.const_value = ir.tensor((array + error.reshape(array.shape)).astype(array.dtype), name=value.name)
