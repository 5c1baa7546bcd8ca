"""A node that meets a condition of the file is named inside the bounds that were asked about, and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace

import onnx_ir as ir
import pytest

from intact.model import normalize, shapes
from intact.targets import faults
from intact.targets.faults import FaultBox, FaultCondition
from intact.targets.registry import load_target
from intact.targets.validate import doubts, validate

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>\nagraph'


def described(text: str) -> ir.Model:
    model = ir.from_onnx_text(f"{HEAD} {text}")
    normalize.name_nodes(model)
    shapes.infer_shapes(model)
    return model


def unary(op: str, scale: float, dtype: str = "uint16", size: int = 4) -> ir.Model:
    """An operator behind a grid of this scale, with a result on a grid of 0.001."""
    return described(
        f"(float[1,{size}] x) => (float[1,{size}] y)\n"
        f"<float s = {{{scale:.9g}}}, float t = {{0.001}}, {dtype} z = {{7}}>\n"
        f"{{ a = QuantizeLinear(x, s, z)\n b = DequantizeLinear(a, s, z)\n h = {op}(b)\n"
        "q = QuantizeLinear(h, t, z)\n y = DequantizeLinear(q, t, z) }"
    )


def row(first: str, second: str, regridded: bool = False) -> ir.Model:
    """Two operators in a row, with a grid between them, or two."""
    more = "e = QuantizeLinear(d, t, z)\n f = DequantizeLinear(e, t, z)\n" if regridded else "f = Identity(d)\n"
    text = (
        "(float[1,4] x) => (float[1,4] y) <float s = {0.001}, float t = {0.002}, float u = {0.003}, uint16 z = {7}>"
        f"{{ a = QuantizeLinear(x, s, z)\n b = DequantizeLinear(a, s, z)\n g = {first}(b)\n"
        f"c = QuantizeLinear(g, u, z)\n d = DequantizeLinear(c, u, z)\n {more} h = {second}(f)\n"
        "q = QuantizeLinear(h, s, z)\n y = DequantizeLinear(q, s, z) }"
    )
    return described(text if regridded else text.replace("f = Identity(d)\n", "").replace("(f)", "(d)"))


def shipping(tmp_path, condition: FaultCondition, archs=(73,)):
    """The target with a file of one fault beside its table."""
    line = {"case": "", "where": "scale of input 0 below 1", "worst_db": 3.5, "usual_db": 80.0, "archs": list(archs)}
    line["condition"] = faults.written(condition)
    folder = tmp_path / "wrong"
    folder.mkdir()
    (folder / "lib-1.json").write_text(json.dumps({"library": "lib 1", "asked": None, "wrong": [line]}))
    return replace(load_target("qnn", arch=73), wrong=folder)


ONE = "(uint16) -> uint16"
SCALES = FaultCondition("Atan", ONE, (FaultBox({"scale of input 0": (0.01, 100.0)}, {}),))
SIZES = FaultCondition("Atan", ONE, (FaultBox({}, {"size 1 of input 0": (5.0, 17.0)}),))
STEPS = "steps of input 0 as a multiple of those of the result"
RELATIVE = FaultCondition("Atan", ONE, (FaultBox({STEPS: (50.0, 200.0)}, {}),))
EITHER = FaultCondition("Atan", ONE, (*SCALES.boxes, *SIZES.boxes))

# A condition, a model that meets it, and one on the other side of its edge.
SIDES = {
    "from the least scale on": (SCALES, unary("Atan", 0.01), unary("Atan", 0.0099)),
    "up to the greatest that was asked": (SCALES, unary("Atan", 100.0), unary("Atan", 101.0)),
    "steps in those of the result": (RELATIVE, unary("Atan", 0.05), unary("Atan", 0.049)),
    "one of the sizes": (SIZES, unary("Atan", 0.002, size=17), unary("Atan", 0.002, size=16)),
    "any of its boxes": (EITHER, unary("Atan", 0.002, size=5), unary("Atan", 0.002, size=6)),
    "the operator": (SCALES, unary("Atan", 1.0), unary("Sin", 1.0)),
    "the domain": (replace(SCALES, op="com.microsoft::Gelu"), unary("com.microsoft.Gelu", 1.0), unary("Gelu", 1.0)),
    "the type": (SCALES, unary("Atan", 1.0), unary("Atan", 1.0, "int16")),
    "the rank": (replace(SCALES, rank=2), unary("Atan", 1.0), row("Relu", "Relu")),
    "an operator before it": (
        FaultCondition("Sin", ONE, (FaultBox({}, {}),), ("Abs",)),
        row("Abs", "Sin"),
        row("Neg", "Sin"),
    ),
    "a grid and an operator before it": (
        FaultCondition("Sin", ONE, (FaultBox({}, {}),), ("", "Abs")),
        row("Abs", "Sin", regridded=True),
        row("Abs", "Sin"),
    ),
    "an operator behind it": (
        FaultCondition("Abs", ONE, (FaultBox({}, {}),), (), ("Sin",)),
        row("Abs", "Sin"),
        row("Abs", "Atan"),
    ),
}


@pytest.mark.parametrize("side", SIDES)
def test_a_node_is_named_on_one_side_of_each_edge(side, tmp_path):
    condition, inside, outside = SIDES[side]
    target = shipping(tmp_path, condition)
    named = [doubt for doubt in doubts(inside, target) if "lib 1" in doubt.source]
    assert [(doubt.code, doubt.op) for doubt in named] == [("T118", condition.op.rpartition("::")[2])]
    assert not [doubt for doubt in doubts(outside, target) if "lib 1" in doubt.source]


def test_it_is_told_with_figures_and_refuses_nothing(tmp_path):
    target = shipping(tmp_path, SCALES)
    (doubt,) = doubts(unary("Atan", 2.0), target)
    assert "scale of input 0 is 2" in doubt.found and "3.5 dB" in doubt.requirement
    assert "lib-1.json" in doubt.source and "a build compares" in doubt.fix
    assert validate(unary("Atan", 2.0), target) == validate(unary("Atan", 0.002), target)


def test_another_architecture_is_not_concerned(tmp_path):
    assert not doubts(unary("Atan", 2.0), shipping(tmp_path, SCALES, archs=(69, 75)))


def test_a_condition_is_read_as_it_was_written():
    for condition, _, _ in SIDES.values():
        assert faults.condition_of(json.loads(json.dumps(faults.written(condition)))) == condition


def test_a_table_without_such_a_file_knows_of_no_faults(tmp_path):
    assert faults.faults_in(tmp_path / "wrong") == {}
