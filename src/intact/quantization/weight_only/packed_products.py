"""Weights in few bits beside float activations: MatMul and Gemm become MatMulNBits, which unpacks as it multiplies.

A weight has one scale, and where it is not symmetric one zero point, for each block of inputs of each output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np
import onnx_ir as ir

from intact.errors import ModelError, SettingsError, TargetError, some
from intact.events import Events, Silence
from intact.model import edit, query
from intact.model.copying import copied
from intact.numbers import encoding as arithmetic
from intact.numbers.integer_types import limits
from intact.quantization.calibration.observe import Rows, watch
from intact.quantization.improve.coarse_scales import COARSE, least_error_scales
from intact.quantization.improve.effort import NORMAL
from intact.quantization.improve.linear_layers import MatrixProduct, Moments
from intact.quantization.improve.rounding import round_matrix
from intact.quantization.planning.choose import wanted_by
from intact.quantization.planning.planner import check_names
from intact.records import dataclass
from intact.settings.config import QuantConfig
from intact.targets.spec import Packing, Target

DOMAIN, OPERATOR = "com.microsoft", "MatMulNBits"
_SHOWN = 5
# Weights that are encoded at a time.
_AT_ONCE = 1 << 21


@dataclass(frozen=True, slots=True)
class Packed:
    """A model with packed weights, the nodes that have them, and what a user should know."""

    model: ir.Model
    nodes: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A matrix [outputs, inputs] in blocks: unsigned levels [outputs, blocks, size], scales and zero points of each."""

    levels: np.ndarray
    scales: np.ndarray
    zero_points: np.ndarray
    bits: int

    @property
    def is_centred(self) -> bool:
        """True if every zero point is the middle, which MatMulNBits takes for granted."""
        return bool((self.zero_points == 2 ** (self.bits - 1)).all())

    def constants(self) -> dict[str, np.ndarray]:
        """The inputs of MatMulNBits, by a name for each."""
        found = {"packed": pack_bits(self.levels, self.bits), "scale": self.scales.reshape(-1)}
        zeros = {} if self.is_centred else {"zero_point": pack_bits(self.zero_points, self.bits).reshape(-1)}
        return found | zeros


def pack(
    model: ir.Model, target: Target, config: QuantConfig, rows: Rows | None = None, events: Events | None = None
) -> Packed:
    """A copy of `model` with the constant matrices of MatMul and Gemm in `config.weight_type`.

    They are rounded with feedback on `rows`, or to nearest where there are none or the effort is `fast`.
    """
    _check(target.packing, target, config)
    check_names(model, config)
    products = [node for node in model.graph if node.domain == "" and node.op_type in ("MatMul", "Gemm")]
    refusals = {node: _refusal(node, config) for node in products}
    chosen = [node for node, refusal in refusals.items() if refusal is None]
    left = [f"{node.name}: {refusal}" for node, refusal in refusals.items() if refusal is not None]
    if not chosen:
        listed = f": {some(left, _SHOWN, '; ')}" if left else ""
        raise TargetError("T113", f"no MatMul or Gemm of the model has a weight to pack{listed}")
    moments: dict[str, Moments] = {}
    if rows is not None and config.effort != "fast":
        moments = _moments(model, chosen, rows, config, events or Silence())
    result = copied(model)
    copies = dict(zip(model.graph, result.graph, strict=True))
    writer = _ProductWriter(result, config, moments)
    for node in chosen:
        writer.replace(copies[node])
    edit.prune(result)
    return Packed(result, tuple(node.name or "" for node in chosen), _notes(writer, config, len(products), left))


def _moments(
    model: ir.Model, nodes: Sequence[ir.Node], rows: Rows, config: QuantConfig, events: Events
) -> dict[str, Moments]:
    """Second moments of what each node multiplies, by the name of that tensor."""
    block = NORMAL.block(config.weight_type)
    found: dict[str, Moments] = {}
    for node in nodes:
        source, weight = node.inputs[0], query.constant(node.inputs[1])
        if source is None or source.name is None or weight is None or source.name in found or query.is_constant(source):
            continue
        view = MatrixProduct(bool(query.int_(node, "transB", 0)), False)
        matrix = view.matrix(weight)
        most = NORMAL.columns(matrix.shape[2], len(rows), config.weight_type)
        found[source.name] = Moments.empty(view, matrix, most=most, block=block)
    with events.stage("study the layers", len(rows)) as advance:
        watch(model, {name: [moments] for name, moments in found.items()}, rows, progress=advance)
    return found


