"""What a compiler gets wrong gets another form that computes the same; the one that the device confirms is taken."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import io, normalize, shapes
from intact.model.node_encodings import encoding_of
from intact.pipeline import execution
from intact.pipeline.mending import goal, shortfall
from intact.results import Accuracy
from intact.search.debug.device import worst_rows
from intact.search.mending import mender as mending
from intact.search.mending import other_forms
from intact.search.mending.fault_site import FaultSite
from intact.settings.config import CompileConfig
from intact.targets.registry import load_target

GRIDS = "<float s = {0.001}, uint16 z = {32768}, float t = {0.002}, uint16 u = {30000}"
INPUT = "a = QuantizeLinear(x, s, z)\n b = DequantizeLinear(a, s, z)\n"
OUTPUT = "q = QuantizeLinear(h, t, u)\n y = DequantizeLinear(q, t, u)"

PRODUCT = (
    "(float[1,3,4] x) => (float[1,3,3] y)",
    "c = Transpose<perm = [0,2,1]>(b)\n e = QuantizeLinear(c, t, u)\n f = DequantizeLinear(e, t, u)\n"
    "h = MatMul(b, f)\n",
    "",
)

MODELS = {
    "swap_operands": ("(float[1,4] x) => (float[1,4] y)", "c = Neg(b)\n h = Add(b, c)\n", ""),
    "merge_grids": (
        "(float[1,4] x) => (float[1,4] y)",
        "g = Relu(b)\n e = QuantizeLinear(g, v, u)\n h = DequantizeLinear(e, v, u)\n",
        ", float v = {0.003}",
    ),
    "widen_inputs": ("(float[1,4] x) => (float[1,4] y)", "h = Sigmoid(b)\n", ""),
    "tighten_inputs": ("(float[1,4] x) => (float[1,4] y)", "h = Sigmoid(b)\n", ""),
    "separate": ("(float[1,4] x) => (float[1,4] y)", "h = Tanh(b)\n", ""),
    "widen_more": ("(float[1,4] x) => (float[1,4] y)", "h = Sigmoid(b)\n", ""),
    "other_width": ("(float[1,4] x) => (float[1,4] y)", "h = Sigmoid(b)\n", ""),
    "split_operand": PRODUCT,
    "fit_operand": PRODUCT,
    "two products": (
        "(float[1,4,4] x) => (float[1,4,4] y)",
        "c = Transpose<perm = [0,2,1]>(b)\n e = QuantizeLinear(c, t, u)\n f = DequantizeLinear(e, t, u)\n"
        "g = MatMul(b, f)\n i = QuantizeLinear(g, t, u)\n j = DequantizeLinear(i, t, u)\n h = MatMul(j, f)\n",
        "",
    ),
    "crop_outside": (
        "(float[1,2,5,6] x) => (float[1,3,10,9] y)",
        "h = ConvTranspose <strides = [2,2], pads = [1,0,0,4]> (b, w)\n",
        ", float[2,3,3,3] w = {" + ", ".join(f"{(i * 7 % 11 - 5) / 10}" for i in range(54)) + "}",
    ),
    "turn_axes": (
        "(float[1,2,2,3,4] x) => (float[1,3,3,6,5] y)",
        "v = DequantizeLinear<axis = 1>(w, k, m)\n"
        "h = ConvTranspose <strides = [1,2,1], pads = [0,1,0,0,0,0], output_padding = [0,1,0]> (b, v)\n",
        ", float[3] k = {0.01, 0.02, 0.03}, int8[3] m = {0, 0, 0}, int8[2,3,2,2,2] w = {"
        + ", ".join(str(i * 7 % 11 - 5) for i in range(48))
        + "}",
    ),
    "shrink_window": (
        "(float[1,2,1,3] x) => (float[1,2,1,3] y)",
        "h = AveragePool <kernel_shape = [3,3], pads = [1,1,1,1]> (b)\n",
        "",
    ),
    "count_pads": (
        "(float[1,2,2,6] x) => (float[1,2,2,3] y)",
        "h = AveragePool <kernel_shape = [3,3], pads = [1,2,1,0], strides = [1,2]> (b)\n",
        "",
    ),
    "pad_rows": (
        "(int64[3] x) => (float[3,4] y)",
        "c = DequantizeLinear(table, s, z)\n h = Gather(c, x)\n",
        ", uint16[5,4] table = {" + ", ".join(str(30000 + 311 * i) for i in range(20)) + "}",
    ),
}


def model_of(name: str) -> ir.Model:
    signature, body, constants = MODELS[name]
    before = "" if name == "pad_rows" else INPUT
    head = f'<ir_version: 10, opset_import: ["": 21]>\nagraph {signature}\n{GRIDS}{constants}>'
    model = ir.from_onnx_text(f"{head}\n{{ {before}{body}{OUTPUT} }}")
    normalize.name_nodes(model)
    shapes.infer_shapes(model)
    return model


def rows_of(name: str) -> list[dict[str, np.ndarray]]:
    if name == "pad_rows":
        return [{"x": np.array([4, 0, 3])}]
    pools = {"shrink_window": (1, 2, 1, 3), "count_pads": (1, 2, 2, 6)}
    products = {"split_operand": (1, 3, 4), "fit_operand": (1, 3, 4), "two products": (1, 4, 4)}
    shape = {**products, "crop_outside": (1, 2, 5, 6), "turn_axes": (1, 2, 2, 3, 4), **pools}.get(name, (1, 4))
    rng = np.random.default_rng(0)
    return [{"x": rng.uniform(-3, 3, shape).astype(np.float32)} for _ in range(2)]


# The ends of what the tensors that units read have in these rows.
SEEN = {"x": (-3.0, 3.0), "c": (-3.0, 3.0)}


class WrongAt:
    """A simulator that runs models on the CPU, and forgets the result of those that a condition holds of."""

    def __init__(self, is_wrong: Callable[[ir.Model], bool]) -> None:
        self.is_wrong, self.runs = is_wrong, 0

    def run(self, path, samples, device):
        self.runs += 1
        model = io.load(path)
        found = execution.run(model, samples)
        return [{n: np.zeros_like(v) for n, v in row.items()} for row in found] if self.is_wrong(model) else found


@pytest.mark.parametrize("name", [name for name in MODELS if name != "two products"])
class TestRemedies:
    def test_each_computes_the_same_within_a_step_of_the_coarsest_grid(self, name):
        model, rows = model_of(name), rows_of(name)
        site = FaultSite(model.clone(), "h", SEEN)
        done = getattr(other_forms, name)(site)
        assert done is not None
        site.model.graph.sort()
        step = {"widen_inputs": 0.016, "widen_more": 0.256, "other_width": 0.002 * 65535 / 255}.get(name, 0.004)
        # Four products by up to 3, each by half a step of what is left, 2 ** -7 of a step of 8 bits.
        step = 4 * 3 * 0.002 * 257 / 2**7 / 2 if name == "split_operand" else step
        for before, after in zip(execution.run(model, rows), execution.run(site.model, rows), strict=True):
            np.testing.assert_allclose(after["y"], before["y"], atol=step)

    def test_it_changes_the_form(self, name):
        model = model_of(name)
        changed = FaultSite(model.clone(), "h", SEEN)
        assert getattr(other_forms, name)(changed)
        assert ir.to_proto(changed.model).SerializeToString() != ir.to_proto(model).SerializeToString()

    def test_all_remedies_are_tried(self, name):
        assert getattr(other_forms, name) in other_forms.REMEDIES


def test_the_other_width_holds_the_same_range():
    site = FaultSite(model_of("other_width"), "h")
    assert other_forms.other_width(site)
    grids = [encoding_of(node) for node in site.model.graph if node.op_type == "QuantizeLinear"]
    wide, narrow = ({e.scale.item(): e for e in grids if e.dtype == kind}.values() for kind in ("uint16", "uint8"))
    for one, other in zip(wide, narrow, strict=True):
        np.testing.assert_allclose(np.stack(other.ends()), np.stack(one.ends()), atol=other.scale.item())


def test_an_operand_with_a_grid_of_its_own_has_room_and_loses_no_zero_with_its_lower_half():
    site = FaultSite(model_of("fit_operand"), "h", {"c": (-1.0, 3.0)})
    assert "input 1 of" in (other_forms.fit_operand(site) or "")
    (node,) = [one for one in site.model.graph if one.op_type == "MatMul"]
    first, second = (encoding_of(value.producer()) for value in node.inputs)
    assert first.scale.item() == pytest.approx(0.001)
    low, high = second.ends()
    assert low <= -1.25 + 5 / 255 and high >= 3.75 - 5 / 255 and high - low < 5.1
    # The zero of the upper 8 bits is that of all 16.
    assert second.zero_point.item() % 257 == 0


def test_an_operand_that_fills_its_grid_keeps_it():
    assert other_forms.fit_operand(FaultSite(model_of("fit_operand"), "h", {"c": (-40.0, 45.0)})) is None


def found(name: str, is_wrong: Callable[[ir.Model], bool], monkeypatch):
    simulator = WrongAt(is_wrong)
    monkeypatch.setattr(mending, "simulator_of", lambda target: simulator)
    return mending.mend(model_of(name), rows_of(name), load_target("qnn"), CompileConfig(device="qnn"))


def has(op: str, **attributes: object) -> Callable[[ir.Model], bool]:
    return lambda model: any(
        node.op_type == op and all(node.attributes[key].value == value for key, value in attributes.items())
        for node in model.graph
    )


def test_the_first_form_that_the_device_confirms_is_taken(monkeypatch):
    mended = found("crop_outside", has("ConvTranspose", pads=(1, 0, 0, 4)), monkeypatch)
    assert mended is not None and len(mended.done) == 1
    assert "1 more pads and zeros in its kernel" in mended.done[0] and "0.0 dB" in mended.done[0]
    assert [node.op_type for node in mended.model.graph].count("ConvTranspose") == 1


def test_a_form_that_costs_less_is_tried_first(monkeypatch):
    mended = found("crop_outside", lambda model: not has("Slice")(model), monkeypatch)
    assert mended is not None and "a Slice leaves it out" in mended.done[0]
    assert [node.op_type for node in mended.model.graph].count("Slice") == 1


def test_of_several_right_forms_the_first_is_taken(monkeypatch):
    # Every grid more makes it right.
    mended = found(
        "widen_inputs", lambda model: [n.op_type for n in model.graph].count("QuantizeLinear") < 3, monkeypatch
    )
    assert mended is not None and "steps 16 times as wide" in mended.done[0]


def test_a_right_model_is_left_as_it_is(monkeypatch):
    assert found("crop_outside", lambda model: False, monkeypatch) is None


def test_a_unit_that_is_wrong_alone_and_right_where_it_stands_is_left_alone(monkeypatch):
    # Units are asked about alone first.
    answers = itertools.chain([True], itertools.repeat(False))
    assert found("crop_outside", lambda model: next(answers), monkeypatch) is None


def test_where_nothing_helps_nothing_is_taken_and_the_place_is_named(monkeypatch):
    mended = found("widen_inputs", has("Sigmoid"), monkeypatch)
    assert mended is not None and (mended.done, mended.taken) == ((), ())
    (place,) = mended.unmended
    assert place.nodes == ("Sigmoid_0",) and place.told.startswith("Sigmoid_0 (Sigmoid) keeps 0.0 dB")


def test_a_model_without_grids_is_mended_at_the_node_that_is_wrong(monkeypatch):
    """In half precision there is no grid: every node is a unit, and only the wrong one gets another form."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[1,2,2,6] x) => (float[1,2,2,6] y) {
        a = Cast <to = 10> (x)
        b = AveragePool <kernel_shape = [1,3], pads = [0,1,0,1], count_include_pad = 1> (a)
        c = Relu(b)
        d = AveragePool <kernel_shape = [3,3], pads = [1,1,1,1]> (c)
        e = Add(d, a)
        y = Cast <to = 1> (e)
    }"""
    model = ir.from_onnx_text(text)
    normalize.name_nodes(model)
    shapes.infer_shapes(model)

    def leaves_pads_out(tried: ir.Model) -> bool:
        return any(n.op_type == "AveragePool" and "count_include_pad" not in n.attributes for n in tried.graph)

    monkeypatch.setattr(mending, "simulator_of", lambda target: WrongAt(leaves_pads_out))
    rows = rows_of("count_pads")
    mended = mending.mend(model, rows, load_target("qnn"), CompileConfig(device="qnn"))
    assert mended is not None
    assert [(one.tensor, one.remedy) for one in mended.taken] == [("d", "count_pads")]
    for before, after in zip(execution.run(model, rows), execution.run(mended.model, rows), strict=True):
        np.testing.assert_allclose(after["y"], before["y"], atol=4e-3)


class WrongBehind:
    """A simulator that runs models on the CPU, and forgets results that come of a node which a condition holds of."""

    def __init__(self, is_wrong: Callable[[ir.Node], bool]) -> None:
        self.is_wrong = is_wrong

    def run(self, path, samples, device):
        model = io.load(path)
        lost = {value.name for value in model.graph.outputs if self.comes_of(value)}
        return [
            {n: np.zeros_like(v) if n in lost else v for n, v in row.items()} for row in execution.run(model, samples)
        ]

    def comes_of(self, value: ir.Value) -> bool:
        node = value.producer()
        read = () if node is None else (one for one in node.inputs if one is not None)
        return node is not None and (self.is_wrong(node) or any(map(self.comes_of, read)))


def test_a_place_that_nothing_helps_leaves_none_of_the_others_wrong(monkeypatch):
    """The first output is wrong for good, and what is behind it is left alone; the second one is mended."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[1,2,2,6] x) => (float[1,2,2,6] y, float[1,2,2,6] z) {
        a = Cast <to = 10> (x)
        b = Exp(a)
        c = AveragePool <kernel_shape = [3,3], pads = [1,1,1,1]> (b)
        y = Cast <to = 1> (c)
        d = AveragePool <kernel_shape = [3,3], pads = [1,1,1,1]> (a)
        z = Cast <to = 1> (d)
    }"""
    model = ir.from_onnx_text(text)
    normalize.name_nodes(model)
    shapes.infer_shapes(model)

    def is_wrong(node: ir.Node) -> bool:
        leaves_pads_out = node.op_type == "AveragePool" and "count_include_pad" not in node.attributes
        return leaves_pads_out or node.op_type == "Exp"

    monkeypatch.setattr(mending, "simulator_of", lambda target: WrongBehind(is_wrong))
    mended = mending.mend(model, rows_of("count_pads"), load_target("qnn"), CompileConfig(device="qnn"))
    assert mended is not None
    assert [(one.tensor, one.remedy) for one in mended.taken] == [("d", "count_pads")]
    assert [one.told.split(" keeps")[0] for one in mended.unmended] == ["Exp_0 (Exp)"]


class Halves:
    """A simulator with noise 30 dB below each result of a MatMul, unless a Sub before it makes two halves."""

    def run(self, path, samples, device):
        model, rng = io.load(path), np.random.default_rng(3)

        def noise(name: str, value: np.ndarray) -> np.ndarray:
            piece = name.split("/")[0] + "/"
            ops = {node.op_type for node in model.graph if (node.outputs[0].name or "").startswith(piece)}
            loud = "MatMul" in ops and "Sub" not in ops
            level = np.sqrt(np.mean(value**2) / 1000) if loud else 0.0
            return np.float32(level) * rng.standard_normal(value.shape, np.float32)

        return [{n: v + noise(n, v) for n, v in found.items()} for found in execution.run(model, samples)]


@pytest.mark.parametrize(
    ("goal_db", "most_cost", "taken"),
    [(33.0, 9.0, ["split_operand"]), (20.0, 9.0, []), (33.0, 1.05, [])],
    ids=["a goal that is missed", "a goal that is met", "a form that costs too much"],
)
def test_where_nothing_is_wrong_the_weakest_place_gets_a_better_form(goal_db, most_cost, taken, monkeypatch):
    monkeypatch.setattr(mending, "MOST_COST", most_cost)
    monkeypatch.setattr(mending, "simulator_of", lambda target: Halves())
    name = "split_operand"
    mended = mending.mend(model_of(name), rows_of(name), load_target("qnn"), CompileConfig(device="qnn"), goal_db)
    assert [one.remedy for one in (mended.taken if mended else ())] == taken


class AllHalves:
    """A simulator with noise 30 dB below a result that any MatMul before it is not made in two halves for."""

    def run(self, path, samples, device):
        model, rng = io.load(path), np.random.default_rng(3)

        def noise(name: str, value: np.ndarray) -> np.ndarray:
            piece = name.split("/")[0] + "/"
            ops = [node.op_type for node in model.graph if (node.outputs[0].name or "").startswith(piece)]
            loud = ops.count("MatMul") > 2 * ops.count("Sub")
            level = np.sqrt(np.mean(value**2) / 1000) if loud else 0.0
            return np.float32(level) * rng.standard_normal(value.shape, np.float32)

        return [{n: v + noise(n, v) for n, v in found.items()} for found in execution.run(model, samples)]


def test_forms_of_weak_places_that_gain_only_together_are_taken_together(monkeypatch):
    monkeypatch.setattr(mending, "MOST_COST", 9.0)
    monkeypatch.setattr(mending, "simulator_of", lambda target: AllHalves())
    rows = [{"x": row["x"] / 8} for row in rows_of("two products")]
    mended = mending.mend(model_of("two products"), rows, load_target("qnn"), CompileConfig(device="qnn"), 60.0)
    assert mended is not None and sorted(one.tensor for one in mended.taken) == ["g", "h"]
    assert {one.remedy for one in mended.taken} == {"split_operand"}
    assert [node.op_type for node in mended.model.graph].count("Sub") == 2


@pytest.mark.parametrize(
    ("quantized", "expected"),
    # By hand: 40 dB may become 33, so that 10 ** -3.3 - 10 ** -4 is left to the device; 20 dB may become 17.
    [(40.0, -10 * np.log10(10**-3.3 - 10**-4)), (20.0, -10 * np.log10(10**-1.7 - 10**-2)), (None, 33.0)],
)
def test_the_goal_leaves_the_device_the_noise_that_is_allowed(quantized, expected):
    assert goal([row("quantized", quantized), row("compiled", 9.0)]) == pytest.approx(expected + 3.0)


def row(form: str, db: float | None, output: str = "y", *, constant: bool = False) -> Accuracy:
    return Accuracy(form, "here", output, db, db is None, 1.0, 0.1, 0.01, constant=constant, elements=100)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row("quantized", 40.0), row("compiled", 34.0)], 0.0),
        ([row("quantized", 40.0), row("compiled", 32.0)], 1.0),
        ([row("quantized", 25.0), row("compiled", 22.0)], 0.0),
        ([row("quantized", 25.0), row("compiled", 20.0)], 2.0),
        ([row("quantized", None), row("compiled", None)], 0.0),
        ([row("quantized", 40.0), row("compiled", 39.0), row("quantized", 50.0, "z"), row("compiled", 3.0, "z")], 30.0),
        # Values far from zero that became one keep many dB and tell nothing, unless they were one before.
        ([row("quantized", 77.0), row("compiled", 68.0, constant=True)], 33.0),
        ([row("quantized", 77.0, constant=True), row("compiled", 68.0, constant=True)], 0.0),
    ],
)
def test_the_shortfall_is_counted_from_what_a_device_can_keep(rows, expected):
    assert shortfall(rows) == pytest.approx(expected)


def test_the_rows_that_go_wrong_are_those_that_are_looked_at(monkeypatch):
    """A device may be wrong about large values only, and the first rows have none."""
    simulator = WrongAt(has("Sigmoid"))
    run = simulator.run  # every row is wrong

    def on_large_values(path, samples, device):
        right = execution.run(io.load(path), samples)
        return [
            w if np.abs(s["x"]).max() > 2 else r
            for s, w, r in zip(samples, run(path, samples, device), right, strict=True)
        ]

    monkeypatch.setattr(simulator, "run", on_large_values)
    rows = [{"x": np.full((1, 4), value, np.float32)} for value in (0.5, 1.0, 1.5, 2.9, 0.1, 2.5)]
    picked = worst_rows(model_of("widen_inputs"), rows, simulator, None)
    assert [float(row["x"].max()) for row in picked] == pytest.approx([2.9, 2.5])
    assert worst_rows(model_of("widen_inputs"), rows[:2], simulator, None) == rows[:2]
