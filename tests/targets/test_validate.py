"""Every kind of requirement: met at its limit, named past it, in strict and in lenient mode."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.errors import TargetError
from intact.model import normalize
from intact.targets.registry import load_target
from intact.targets.validate import Violations, left_to_cpu, validate
from tests.backends.probing.cases import model
from tests.linting.wrong import pool
from tests.rules.quantized.cases.zero_points import convolution

CONV = "Conv (uint8, int8 constant channel symmetric, int32 constant) -> uint8"
PRODUCT = "MatMul: both dynamic (uint16, int16 symmetric) -> uint16"
FOUR_BITS = "Conv (uint8, int4 constant channel symmetric, int32 constant) -> uint8"

BLOCKS = "MatMul (uint16, int4 constant block symmetric) -> uint16"
PLAIN_BLOCKS = BLOCKS.replace("constant block", "constant plain block")

# Code, the case at the limit with its architecture, the case past it.
LIMITS = [
    ("T101", ("Tanh (uint8) -> uint8", 73), ("Erf (uint8) -> uint8", 73)),
    ("T102", (CONV, 68), ("Conv (int8, uint8 constant, int32 constant) -> int8", 81)),
    ("T102", ("Conv (uint8, int8 constant channel symmetric, -) -> uint8", 68), (CONV.replace("int32", "float"), 68)),
    ("T103", (PRODUCT, 73), (PRODUCT, 69)),
    ("T103", ("Gather (float, ints) -> float", 69), ("Gather (float, ints) -> float", 68)),
    ("T104", (CONV, 68), ("Conv (uint8, int8 constant channel, int32 constant) -> uint8", 68)),
    ("T104", (PRODUCT, 73), ("MatMul: both dynamic (uint16, int16) -> uint16", 73)),
    ("T105", (FOUR_BITS, 68), (FOUR_BITS.replace("channel ", ""), 68)),
    ("T107", ("Softmax (uint8) -> uint8", 73), ("Softmax (uint8) -> uint8, shifted grid", 73)),
    ("T107", ("Softmax (uint8) -> uint8", 73), ("Softmax (uint8) -> uint8, narrow grid", 73)),
    ("T107", ("Softmax (int8) -> int8", 73), ("Softmax (int8) -> int8, narrow grid", 73)),
    ("T109", ("HardSigmoid (uint8) -> uint8, shifted grid", 73), ("HardSigmoid (uint8) -> uint8, narrow grid", 73)),
    ("T109", ("Sigmoid (uint16) -> uint16, shifted grid", 73), ("Sigmoid (uint16) -> uint16, narrow grid", 73)),
    ("T109", ("Sigmoid (int16) -> int16", 73), ("Sigmoid (int16) -> int16, narrow grid", 73)),
    ("T109", ("Tanh (int16) -> int16", 73), ("Tanh (int16) -> int16, narrow grid", 73)),
    ("T108", ("Reshape (uint8, ints) -> uint8, same grid", 73), ("Reshape (uint8, ints) -> uint8", 73)),
    (
        "T109",
        ("Conv: 1-D (uint16, int4 constant channel symmetric, int32 constant) -> uint16", 73),
        ("Conv: 3-D (uint16, int4 constant channel symmetric, int32 constant) -> uint16", 73),
    ),
    ("T114", (BLOCKS, 68), (BLOCKS.replace("MatMul", "MatMul: by 3-D constant"), 73)),
    ("T114", (BLOCKS, 73), (BLOCKS.replace("uint16", "uint8").replace("constant block", "constant plain block"), 73)),
    ("T103", (PLAIN_BLOCKS, 69), (PLAIN_BLOCKS, 68)),
    ("T111", ("Cast: of indices (index) -> float", 73), ("Transpose: of indices (index) -> index", 73)),
]


def violations(name, arch):
    return validate(model(name)[0], load_target("qnn", arch=arch), strict=False)


@pytest.mark.parametrize(("weight", "filters", "codes"), [("int4", 2, []), ("int4", 1, ["T109"]), ("int8", 1, [])])
def test_a_convolution_of_int4_has_more_than_one_filter(weight, filters, codes):
    grid = f"{weight}[{filters},4,1,1] w = {{{', '.join(['1'] * 4 * filters)}}}"
    steps, zeros = ", ".join(["0.1"] * filters), ", ".join(["0"] * filters)
    text = f"""<ir_version: 10, opset_import: ["": 21]> agraph (float[1,4,3,3] x) => (float[1,{filters},3,3] y)
    <float s = {{0.01}}, uint16 z = {{0}}, {grid}, float[{filters}] k = {{{steps}}},
     {weight}[{filters}] m = {{{zeros}}}> {{
        a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) v = DequantizeLinear<axis = 0>(w, k, m)
        c = Conv(b, v) d = QuantizeLinear(c, s, z) y = DequantizeLinear(d, s, z)
    }}"""
    given = ir.from_onnx_text(text)
    normalize.name_nodes(given)
    assert [found.code for found in validate(given, load_target("qnn", arch=73), strict=False)] == codes


@pytest.mark.parametrize(("code", "limit", "past"), LIMITS)
def test_a_requirement_is_met_at_its_limit_and_violated_past_it(code, limit, past):
    assert violations(*limit) == ()
    found = violations(*past)
    assert {violation.code for violation in found} == {code}
    for violation in found:
        assert violation.node == "probed" and violation.source and violation.fix and violation.found


@pytest.mark.parametrize(("code", "limit", "past"), LIMITS)
def test_strict_raises_what_lenient_returns(code, limit, past):
    target = load_target("qnn", arch=past[1])
    with pytest.raises(Violations) as caught:
        validate(model(past[0])[0], target)
    assert caught.value.violations == violations(*past)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, TargetError)
    assert caught.value.status == 4 and code in str(caught.value)
    assert validate(model(limit[0])[0], load_target("qnn", arch=limit[1])) == ()


def with_scale(name, scale):
    """The model of a case, whose output has another scale."""
    built, node = model(name)
    for conversion in (node.outputs[0].consumers()[0], node.outputs[0].consumers()[0].outputs[0].consumers()[0]):
        conversion.inputs[1].const_value = ir.tensor(np.array(scale, np.float32), name=conversion.inputs[1].name)
    return built


@pytest.mark.parametrize(
    ("name", "codes"), [("Softmax (uint8) -> uint8", {"T107"}), ("Sigmoid (uint8) -> uint8", set())]
)
@pytest.mark.parametrize("steps", [253, 254.9, 257.1, 300])
def test_a_softmax_has_the_range_that_the_device_computes_it_in(name, codes, steps):
    found = validate(with_scale(name, 1 / steps), load_target("qnn"), strict=False)
    assert {violation.code for violation in found} == codes
    assert all("scale 0.00390625 and zero point 0" in violation.requirement for violation in found)


@pytest.mark.parametrize("steps", [255, 256])
@pytest.mark.parametrize("name", ["Softmax (uint8) -> uint8", "HardSigmoid (uint8) -> uint8"])
def test_a_range_up_to_one_may_be_written_in_255_steps_or_in_256(name, steps):
    assert validate(with_scale(name, 1 / steps), load_target("qnn"), strict=False) == ()


@pytest.mark.parametrize(("steps", "codes"), [(65536, set()), (65537, {"T109"}), (32768, set())])
def test_a_sigmoid_of_16_bits_ends_no_more_than_a_step_before_one(steps, codes):
    found = validate(with_scale("Sigmoid (uint16) -> uint16", 1 / steps), load_target("qnn"), strict=False)
    assert {violation.code for violation in found} == codes


def test_sixteen_by_sixteen_bits_on_v68_names_v73():
    (violation,) = violations(PRODUCT, 68)
    assert "v73" in violation.requirement and "v73" in violation.fix


def test_scales_along_another_axis_are_a_violation():
    built, node = model(CONV)
    weight = node.inputs[1].producer()
    weight.attributes["axis"] = ir.AttrInt64("axis", 1)
    (violation,) = validate(built, load_target("qnn"), strict=False)
    assert violation.code == "T105" and "axis 1" in violation.found


def test_a_weight_that_is_computed_is_a_violation():
    built, node = model("LayerNormalization (uint8, uint8 constant, int32 constant) -> uint8")
    node.replace_input_with(1, node.inputs[0])
    assert [violation.code for violation in validate(built, load_target("qnn"), strict=False)] == ["T106"]


COMPUTED = """
<ir_version: 10, opset_import: ["" : 21]>
g (uint8[2,2] a, uint8[2,2] b, float s) => (uint8[2,2] y) <float t = {0.5}, uint8 z = {1}>
{ p = DequantizeLinear(a, s, z)  q = DequantizeLinear(b, t, z)  m = MatMul(p, q)  y = QuantizeLinear(m, t, z) }
"""


def test_a_scale_that_is_an_input_is_said_to_be_one_and_no_block():
    built = normalize.normalize(ir.from_proto(onnx.parser.parse_model(COMPUTED)))
    (violation,) = validate(built, load_target("qnn"), strict=False)
    assert violation.code == "T106" and violation.found == "input 0 (a): its scale is computed or an input"
    assert violation.requirement.endswith("scales are constants") and "make it a constant" in violation.fix


@pytest.mark.parametrize(("size", "codes"), [(1, []), ("batch", ["T109"])])
def test_a_free_dimension_is_a_violation_of_whatever_operator(size, codes):
    built, node = model("Relu (uint8) -> uint8")
    node.inputs[0].shape = ir.Shape([size, 8, 4, 4])
    found = validate(built, load_target("qnn"), strict=False)
    assert [violation.code for violation in found] == codes and all("--dim" in violation.fix for violation in found)
    assert all("not known before the model runs" in violation.found for violation in found)


def test_blocks_without_zero_points_are_a_violation_that_says_what_they_lack():
    built, node = model(BLOCKS)
    node.inputs[1].producer().resize_inputs(2)
    (violation,) = validate(built, load_target("qnn"), strict=False)
    assert violation.code == "T114" and violation.found == "it has no zero points"
    assert "uint8 times one scale per channel" in violation.requirement and "--block-size" in violation.fix


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize(("bits", "codes"), [(8, set()), (16, {"T102"})])
def test_openvino_takes_no_grids_of_16_bits_in_any_domain(domain, bits, codes):
    built, _ = model(CONV.replace("uint8", f"uint{bits}"))
    for node in built.graph:
        node.domain = domain if "Linear" in node.op_type else ""
    found = validate(built, load_target("openvino"), strict=False)
    assert {violation.code for violation in found} == codes


def test_every_violation_of_a_node_is_listed():
    built, node = model("Conv (uint8, int8 constant channel, int32 constant) -> uint8")
    node.inputs[1].producer().attributes["axis"] = ir.AttrInt64("axis", 1)
    found = validate(built, load_target("qnn"), strict=False)
    assert {violation.code for violation in found} == {"T104", "T105"}


def test_strict_raises_every_violation_of_every_node_at_once():
    built = two_products("i", "i")
    target = load_target("qnn", arch=68)
    found = validate(built, target, strict=False)
    assert [violation.node for violation in found] == ["m", "n"]
    with pytest.raises(Violations) as caught:
        validate(built, target)
    assert caught.value.violations == found
    assert "does not take 2 nodes" in str(caught.value)
    assert all(str(violation) in str(caught.value) for violation in found)


TWO_PRODUCTS = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[1,4,8] a, float[1,8,4] b, float[1,4,8] c, float[1,8,4] d) => (float[1,4,4] y, float[1,4,4] z)
<float s = {0.01}, int16 i = {0}, uint8 u = {7}>
{
  aq = QuantizeLinear(a, s, FIRST)  ad = DequantizeLinear(aq, s, FIRST)
  bq = QuantizeLinear(b, s, FIRST)  bd = DequantizeLinear(bq, s, FIRST)
  m = MatMul(ad, bd)
  mq = QuantizeLinear(m, s, FIRST)  y = DequantizeLinear(mq, s, FIRST)
  cq = QuantizeLinear(c, s, SECOND)  cd = DequantizeLinear(cq, s, SECOND)
  dq = QuantizeLinear(d, s, SECOND)  dd = DequantizeLinear(dq, s, SECOND)
  n = MatMul(cd, dd)
  nq = QuantizeLinear(n, s, SECOND)  z = DequantizeLinear(nq, s, SECOND)
}
"""


