"""Requirements that types cannot say. A predicate's docstring is the rule; it returns the offending fact, or None.

A table asks for one with `require = [{ check = "attribute_among", attribute = "mode", values = ["linear"] }]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from intact.errors import SettingsError
from intact.model import query, windows
from intact.numbers.integer_types import limits as bounds
from intact.targets.operands import NodeOperand, use_of
from intact.targets.spec import Requirement

Predicate = Callable[..., str | None]

PREDICATES: dict[str, Predicate] = {}
# Keys of a rule that are no arguments of its predicate; `remedy` is another form that a device computes rightly.
NOT_ARGUMENTS = ("check", "source", "fix", "remedy")


def predicate(function: Predicate) -> Predicate:
    """Make a function known to tables under its name."""
    PREDICATES[function.__name__] = function
    return function


def check(node: ir.Node, rule: Requirement) -> tuple[str, str] | None:
    """Return the requirement and the finding where `node` does not meet `rule`; None where it does."""
    function, arguments = find(rule)
    found = function(node, **arguments)
    return None if found is None else (requirement(rule), found)


def meets(node: ir.Node, rules: Iterable[Requirement]) -> bool:
    """True if `node` meets every rule."""
    return all(check(node, rule) is None for rule in rules)


def requirement(rule: Requirement) -> str:
    """A rule of a table as a sentence."""
    function, arguments = find(rule)
    assert function.__doc__, f"the predicate {function.__name__} says no rule"
    words = {name: _listed(value) for name, value in arguments.items()}
    return function.__doc__.splitlines()[0].format(**words)


def find(rule: Requirement) -> tuple[Predicate, dict[str, object]]:
    """The predicate that a rule names, and its arguments."""
    name = str(rule.get("check", ""))
    if name not in PREDICATES:
        raise SettingsError("S190", f"unknown check {name!r}", allowed=", ".join(sorted(PREDICATES)))
    return PREDICATES[name], {key: value for key, value in rule.items() if key not in NOT_ARGUMENTS}


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


_MOVING = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "QuantizeLinear", "DequantizeLinear")


@predicate
def attribute_among(node: ir.Node, *, attribute: str, values: list[object], default: object = None) -> str | None:
    """The attribute {attribute} is one of: {values}."""
    present = node.attributes.get(attribute)
    value = default if present is None else present.value
    value = value.decode() if isinstance(value, bytes) else value
    return None if value in values else f"{attribute} is {value}"


@predicate
def every_int(node: ir.Node, *, attribute: str, value: int) -> str | None:
    """Every number of the attribute {attribute} is {value}."""
    numbers = query.ints(node, attribute)
    return None if all(number == value for number in numbers) else f"{attribute} is {list(numbers)}"


# Where operators on integers have their operands; scales and zero points stand between them.
_OPERANDS: Mapping[str, Sequence[int]] = {"QLinearConv": (0, 3, 8), "QLinearMatMul": (0, 3)}


def _operand(node: ir.Node, index: int) -> ir.Value | None:
    """An input as it is counted where the operator stands between Q/DQ nodes."""
    places = _OPERANDS.get(node.op_type)
    if places is None:
        return query.input_(node, index)
    return query.input_(node, places[index]) if index < len(places) else None


def _rank(node: ir.Node, index: int) -> int | None:
    """The rank of an input, which conversions before it do not change."""
    value = _operand(node, index)
    while value is not None and query.rank(value) is None:
        producer = value.producer()
        is_converted = producer is not None and producer.op_type in ("QuantizeLinear", "DequantizeLinear")
        value = producer.inputs[0] if producer is not None and is_converted else None
    return query.rank(value)


@predicate
def rank_is(node: ir.Node, *, index: int, rank: int) -> str | None:
    """Input {index} has {rank} dimensions."""
    found = _rank(node, index)
    return None if found is None or found == rank else f"input {index} has {found} dimensions"


@predicate
def rank_at_most(node: ir.Node, *, index: int, rank: int) -> str | None:
    """Input {index} has at most {rank} dimensions."""
    found = _rank(node, index)
    return None if found is None or found <= rank else f"input {index} has {found} dimensions"


def _constant_behind(node: ir.Node, index: int) -> ir.TensorProtocol | None:
    """The tensor of a constant input, quantized or not."""
    value = _operand(node, index)
    producer = value.producer() if value is not None else None
    if producer is not None and producer.op_type == "DequantizeLinear":
        return query.constant_tensor(producer.inputs[0])
    return query.constant_tensor(value)


@predicate
def computed_input(node: ir.Node, *, index: int) -> str | None:
    """Input {index} is not a constant."""
    return None if _constant_behind(node, index) is None else f"input {index} is a constant"


def _blocked(node: ir.Node, index: int) -> ir.Node | None:
    """The node that dequantizes an input in blocks, or None if it has none."""
    value = query.input_(node, index)
    weight = value.producer() if value is not None else None
    is_blocked = weight is not None and weight.op_type == "DequantizeLinear" and query.int_(weight, "block_size", 0)
    return weight if is_blocked else None


@predicate
def blocks_as_fused(node: ir.Node, *, index: int) -> str | None:
    """The scales of blocks of input {index} are uint8 times one scale per channel, and zero points are given."""
    weight = _blocked(node, index)
    if weight is None:
        return None
    scale = query.input_(weight, 1)
    inner = scale.producer() if scale is not None else None
    stored = inner.inputs[0] if inner is not None and inner.op_type == "DequantizeLinear" else None
    if not query.is_constant(stored) or stored is None or stored.dtype != ir.DataType.UINT8:
        return "its scales are not made of uint8 constants"
    return None if query.input_(weight, 2) is not None else "it has no zero points"


@predicate
def blocks_of_floats(node: ir.Node, *, index: int) -> str | None:
    """Blocks of input {index} have a constant float each for a scale."""
    weight = _blocked(node, index)
    if weight is None:
        return f"input {index} has no blocks"
    return None if query.constant(query.input_(weight, 1)) is not None else "its scales are computed"


@predicate
def one_element(node: ir.Node, *, index: int) -> str | None:
    """Input {index} is a constant of one element."""
    tensor = _constant_behind(node, index)
    if tensor is None:
        return f"input {index} is computed"
    return None if tensor.size == 1 else f"input {index} has {tensor.size} elements"


@predicate
def numbers_among(node: ir.Node, *, index: int, values: list[float]) -> str | None:
    """Every number of the constant input {index} is one of: {values}."""
    tensor = query.constant_tensor(_operand(node, index))
    if tensor is None:
        return f"input {index} is computed"
    other = next((number for number in tensor.numpy().ravel().tolist() if number not in values), None)
    return None if other is None else f"input {index} has {other:g}"


@predicate
def not_depthwise(node: ir.Node) -> str | None:
    """The convolution sums over more than one channel."""
    group, weight = query.int_(node, "group", 1), _constant_behind(node, 1)
    alone = group > 1 and weight is not None and weight.shape[1] == 1
    return f"each of {group} channels has a filter of its own" if alone else None


@predicate
def not_grouped(node: ir.Node) -> str | None:
    """The convolution has one group, or one for each channel."""
    weight, groups = _constant_behind(node, 1), node.attributes.get_int("group", 1)
    if weight is None or groups == 1 or weight.shape[1] == 1:
        return None
    return f"it has {groups} groups of {weight.shape[1]} channels"


@predicate
def within_gelu(node: ir.Node) -> str | None:
    """It is part of a Gelu: a number is added to its result, and the sum is multiplied."""
    added = query.only_consumer(node.outputs[0])
    behind = None if added is None or added.op_type != "Add" else query.only_consumer(added.outputs[0])
    return None if behind is not None and behind.op_type == "Mul" else "it stands alone"


@predicate
def amid_computation(node: ir.Node) -> str | None:
    """The model computes something both before and behind it."""
    before = [value for value in node.inputs[:1] if value is not None]
    while before:
        value = before.pop()
        source = value.producer()
        if source is None:
            return "it only moves an input of the model"
        before += source.inputs[:1] if source.op_type in _MOVING else []  # type: ignore[arg-type]
    behind = list(node.outputs)
    while behind:
        value = behind.pop()
        if value.is_graph_output():
            return "it only moves an output of the model"
        behind += [one for user in value.consumers() if user.op_type in _MOVING for one in user.outputs]
    return None


@predicate
def several_filters(node: ir.Node) -> str | None:
    """The convolution has more than one filter."""
    weight = _constant_behind(node, 1)
    return "it has one filter" if weight is not None and weight.shape[0] == 1 else None


@predicate
def padding_is_given(node: ir.Node) -> str | None:
    """The number to pad with is an input, or no number is needed."""
    needed = query.string(node, "mode", "constant") == "constant"
    return "it pads with the default number" if needed and query.input_(node, 2) is None else None


@predicate
def windows_end_inside(node: ir.Node) -> str | None:
    """No window reaches beyond the padding, which ceil_mode allows."""
    return "its last window reaches beyond the padding" if windows.may_stick_out(node) else None


@predicate
def single_precision(node: ir.Node, *, index: int) -> str | None:
    """Input {index} is not in half precision."""
    value = query.input_(node, index)
    half = value is not None and value.dtype == ir.DataType.FLOAT16
    return f"input {index} is in half precision" if half else None


@predicate
def fixed_shapes(node: ir.Node) -> str | None:
    """Every dimension is known beforehand."""
    free = [v.name for v in (*node.inputs, *node.outputs) if v is not None and v.shape and not v.shape.is_static()]
    return f"dimensions of {free[0]} are not known before the model runs" if free else None


@predicate
def dimensions_at_most(node: ir.Node, *, dimensions: int, alone: list[str]) -> str | None:
    """No value has more than {dimensions} dimensions; of {alone} a first one of size 1 does not count."""
    for value in (*node.inputs, *node.outputs):
        shape = () if value is None or value.shape is None else value.shape.dims
        counted = shape[1:] if node.op_type in alone and shape[:1] == (1,) else shape
        if value is not None and len(counted) > dimensions:
            return f"{value.name} has {len(shape)} dimensions"
    return None


@predicate
def input_scale_at_least(node: ir.Node, *, index: int, scale: float, types: list[str]) -> str | None:
    """The scale of a {types} input {index} is at least {scale}."""
    inputs = use_of(node, frozenset()).inputs
    found = inputs[index] if index < len(inputs) else None
    if found is None or found.type not in types or found.scale is None:
        return None
    least = float(found.scale.min())
    # The scale of a widened grid is a quotient in float32: a few units in its last place are no difference.
    return f"the scale of {found.name} is {least:.3g}" if least < scale * (1 - 1e-6) else None


@predicate
def output_grid_holds(node: ir.Node, *, low: float, high: float, types: list[str]) -> str | None:
    """The grid of a {types} output holds every value from {low} to {high}."""
    for output in use_of(node, frozenset()).outputs:
        if output.type not in types or output.scale is None or output.zero_point is None:
            continue
        scale, zero_point = float(output.scale.reshape(-1)[0]), int(output.zero_point.reshape(-1)[0])
        ends = [(edge - zero_point) * scale for edge in bounds(output.type)]
        # Tools write a range up to 1 in 255 steps or in 256: the last value may be one step short of it.
        if ends[0] > low + 1.01 * scale or ends[1] < high - 1.01 * scale:
            return f"the grid of {output.name} goes from {ends[0]:g} to {ends[1]:g}"
    return None


@predicate
def inputs_fine_enough(node: ir.Node, *, times: float, types: list[str]) -> str | None:
    """No {types} input has steps more than {times} times those of the output, or without one of the finest input."""
    use = use_of(node, frozenset())
    inputs = [operand for operand in use.inputs if operand is not None and operand.type in types]
    inputs = [operand for operand in inputs if operand.scale is not None and operand.scale.size == 1]
    finest = min((_step(operand) for operand in (use.outputs if use.outputs[0].on_grid else inputs)), default=0.0)
    coarse = next((operand for operand in inputs if _step(operand) > times * finest * (1 + 1e-6)), None)
    return None if coarse is None else f"the scale of {coarse.name} is {_step(coarse):.3g}, beside {finest:.3g}"


def _step(operand: NodeOperand) -> float:
    assert operand.scale is not None, "what is on a grid has a scale"
    return float(operand.scale.reshape(-1)[0])


@predicate
def numbers_alike(node: ir.Node, *, attribute: str, places: list[int], rank: int) -> str | None:
    """The numbers {places} of the attribute {attribute} are the same, where input 0 has {rank} dimensions."""
    numbers = query.ints(node, attribute)
    if _rank(node, 0) != rank or len(numbers) <= max(places):
        return None
    return None if len({numbers[place] for place in places}) == 1 else f"{attribute} is {list(numbers)}"


@predicate
def pads_beside_several(node: ir.Node) -> str | None:
    """Along an axis with pads that do not count there is more than one number."""
    shape = None if node.inputs[0] is None else query.static_shape(node.inputs[0])
    pads = query.ints(node, "pads")
    if shape is None or not any(pads) or query.int_(node, "count_include_pad", 0):
        return None
    axes = [i for i, size in enumerate(shape[2:]) if size == 1 and (pads[i] or pads[i + len(shape) - 2])]
    return f"there is one number along axis {axes[0] + 2}, and pads are {list(pads)}" if axes else None


@predicate
def counted_pads_beside_several(node: ir.Node, *, least: int) -> str | None:
    """Along an axis with pads that count and strides beyond 1 there are at least {least} numbers."""
    shape = None if node.inputs[0] is None else query.static_shape(node.inputs[0])
    pads, strides = query.ints(node, "pads"), query.ints(node, "strides")
    if shape is None or not any(pads) or not strides or not query.int_(node, "count_include_pad", 0):
        return None
    spatial = len(shape) - 2
    few = [i for i, size in enumerate(shape[2:]) if size < least and strides[i] > 1 and (pads[i] or pads[i + spatial])]
    return f"axis {few[0] + 2} has a size of {shape[few[0] + 2]}, and pads are {list(pads)}" if few else None


@predicate
def rows_not_of(node: ir.Node, *, lengths: list[int], indices: int, types: list[str]) -> str | None:
    """A {types} table of which {indices} rows or more are read has no rows of {lengths} numbers."""
    table, read = _constant_behind(node, 0), node.inputs[1]
    found = use_of(node, frozenset()).inputs[0]
    count = None if read is None else query.static_shape(read)
    if table is None or count is None or found is None or found.type not in types or len(table.shape) != 2:
        return None
    height, width = table.shape.numpy()
    wrong = width in lengths and height > 1 and math.prod(count) >= indices
    return f"{math.prod(count)} of {height} rows of {width} are read" if wrong else None


@predicate
def no_single_rest(node: ir.Node, *, multiple: int, types: list[str]) -> str | None:
    """The numbers of a {types} input along its axis are not one more than a multiple of {multiple}."""
    found, value = use_of(node, frozenset()).inputs[0], node.inputs[0]
    shape = None if value is None else query.static_shape(value)
    if shape is None or found is None or found.type not in types:
        return None
    axis = query.int_(node, "axis", -1)
    size = shape[axis] if -len(shape) <= axis < len(shape) else 0
    return f"axis {axis} has {size} numbers" if size > 1 and size % multiple == 1 else None


@predicate
def last_reduced_has_several(node: ir.Node, *, axes: int, types: list[str]) -> str | None:
    """The last axis that a {types} input is reduced along has more than one number, where there are {axes} or more."""
    found, value = use_of(node, frozenset()).inputs[0], node.inputs[0]
    shape = None if value is None else query.static_shape(value)
    given = query.constant(query.input_(node, 1))
    listed = query.ints(node, "axes") if given is None else [int(axis) for axis in given.ravel()]
    if shape is None or found is None or found.type not in types:
        return None
    reduced = sorted(axis % len(shape) for axis in listed) or list(range(len(shape)))
    alone = len(reduced) >= axes and shape[reduced[-1]] == 1
    return f"axis {reduced[-1]} of those that are reduced has one number" if alone else None


@predicate
def no_counted_pads(node: ir.Node, *, rank: int) -> str | None:
    """No pad counts, where input 0 has {rank} dimensions."""
    pads = query.ints(node, "pads")
    counted = any(pads) and query.int_(node, "count_include_pad", 0) and _rank(node, 0) == rank
    return f"pads that count are {list(pads)}" if counted else None


@predicate
def padded_windows_reach_end(node: ir.Node, *, rank: int) -> str | None:
    """Windows that begin in padding reach the last number, where input 0 has {rank} dimensions."""
    shape = None if node.inputs[0] is None else query.static_shape(node.inputs[0])
    pads, kernel, strides = (query.ints(node, name) for name in ("pads", "kernel_shape", "strides"))
    if shape is None or len(shape) != rank or not any(pads) or not strides:
        return None
    for i, size in enumerate(shape[2:]):
        begin, end = pads[i], pads[i + rank - 2]
        rest = (size + begin + end - kernel[i]) % strides[i]
        if begin and rest > end:
            return f"the last of the {size} numbers along axis {i + 2} is in no window, and pads are {list(pads)}"
    return None
