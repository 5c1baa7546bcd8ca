"""Where nothing is wrong and too little is kept, few numbers get 16 bits, as far as the cost allows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import edit, normalize, shapes
from intact.model.activation_grids import grids_of
from intact.pipeline import execution
from intact.search.mending import aim as aims
from intact.search.mending.fault_site import FaultSite
from intact.search.mending.grid_forms import finer, other_width
from intact.search.mending.other_forms import merge_grids
from intact.search.mending.widening import least_kept, widen_cheapest
from intact.targets.registry import load_target

CONSTANTS = ", ".join(str(i * 29 % 255 - 127) for i in range(64 * 4))
# A pooled tensor of few numbers behind one of many: 8 bits for both, and a layer with a bias.
POOLED = f"""<ir_version: 10, opset_import: ["": 21]>
agraph (float[1,64,8,8] x) => (float[1,4] y)
<float s = {{0.025}}, uint8 z = {{128}}, float t = {{0.006}}, float u = {{0.05}}, float w = {{0.01}}, int8 o = {{0}},
 int8[64,4] k = {{{CONSTANTS}}}, int32[4] b = {{5000, -3000, 2000, 1000}}, float r = {{0.00006}}, int32 n = {{0}},
 int64[2] shape = {{1, 64}}>
{{
  a = QuantizeLinear(x, s, z)
  c = DequantizeLinear(a, s, z)
  v = Neg(c)
  q = QuantizeLinear(v, s, z)
  many = DequantizeLinear(q, s, z)
  p = GlobalAveragePool(many)
  d = QuantizeLinear(p, t, z)
  e = DequantizeLinear(d, t, z)
  f = Reshape(e, shape)
  g = QuantizeLinear(f, t, z)
  h = DequantizeLinear(g, t, z)
  i = DequantizeLinear(k, w, o)
  j = DequantizeLinear(b, r, n)
  l = Gemm(h, i, j)
  m = QuantizeLinear(l, u, z)
  y = DequantizeLinear(m, u, z)
}}"""


def pooled() -> ir.Model:
    model = ir.from_onnx_text(POOLED)
    normalize.name_nodes(model)
    shapes.infer_shapes(model)
    return model


@pytest.fixture
def rows() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    return [{"x": rng.uniform(-3, 3, (1, 64, 8, 8)).astype(np.float32)} for _ in range(4)]


def widths(model: ir.Model) -> dict[str, str]:
    """The type of the first grid of each computed tensor."""
    return {grid.base: grid.dtype for grid in reversed(grids_of(model))}


def in_16_bits(model: ir.Model, *tensors: str) -> ir.Model:
    for tensor in tensors:
        site = FaultSite(model, tensor)
        assert other_width(site) is not None
    edit.prune(model)
    model.graph.sort()
    return model


def aim_for(model: ir.Model, rows, most_cost: float, arch: int = 73) -> aims.Aim:
    return aims.aim_of(model, rows, load_target("qnn", arch=f"v{arch}"), 60.0, most_cost)


def test_few_numbers_get_16_bits_and_many_do_not(rows):
    model = pooled()
    found = widen_cheapest(model, aim_for(model, rows, 1.5), lambda form: execution.run(form, rows))
    assert found is not None
    assert set(found.tensors) == {"p", "f", "l"}
    assert found.after_db > found.before_db + 3


def test_what_it_may_not_cost_is_not_spent(rows):
    model = pooled()
    assert widen_cheapest(model, aim_for(model, rows, 1.05), lambda form: execution.run(form, rows)) is None


def test_a_form_that_the_device_does_not_compute_better_is_not_taken(rows):
    model = pooled()
    exact = execution.run(finer(model), rows)
    assert widen_cheapest(model, aim_for(model, rows, 1.5), lambda form: execution.run(model, rows)) is None
    assert least_kept(exact, execution.run(model, rows)) < 40


def test_units_in_a_row_read_16_bits_from_each_other(rows):
    narrow, wide = execution.run(pooled(), rows), execution.run(in_16_bits(pooled(), "p", "f", "l"), rows)
    exact = execution.run(finer(pooled()), rows)
    # Only the last rounding to 8 bits is left, of the output.
    assert np.abs(wide[0]["y"] - exact[0]["y"]).max() <= 0.051
    assert least_kept(exact, wide) > least_kept(exact, narrow)


MOVED = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[1,4] x) => (float[4] y)
<float r = {0.0001}, uint16 m = {32768}, float s = {SCALE}, uint8 z = {128}, int64[1] shape = {4}>
{
  a = QuantizeLinear(x, r, m)
  b = DequantizeLinear(a, r, m)
  c = QuantizeLinear(b, s, z)
  d = DequantizeLinear(c, s, z)
  e = Reshape(d, shape)
  f = QuantizeLinear(e, s, z)
  y = DequantizeLinear(f, s, z)
}"""