def two_products(first="i", second="u"):
    """An int16 product, which V68 does not take, beside a uint8 one, which it does; nodes are named by their output."""
    written = TWO_PRODUCTS.replace("FIRST", first).replace("SECOND", second)
    built = normalize.normalize(ir.from_proto(onnx.parser.parse_model(written)))
    for node in built.graph:
        node.name = node.outputs[0].name
    return built


@pytest.mark.parametrize(("arch", "nodes"), [(68, ["m"]), (73, [])])
def test_a_violation_names_its_node_and_no_other(arch, nodes):
    found = validate(two_products(), load_target("qnn", arch=arch), strict=False)
    assert [violation.node for violation in found] == nodes


@pytest.mark.parametrize(("zero_point", "grouped"), [(0, True), (40, False)])
def test_a_relu_belongs_to_its_producer_where_the_grid_does_its_work(zero_point, grouped):
    built, node = model("Conv (uint8, int8 constant channel symmetric, int32 constant) -> uint8")
    quantize = node.outputs[0].consumers()[0]
    relu = ir.Node("", "Relu", [node.outputs[0]], name="relu")
    relu.outputs[0].name, relu.outputs[0].dtype = "relu_output", ir.DataType.FLOAT
    built.graph.insert_after(node, relu)
    quantize.replace_input_with(0, relu.outputs[0])
    zero = quantize.inputs[2]
    zero.const_value = ir.tensor(np.array(zero_point, np.uint8), name=zero.name)
    found = validate(built, load_target("qnn"), strict=False)
    assert [violation.node for violation in found] == ([] if grouped else ["probed"])


