"""A ConvTranspose in another form computes the same, whatever its pads and strides, and the device gets it right."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import edit, normalize, shapes
from intact.pipeline import execution
from intact.search.debug.device import run_whole, simulator_of
from intact.search.mending import window_forms
from intact.search.mending.fault_site import FaultSite
from intact.search.mending.window_forms import as_convolution, crop_outside, lengthen_kernel
from intact.settings.config import CompileConfig
from intact.targets.registry import load_target

# Pads, strides and what else there is.
CASES = {
    "2-D": ([1, 0, 1, 0], [2, 2], ""),
    "2-D, uneven ends": ([0, 2, 1, 1], [2, 1], ", output_padding = [1, 0]"),
    "2-D, stride 1": ([2, 0, 1, 1], [1, 1], ""),
    "3-D, stride 1": ([1, 0, 1, 1, 0, 1], [1, 1, 1], ""),
    "3-D, stride 1, uneven": ([0, 2, 1, 1, 0, 2], [1, 1, 1], ""),
    "3-D": ([0, 1, 1, 0, 1, 1], [2, 2, 2], ""),
    "3-D, uneven": ([2, 0, 1, 1, 2, 0], [1, 2, 2], ", output_padding = [0, 1, 0]"),
}


def model_of(pads: list[int], strides: list[int], more: str) -> ir.Model:
    spatial, sizes = len(strides), [3, 4, 5][: len(strides)]
    kernel = [3, 4, 3][:spatial]
    count = 2 * 3 * int(np.prod(kernel))
    numbers = ", ".join(str(i * 37 % 255 - 127) for i in range(count))
    shape, weight_shape = ",".join(map(str, [1, 2, *sizes])), ",".join(map(str, [2, 3, *kernel]))
    names = ",".join("NMK"[:spatial])
    body = f"h = ConvTranspose<pads = {pads}, strides = {strides}{more}>(b, v, e)"
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
agraph (float[{shape}] x) => (float[1,3,{names}] y)
<float s = {{0.0001}}, uint16 z = {{32768}}, float t = {{0.002}}, float[3] k = {{0.01, 0.02, 0.005}},
 int8[3] m = {{0, 0, 0}}, int8[{weight_shape}] w = {{{numbers}}}, int32[3] c = {{500000, -200000, 30}},
 float[3] d = {{0.000001, 0.000002, 0.0000005}}, int32[3] o = {{0, 0, 0}}>
{{
  a = QuantizeLinear(x, s, z)
  b = DequantizeLinear(a, s, z)
  v = DequantizeLinear<axis = 1>(w, k, m)
  e = DequantizeLinear<axis = 0>(c, d, o)
  {body}
  q = QuantizeLinear(h, t, z)
  y = DequantizeLinear(q, t, z)
}}""")
    normalize.name_nodes(model)
    shapes.infer_shapes(model)
    return model


def rows_of(model: ir.Model) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.uniform(-3, 3, tuple(model.graph.inputs[0].shape.numpy())).astype(np.float32)}]


def in_form(model: ir.Model, remedy) -> ir.Model | None:
    site = FaultSite(model.clone(), "h")
    if remedy(site) is None:
        return None
    edit.prune(site.model)
    site.model.graph.sort()
    return site.model


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("remedy", [as_convolution, lengthen_kernel, crop_outside])
def test_it_computes_the_same_within_a_step(case, remedy):
    model = model_of(*CASES[case])
    form = in_form(model, remedy)
    if remedy is as_convolution:
        assert (form is not None) == ("stride 1" in case)
    else:
        assert form is not None
    if form is None:
        return
    (before,), (after,) = (execution.run(one, rows_of(model)) for one in (model, form))
    assert before["y"].shape == after["y"].shape and before["y"].std() > 1
    np.testing.assert_allclose(after["y"], before["y"], atol=0.0021)


@pytest.mark.parametrize(
    ("pads", "more"), [([3, 0, 0, 0], ""), ([0, 0, 0, 0], ", group = 2"), ([0, 0, 0, 0], ', auto_pad = "SAME_UPPER"')]
)
def test_what_is_no_convolution_stays(pads, more):
    model = model_of([0, 0, 0, 0], [1, 1], "")
    node = next(node for node in model.graph if node.op_type == "ConvTranspose")
    node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    if "group" in more:
        node.attributes["group"] = ir.AttrInt64("group", 2)
    if "auto_pad" in more:
        node.attributes["auto_pad"] = ir.AttrString("auto_pad", "SAME_UPPER")
    assert in_form(model, as_convolution) is None


def test_no_more_is_cut_off_behind_it_than_has_to_be():
    model = model_of(*CASES["3-D"])
    form = in_form(model, crop_outside)
    wide = next(node for node in form.graph if node.op_type == "ConvTranspose")
    assert list(wide.attributes["pads"].as_ints()) == [0, 0, 0, 0, 1, 1]


@pytest.mark.qnn
@pytest.mark.parametrize("remedy", ["as_convolution", "lengthen_kernel", "crop_outside"])
@pytest.mark.parametrize("case", ["3-D, stride 1", "3-D, stride 1, uneven", "3-D", "3-D, uneven"])
def test_the_device_gets_it_right(case, remedy):
    model = model_of(*CASES[case])
    form = in_form(model, getattr(window_forms, remedy))
    target = load_target("qnn")
    simulator, device = simulator_of(target), execution.device_of(target, CompileConfig(device="qnn"))
    if form is None:
        return
    rows = rows_of(model)
    (expected,) = execution.run(model, rows)
    wrong, right = (run_whole(one, rows, simulator, device)[0]["y"] for one in (model, form))
    signal = float(np.sum(expected["y"] ** 2))
    assert 10 * np.log10(signal / np.sum((wrong - expected["y"]) ** 2)) < 6
    assert 10 * np.log10(signal / np.sum((right - expected["y"]) ** 2)) > 45
