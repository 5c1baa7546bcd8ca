"""Which rules a target gets, what it gets out of them, and the command around them."""

from __future__ import annotations

import dataclasses
import json
import sys

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from intact.cli.main import app, main
from intact.errors import SettingsError
from intact.matching import rewriter
from intact.matching.rewriter import EXACT
from intact.model import io
from intact.rules.discovery import rules_of
from intact.rules.quantized import families, movement
from intact.rules.quantized.families import RULES, Latitude
from intact.runtime import ort_cpu
from intact.targets.registry import load_target
from tests.builder import Net

CPU, QNN = load_target("cpu"), load_target("qnn")


def residual():
    """Two convolutions with a residual branch, as a quantizer writes them."""
    rng, net = np.random.default_rng(0), Net()

    def pair(x, scale, zero):
        return net.dequantize(net.quantize(x, scale, np.uint8(zero)), scale, np.uint8(zero))

    def conv(x):
        weight = net.dequantize(
            rng.integers(-127, 128, (4, 4, 3, 3)).astype(np.int8), np.full(4, 0.003), np.zeros(4, np.int8), axis=0
        )
        return net.op("Conv", x, weight, pads=[1, 1, 1, 1])

    x = pair("x", 0.03, 128)
    a = pair(net.op("Relu", conv(x)), 0.04, 0)
    b = pair(conv(a), 0.05, 120)
    total = pair(net.op("Add", b, a), 0.06, 110)
    flat = net.op("Flatten", pair(net.op("MaxPool", total, kernel_shape=[2, 2]), 0.06, 110))
    return net.model({"x": np.zeros((1, 4, 8, 8), np.float32)}, flat)


def test_every_rule_says_what_it_does_in_a_sentence():
    assert not [rule.name for rule in RULES if not (rule.__doc__ or "").split("\n")[0].endswith((".", ":"))]


def test_the_table_of_a_target_names_the_rules():
    names = {rule.name for rule in families.rules_for(QNN)}
    assert names >= {"drop_self_requantize", "absorb_relu", "fold_arithmetic_into_conv"}
    # A node that shares or loses its own Q and DQ is one that the provider does not take.
    assert not names & {rule.name for rule in rules_of(movement)} and "merge_equal_dequantizers" not in names


def test_exact_leaves_out_whatever_may_move_a_step():
    exact = families.rules_for(CPU, Latitude.EXACT)
    assert exact and all(rule.exactness is EXACT for rule in exact)
    assert len(exact) < len(families.rules_for(CPU))


def test_a_rule_is_left_out_where_the_target_lacks_what_it_creates():
    bare = dataclasses.replace(CPU, rewrite=dataclasses.replace(CPU.rewrite, kernels=frozenset()))
    assert not [rule for rule in families.rules_for(bare) if rule.creates]


def test_a_rule_is_fitted_to_the_types_of_the_target():
    fitted = next(rule for rule in families.rules_for(CPU) if isinstance(rule, movement.MoveIntegers))
    assert fitted._types["MaxPool"] == {"uint8", "int8"} and fitted._types["SpaceToDepth"] == frozenset()


@pytest.mark.parametrize("name", ["fodling", "folding.absorb_relu"])
def test_a_table_with_an_unknown_rule_is_refused(name):
    forms = dataclasses.replace(CPU.rewrite, rules=(name,))
    with pytest.raises(SettingsError, match=f"no rule or family is called '{name}'"):
        families.rules_for(dataclasses.replace(CPU, rewrite=forms))


@pytest.mark.parametrize("target", [CPU, QNN], ids=lambda target: target.backend)
@pytest.mark.parametrize("latitude", Latitude)
def test_rewriting_twice_changes_nothing(target, latitude):
    once = families.rewrite(residual(), target, latitude)
    again = families.rewrite(once.model, target, latitude)
    assert once.applications and not again.applications
    assert io.to_bytes(again.model) == io.to_bytes(once.model)


