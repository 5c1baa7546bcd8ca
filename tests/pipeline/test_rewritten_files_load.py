"""What `intact rewrite` and `intact convert` write loads in ONNX Runtime with all its optimizations, unchanged."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from intact.api.compile import compile
from intact.api.convert import convert
from intact.api.rewrite import rewrite
from intact.model import io, upgrade
from intact.runtime import ort_cpu
from intact.settings.config import BuildConfig

HEAD = '<ir_version: 10, opset_import: ["" : 21]> g (float[2, 4, 8] x) => (%s)'
GRID = "float s = {0.05}, int8 z = {3}"
PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
MOVED = f"{HEAD % 'float[4, 16] y'} <{GRID}, int64[2] t = {{4, 16}}> {{ {PAIR} y = Reshape(d, t) }}"
SHARED = f"""{HEAD % "float[4, 16] y, float[2, 4, 8] u"} <{GRID}, int64[2] t = {{4, 16}}> {{
    {PAIR} y = Reshape(d, t) u = Erf(d) }}"""
ADDED = f"""{HEAD % "float[2, 4, 4] y"} <{GRID}, int8[8, 4] w = {{{", ".join(str(k - 16) for k in range(32))}}},
    int8 o = {{0}}, float[4] b = {{1, 2, 3, 4}}> {{
    {PAIR} v = DequantizeLinear(w, s, o) m = MatMul(d, v) a = Add(m, b) y = Erf(a) }}"""
HALVED = f"""{HEAD % "float[2, 4, 8] y"} <float s = {{0.2}}, uint4 z = {{7}}> {{
    r = Relu(x) q = QuantizeLinear(r, s, z) y = DequantizeLinear(q, s, z) }}"""

OVERFLOWING = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> g (float[2, 4, 8] x) => (uint8[64, 1] y)
    <float s = {0.05}, uint8 z = {3}, float p = {0.00390625}, uint8 o = {0}, int64[2] t = {64, 1}> {
    r = Reshape(x, t) q = QuantizeLinear(r, s, z)
    y = com.microsoft.QLinearSoftmax <axis = -1, opset = 13> (q, s, z, p, o) }"""


def rewriting(device):
    return lambda path, output: rewrite(
        path, config=BuildConfig.from_dict({"compile": {"device": device}}), output=output, rules="exact"
    )


def converting(form):
    return lambda path, output: convert(path, to=form, config=BuildConfig.from_dict({}), output=output)


ALL = {"cpu": rewriting("cpu"), "qnn": rewriting("qnn"), "qdq": converting("qdq"), "qlinear": converting("qlinear")}
CASES = [
    *((text, act) for text in (MOVED, SHARED, ADDED) for act in ALL),
    *((HALVED, act) for act in ("cpu", "qlinear")),
    # What an operator of the model computes is its meaning, right or wrong.
    *((OVERFLOWING, act) for act in ("cpu", "qlinear")),
]


@pytest.mark.parametrize(("text", "act"), CASES, ids=lambda item: item if item in ALL else None)
def test_what_onnx_runtime_would_refuse_or_get_wrong_is_written_in_another_form(tmp_path, text, act):
    given, once, twice = (tmp_path / name for name in ("given.onnx", "once.onnx", "twice.onnx"))
    onnx.save(onnx.parser.parse_model(text), given)
    ALL[act](given, once)
    rows = {"x": np.linspace(-4, 4, 64, dtype=np.float32).reshape(2, 4, 8)}
    expected = ort_cpu.Session(given).run(rows)
    for name, found in ort_cpu.Session(io.load(once), optimize=True).run(rows).items():
        np.testing.assert_allclose(found, expected[name], atol=1e-6)
    ALL[act](once, twice)
    assert once.read_bytes() == twice.read_bytes()


@pytest.mark.parametrize("device", ["cpu", "qnn"])
def test_the_portable_file_of_an_int8_model_from_elsewhere_loads_although_its_upgraded_form_would_not(tmp_path, device):
    given = tmp_path / "given.onnx"
    onnx.save(
        onnx.parser.parse_model(ADDED.replace('10, opset_import: ["" : 21]', '8, opset_import: ["" : 18]')), given
    )
    built = compile(given, device=device, strict=False, output=tmp_path / "built")
    rows = {"x": np.linspace(-4, 4, 64, dtype=np.float32).reshape(2, 4, 8)}
    found = ort.InferenceSession(tmp_path / "built/model.qdq.onnx", providers=["CPUExecutionProvider"]).run(None, rows)
    np.testing.assert_allclose(found[0], ort_cpu.Session(given).run(rows)["y"], atol=1e-6)
    assert any("Q119" in warning for warning in built.warnings)


TIED = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 4, 16, 16] x) => (float[1, 4, 8, 8] y)
    <float s = {0.0173}, %s z = {100}> {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
    p = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (d)
    r = QuantizeLinear(p, s, z) y = DequantizeLinear(r, s, z) }"""


@pytest.mark.parametrize("act", ["cpu", "qnn", "qdq"])
def test_ties_go_where_they_went_in_the_file(tmp_path, act):
    given, once, twice = (tmp_path / name for name in ("given.onnx", "once.onnx", "twice.onnx"))
    onnx.save(onnx.parser.parse_model(TIED % "uint8"), given)
    ALL[act](given, once)
    rows = {"x": np.random.default_rng(0).standard_normal((1, 4, 16, 16), dtype=np.float32)}
    np.testing.assert_array_equal(ort_cpu.Session(once).run(rows)["y"], ort_cpu.Session(given).run(rows)["y"])
    assert io.load(once).opset_imports[""] == 18
    onnx.checker.check_model(once, full_check=True)
    ALL[act](once, twice)
    assert once.read_bytes() == twice.read_bytes()


WIDE = TIED.replace('8, opset_import: ["" : 17]', '10, opset_import: ["" : 21]') % "uint16"


@pytest.mark.parametrize(
    ("text", "given", "imported"), [(TIED % "uint8", 17, 18), (TIED % "uint8", 19, 21), (WIDE, 17, 21)]
)
def test_an_older_opset_is_imported_only_for_an_older_file_whose_nodes_are_all_in_it(text, given, imported):
    model = upgrade.upgrade(ir.from_onnx_text(text)).model
    upgrade.keep_kernels(model, given)
    assert model.opset_imports[""] == imported
