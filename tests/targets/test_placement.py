"""Where nodes run: by the table alone, and the same by the vendor's library."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from intact.backends.live import place_live
from intact.errors import NotAvailable
from intact.pipeline.analysis import analyze
from intact.targets.placement import in_float, place
from intact.targets.registry import load_target
from tests.backends.probing.cases import model
from tests.targets.test_validate import two_products

PRODUCT = "MatMul: both dynamic (uint16, int16 symmetric) -> uint16"


def names(nodes):
    return {node.name for node in nodes}


def test_a_node_that_is_not_taken_has_a_reason_and_a_fix():
    placement = place(two_products(), load_target("qnn", arch=68))
    (node,) = placement.cpu_nodes
    assert node.name == "m" and "v73" in node.reason and "--no-strict" in node.reason
    assert names(placement.npu_nodes) == {"n"} and placement.partitions == 1


def test_without_an_npu_a_node_that_is_not_taken_runs_in_float():
    built = ir.from_proto(onnx.parser.parse_model(CHAIN.replace("OPERATOR", "Erf")))
    erf = next(node for node in place(built, load_target("cpu")).cpu_nodes if node.op == "Erf")
    assert erf.reason.endswith("it is computed in float") and "--no-strict" not in erf.reason


@pytest.mark.parametrize(("arch", "partitions", "percent"), [(68, 0, 0.0), (73, 1, 100.0)])
def test_pieces_and_percentage(arch, partitions, percent):
    found = analyze(model(PRODUCT)[0], load_target("qnn", arch=arch))
    assert (found.partitions, found.npu_percent, found.method) == (partitions, percent, "table")


CHAIN = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[1,4] x) => (float[1,4] y) <float s = {0.01}, uint8 z = {100}>
{
  xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)
  a = Tanh(xd)
  aq = QuantizeLinear(a, s, z)  ad = DequantizeLinear(aq, s, z)
  b = OPERATOR(ad)
  bq = QuantizeLinear(b, s, z)  bd = DequantizeLinear(bq, s, z)
  c = Tanh(bd)
  cq = QuantizeLinear(c, s, z)  y = DequantizeLinear(cq, s, z)
}
"""


@pytest.mark.parametrize(("operator", "partitions"), [("Sin", 1), ("Erf", 2)])
def test_a_node_in_the_middle_that_is_not_taken_makes_two_pieces(operator, partitions):
    built = ir.from_proto(onnx.parser.parse_model(CHAIN.replace("OPERATOR", operator)))
    assert place(built, load_target("qnn")).partitions == partitions


def test_what_the_npu_computes_in_float_is_told_apart():
    target = load_target("qnn", arch=73)
    assert names(in_float(model("Mish (uint8) -> uint8")[0], target)) == {"probed"}
    assert names(in_float(model("Relu (uint8) -> uint8")[0], target)) == set()


@pytest.mark.openvino
def test_openvino_takes_a_model_whole_or_not_at_all():
    model = two_products()
    taken = place_live(model, load_target("openvino"), timeout=120)
    assert [node.op for node in taken.npu_nodes] == ["MatMul", "MatMul"] and taken.partitions == 1
    node = next(node for node in model.graph if node.op_type == "MatMul")
    node.domain, model.graph.opset_imports["of.mine"] = "of.mine", 1
    refused = place_live(model, load_target("openvino"), timeout=120)
    assert refused.npu_nodes == () and all("of.mine" in node.reason for node in refused.cpu_nodes)


def test_a_device_without_a_library_here_has_no_live_answer():
    with pytest.raises(NotAvailable):
        place_live(two_products(), load_target("dml"), timeout=1)


@pytest.mark.qnn
@pytest.mark.parametrize(("arch", "off"), [(68, {"m"}), (73, set())])
def test_the_library_gives_its_own_reason(arch, off):
    placement = place_live(two_products(), load_target("qnn", arch=arch), timeout=300)
    assert names(placement.cpu_nodes) == off
    assert all("SFIXED_POINT_16" in node.reason for node in placement.cpu_nodes)