def test_exact_rewriting_is_exact_in_onnxruntime():
    model, rng = residual(), np.random.default_rng(0)
    done = families.rewrite(model, CPU, Latitude.EXACT)
    for _ in range(4):
        feeds = {"x": rng.normal(0, 2, (1, 4, 8, 8)).astype(np.float32)}
        for before, after in zip(
            ort_cpu.run(model, feeds).values(), ort_cpu.run(done.model, feeds).values(), strict=True
        ):
            np.testing.assert_array_equal(after, before)


def test_the_given_model_stays_as_it_is():
    model = residual()
    before = io.to_bytes(model)
    families.rewrite(model, CPU)
    assert io.to_bytes(model) == before


def test_a_node_is_told_of_rules_whose_match_had_more_nodes_in_it():
    """A rule that takes a convolution with its grids fired at each of these, and at what came of them."""
    model = residual()
    rules = families.rules_for(CPU)
    done = rewriter.apply(model.clone(), rules)
    conv = next(node for node in model.graph if node.op_type == "Conv")
    for node in (conv, conv.inputs[0].producer(), conv.inputs[1].producer()):
        told = families.explain(model, done, rules, node.name)
        assert ("conv_to_qlinear", "fired here") in {(item.rule, item.reason) for item in told}
    (flatten,) = (node for node in model.graph if node.op_type == "Flatten")
    told = families.explain(model, done, rules, flatten.name)
    assert "conv_to_qlinear" not in {item.rule for item in told if item.reason == "fired here"}


@pytest.fixture
def saved(tmp_path):
    io.save(residual(), tmp_path / "in.onnx")
    return tmp_path


def run(*args):
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_prints_rules_with_claims_and_operators_before_and_after(saved):
    text = run("rewrite", saved / "in.onnx", "-o", saved / "out.onnx", "--device", "cpu")
    assert "conv_to_qlinear" in text and "within one step" in text
    assert any(line.split() == ["QLinearConv", "0", "2"] for line in text.splitlines())
    assert "outputs on 8 samples" in text
    assert "QLinearConv" in [node.op_type for node in onnx.load(saved / "out.onnx").graph.node]


def test_the_command_prints_the_same_as_json(saved):
    args = ("rewrite", saved / "in.onnx", "-o", saved / "out.onnx", "--exact", "--json")
    result = json.loads(run(*args))
    assert result["rules"] and {row["exactness"] for row in result["rules"]} == {"exact"}
    assert result["validation"]["rewriting_identical"] and result["validation"]["rewriting_sqnr_db"] is None
    assert result["operators"]["Relu"] == {"before": 1, "after": 0}


def test_the_command_explains_why_no_rule_fires_at_a_node(saved):
    run("rewrite", saved / "in.onnx", "-o", saved / "out.onnx", "--device", "qnn")
    node = next(n.name for n in onnx.load(saved / "out.onnx").graph.node if n.op_type == "QuantizeLinear")
    args = ("rewrite", saved / "in.onnx", "-o", saved / "out.onnx", "--device", "qnn", "--explain", node)
    assert f"{node}: drop_self_requantize: does not match: expected DequantizeLinear" in run(*args)


def test_the_command_explains_what_became_of_a_node(saved):
    """It is part of a convolution now; what was fired there is told, and why nothing else is."""
    nodes = {node.op_type: node.name for node in reversed(onnx.load(saved / "in.onnx").graph.node)}
    args = ("rewrite", saved / "in.onnx", "-o", saved / "out.onnx", "--device", "cpu", "--explain")
    # The same weights have uint8 already on a CPU without VNNI, and could saturate as int8.
    reasons = {
        "--assume-vnni": "sign_weight: it is not a product of uint8 activations with a constant uint8 weight",
        "--assume-no-vnni": "sign_weight: uint8 x int8 saturates without VNNI",
    }
    for machine, reason in reasons.items():
        assert reason in run(*args, nodes["Relu"], machine)
    assert f"{nodes['Flatten']}: dequantize_after_move: fired here" in run(*args, nodes["Flatten"])
    assert f"{nodes['Conv']}: conv_to_qlinear: fired here" in run(*args, nodes["Conv"])


