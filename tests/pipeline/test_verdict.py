"""The verdict: each limit at it and one past it, what a gate takes the place of, and which word wins."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from intact.api.quantize import quantize
from intact.api.verify import verify
from intact.errors import DataError, ModelError
from intact.pipeline import deployment, stages
from intact.pipeline.stages import BuildOptions
from intact.pipeline.verdict import Evidence, judge
from intact.results import Accuracy, Gate
from intact.settings.config import BuildConfig, VerdictConfig
from intact.verification.compare import Difference
from tests.planted import FAULTS, planted

FINE = Accuracy("quantized", "here", "y", 45.0, False, 1.0, 0.1, 0.01, elements=100)
HELD = Gate("min_sqnr", 10.0, 12.0, True, "fine")


def row(form="quantized", db=45.0, **values):
    return replace(FINE, form=form, sqnr_db=db, **values)


def test_a_loss_against_a_model_that_came_quantized_is_told_without_a_number():
    same = replace(FINE, sqnr_db=None, identical=True)
    (reason,) = judge(Evidence((same, row("compiled", 38.5)))).reasons
    assert reason == "output y keeps 38.5 dB in the compiled model, where the quantized one is the same"


def word(*rows, **values):
    return judge(Evidence(rows, **values)).word


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row()], "good"),
        ([row(db=20.0)], "good"),
        ([row(db=19.99)], "suspect"),
        ([row(db=6.0)], "suspect"),
        ([row(db=5.99)], "broken"),
        ([row(), row(output="z", db=4.0)], "broken"),
        ([row(db=None, identical=True)], "good"),
        ([row(nonfinite=1)], "broken"),
        ([row(constant=True)], "broken"),
        ([row(unmoved=True)], "suspect"),
        ([row(db=-3e38, silent=True)], "suspect"),
        # A later form against the quantized one.
        ([row(), row("compiled", 39.0)], "good"),
        ([row(), row("compiled", 38.9)], "suspect"),
        ([row(db=60.0), row("compiled", 40.0)], "good"),
        ([row(db=60.0), row("compiled", 39.9)], "suspect"),
        ([row(db=30.0), row("compiled", 19.9)], "broken"),
        ([row(db=25.0), row("compiled", 19.9)], "suspect"),
        ([row(db=30.0), row("rewritten", 19.9)], "broken"),
        ([row(db=None, identical=True), row("compiled", 35.0)], "suspect"),
        ([row(output="z", db=60.0), row("compiled", 30.0)], "good"),
        # Best classes.
        ([row(clear_decisions=20, clear_agreement=0.9)], "good"),
        ([row(clear_decisions=20, clear_agreement=0.89)], "suspect"),
        ([row(clear_decisions=19, clear_agreement=0.0)], "good"),
        # Classes and indices have no distance.
        ([row(db=-5.0, equal=95)], "good"),
        ([row(db=-5.0, equal=89)], "suspect"),
        ([row(db=-5.0, equal=0, elements=19)], "good"),
        ([], "unverified"),
    ],
)
def test_each_limit_holds_at_it_and_not_past_it(rows, expected):
    assert word(*rows) == expected


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        ({"gates": [HELD]}, "passed"),
        ({"gates": [replace(HELD, passed=False)]}, "failed"),
        ({"unchecked": ["min_sqnr"]}, "failed"),
        ({"unrun": "no device"}, "unverified"),
        ({"doubts": ["constant rows"]}, "suspect"),
        ({"doubts": ["constant rows"], "gates": [HELD]}, "suspect"),
        ({"doubts": ["constant rows"], "unrun": "no device"}, "suspect"),
    ],
)
def test_gates_data_and_what_did_not_run(evidence, expected):
    found = judge(Evidence([row()], **evidence))
    assert found.word == expected
    assert bool(found.reasons) == (expected != "passed")


@pytest.mark.parametrize(
    ("gate", "rows", "expected"),
    [
        ("min_sqnr", [row(db=12.0)], "passed"),
        ("min_sqnr", [row(db=12.0, constant=True)], "broken"),
        ("min_sqnr", [row(db=45.0), row("compiled", 30.0)], "suspect"),
        ("min_sqnr", [row(clear_decisions=50, clear_agreement=0.5)], "suspect"),
        ("max_accuracy_drop", [row(clear_decisions=50, clear_agreement=0.5)], "passed"),
        ("max_accuracy_drop", [row(db=12.0)], "suspect"),
        ("min_cosine", [row(db=12.0)], "suspect"),
        ("require_npu", [row(db=12.0)], "suspect"),
        ("max_latency_ratio", [row(db=12.0)], "suspect"),
    ],
)
def test_a_gate_takes_the_place_of_the_limit_that_it_measures_only(gate, rows, expected):
    assert word(*rows, gates=[replace(HELD, name=gate)]) == expected


def test_the_worst_word_wins_and_its_reason_comes_first():
    found = judge(Evidence([row(db=15.0), row(output="z", db=3.0)], gates=[], doubts=["constant rows"]))
    assert found.word == "broken" and "z" in found.reasons[0] and len(found.reasons) == 3


def test_the_place_where_a_form_parts_is_part_of_the_reason():
    found = judge(Evidence([row(), row("compiled", 10.0)], parted="the NPU parts at conv_1"))
    assert any("the NPU parts at conv_1" in reason for reason in found.reasons)


def test_limits_are_settings():
    assert judge(Evidence([row(db=15.0)]), VerdictConfig(suspect_below_db=10)).word == "good"
    config = BuildConfig.from_dict({"verdict": {"broken_below_db": 18}})
    assert judge(Evidence([row(db=15.0)]), config.verdict).word == "broken"


class TestDifference:
    """What the verdict is reached from, counted on small arrays by hand."""

    def difference(self, pairs):
        found = Difference()
        for reference, candidate in pairs:
            found.add(np.asarray(reference, np.float32), np.asarray(candidate, np.float32))
        return found

    def test_a_decision_is_clear_where_the_best_two_lie_further_apart_than_the_rms_error(self):
        # Errors: 0.3 twice in eight elements, so the RMS error is 0.15; margins are 1.0, 0.1, 0.2 and 0.0.
        rows = [([[0, 1]], [[0, 1]]), ([[0, 0.1]], [[0.3, 0.1]]), ([[0, 0.2]], [[0.3, 0.2]]), ([[1, 1]], [[1, 1]])]
        assert self.difference(rows).clear_decisions() == (2, 1)

    def test_constant_and_unmoved(self):
        moving = [([[0.0, 1.0]], [[2.0, 2.0]]), ([[1.0, 0.0]], [[2.0, 2.0]])]
        assert self.difference(moving).is_constant and self.difference(moving).is_unmoved
        same_rows = [([[0.0, 1.0]], [[0.0, 2.0]]), ([[1.0, 0.0]], [[0.0, 2.0]])]
        assert not self.difference(same_rows).is_constant and self.difference(same_rows).is_unmoved
        still = [([[0.0, 1.0]], [[0.0, 2.0]]), ([[0.0, 1.0]], [[0.0, 2.0]])]
        assert not self.difference(still).is_unmoved
        assert not self.difference([([[3.0, 3.0]], [[2.0, 2.0]])]).is_constant

    def test_values_that_are_no_numbers_count_where_the_reference_has_numbers(self):
        assert self.difference([([1.0, np.inf, np.nan], [np.nan, np.inf, np.nan])]).nonfinite == 1

    def test_indices_are_compared_by_equality_and_small_integers_by_distance(self):
        for dtype, discrete in ((np.int64, True), (np.bool_, True), (np.uint8, False), (np.float32, False)):
            found = Difference()
            found.add(np.array([1, 0, 1], dtype), np.array([1, 1, 1], dtype))
            assert (found.is_discrete, found.equal) == (discrete, 2)


@pytest.fixture(scope="module")
def quantized(zoo, tmp_path_factory):
    """A zoo CNN on a uint8 grid."""
    path = tmp_path_factory.mktemp("verdict") / "q.onnx"
    config = BuildConfig.from_dict({"precision": "uint8", "quant": quant(zoo)})
    quantize(zoo.model("residual_cnn"), config=config, output=path)
    return path


def quant(zoo, **values):
    return {"load_path": str(zoo.data("residual_cnn")), "effort": "fast", **values}


@pytest.mark.parametrize("kind", FAULTS)
def test_verify_says_of_a_planted_fault_what_its_sqnr_says(kind, zoo, quantized, tmp_path):
    cases = list(planted(onnx.load(quantized), kind))[:3]
    if kind == "swap_operands":
        assert not cases, "this network has nothing to swap; bench/verdict.py has networks that do"
        return
    assert cases
    for node, model in cases:
        onnx.save(model, tmp_path / "bad.onnx")
        found = verify(zoo.model("residual_cnn"), tmp_path / "bad.onnx", data=str(zoo.data("residual_cnn")))
        (least,) = [r.sqnr_db for r in found.accuracy]
        expected = "broken" if least < 6 else "suspect" if least < 20 else "good"
        assert found.verdict == expected, (node, least)


def test_a_fault_planted_in_rewriting_shows_in_the_build(zoo, tmp_path, monkeypatch):
    """Rules that spoil every scale, and a check of claims that sees nothing: the verdict is what is left."""
    from intact.matching import rewriter

    apply = rewriter.apply

    def spoiled(model, rules, **more):
        result = apply(model, rules, **more)
        for node in result.model.graph:
            if node.op_type == "QLinearConv":
                scale = np.float32(node.inputs[6].const_value.numpy().item() / 30)
                node.inputs[6].const_value = ir.tensor(np.array(scale), name=node.inputs[6].name)
        return result

    monkeypatch.setattr(rewriter, "apply", spoiled)
    monkeypatch.setattr(deployment, "check_rewriting", lambda *_: {})
    config = BuildConfig.from_dict({"precision": "uint8", "quant": quant(zoo)})
    built = stages.build(zoo.model("residual_cnn"), config, tmp_path / "out")
    assert built.verdict == "broken" and not built.passed
    written = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    assert written["verdict"] == "broken" and written["status"] == "failed" and written["intact"]["schema"] == 2
    assert "rewritten" in written["verdict_reasons"][0]


def test_a_sound_build_is_good_and_with_a_gate_passed(zoo, tmp_path):
    config = {"precision": "uint8", "quant": quant(zoo)}
    for gates, expected in (({}, "good"), ({"min_sqnr": 20}, "passed"), ({"min_sqnr": 200}, "failed")):
        built = stages.build(zoo.model("residual_cnn"), BuildConfig.from_dict({**config, **gates}), tmp_path / expected)
        assert built.verdict == expected
        page = (tmp_path / expected / "report.html").read_text(encoding="utf-8")
        assert f"<strong>{expected}</strong>" in page


@pytest.mark.parametrize("label", [-1, 999])
def test_labels_outside_the_classes_are_refused(label, zoo, tmp_path):
    labels = np.zeros(24, np.int64)
    labels[-1] = label
    np.save(tmp_path / "labels.npy", labels)
    config = BuildConfig.from_dict({"labels": str(tmp_path / "labels.npy"), "max_accuracy_drop": 1.0})
    with pytest.raises(DataError, match=f"label {label} is no class") as error:
        verify(zoo.model("residual_cnn"), zoo.model("residual_cnn"), data=str(zoo.data("residual_cnn")), config=config)
    assert error.value.code == "D137"


def test_what_is_compiled_without_a_comparison_is_unverified(zoo, tmp_path):
    config = BuildConfig.from_dict({"precision": "uint8", "quant": quant(zoo)})
    built = stages.build(zoo.model("residual_cnn"), config, tmp_path / "out", BuildOptions(verify=False))
    assert built.verdict == "unverified" and built.passed and built.verdict_reasons


def test_a_gate_that_cannot_be_checked_fails(zoo, tmp_path):
    config = BuildConfig.from_dict({"precision": "uint8", "quant": quant(zoo), "min_sqnr": 20})
    built = stages.build(zoo.model("residual_cnn"), config, tmp_path / "out", BuildOptions(verify=False))
    assert built.verdict == "failed" and not built.passed


@pytest.mark.usefixtures("loads_in_a_child")
def test_what_ends_onnx_runtime_is_an_error_and_not_our_end(zoo, quantized, tmp_path, monkeypatch):
    """A child that dies while it loads what was written: status 3, and no file."""
    from intact.runtime import loads, trial_load

    def dies(request):
        import os

        os.abort()

    monkeypatch.setattr(trial_load, "load", dies)
    assert loads.problems(quantized) == {}, "a patch does not reach the child"
    monkeypatch.setattr(
        loads.process, "call", lambda *_, **__: (_ for _ in ()).throw(loads.IntactError("E102", "it died of SIGABRT"))
    )
    with pytest.raises(ModelError, match="SIGABRT") as error:
        loads.check(quantized)
    assert error.value.code == "M133"


@pytest.mark.qnn
class TestOnTheDevice:
    def build(self, shared, name, precision, folder):
        model = shared / f"{name}.onnx"
        if not model.is_file():
            pytest.skip("the outside models are not beside the repository (shared/outside)")
        from intact.search.builds import build_any

        values = {"precision": precision, "compile": {"device": "qnn"}, "quant": {"effort": "fast"}}
        return build_any(model, BuildConfig.from_dict(values), folder)

    @pytest.fixture
    def minimal(self):
        from tests.conftest import SHARED_MODELS

        return SHARED_MODELS.parent / "outside/minimal"

    @pytest.mark.parametrize("name", ["cnn_prefix", "conv_transpose_3d_pads"])
    def test_a_compiled_form_that_lost_much_is_named_with_its_place(self, name, minimal, tmp_path):
        built = self.build(minimal, name, "w8a16", tmp_path / "out")
        least = {r.form: r.sqnr_db for r in built.accuracy}
        if least["compiled"] >= min(least["quantized"] - 6, 40):
            assert built.verdict == "good"
            return
        assert built.verdict in ("suspect", "broken")
        assert any("part ways at" in reason for reason in built.verdict_reasons)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["swin", "yolos", "depth"])
    @pytest.mark.parametrize("precision", ["w8a16", "uint8"])
    def test_a_transformer_that_its_compiler_spoils_is_never_called_good(self, name, precision, minimal, tmp_path):
        built = self.build(minimal.with_name("transformers"), name, precision, tmp_path / "out")
        by_output = {}
        for r in built.accuracy:
            by_output.setdefault(r.output, {})[r.form] = r.sqnr_db
        lost = [f for f in by_output.values() if f["compiled"] < min(f["quantized"] - 6, 40)]
        if lost:
            assert built.verdict in ("suspect", "broken")
            assert any("part ways at" in reason for reason in built.verdict_reasons)

    def test_zero_points_by_channel_beside_one_scale_and_a_bias_are_right(self, tmp_path):
        """QLinearConv with a scalar scale and a vector of zero points: a bias with one scale was read wrongly."""
        rng = np.random.default_rng(0)
        channels = 8
        values = {
            "xs": np.float32(0.02),
            "xz": np.uint8(128),
            "w": rng.integers(-128, 128, (channels, channels, 1, 1)).astype(np.int8),
            "ws": np.float32(0.01),
            "wz": rng.integers(-20, 20, channels).astype(np.int8),
            "ys": np.float32(0.15),
            "yz": np.uint8(128),
            "b": rng.integers(-3000, 3000, channels).astype(np.int32),
        }
        node = helper.make_node("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], ["y"], name="c")
        ports = [helper.make_tensor_value_info(n, TensorProto.UINT8, [1, channels, 8, 8]) for n in "xy"]
        weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
        graph = helper.make_graph([node], "g", ports[:1], ports[1:], weights)
        onnx.save(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx"
        )
        built = stages.build(
            tmp_path / "m.onnx", BuildConfig.from_dict({"compile": {"device": "qnn"}}), tmp_path / "out"
        )
        assert max(r.max_abs_error for r in built.accuracy if r.form == "compiled") <= 1