@pytest.mark.parametrize(("scale", "written"), [("0.02", 0.0001), ("0.04", 0.04 / 257)])
def test_what_only_moves_numbers_writes_the_grid_that_it_reads_if_that_reaches_as_far(scale, written):
    model = ir.from_onnx_text(MOVED.replace("SCALE", scale))
    normalize.name_nodes(model)
    grids = {grid.base: grid for grid in reversed(grids_of(in_16_bits(model, "e")))}
    assert grids["e"].dtype == "uint16"
    np.testing.assert_allclose(grids["e"].write.scale, written, rtol=1e-6)


def test_a_bias_keeps_its_value_in_steps_of_the_products():
    wide = in_16_bits(pooled(), "l")
    gemm = next(node for node in wide.graph if node.op_type == "Gemm")
    scales = [value.producer().inputs[1].const_value.numpy() for value in gemm.inputs]
    np.testing.assert_allclose(scales[2], scales[0] * scales[1], rtol=1e-5)
    integers = gemm.inputs[2].producer().inputs[0].const_value.numpy()
    np.testing.assert_allclose(integers * scales[2], np.array([5000, -3000, 2000, 1000]) * 0.00006, rtol=1e-5)


def test_everything_finer_keeps_ranges_and_clips(rows):
    far = [{"x": 100 * row["x"]} for row in rows]
    narrow, fine = execution.run(pooled(), far), execution.run(finer(pooled()), far)
    assert set(widths(finer(pooled())).values()) == {"uint16"}
    assert np.abs(narrow[0]["y"]).max() <= 0.05 * 128
    np.testing.assert_allclose(fine[0]["y"], narrow[0]["y"], atol=0.3)


TWO_PAIRS = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[1,4] x) => (float[1,4] y)
<float s = {0.01}, float t = {0.012}, uint8 z = {128}>
{
  a = QuantizeLinear(x, t, z)
  b = DequantizeLinear(a, t, z)
  c = QuantizeLinear(b, s, z)
  d = DequantizeLinear(c, s, z)
  e = Sigmoid(d)
  f = QuantizeLinear(e, t, z)
  g = DequantizeLinear(f, t, z)
  h = Tanh(g)
  i = QuantizeLinear(h, t, z)
  j = DequantizeLinear(i, t, z)
  k = QuantizeLinear(j, s, z)
  l = DequantizeLinear(k, s, z)
  m = Neg(l)
  n = QuantizeLinear(m, s, z)
  y = DequantizeLinear(n, s, z)
}"""


@pytest.mark.parametrize(("tensor", "left"), [("e", 5), ("h", 5), ("m", 5)])
def test_grids_are_left_out_at_the_site_alone(tensor, left):
    model = ir.from_onnx_text(TWO_PAIRS)
    normalize.name_nodes(model)
    assert len(grids_of(model)) == 6
    site = FaultSite(model, tensor)
    assert merge_grids(site) == "1 grids right in front of others are left out"
    edit.prune(model)
    assert len(grids_of(model)) == left