def test_a_node_that_no_rule_is_about_is_told_so(tmp_path):
    net = Net()
    net.op("Erf", net.dequantize("x", 0.02, np.uint8(3)))
    io.save(net.model({"x": np.zeros(4, np.uint8)}, "t1"), tmp_path / "in.onnx")
    text = run("rewrite", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--explain", "the_t1")
    assert "the_t1: none: no rule has a place for Erf" in text


def test_an_operator_is_told_why_the_rule_that_starts_at_the_q_after_it_refuses(tmp_path):
    net, grid = Net(), (np.float32(0.02), np.uint8(3))
    weight = net.dequantize(np.ones((5, 6), np.int8), np.full(5, 0.01, np.float32), np.zeros(5, np.int8), axis=0)
    net.quantize(net.op("MatMul", net.dequantize("x", *grid), weight), *grid)
    io.save(net.model({"x": np.zeros((4, 5), np.uint8)}, "t3"), tmp_path / "in.onnx")
    text = run("rewrite", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--explain", "the_t2")
    assert "the_t2: mat_mul_to_qlinear: the weight has one scale for each index of axis 0, not of axis 1" in text
    assert "the_t2: matmul_add_to_qgemm: does not match: expected Add, found MatMul 'the_t2'" in text


def test_a_rule_that_exact_leaves_out_is_told_where_it_would_have_fired(saved):
    nodes = {node.op_type: node.name for node in reversed(onnx.load(saved / "in.onnx").graph.node)}
    args = ("rewrite", saved / "in.onnx", "-o", saved / "out.onnx", "--device", "cpu", "--explain", nodes["Conv"])
    told = f"{nodes['Conv']}: conv_to_qlinear: left out by --exact: its claim is within one step"
    assert told in run(*args, "--exact") and told not in run(*args, "--near")


@pytest.mark.parametrize("order", [("--explain", "--exact"), ("--exact", "--explain")])
def test_without_a_node_it_explains_wherever_a_rule_matches(saved, order, monkeypatch, capsys):
    """In the middle of a line and at its end; nodes where a rule says the same share a line."""
    args = ["intact", "rewrite", saved / "in.onnx", "-o", saved / "out.onnx", "--device", "cpu", *order]
    monkeypatch.setattr(sys, "argv", [str(item) for item in args])
    with pytest.raises(SystemExit) as ended:
        main()
    lines = capsys.readouterr().out.splitlines()
    assert not ended.value.code
    assert any(
        line.endswith(" and 1 more: conv_to_qlinear: left out by --exact: its claim is within one step")
        for line in lines
    )
    assert any(line.endswith(": unsign_activation: the activation is not int8") for line in lines)
    assert not any("does not match" in line or "fired here" in line for line in lines)


def test_a_node_that_the_model_does_not_have_is_named_with_its_like(saved):
    relu = next(n.name for n in onnx.load(saved / "in.onnx").graph.node if n.op_type == "Relu")
    args = ["rewrite", saved / "in.onnx", "-o", saved / "out.onnx", "--explain", f"{relu}x"]
    result = CliRunner().invoke(app, [str(item) for item in args])
    assert isinstance(result.exception, SettingsError) and result.exception.code == "S146"
    assert f"did you mean {relu}" in str(result.exception) and not (saved / "out.onnx").exists()


def test_a_file_that_intact_did_not_write_is_not_replaced(saved):
    (saved / "out.onnx").write_bytes((saved / "in.onnx").read_bytes())
    result = CliRunner().invoke(app, ["rewrite", str(saved / "in.onnx"), "-o", str(saved / "out.onnx")])
    assert "intact did not write it" in str(result.exception)


@pytest.mark.parametrize("form", families.CONVERSIONS)
def test_a_conversion_asks_for_its_form_and_for_no_other(form):
    forms = families.conversion(form).rewrite
    assert (forms.form, forms.rules) == (form, families.CONVERSIONS[form])
