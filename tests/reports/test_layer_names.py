"""Names of layers: the map and the table of errors call a layer the same, whatever was fused into what."""

from __future__ import annotations

import re

import pytest

from intact.reports import error_bars, html, layer_map
from intact.reports.layer_names import AGREED_DB, named_layers
from tests.reports.test_error_bars import error
from tests.reports.test_layer_map import layer, with_layers


def built(layers, errors):
    return with_layers(*layers) | {"errors": list(errors)}


def fused():
    """A Conv that took in a Relu, whose error was measured behind the Relu."""
    relu = error("relu", 35.0) | {"op": "Relu"}
    return built([layer("conv") | {"quantizer": "relu_Q"}, layer("end", reads=[0])], [relu])


def of_integers():
    """A kernel that computes in integers, named after the QuantizeLinear that it took in."""
    return built([layer("conv_Q", "QLinearConv"), layer("end", reads=[0])], [error("conv", 35.0)])


@pytest.mark.parametrize(
    ("values", "name", "op"),
    [
        (fused(), "conv + relu", "Conv + Relu"),
        (of_integers(), "conv", "QLinearConv"),
        (built([layer("conv"), layer("end")], [error("conv", 35.0)]), "conv", "Conv"),
        (built([layer("other"), layer("end")], [error("conv", 35.0)]), "conv", "Conv"),
    ],
    ids=["what took in another node", "a kernel for integers", "a node of its own", "of a node that is gone"],
)
def test_the_map_and_the_errors_agree(values, name, op):
    [bar] = error_bars.drawing(values)["bars"]
    assert (bar["name"], bar["op"]) == (name, op)
    tile = layer_map.drawing(values)["tiles"][0]
    if tile["error"]:
        assert (tile["name"], tile["op"]) == (name, op)
        assert tile["error"] == "35.00 dB"


def test_a_layer_is_found_by_its_name_in_the_deployed_model_too():
    page = html.render(of_integers())
    assert 'data-node="conv_Q"' in page and re.search(r"<title>conv \(QLinearConv\)", page)


def test_a_layer_with_two_grids_has_the_worse_error():
    second = error("conv", 20.0) | {"quantizer": "conv_Q_2"}
    named = named_layers(built([layer("conv"), layer("end")], [error("conv", 35.0), second]))
    assert named.worst == {0: 1}


class TestALargeError:
    def scores(self, *, after=60.0, own=13.6):
        """Scores that a mask covers, and the probabilities that are computed from them."""
        layers = [layer("scores", "Add"), layer("softmax", "Softmax", reads=[0]), layer("end", reads=[1])]
        errors = [error("scores", own, accumulated=own), error("softmax", 50.0, accumulated=after)]
        return built(layers, errors)

    def test_that_no_layer_behind_shows_is_listed_last_and_grey(self):
        drawn = error_bars.drawing(self.scores())
        assert [bar["name"] for bar in drawn["worst"]] == ["softmax", "scores"]
        assert [bar["style"] for bar in drawn["bars"]] == ["e5", "e1"] and drawn["hidden"] == "1 tensor"
        assert "hidden behind it" in html.render(self.scores())
        assert layer_map.drawing(self.scores())["tiles"][0]["error_style"] == "e5"

    @pytest.mark.parametrize(("after", "hidden"), [(AGREED_DB, True), (AGREED_DB - 0.1, False), (None, True)])
    def test_is_hidden_from_where_the_next_tensor_agrees(self, after, hidden):
        assert (named_layers(self.scores(after=after)).hidden == {0}) is hidden

    def test_that_reaches_an_output_is_the_worst(self):
        values = self.scores()
        values["layers"][1]["reads"] = []
        drawn = error_bars.drawing(values)
        assert [bar["name"] for bar in drawn["worst"]] == ["scores", "softmax"] and drawn["hidden"] == ""

    def test_that_is_small_is_never_called_hidden(self):
        assert named_layers(self.scores(own=AGREED_DB)).hidden == frozenset()