def encode(
    matrix: np.ndarray, dtype: str, size: int, *, symmetric: bool, refine: bool, moments: Moments | None = None
) -> Weight:
    """A matrix [outputs, inputs] in blocks of `size` inputs; `refine` shrinks scales to where the error is least.

    With `moments` of the inputs, weights are rounded so that the error in the outputs is least. Without them rows do
    not concern each other, and are encoded some at a time: the numbers on the way take many times their memory.
    """
    rows = max(1, _AT_ONCE // max(1, matrix.shape[1]))
    if moments is None and len(matrix) > rows:
        starts = range(0, len(matrix), rows)
        parts = [encode(matrix[at : at + rows], dtype, size, symmetric=symmetric, refine=refine) for at in starts]
        levels, scales, zeros = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("levels", "scales", "zero_points")
        )
        return Weight(levels, scales, zeros, parts[0].bits)
    outputs, inputs = matrix.shape
    padded = np.pad(matrix.astype(np.float64), ((0, 0), (0, -inputs % size)))
    blocks = padded.reshape(-1, size)
    encoding = arithmetic.encode(blocks.min(axis=1), blocks.max(axis=1), dtype, symmetric=symmetric, axis=0)
    if refine and dtype in COARSE:
        encoding = least_error_scales(blocks, encoding)
    low, high = limits(dtype)
    integers = arithmetic.quantize(blocks, encoding, precision=np.float64).astype(np.int16)
    levels = (integers - low).astype(np.uint8).reshape(outputs, -1, size)
    if moments is not None and moments.rows:
        spread = (np.repeat(values, size).reshape(outputs, -1) for values in (encoding.scale, encoding.zero_point))
        scale, zero_point = (values[None, :, :inputs] for values in spread)
        rounded = round_matrix(matrix[None], moments, scale, zero_point, dtype, noise=0.0)[0]
        levels.reshape(outputs, -1)[:, :inputs] = rounded.astype(np.int64) - low
    scales, zeros = encoding.scale.reshape(outputs, -1), (encoding.zero_point - low).reshape(outputs, -1)
    return Weight(levels, scales, zeros, (high - low).bit_length())


