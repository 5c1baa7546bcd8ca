"""The map of the layers: every layer once, with its place and types, in a page that runs one script and no other."""

from __future__ import annotations

import base64
import hashlib
import re

from intact.backends import first_operator
from intact.backends.probing.cases import Chain, cases
from intact.backends.probing.models import model_of
from intact.model import io, normalize, shapes
from intact.reports import html, layer_map, network
from tests.reports.browser import needs_browser, opened, said_by
from tests.reports.sample import manifest
from tests.reports.test_html import HOSTILE, Page


def layer(name, op="Conv", activations="uint8", weights="int8", reads=()):
    grid = {"scale": 0.5, "zero_point": 3} if activations == "uint8" else {"scale": None, "zero_point": None}
    return {"name": name, "op": op, "activations": activations, "weights": weights, "reads": list(reads), **grid}


def with_layers(*layers):
    values = manifest() | {"layers": list(layers)}
    values["placement"]["npu_nodes"] = [{"name": one["name"], "op": one["op"], "reason": ""} for one in layers[:-1]]
    values["placement"]["cpu_nodes"] = [{"name": layers[-1]["name"], "op": "Softmax", "reason": "no <b>signature"}]
    return values


def templates_of(*ops):
    """A case of each operator in uint8 throughout."""
    for op in ops:
        plain = [case for case in cases([op]) if case.output == "uint8" and set(case.slots) == {"uint8"}]
        yield plain[0]


SMALL = with_layers(layer("first"), layer("second", reads=[0]), layer("last", "Softmax", "float", None, [1]))


class TestLayersOfAModel:
    def test_are_the_nodes_that_compute_and_read_each_other(self, zoo):
        model = normalize.normalize(io.load(zoo.model("residual_cnn")))
        shapes.infer_shapes(model)
        found = network.layers_of(model)
        nodes = [node for node in model.graph if node.op_type != "Constant"]
        assert [one.op for one in found] == [node.op_type for node in nodes]
        for number, node in enumerate(nodes):
            producers = {value.producer() for value in node.inputs if value is not None and value.producer()}
            assert {nodes[place] for place in found[number].reads} == producers

    def test_have_the_types_and_the_grid_that_they_compute_in(self):
        model = model_of(first_operator._case())
        quantizer = model.graph.outputs[0].producer().inputs[0].producer()
        [found] = network.layers_of(model)
        scale = float(quantizer.inputs[1].const_value.numpy())
        assert (found.op, found.activations, found.weights, found.scale) == ("Add", "uint8", None, scale)
        assert found.zero_point == int(quantizer.inputs[2].const_value.numpy()) and found.reads == ()
        assert found.quantizer == quantizer.name

    def test_read_through_what_computes_nothing(self):
        first, second = templates_of("Relu", "Add")
        found = network.layers_of(model_of(Chain((first, second))))
        assert [(one.op, one.reads) for one in found] == [("Relu", ()), ("Add", (0,))]


class TestTheMap:
    def test_has_every_layer_once_with_its_place_types_and_grid(self):
        drawn = layer_map.drawing(SMALL)
        first, _, last = drawn["tiles"]
        assert (first["place"], first["type"], first["grid"]) == ("NPU", "uint8 × int8", "real = (q − 3) × 0.5")
        assert (last["place"], last["type"], last["grid"], last["reason"]) == ("CPU", "float", "", "no <b>signature")
        assert [(item["name"], item["count"]) for item in drawn["legends"]["place"]] == [("NPU", 2), ("CPU", 1)]
        assert len({(tile["x"], tile["y"]) for tile in drawn["tiles"]}) == 3

    def test_begins_with_the_view_that_tells_something(self):
        assert layer_map.drawing(SMALL)["by"] == "place"
        one_place = with_layers(layer("first"), layer("second", weights=None), layer("last", "Softmax", "float", None))
        one_place["placement"] |= {"npu_nodes": [], "cpu_nodes": [], "known": False}
        assert layer_map.drawing(one_place)["by"] == "type"
        legend = layer_map.drawing(one_place)["legends"]["type"]
        assert [(one["name"], one["count"]) for one in legend] == [("uint8", 2), ("float", 1)], "a colour is named once"
        page = html.render(one_place)
        assert '<option value="type" selected>' in page and '<ul class="legend" data-by="place" hidden>' in page
        assert '<ul class="legend" data-by="type">' in page and 'value="error"' not in page

    def test_is_left_out_where_a_manifest_has_no_layers(self):
        assert layer_map.drawing(manifest()) is None and 'id="layer-map"' not in html.render(manifest())

    def test_of_2000_nodes_stays_below_3_megabytes(self):
        layers = [layer(f"/model/layers.{n // 8}/attention/node_{n}", reads=[n - 1] if n else []) for n in range(2000)]
        page = html.render(with_layers(*layers))
        assert len(page.encode()) < 3_000_000 and page.count('role="option"') == 2000


class TestThePage:
    def test_lets_one_script_run_by_its_digest(self):
        page = html.render(SMALL)
        [script] = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        [policy] = [a["content"] for t, a in Page(page).tags if a.get("http-equiv") == "Content-Security-Policy"]
        assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"

    def test_escapes_hostile_names(self):
        values = with_layers(layer(HOSTILE, HOSTILE), layer("last"))
        values["placement"]["cpu_nodes"][0]["reason"] = HOSTILE
        page = Page(html.render(values))
        assert [tag for tag, _ in page.tags].count("script") == 1 and "img" not in {tag for tag, _ in page.tags}
        assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]

    @needs_browser
    def test_runs_without_an_error_and_answers_search_and_keys(self, tmp_path):
        page = html.render(SMALL)
        opened(page, tmp_path)
        title = said_by(
            page,
            tmp_path,
            """
const type = (text) => { const box = document.getElementById("map-search"); box.value = text;
  box.dispatchEvent(new Event("input")); return document.getElementById("map-count").textContent; };
const press = (key) => { document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
  return document.getElementById("map-layer").textContent.replaceAll("\\n", " | "); };
said.push(type("softmax"), type("signature"), type("nothing such"), type(""));
document.querySelector("#layer-map rect").focus();
said.push(press("End"), press("ArrowLeft"));
const map = document.getElementById("layer-map"), zoom = document.getElementById("map-zoom"), once = map.clientWidth;
zoom.value = 2; zoom.dispatchEvent(new Event("input"));
said.push(String(map.clientWidth / once));""",
        )
        assert title[:4] == ["1 of 3 layers", "1 of 3 layers", "0 of 3 layers", "3 layers"]
        assert "last (Softmax)" in title[4] and "why: no" in title[4] and "reads second (Conv)" in title[4]
        assert title[6] == "2", "the map is twice as wide at twice the zoom"
        assert "second (Conv)" in title[5] and "read by last (Softmax)" in title[5]