def test_results_of_one_architecture_do_not_leak_into_another():
    built, _ = model(PRODUCT)
    codes = [bool(validate(built, load_target("qnn", arch=arch), strict=False)) for arch in (68, 73, 68, 81)]
    assert codes == [True, False, True, False]


QLINEAR = """
<ir_version: 10, opset_import: ["" : 21]>
g (uint8[1,8,4,4] x) => (uint8[1,8,4,4] y)
<float s = {0.1}, uint8 z = {3}> { y = QLinearConv(x, s, z, w, ws, wz, s, z) }
"""


@pytest.mark.parametrize(("point", "codes"), [(0, []), (1, ["T104"])])
def test_a_qlinear_operator_meets_the_rows_of_its_float_operator(point, codes):
    proto = onnx.parser.parse_model(QLINEAR)
    values = {
        "w": np.ones((8, 8, 1, 1), np.int8),
        "ws": np.linspace(0.1, 0.2, 8, dtype=np.float32),
        "wz": np.full(8, point, np.int8),
    }
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in values.items())
    found = validate(ir.from_proto(proto), load_target("qnn"), strict=False)
    assert [violation.code for violation in found] == codes


def test_what_rewriting_makes_for_the_cpu_is_a_kernel_of_the_cpu_and_of_no_npu():
    constants = {"scale": np.array(0.5, np.float32), "zero_point": np.array(3, np.uint8)}
    grid = [ir.Value(name=name, const_value=ir.tensor(value, name=name)) for name, value in constants.items()]
    x = ir.Value(name="x", shape=ir.Shape([4]), type=ir.TensorType(ir.DataType.UINT8))
    node = ir.Node("com.microsoft", "QLinearAdd", [x, *grid, x, *grid, *grid], name="sum")
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=grid, opset_imports={"": 21, "com.microsoft": 1})
    made = ir.Model(graph, ir_version=10)
    assert validate(made, load_target("cpu"), strict=False) == ()
    (violation,) = validate(made, load_target("qnn"), strict=False)
    assert violation.code == "T101" and violation.node == "sum"


