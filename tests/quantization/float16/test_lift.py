"""Values that half precision has no digits for are lifted by powers of two, exactly, and outputs are brought back."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.errors import IntactError
from intact.model import io, normalize, shapes
from intact.pipeline import execution
from intact.quantization import float16
from intact.quantization.float16.lift import LiftedOutput, bring_back, lift, takes_back
from intact.search.builds import build_any
from intact.settings.config import BuildConfig, QuantConfig
from intact.targets.registry import load_target

KERNEL = ", ".join(f"{(i * 7 % 13 - 6) / 600}" for i in range(4 * 4 * 9))
HEAD = '<ir_version: 10, opset_import: ["": 21]>\nagraph'
# Layers that make what they read a hundred times as small, with what stands between layers: the last is near 1e-7.
SMALL = f"""{HEAD} (float[1,4,6,6] x) => (float[1,4,12,12] y)
<float[4,4,3,3] w = {{{KERNEL}}}, float[4] b = {{0.0002, -0.0001, 0.0003, 0.0001}}, float[4,4,3,3] v = {{{KERNEL}}},
 float[4,4,3,3] u = {{{KERNEL}}}, float[4,4,3,3] t = {{{KERNEL}}},
 float[1,4,1,1] a = {{0.00001, 0.00002, 0.00003, 0.0}}, float[4] scales = {{1, 1, 2, 2}}>
{{
  c = Conv<pads = [1, 1, 1, 1]>(x, w, b)
  d = MIDDLE(c)
  e = Conv<pads = [1, 1, 1, 1]>(d, v)
  f = Add(e, a)
  g = Relu(f)
  h = Conv<pads = [1, 1, 1, 1]>(g, u)
  i = Add(h, f)
  j = Conv<pads = [1, 1, 1, 1]>(i, t)
  k = Conv<pads = [1, 1, 1, 1]>(j, t)
  l = Resize<mode = "nearest">(k, , scales)
  y = MaxPool<kernel_shape = [1, 1]>(l)
}}"""


def small(middle: str = "Relu") -> ir.Model:
    model = ir.from_onnx_text(SMALL.replace("MIDDLE", middle))
    normalize.name_nodes(model)
    shapes.infer_shapes(model)
    return model


@pytest.fixture
def rows() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(1, 4, 6, 6)).astype(np.float32)} for _ in range(4)]


def ends_of(model: ir.Model, rows) -> dict[str, tuple[float, float]]:
    names = [value.name for node in model.graph for value in node.outputs]
    seen = list(execution.inside(model, names, map(dict, rows)))
    return {name: (min(row[name].min() for row in seen), max(row[name].max() for row in seen)) for name in names}


def test_every_value_is_the_same_but_for_a_power_of_two(rows):
    model = small()
    ends = ends_of(model, rows)
    assert 0 < max(ends["y"]) < 2.0**-17
    found = lift(model, ends)
    before, after = (execution.run(one, rows) for one in (model, found.model))
    exponent = found.outputs["y"].exponent
    assert exponent >= 18
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(np.ldexp(one["y"], exponent), other["y"])
    small_ones = {n for n, (low, high) in ends_of(found.model, rows).items() if 0 < max(-low, high) < 2.0**-7}
    # Tied to a greater one by the Add.
    assert small_ones <= {"h"}


@pytest.mark.parametrize("middle", ["Sigmoid", "Softplus", "Erf"])
def test_what_is_not_homogeneous_keeps_its_values(middle, rows):
    model = small(middle)
    found = lift(model, ends_of(model, rows))
    before, after = (ends_of(one, rows) for one in (model, found.model))
    assert before["c"] == after["c"] and before["d"] == after["d"]
    for one, other in zip(execution.run(model, rows), execution.run(found.model, rows), strict=True):
        np.testing.assert_array_equal(np.ldexp(one["y"], found.outputs["y"].exponent), other["y"])


def test_a_value_that_a_body_reads_stays():
    model = ir.from_onnx_text(f"""{HEAD} (float[1,4] x, bool c) => (float[1,4] y)
