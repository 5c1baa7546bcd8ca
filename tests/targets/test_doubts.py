"""What a device takes and computes wrongly is named at its edge, with the fix, and refuses nothing."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from intact.cli.analyze import show
from intact.model import normalize, shapes
from intact.pipeline import analysis
from intact.targets.registry import load_target
from intact.targets.validate import doubts, validate

QNN = load_target("qnn")
HEAD = '<ir_version: 10, opset_import: ["": 21]>\nagraph'


def between(signature: str, constants: str, body: str) -> ir.Model:
    """The model of a body that reads `b`, on a grid, and writes `h`, which gets one."""
    grids = "float s = {0.001}, uint16 z = {32768}"
    before = "a = QuantizeLinear(x, s, z)\n b = DequantizeLinear(a, s, z)\n" if " x" in signature else ""
    after = "q = QuantizeLinear(h, s, z)\n y = DequantizeLinear(q, s, z)"
    return described(f"{HEAD} {signature}\n<{grids}{constants}>\n{{ {before}{body}{after} }}")


def described(text: str) -> ir.Model:
    model = ir.from_onnx_text(text)
    normalize.name_nodes(model)
    shapes.infer_shapes(model)
    return model


def deconvolution(pads: list[int], strides: list[int]) -> ir.Model:
    weight = ", ".join(str(i % 7 - 3) for i in range(32))
    constants = f", float[2] k = {{0.01, 0.02}}, int8[2] m = {{0, 0}}, int8[2,2,2,2,2] w = {{{weight}}}"
    body = f"v = DequantizeLinear<axis = 1>(w, k, m)\n h = ConvTranspose<pads = {pads}, strides = {strides}>(b, v)\n"
    return between("(float[1,2,4,4,4] x) => (float[1,2,N,M,K] y)", constants, body)


def table(length: int, indices: int, rows: int = 8) -> ir.Model:
    numbers = ", ".join(str(30000 + i) for i in range(rows * length))
    constants = f", uint16[{rows},{length}] t = {{{numbers}}}"
    body = "c = DequantizeLinear(t, s, z)\n h = Gather(c, i)\n"
    return between(f"(int64[1,{indices}] i) => (float[1,{indices},{length}] y)", constants, body)


def pool(size: int, pads: list[int], counted: int = 0, stride: int = 1) -> ir.Model:
    strides = f"strides = [{stride}, {stride}]"
    body = f"h = AveragePool<kernel_shape = [3,3], pads = {pads}, {strides}, count_include_pad = {counted}>(b)\n"
    return between(f"(float[1,2,{size},4] x) => (float[1,2,N,M] y)", "", body)


def second(op: str, dtype: str, times: float) -> ir.Model:
    """An operator whose second operand has so many times the steps of its result, or without one of its first."""
    result = "y = Not(h)" if op == "Greater" else "q = QuantizeLinear(h, s, z)\n y = DequantizeLinear(q, s, z)"
    operands = "m, b, d" if op == "Where" else "b, d"
    return described(
        f"{HEAD} (float[4] x, float[4] w, bool[4] m) => ({'bool' if op == 'Greater' else 'float'}[4] y)\n"
        f"<float s = {{0.001}}, float t = {{{0.001 * times}}}, {dtype} z = {{100}}>\n{{ a = QuantizeLinear(x, s, z)\n"
        f"b = DequantizeLinear(a, s, z)\n c = QuantizeLinear(w, t, z)\n d = DequantizeLinear(c, t, z)\n"
        f"h = {op}({operands})\n {result} }}"
    )


def regridded(scale: float, point: int, dtype: str = "uint16") -> ir.Model:
    """A Relu behind two grids: the first ends at -1 and 1, or thereabouts."""
    step, middle = (2 / 65535, 32768) if dtype == "uint16" else (2 / 255, 128)
    return described(
        f"{HEAD} (float[4] x) => (float[4] y)\n<float s = {{{step}}}, {dtype} z = {{{middle}}}, "
        f"float t = {{{scale * step}}}, {dtype} u = {{{point}}}>\n{{ a = QuantizeLinear(x, s, z)\n"
        "b = DequantizeLinear(a, s, z)\n c = QuantizeLinear(b, t, u)\n d = DequantizeLinear(c, t, u)\n"
        "h = Tanh(d)\n q = QuantizeLinear(h, s, z)\n y = DequantizeLinear(q, s, z) }"
    )


TWOS = [2, 2, 2]
# A model on the right side of an edge, one on the wrong side, and words of what is said about that.
EDGES = [
    (deconvolution([1, 1, 0, 0, 0, 0], TWOS), deconvolution([0, 1, 0, 0, 0, 0], TWOS), "pads is [0, 1, 0"),
    (deconvolution([0, 0, 1, 0, 0, 1], TWOS), deconvolution([1, 0, 0, 1, 0, 0], TWOS), "pads is [1, 0, 0"),
    (deconvolution([0] * 6, [2, 1, 1]), deconvolution([0] * 6, [2, 2, 1]), "strides is [2, 2, 1]"),
    (table(16, 20), table(16, 21), "21 of 8 rows of 16"),
    (table(32, 33), table(4, 33), "33 of 8 rows of 4"),
    (table(8, 33, rows=1), table(8, 33, rows=2), "33 of 2 rows of 8"),
    (pool(2, [1, 1, 1, 1]), pool(1, [1, 1, 1, 1]), "one number along axis 2"),
    (pool(1, [1, 1, 1, 1], counted=1), pool(1, [2, 0, 0, 0]), "one number along axis 2"),
    (pool(3, [1] * 4, 1, stride=2), pool(2, [1] * 4, 1, stride=2), "axis 2 has a size of 2"),
    (pool(2, [1] * 4, 1, stride=1), pool(1, [1] * 4, 1, stride=3), "axis 2 has a size of 1"),
    (second("Add", "uint8", 64), second("Add", "uint8", 65), "the scale of"),
    (second("Add", "uint16", 512), second("Sub", "uint16", 513), "beside 0.001"),
    (second("Where", "uint16", 2048), second("Where", "uint16", 2049), "beside 0.001"),
    (second("Where", "uint8", 9000), second("Greater", "uint8", 65), "beside 0.001"),
    (second("Greater", "uint16", 1024), second("Greater", "uint16", 1025), "beside 0.001"),
    (regridded(4, 32768), regridded(0.5, 0), "was on a wider grid right before"),
    (regridded(0.5, 0, "uint8"), regridded(0.5, 32768), "was on a wider grid right before"),
]


@pytest.mark.parametrize(("right", "wrong", "said"), EDGES)
def test_a_region_is_named_behind_its_edge_and_not_before_it(right, wrong, said):
    assert doubts(right, QNN) == ()
    (doubt,) = doubts(wrong, QNN)
    assert doubt.code == "T118" and said in doubt.found
    assert "a build compares what comes out" in doubt.fix and "onnxruntime" in doubt.source.lower().replace(" ", "")


@pytest.mark.parametrize(("right", "wrong", "said"), EDGES)
def test_it_is_no_reason_to_refuse_a_model(right, wrong, said):
    assert validate(wrong, QNN, strict=False) == validate(right, QNN, strict=False)


def test_an_analysis_tells_doubts_beside_what_the_device_takes():
    found = analysis.analyze(pool(1, [1, 1, 1, 1]), QNN)
    assert not found.cpu_nodes and [doubt.op for doubt in found.doubts] == ["AveragePool"]
    assert analysis.analyze(pool(1, [1, 1, 1, 1]), load_target("cpu")).doubts == ()


def test_people_read_the_node_the_condition_and_the_fix():
    lines: list[str] = []
    show(analysis.analyze(table(16, 33), QNN), lines.append)
    told = "\n".join(lines)
    assert "computed wrongly: [T118] Gather_0 (Gather): 33 of 8 rows of 16 are read" in told
    assert "fix: give the table rows of 32 numbers" in told
