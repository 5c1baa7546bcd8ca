"""Which node runs where, from what each provider was assigned."""

from __future__ import annotations

import pytest

from intact.results import PlacedNode
from intact.targets import provider_placement

OPS = {"q": "QuantizeLinear", "conv": "Conv", "turn": "Transpose", "acos": "Acos", "conv_token_1": "Conv"}


def place(npu, cpu, reasons=None):
    assigned = [{"provider": "NPU", "nodes": npu}, *({"provider": "CPU", "nodes": [node]} for node in cpu)]
    return provider_placement.place(OPS, assigned, "NPU", reasons or {}, 1)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("conv", "conv"),
        ("conv_token_7", "conv"),
        ("conv_token_1", "conv_token_1"),
        ("conv_token_1_token_9", "conv_token_1"),
    ],
)
def test_a_renamed_node_is_known_by_its_first_name(name, known):
    assert provider_placement.known_name(name, OPS) == known


def test_a_node_that_ort_made_has_no_name_of_the_model():
    assert provider_placement.known_name("Transpose_token_3", OPS) is None


def test_nodes_are_listed_in_the_order_of_the_model_with_their_reasons():
    npu = [["conv_token_1", "Conv"], ["conv_token_5", "Conv"]]
    placed = place(npu, [["acos", "Acos"], ["q", "QuantizeLinear"]], {"acos": "no such op"})
    assert placed.cpu_nodes == (
        PlacedNode("q", "QuantizeLinear", "the NPU provider did not claim it; no reason was logged"),
        PlacedNode("acos", "Acos", "no such op"),
    )
    assert [node.name for node in placed.npu_nodes] == ["conv", "turn", "conv_token_1"]


def test_what_ort_inserted_on_the_cpu_is_listed_too():
    placed = place([["conv", "Conv"]], [["Transpose_token_3", "Transpose"]])
    assert placed.cpu_nodes == (PlacedNode("Transpose_token_3", "Transpose", provider_placement.INSERTED),)


def test_with_nothing_on_the_npu_every_node_is_on_the_cpu():
    placed = place([], [[name, op] for name, op in OPS.items() if name != "turn"])
    assert [node.name for node in placed.cpu_nodes] == list(OPS)
    assert not placed.npu_nodes


def test_refused_nodes_are_those_that_compute():
    nodes = provider_placement.refused(OPS, {"q": "at the border", "conv_token_8": "types", "Reshape_token_1": "x"})
    assert nodes == [PlacedNode("conv", "Conv", "types")]