<float[4,4] w = {{{", ".join("0.00001" for _ in range(16))}}}>
{{
  a = MatMul(x, w)
  y = If(c) <
    then_branch = one () => (float[1,4] t) {{ t = Neg(a) }},
    else_branch = two () => (float[1,4] e) {{ e = Identity(a) }}
  >
}}""")
    shapes.infer_shapes(model)
    assert lift(model, {"a": (-1e-5, 1e-5), "y": (-1e-5, 1e-5)}) is None


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.9), (-1.5, 1.2), (-1.0, 0.0)])
def test_an_output_is_brought_back_within_a_step_and_has_room(low, high, rows):
    model = ir.from_onnx_text(f"{HEAD} (float[1,64] x) => (float[1,64] y) {{ y = Identity(x) }}")
    bring_back(model, {"y": LiftedOutput(25, low, high)})
    assert [(value.name, value.dtype) for value in model.graph.outputs] == [("y", ir.DataType.FLOAT)]
    x = np.linspace(3.9 * low, 3.9 * high, 64, dtype=np.float32)[None]
    (found,) = execution.run(model, [{"x": x}])
    step = 8 * (high - low) / 65535
    np.testing.assert_allclose(np.ldexp(found["y"].astype(np.float64), 25), x, atol=step)


def convert(model: ir.Model, rows, *, only_half: bool) -> float16.Half:
    config = QuantConfig.from_dict({"activation_type": "float16", "weight_type": "float16"})
    return float16.convert(model, config, rows, device=load_target("qnn") if only_half else None)


def test_a_device_of_half_precision_gets_all_of_it(rows):
    half = convert(small(), rows, only_half=True)
    assert half.kept == () and any("2^" in note for note in half.notes)
    for right, found in zip(execution.run(small(), rows), execution.run(half.model, rows), strict=True):
        assert found["y"].dtype == np.float32
        noise = np.sum((found["y"].astype(np.float64) - right["y"]) ** 2)
        assert 10 * np.log10(np.sum(right["y"].astype(np.float64) ** 2) / noise) > 50


def test_others_keep_what_is_small_in_float32(rows):
    half = convert(small(), rows, only_half=False)
    assert half.kept and not any("2^" in note for note in half.notes)


def test_a_model_without_small_values_is_converted_as_ever(rows):
    large = [{"x": row["x"] * 1e6} for row in rows]
    usual, other = (convert(small(), large, only_half=only_half) for only_half in (False, True))
    assert usual.kept == other.kept and io.to_bytes(usual.model) == io.to_bytes(other.model)


def test_a_device_that_does_not_multiply_16_bits_keeps_its_outputs(rows):
    assert takes_back(load_target("qnn")) and not takes_back(load_target("rknn"))
    model = small()
    found = lift(model, ends_of(model, rows), outputs_too=False)
    assert found is None or not found.outputs


@pytest.mark.qnn
def test_a_strict_build_keeps_small_outputs_on_the_device(rows, tmp_path, monkeypatch):
    path = tmp_path / "small.onnx"
    io.save(small(), path)
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(1).normal(size=(24, 4, 6, 6)).astype(np.float32))
    settings = {"precision": "fp16", "compile": {"device": "qnn"}, "quant": {"load_path": str(tmp_path / "d.npz")}}
    config = BuildConfig.from_dict(settings)
    built = build_any(path, config, tmp_path / "out")
    compiled = next(row for row in built.accuracy if row.form == "compiled")
    assert compiled.sqnr_db > 40 and not built.placement.cpu_nodes
    monkeypatch.setattr(float16, "lift", lambda *_, **__: None)
    with pytest.raises(IntactError, match="half precision"):
        build_any(path, config, tmp_path / "refused")
