"""A rule that breaks its claim stops the build, which names it and leaves nothing behind."""

from __future__ import annotations

import pytest

from intact.errors import GateFailed
from intact.matching.rewriter import EXACT, WITHIN_ONE_STEP, Rule
from intact.pipeline import stages
from intact.rules.quantized import families
from intact.rules.quantized.families import Latitude
from intact.settings.config import BuildConfig
from tests.rules.proof.test_exactness import MoveZeroPoint


class RaiseReluZeroPoint(MoveZeroPoint):
    """The zero point of a Relu in a quantized model, which is 0, moved by one step."""

    start = 0


class RaiseReluZeroPointTwice(RaiseReluZeroPoint):
    """The same by two steps, where one is claimed."""

    by = 2
    exactness = WITHIN_ONE_STEP


class RewireElsewhere(Rule):
    """Q(x, s, z) = Q(x, s, z), and every Add reads its second operand twice: what no pair of tensors shows."""

    exactness = EXACT

    def pattern(self, op, x, s, z):
        return op.QuantizeLinear(x, s, z, _name="node")

    def check(self, x, node):
        return None if x.is_graph_input() and "rewired" not in node.metadata_props else "done"

    def rewrite(self, op, x, s, z, node):
        for other in node.graph:
            if other.op_type == "Add":
                other.replace_input_with(0, other.inputs[1])
        result = op.QuantizeLinear(x, s, z)
        result.producer().metadata_props["rewired"] = "yes"
        return result


MOVES_ONE = "raise_relu_zero_point at '[^']+' does not keep its claim: a tensor moves by 1 steps"
MOVES_TWO = "raise_relu_zero_point_twice at '[^']+' does not keep its claim: a tensor moves by 2 steps"
REPLAYED = "rewire_elsewhere at '[^']+' does not keep its claim: the outputs of the model change"


@pytest.mark.parametrize(
    ("rule", "latitude", "said"),
    [
        (RaiseReluZeroPoint(), Latitude.BUILD, MOVES_ONE),
        (RaiseReluZeroPointTwice(), Latitude.BUILD, MOVES_TWO),
        # Among exact rules only, where outputs have to be the same bits: replaying shows which changed them.
        (RewireElsewhere(), Latitude.EXACT, REPLAYED),
    ],
    ids=["exact", "within one step", "found by replaying"],
)
def test_a_broken_claim_stops_the_build_and_names_the_rule(rule, latitude, said, zoo, tmp_path, monkeypatch):
    given = families.rules_for
    monkeypatch.setattr(families, "rules_for", lambda target: (rule, *given(target, latitude)))
    config = BuildConfig.from_dict({"precision": "uint8", "quant": {"load_path": str(zoo.data("residual_cnn"))}})
    with pytest.raises(GateFailed, match=said) as caught:
        stages.build(zoo.model("residual_cnn"), config, tmp_path / "out")
    assert caught.value.code == "G110" and not (tmp_path / "out").exists()


def test_the_same_build_without_the_rule_is_whole(zoo, tmp_path):
    config = BuildConfig.from_dict({"precision": "uint8", "quant": {"load_path": str(zoo.data("residual_cnn"))}})
    stages.build(zoo.model("residual_cnn"), config, tmp_path / "out")
    assert (tmp_path / "out" / "manifest.json").is_file()
