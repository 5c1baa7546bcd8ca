"""Builds the small model of a question, and inputs for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from intact.backends.probing.cases import ABSENT, HALF, LITERALS, PLAIN, Case, CaseOperand, Chain, Template, block_axis
from intact.backends.probing.joined_names import prefix_of
from intact.model import upgrade
from intact.numbers.encoding import to_levels
from intact.numbers.integer_types import limits as bounds
from intact.numbers.integer_types import middle
from intact.records import dataclass
from intact.targets.spec import Slot

OPSET, IR_VERSION = 21, 10
# The first that has what was added to ONNX after that.
OPSET_OF_NEW_OPS = 23
# The first that have 2-bit integers.
OPSET_OF_2_BITS, IR_VERSION_OF_2_BITS = 25, 13
# The name of the node that a probe is about.
PROBED = "probed"
# Elements that share one integer scale where a weight is quantized in blocks.
BLOCK = 16

# Operators whose indices number what lies along an axis of their first input.
INDEXED = ("Gather", "GatherElements")

_INTEGER_INPUTS = {"index": ir.DataType.INT64, "index32": ir.DataType.INT32, "bool": ir.DataType.BOOL}
# Outputs that are on no grid.
_OUTPUTS = {"float": ir.DataType.FLOAT, HALF: ir.DataType.FLOAT16, **_INTEGER_INPUTS}


def model_of(asked: Case | Chain) -> ir.Model:
    """The operators of a question between Q/DQ pairs, with float inputs and outputs."""
    writers = _writers(asked)
    return _model(writers, writers[-1].results)


def _writers(asked: Case | Chain, prefix: str = "") -> list[_CaseWriter]:
    """The operators of a question, written one after the other."""
    steps = [(prefix, asked)] if isinstance(asked, Case) else [(f"{prefix}{i}/", s) for i, s in enumerate(asked.steps)]
    writers: list[_CaseWriter] = []
    for start, step in steps:
        writers.append(_CaseWriter(step, start, writers[-1] if writers else None))
        writers[-1].write()
    return writers


def inputs_of(asked: Case | Chain) -> dict[str, np.ndarray]:
    """Values for the inputs of the model of a question: uniform over their ranges, the same every time."""
    if isinstance(asked, Case):
        return _inputs(asked, "")
    feeds: dict[str, np.ndarray] = {}
    for number, step in enumerate(asked.steps):
        found = _inputs(step, f"{number}/")
        read = f"{number}/input{step.template.follows}" if number else None
        feeds |= {name: values for name, values in found.items() if name != read}
    return feeds


def joined_model(asked: Sequence[Case | Chain]) -> tuple[ir.Model, list[float | None]]:
    """The models of questions side by side in one, and the step of each result as in `step_of`.

    All have to be of one version of ONNX.
    """
    each = [_writers(one, prefix_of(number)) for number, one in enumerate(asked)]
    model = _model([writer for own in each for writer in own], [value for own in each for value in own[-1].results])
    return model, [own[-1].step for own in each]


def joined_inputs(asked: Sequence[Case | Chain]) -> dict[str, np.ndarray]:
    """The inputs of all questions of a model that joins them."""
    each = ((prefix_of(number), inputs_of(one)) for number, one in enumerate(asked))
    return {f"{prefix}{name}": values for prefix, feeds in each for name, values in feeds.items()}


def versions_of(asked: Case | Chain) -> tuple[int, int]:
    """The opset and the IR version of the model of a question."""
    steps = (asked,) if isinstance(asked, Case) else asked.steps
    if any(slot.startswith("int2 ") for step in steps for slot in step.slots):
        return OPSET_OF_2_BITS, IR_VERSION_OF_2_BITS
    return max(_opset(step.template) for step in steps), IR_VERSION


def step_of(asked: Case | Chain) -> float | None:
    """The step of the grid that the result of a question is on; None where it is on none."""
    last = asked if isinstance(asked, Case) else asked.steps[-1]
    writer = _CaseWriter(last)
    writer.write()
    return writer.step


def _inputs(case: Case, prefix: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(case.seed)
    feeds: dict[str, np.ndarray] = {}
    for index, (operand, slot) in enumerate(zip(case.template.operands, case.slots, strict=True)):
        name = f"{prefix}input{index}"
        if operand.role in _INTEGER_INPUTS:
            dtype = _INTEGER_INPUTS[operand.role].numpy()
            feeds[name] = random.integers(0, max(2, _reach(case.template)), operand.shape).astype(dtype)
        elif slot != ABSENT and operand.role not in LITERALS and not _slot(slot).constant:
            values = random.uniform(operand.low, operand.high, operand.shape) * operand.fill
            feeds[name] = values.astype(_floats(slot))
    return feeds


def _reach(template: Template) -> int:
    """The number of things that the indices of an operator number: all that are there are read."""
    if template.op not in INDEXED:
        return 0
    axis: int = template.attributes.get("axis", 0)
    return template.operands[0].shape[axis]


def _model(writers: Sequence[_CaseWriter], results: Sequence[ir.Value]) -> ir.Model:
    """The graph of all operators with these results."""
    versions = {versions_of(writer.case) for writer in writers}
    graph = ir.Graph(
        [value for writer in writers for value in writer.inputs],
        results,
        nodes=[node for writer in writers for node in writer.nodes],
        initializers=[value for writer in writers for value in writer.constants],
        opset_imports={"": max(opset for opset, _ in versions), "com.microsoft": 1},
        name="probe",
    )
    return ir.Model(graph, ir_version=max(version for _, version in versions))


@dataclass(frozen=True, slots=True)
class _Grid:
    """A scale and a zero point as constants of a graph, and the scale as a number or one per channel."""

    scale: ir.Value
    zero_point: ir.Value
    steps: np.ndarray


def _opset(template: Template) -> int:
    known = template.domain or not template.op or upgrade.schema_of(template.op, OPSET) is not None
    return OPSET if known else OPSET_OF_NEW_OPS


class _CaseWriter:
    """A graph in the making: its nodes, inputs, constants and results, and the grids of its operands.

    The result of `before` takes the place of the first activation; all names begin with `prefix`.
    """

    def __init__(self, case: Case, prefix: str = "", before: _CaseWriter | None = None) -> None:
        self.case, self.prefix, self.before = case, prefix, before
        self.random = np.random.default_rng(case.seed)
        self.nodes: list[ir.Node] = []
        self.inputs: list[ir.Value] = []
        self.constants: list[ir.Value] = []
        self.grids: dict[int, _Grid] = {}
        self.results: list[ir.Value] = []
        self.result_grids: list[_Grid] = []

    @property
    def step(self) -> float | None:
        """The step of the grid of the first result; None where it is on none."""
        return float(self.result_grids[0].steps) if self.case.output not in _OUTPUTS else None

    def write(self) -> None:
        """Write the operator, with the grids of its operands and results."""
        template = self.case.template
        operands = [self._operand(index, operand) for index, operand in enumerate(template.operands)]
        while operands and operands[-1] is None:
            operands.pop()
        if not template.op:
            self.results = [self._regridded(operands[0])]
            return
        attributes = ir.convenience.convert_attributes(dict(template.attributes))
        name = f"{self.prefix}{PROBED}"
        node = ir.Node(template.domain, template.op, operands, attributes, num_outputs=template.outputs, name=name)
        self.nodes.append(node)
        self.results = [self._output(index, value) for index, value in enumerate(node.outputs)]

    def _operand(self, index: int, operand: CaseOperand) -> ir.Value | None:
        text = self.case.slots[index]
        if text == ABSENT:
            return None
        if operand.role in LITERALS:
            values = np.asarray(operand.values, self._type_of_literal(operand.role)).reshape(operand.shape)
            return self._constant(f"literal{index}", values)
        if operand.role in _INTEGER_INPUTS:
            return self._input(index, operand, _INTEGER_INPUTS[operand.role])
        slot = _slot(text)
        if slot.constant:
            return self._weight(index, operand, slot)
        if index == self.case.template.follows and self.before is not None:
            if self.before.result_grids:
                self.grids[index] = self.before.result_grids[0]
            return self.before.results[0]
        value = self._input(index, operand, ir.DataType.FLOAT16 if text == HALF else ir.DataType.FLOAT)
        if text in ("float", HALF):
            return value
        # Inputs with grids apart: each range is a little wider than the one before.
        widening = 1 + 0.3 * index if self.case.grid == "apart" else 1.0
        self.grids[index] = self._grid(f"input{index}", slot, operand.low * widening, operand.high * widening)
        return self._pair(value, self.grids[index])

    def _type_of_literal(self, role: str) -> type[np.generic]:
        return np.int64 if role == "ints" else _floats(HALF if role == "numbers" and HALF in self.case.slots else "")

    def _input(self, index: int, operand: CaseOperand, dtype: ir.DataType) -> ir.Value:
        value = ir.Value(name=f"{self.prefix}input{index}", type=ir.TensorType(dtype), shape=ir.Shape(operand.shape))
        self.inputs.append(value)
        return value

    def _output(self, index: int, value: ir.Value) -> ir.Value:
        """The graph output behind an output of the operator."""
        kind = "index" if index and self.case.template.indices else self.case.output
        value.name, value.dtype = f"{self.prefix}result{index}", _OUTPUTS.get(kind, ir.DataType.FLOAT)
        if kind not in _OUTPUTS:
            grid = self._output_grid(index, Slot.parse(kind))
            self.result_grids.append(grid)
            value = self._pair(value, grid)
            value.dtype = ir.DataType.FLOAT
        return value

    def _regridded(self, value: ir.Value | None) -> ir.Value:
        """A value on another grid, right behind the one that it is on."""
        assert value is not None, "what is put on a grid is there"
        if self.case.output in _OUTPUTS:
            return value
        self.result_grids.append(self._output_grid(0, Slot.parse(self.case.output)))
        result = self._pair(value, self.result_grids[0])
        result.dtype = ir.DataType.FLOAT
        return result

    def _output_grid(self, index: int, slot: Slot) -> _Grid:
        low, high = self.case.template.own
        if self.case.grid == "same":
            return self.grids[self.case.template.out_of]
        if self.case.grid == "shifted":
            low -= (high - low) / 4
        if self.case.grid == "narrow":
            low, high = low / 2, high / 2
        return self._grid(f"result{index}", slot, low, high)

    def _grid(self, name: str, slot: Slot, low: float, high: float) -> _Grid:
        """A grid for a whole tensor that covers [low, high] and zero."""
        dtype = slot.types[0]
        least, most = bounds(dtype)
        low, high = min(low, 0.0), max(high, 0.0)
        if slot.symmetric:
            step, zero = max(-low, high) / (most - middle(dtype)), middle(dtype)
        else:
            step = (high - low) / (most - least)
            zero = int(np.clip(round(least - low / step), least, most))
        return self._parameters(name, dtype, np.asarray(step), np.asarray(zero))

    def _parameters(self, name: str, dtype: str, steps: np.ndarray, zeros: np.ndarray) -> _Grid:
        scale = self._constant(f"{name}_scale", steps.astype(np.float32))
        return _Grid(scale, self._constant(f"{name}_zero_point", _integers(zeros, dtype)), steps)

    def _constant(self, name: str, array: np.ndarray | ir.Tensor[np.ndarray]) -> ir.Value:
        name = f"{self.prefix}{name}"
        # What tells the kinds of tensors apart takes longer than all else that a question is made of.
        tensor = array if isinstance(array, ir.Tensor) else ir.Tensor(np.asarray(array), name=name)
        shape = ir.Shape(tensor.shape.numpy())
        value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=shape)
        self.constants.append(value)
        return value

    def _pair(self, value: ir.Value, grid: _Grid) -> ir.Value:
        quantized = self._node("QuantizeLinear", value, grid.scale, grid.zero_point)
        return self._node("DequantizeLinear", quantized, grid.scale, grid.zero_point)

    def _node(self, op: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        number = len(self.nodes)
        converted = ir.convenience.convert_attributes(attributes)
        node = ir.Node("", op, list(inputs), converted, name=f"{self.prefix}{op}{number}")
        node.outputs[0].name = f"{self.prefix}{op}{number}_output"
        self.nodes.append(node)
        return node.outputs[0]

    def _weight(self, index: int, operand: CaseOperand, slot: Slot) -> ir.Value:
        dtype, name = slot.types[0], f"constant{index}"
        if dtype == "float":
            values = self.random.uniform(operand.low, operand.high, operand.shape)
            return self._constant(name, values.astype(_floats(self.case.slots[index])))
        if dtype == "int32":
            return self._bias(index, operand)
        if slot.granularity == "block":
            return self._blocks(name, operand, dtype, plain=PLAIN in self.case.slots[index].split())
        per_channel = slot.granularity == "channel"
        self.grids[index] = grid = self._constant_grid(name, operand, slot, per_channel)
        values = self.random.uniform(operand.low, operand.high, operand.shape) * operand.fill
        shape = [-1 if per_channel and i == self.case.template.axis else 1 for i in range(len(operand.shape))]
        zeros = middle(dtype) if slot.symmetric else middle(dtype) + 1
        integers = to_levels(values, grid.steps.reshape(shape), zeros, dtype)
        stored = self._constant(name, _integers(integers, dtype))
        axis = {"axis": self.case.template.axis} if per_channel else {}
        return self._node("DequantizeLinear", stored, grid.scale, grid.zero_point, **axis)

    def _constant_grid(self, name: str, operand: CaseOperand, slot: Slot, per_channel: bool) -> _Grid:
        dtype = slot.types[0]
        step = max(-operand.low, operand.high) / (bounds(dtype)[1] - middle(dtype))
        zero = middle(dtype) if slot.symmetric else middle(dtype) + 1
        if not per_channel:
            return self._parameters(name, dtype, np.asarray(step), np.asarray(zero))
        channels = operand.shape[self.case.template.axis]
        return self._parameters(name, dtype, step * np.linspace(0.5, 1, channels), np.full(channels, zero))

    def _bias(self, index: int, operand: CaseOperand) -> ir.Value:
        """A constant whose scale is that of the input times that of the weight."""
        steps = [self.grids[i].steps if i in self.grids else np.asarray(1.0) for i in (0, 1)]
        scale = steps[0] * steps[1]
        grid = self._parameters(f"constant{index}", "int32", scale, np.zeros(scale.shape))
        integers = to_levels(self.random.uniform(-0.5, 0.5, operand.shape), scale, 0, "int32")
        stored = self._constant(f"constant{index}", _integers(integers, "int32"))
        axis = {"axis": 0} if scale.ndim else {}
        return self._node("DequantizeLinear", stored, grid.scale, grid.zero_point, **axis)

    def _blocks(self, name: str, operand: CaseOperand, dtype: str, *, plain: bool) -> ir.Value:
        """A weight with a scale for each block of it: a float, or an integer times a scale of its channel (LPBQ)."""
        channel, block = self.case.template.axis, block_axis(self.case.template)
        sizes = [size // BLOCK if i == block else size for i, size in enumerate(operand.shape)]
        outer = np.linspace(0.5, 1, operand.shape[channel]) / bounds(dtype)[1] / 16
        grid = self._parameters(f"{name}_blocks", "uint8", outer, np.zeros(outer.shape))
        self.grids[1] = _Grid(grid.scale, grid.zero_point, outer)
        multiples = self.random.integers(1, 17, sizes)
        if plain:
            steps = outer.reshape([-1 if i == channel else 1 for i in range(len(sizes))])
            scales = self._constant(f"{name}_scales", (multiples * steps).astype(np.float32))
        else:
            stored = self._constant(f"{name}_block_scales", multiples.astype(np.uint8))
            scales = self._node("DequantizeLinear", stored, grid.scale, grid.zero_point, axis=channel)
        least, most = bounds(dtype)
        weight = self._constant(name, _integers(self.random.integers(least + 1, most + 1, operand.shape), dtype))
        zeros = self._constant(f"{name}_zero_point", _integers(np.zeros(sizes), dtype))
        return self._node("DequantizeLinear", weight, scales, zeros, axis=block, block_size=BLOCK)


def _slot(text: str) -> Slot:
    """A slot of a case; to a table, a half is a float, and what the scales of blocks are made of is another matter."""
    return Slot.parse(text.replace(HALF, "float").replace(f" {PLAIN}", ""))


def _floats(slot: str) -> type[np.float16 | np.float32]:
    return np.float16 if slot.split()[:1] == [HALF] else np.float32


def _integers(values: np.ndarray, dtype: str) -> ir.Tensor[np.ndarray]:
    kind = ir.DataType[dtype.upper()]
    return ir.Tensor(np.asarray(values).astype(kind.numpy()), dtype=kind)