@pytest.mark.parametrize(("size", "codes"), [(8, {"T109"}), (9, set())])
def test_a_pool_whose_last_window_reaches_beyond_the_padding_is_a_violation(size, codes):
    subject = normalize.normalize(pool(size))
    assert {item.code for item in validate(subject, load_target("qnn", arch=73), strict=False)} == codes


def test_what_a_check_requires_and_what_it_finds_are_told_apart():
    (violation,) = validate(normalize.normalize(pool(8)), load_target("qnn", arch=73), strict=False)
    assert violation.requirement == "No window reaches beyond the padding, which ceil_mode allows."
    assert violation.found == "its last window reaches beyond the padding"


@pytest.mark.parametrize(("op", "kernel"), [("QLinearConv",) * 2, ("ConvInteger",) * 2, ("Conv", "QLinearConv")])
def test_zero_points_that_differ_by_channel_are_the_one_violation_where_the_runtime_refuses_them(op, kernel):
    older = load_target("cpu", ort="1.26.0")
    several = _convolution(op, zeros=lambda found: np.arange(-3, found.size - 3).astype(found.dtype))
    (violation,) = validate(several, older, strict=False)
    assert violation.code == "T115" and violation.requirement.endswith(f"of the weight of a {kernel}")
    assert violation.found == "zero points of the weight differ by channel (-3, -2, -1, …)"
    alike = validate(_convolution(op, zeros=lambda found: np.full_like(found, 5)), older, strict=False)
    assert "T115" not in {violation.code for violation in alike}


def test_a_convolution_that_stays_in_float_may_have_a_zero_point_for_each_channel():
    found = validate(_convolution("Conv", to_grid=False), load_target("cpu", ort="1.26.0"), strict=False)
    assert "T115" not in {violation.code for violation in found}


