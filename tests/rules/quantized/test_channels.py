"""Input channels come in the numbers that a kernel takes: where they are padded, and why they are not."""

from __future__ import annotations

import numpy as np
import pytest

from intact.matching import rewriter
from intact.model import query
from intact.rules.quantized import families
from intact.rules.quantized.channels import PadChannels
from intact.targets.registry import load_target
from tests.rules.proof.harness import fired, refused
from tests.rules.quantized.cases.channels import convolution

VNNI, OLD = (load_target("cpu", vnni=vnni).rewrite for vnni in (True, False))
INPUTS, OUTPUTS, POSITIONS = VNNI.direct_conv
SIZE = (POSITIONS // 16, 16)


def conv(*args, **options):
    return convolution(np.random.default_rng(0), *args, **{"size": SIZE, **options}).model


@pytest.mark.parametrize("channels", range(1, INPUTS))
def test_channels_are_padded_to_what_the_kernel_takes_at_once(channels):
    done = families.rewrite(conv(channels, OUTPUTS), load_target("cpu", vnni=True))
    assert [item.rule for item in done.applications] == ["pad_channels"]
    pad, padded = done.model.graph
    assert query.static_shape(pad.outputs[0]) == (2, INPUTS, *SIZE)
    assert query.static_shape(padded.inputs[3])[:2] == (OUTPUTS, INPUTS)


def test_the_added_channels_meet_weights_that_are_zero():
    _, padded = families.rewrite(conv(3), load_target("cpu", vnni=True)).model.graph
    weight = query.constant(padded.inputs[3])
    assert not weight[:, 3:].any() and weight[:, :3].any()


@pytest.mark.parametrize(("channels", "padded"), [(1, 2), (3, 4), (5, 6)])
def test_channels_are_padded_to_pairs_where_no_target_says_more(channels, padded):
    """One output channel and one position are enough."""
    node = rewriter.apply(conv(channels, 1, size=(1, 1)), [PadChannels()]).model.graph[-1]
    assert query.static_shape(node.inputs[0]) == (2, padded, 1, 1)
    assert query.static_shape(node.inputs[3])[1] == padded


RULE = PadChannels().for_target(VNNI)
REFUSES = [
    (PadChannels(), conv(2), "its input channels, 2, are a multiple of 2"),
    (RULE, conv(INPUTS), f"its input channels, {INPUTS}, are a multiple of {INPUTS}"),
    (RULE, conv(3, OUTPUTS - 1), f"it has {OUTPUTS - 1} output channels, and the kernel is for {OUTPUTS} or more"),
    (RULE, conv(3, size=(POSITIONS - 1, 1)), f"it has {POSITIONS - 1} positions, too few to copy its input for"),
    (RULE, conv(6, group=2), "the kernel is for one group, found 2"),
    (RULE, conv(3, wz=np.full(16, 3, np.int8)), "the kernel is for weights whose zero point is 0"),
    (RULE, conv(3, act=np.int8), "the kernel is for uint8 activations with int8 weights"),
    (RULE, conv(3, wt=np.uint8), "the kernel is for uint8 activations with int8 weights"),
    (RULE, conv(3, weight="w"), "the weight is computed, not constant"),
    (PadChannels().for_target(OLD), conv(3), "uint8 x int8 saturates without VNNI"),
]


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES)
def test_the_rule_refuses_with_a_reason(rule, model, reason):
    assert reason in refused(rule, model)


def test_the_rule_fires_one_output_channel_further_on():
    assert fired(RULE, conv(3, OUTPUTS)) == ["Pad", "QLinearConv"]