def pack_bits(levels: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned integers as bytes along the last axis, the first of them in the low bits."""
    together = 8 // bits
    padded = np.pad(levels, [(0, 0)] * (levels.ndim - 1) + [(0, -levels.shape[-1] % together)])
    groups = padded.astype(np.uint8, copy=False).reshape(*padded.shape[:-1], -1, together)
    packed = groups[..., 0].copy()
    for place in range(1, together):
        packed |= groups[..., place] << np.uint8(bits * place)
    return packed


def _check(packing: Packing | None, target: Target, config: QuantConfig) -> None:
    asked = f"{config.weight_type} weights beside float activations"
    if packing is None:
        raise SettingsError(
            "S156", f"{target.name} takes no {asked}", fix="choose a --precision with integer activations"
        )
    if config.weight_type not in packing.types:
        allowed = ", ".join(packing.types)
        raise SettingsError("S157", f"{target.name} takes no {asked}", allowed=allowed, source=packing.source)
    if config.block_size not in packing.blocks:
        allowed = ", ".join(map(str, packing.blocks))
        found = f"--block-size {config.block_size}: {target.name} has no such blocks"
        raise SettingsError("S158", found, allowed=allowed, source=packing.source)


def _refusal(node: ir.Node, config: QuantConfig) -> str | None:
    """Return the reason against packing the weight of a MatMul or Gemm, or None if there is none."""
    activation, weight = node.inputs[0], node.inputs[1]
    if not wanted_by(node, config):
        return "excluded"
    if not query.is_constant(weight):
        return "its second operand is computed"
    if query.rank(weight) != 2 or query.is_constant(activation):
        return "its second operand is not a matrix beside computed values"
    if activation is None or activation.dtype != ir.DataType.FLOAT:
        return "its activations are not float32"
    return _gemm_refusal(node) if node.op_type == "Gemm" else None


def _gemm_refusal(node: ir.Node) -> str | None:
    if query.int_(node, "transA", 0):
        return "its activations are transposed"
    bias = query.input_(node, 2)
    if bias is None or (query.is_constant(bias) and _bias_row(node) is not None):
        return None
    return "its bias is not one number for each output"


def _bias_row(node: ir.Node) -> np.ndarray | None:
    """The constant bias of a Gemm as one number for each output, or None where it differs by row."""
    bias, shape = query.constant(node.inputs[2]), query.static_shape(node.inputs[1])
    assert bias is not None and shape is not None, "the bias and the weight are constants"
    outputs = shape[0 if query.int_(node, "transB", 0) else 1]
    if bias.size not in (1, outputs) or (bias.size > 1 and bias.shape[-1] != outputs):
        return None
    return np.broadcast_to(bias.reshape(-1), outputs) * np.float32(query.float_(node, "beta", 1.0))


@dataclass(slots=True)
class _ProductWriter:
    """Replaces products in a graph; a weight that several of them read is packed once."""

    model: ir.Model
    config: QuantConfig
    moments: Mapping[str, Moments]
    names: edit.Names = field(init=False)
    packed: dict[tuple[str, bool, float], tuple[int, dict[str, ir.Value]]] = field(default_factory=dict)
    before: int = 0
    after: int = 0

    def __post_init__(self) -> None:
        self.names = edit.Names(self.model)

    def replace(self, node: ir.Node) -> None:
        """Put a MatMulNBits in the place, and under the name, of `node`."""
        graph, old = self.model.graph, node.outputs[0]
        bits, constants = self._weight(node)
        inputs = [node.inputs[0], constants["packed"], constants["scale"], constants.get("zero_point"), None]
        inputs += [self._bias(node)] if query.input_(node, 2) is not None else []
        while inputs[-1] is None:
            inputs.pop()
        new = ir.Node(DOMAIN, OPERATOR, inputs, self._attributes(node, bits), name=node.name)
        output, name = new.outputs[0], old.name
        output.name, output.type, output.shape = self.names.take(f"{name}_packed"), old.type, old.shape
        graph.insert_before(node, new)
        edit.replace_value(old, output, self.names)
        edit.remove_dead([node])
        output.name = name
        graph.opset_imports.setdefault(DOMAIN, 1)

    def _weight(self, node: ir.Node) -> tuple[int, dict[str, ir.Value]]:
        """The bits of a node's weight, and the constants that it was packed into."""
        value = node.inputs[1]
        assert value is not None and value.name, "the weight is a constant with a name"
        transposed, factor = bool(query.int_(node, "transB", 0)), query.float_(node, "alpha", 1.0)
        key = (value.name, transposed, factor)
        if key not in self.packed:
            matrix = _finite(value) * factor
            weight = encode(
                matrix if transposed else matrix.T,
                self.config.weight_type,
                self.config.block_size,
                symmetric=self.config.weight_symmetric,
                refine=self.config.effort != "fast",
                moments=self._moments_of(node),
            )
            arrays = weight.constants()
            self.before += 4 * matrix.size
            self.after += sum(array.nbytes for array in arrays.values())
            self.packed[key] = weight.bits, {part: self._add(a, f"{value.name}_{part}") for part, a in arrays.items()}
        return self.packed[key]

    def _moments_of(self, node: ir.Node) -> Moments | None:
        source = node.inputs[0]
        return self.moments.get(source.name or "") if source is not None else None

    def _bias(self, node: ir.Node) -> ir.Value:
        row = _bias_row(node)
        assert row is not None, "the bias was looked at before"
        return self._add(np.ascontiguousarray(row, np.float32), f"{node.name}_bias")

    def _add(self, array: np.ndarray, name: str) -> ir.Value:
        return edit.add_initializer(self.model.graph, array, self.names.take(name))

    def _attributes(self, node: ir.Node, bits: int) -> list[ir.Attr]:
        shape = query.static_shape(node.inputs[1])
        assert shape is not None, "the weight is a constant matrix"
        inputs, outputs = shape[::-1] if query.int_(node, "transB", 0) else shape
        values = {"K": inputs, "N": outputs, "bits": bits, "block_size": self.config.block_size}
        values |= {"accuracy_level": self.config.accuracy_level} if self.config.accuracy_level else {}
        return [ir.AttrInt64(name, value) for name, value in values.items()]


def _finite(value: ir.Value) -> np.ndarray:
    array = query.constant(value)
    assert array is not None, "the weight is a constant"
    if not np.isfinite(array).all():
        raise ModelError("M144", f"{value.name}: some of its values are NaN or infinite", fix="repair the weight")
    return array


def _notes(writer: _ProductWriter, config: QuantConfig, total: int, left: list[str]) -> tuple[str, ...]:
    ratio = writer.before / writer.after
    said = (
        f"{len(writer.packed)} weights packed to {config.weight_type} in blocks of {config.block_size}: "
        f"{writer.before / 1e6:.2f} MB to {writer.after / 1e6:.2f} MB, {ratio:.1f} times smaller"
    )
    return (
        (said, f"{len(left)} of {total} MatMul and Gemm stay in float: {some(left, _SHOWN, '; ')}") if left else (said,)
    )