def _convolution(op, **options):
    return convolution(np.random.default_rng(3), np.uint8, np.int8, "dense", 2, op, **options).model


JOINED = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[1,4] a, float[1,4] b, float[1,4] c) => (float[1,12] y)
<float s = {0.01}, float other = {0.02}, uint8 z = {100}>
{
  aq = QuantizeLinear(a, s, z)  ad = DequantizeLinear(aq, s, z)
  bq = QuantizeLinear(b, BETWEEN, z)  bd = DequantizeLinear(bq, BETWEEN, z)
  cq = QuantizeLinear(c, s, z)  cd = DequantizeLinear(cq, s, z)
  joined = Concat <axis = 1> (ad, bd, cd)
  yq = QuantizeLinear(joined, LAST, z)  y = DequantizeLinear(yq, LAST, z)
}
"""


@pytest.mark.parametrize(("between", "last", "apart"), [("s", "s", []), ("other", "s", ["bq"]), ("s", "other", ["yq"])])
def test_a_join_of_integers_has_one_grid_for_all_that_it_joins(between, last, apart):
    written = JOINED.replace("BETWEEN", between).replace("LAST", last)
    found = validate(ir.from_proto(onnx.parser.parse_model(written)), load_target("cpu"), strict=False)
    assert [(item.code, item.found.split()[0]) for item in found] == [("T108", name) for name in apart]
    assert all("scale 0.02, zero point 100" in item.found and "and aq (scale 0.01" in item.found for item in found)


PADDED = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[1,4] x) => (float[1,6] y)
<float s = {0.01}, float t = {0.5}, uint8 z = {100}, int64[4] pads = {0, 1, 0, 1}, uint8 v = {3}>
{
  xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)  vd = DequantizeLinear(v, t, z)
  padded = Pad(xd, pads, vd)
  yq = QuantizeLinear(padded, s, z)  y = DequantizeLinear(yq, s, z)
}
"""


def test_a_move_shares_the_grid_of_what_it_moves_and_of_nothing_else():
    assert validate(ir.from_proto(onnx.parser.parse_model(PADDED)), load_target("cpu"), strict=False) == ()


def test_nodes_with_violations_stay_on_the_cpu_with_their_reasons_and_the_others_do_not():
    built, target = two_products(), load_target("qnn", arch=68)
    found = validate(built, target, strict=False)
    (reason,) = [f"[{violation.code}] {violation.found}; {violation.requirement}" for violation in found]
    assert left_to_cpu(built, target, found) == {"m": reason}


def test_lenient_cannot_help_where_nothing_is_left_for_the_npu():
    built, target = two_products("i", "i"), load_target("qnn", arch=68)
    with pytest.raises(Violations, match="no compute node is left"):
        left_to_cpu(built, target, validate(built, target, strict=False))


def test_where_every_node_is_refused_for_free_dimensions_the_options_that_fix_them_are_named():
    built, node = model("Relu (uint8) -> uint8")
    node.inputs[0].shape = built.graph.inputs[0].shape = ir.Shape(["batch", 8, "height", 4])
    target = load_target("qnn")
    with pytest.raises(Violations, match="--dim batch=1 --dim height=SIZE"):
        left_to_cpu(built, target, validate(built, target, strict=False))


def test_a_model_without_compute_nodes_leaves_nothing_to_the_cpu():
    identity = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g (float[1] x) => (float[1] x) { }')
    assert left_to_cpu(ir.from_proto(identity), load_target("qnn"), ()) == {}


HALVES = """
<ir_version: 10, opset_import: ["" : 21]>
g (TYPE[1,4] x, TYPE[1,4] w) => (TYPE[1,4] y) { y = OP }
"""


@pytest.mark.parametrize(
    ("op", "dtype", "wanted"),
    [
        ("Asin(x)", "float16", "choose --precision w8a16 or uint8 in place of fp16"),
        ("Mean(x, w)", "float16", "choose --precision w8a16 or uint8 in place of fp16"),
        ("Asin(x)", "float", "quantize it, or give it a form"),
    ],
)
def test_the_fix_for_a_node_in_half_precision_is_another_precision(op, dtype, wanted):
    found = ir.from_onnx_text(HALVES.replace("TYPE", dtype).replace("OP", op))
    normalize.name_nodes(found)
    (violation,) = validate(found, load_target("qnn"), strict=False)
    assert wanted in violation.fix and "--no-strict" in violation.fix
