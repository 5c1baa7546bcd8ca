"""Error by layer in the report: a bar for each, the worst first, and a histogram with what its grid cuts off."""

from __future__ import annotations

import json
import re

import pytest

from intact.reports import error_bars, html, layer_map
from tests.reports.browser import browse, needs_browser, opened, said_by, without_policy
from tests.reports.sample import manifest
from tests.reports.test_html import HOSTILE, Page
from tests.reports.test_layer_map import layer, with_layers


def error(name, own, *, accumulated=30.0, cut_off=0.0, low=-1.0, high=1.0, bins="1Z1"):
    seen = {"seen_low": -2.0, "seen_high": 1.0, "cut_off": cut_off, "histogram": bins}
    figures = {"own_db": own, "accumulated_db": accumulated, "low": low, "high": high, "dtype": "uint8"}
    names = {"node": name, "op": "Conv", "tensor": f"{name}_out", "quantizer": f"{name}_Q"}
    return (
        names
        | figures
        | (seen if bins else dict.fromkeys(("seen_low", "seen_high", "cut_off"), None) | {"histogram": ""})
    )


def with_errors(*errors):
    layers = [layer(one["node"]) for one in errors]
    return with_layers(*layers, layer("end", "Softmax")) | {"errors": list(errors)}


SMALL = with_errors(error("first", 45.0), error("second", 15.5, cut_off=0.0004), error("third", None, bins=""))


def test_bars_stand_in_the_order_of_the_model_and_the_worst_is_listed_first():
    drawn = error_bars.drawing(SMALL)
    assert [bar["name"] for bar in drawn["bars"]] == ["first", "second", "third"]
    assert [bar["name"] for bar in drawn["worst"]] == ["second", "first", "third"]
    heights = [bar["height"] for bar in drawn["bars"]]
    assert heights[1] > heights[0] > heights[2] == 0
    assert [bar["cut_off"] for bar in drawn["bars"]] == ["nothing", "0.04\N{NO-BREAK SPACE}%", ""]


def test_all_but_the_worst_are_folded_away():
    drawn = error_bars.drawing(with_errors(*(error(f"n{i}", 20.0 + i) for i in range(12))))
    assert (len(drawn["worst"]), len(drawn["rest"])) == (error_bars.WORST_SHOWN, 12 - error_bars.WORST_SHOWN)


@pytest.mark.parametrize(
    ("db", "style"), [(40.0, "e1"), (39.9, "e2"), (30.0, "e2"), (20.0, "e3"), (19.9, "e4"), (None, "e1")]
)
def test_an_error_has_the_style_of_its_size(db, style):
    assert error_bars.band(db)[0] == style


def test_the_map_can_be_coloured_by_error_also_where_a_node_has_the_name_of_its_quantizer():
    values = with_errors(error("first", 45.0), error("second", 15.5))
    values["layers"][1]["name"] = "second_Q"
    tiles = layer_map.drawing(values)["tiles"]
    assert [(tile["error"], tile["error_style"]) for tile in tiles] == [
        ("45.00 dB", "e1"),
        ("15.50 dB", "e4"),
        ("", "e0"),
    ]
    assert '<option value="error">' in html.render(values) and '<option value="error">' not in html.render(manifest())


def test_is_left_out_where_a_manifest_has_no_errors():
    assert 'id="error-bars"' not in html.render(manifest())


def test_hostile_names_are_escaped():
    page = Page(html.render(with_errors(error(HOSTILE, 12.0))))
    assert [tag for tag, _ in page.tags].count("script") == 2 and "img" not in {tag for tag, _ in page.tags}


def test_a_report_of_2000_nodes_with_their_errors_stays_below_3_megabytes():
    names = [f"/model/layers.{n // 8}/attention/node_{n}" for n in range(2000)]
    values = with_errors(*(error(name, 30 + n % 20 / 3, bins="1234567890abcdef" * 3) for n, name in enumerate(names)))
    assert len(html.render(values).encode()) < 3_000_000
    assert len(json.dumps(values["errors"], indent=2)) < 1_500_000


@needs_browser
def test_choosing_a_bar_shows_its_histogram_and_what_is_cut_off(tmp_path):
    page = html.render(SMALL)
    dom = opened(page, tmp_path)
    # The worst is shown from the beginning: of three bins from -2 to 1 the first is below its grid.
    assert "second (Conv): 15.50 dB alone, 30.00 dB so far" in re.search(r'id="tensor-name"[^>]*>(.*?)<', dom)[1]
    assert len(re.findall(r'<rect class="cut"', dom)) == 1 and "cuts off 0.04" in dom
    clicked, ended, picked = said_by(
        page,
        tmp_path,
        """
const tell = () => said.push(document.getElementById("tensor-name").textContent + " | "
  + document.getElementById("tensor-words").textContent);
document.querySelector("#error-bars g").dispatchEvent(new MouseEvent("click", {bubbles: true})); tell();
document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: "End", bubbles: true})); tell();
document.querySelectorAll(".pick")[0].click(); tell();""",
    )
    assert clicked.startswith("first (Conv): 45.00 dB") and "cuts off nothing" in clicked
    assert ended.startswith("third") and "Calibration did not choose this grid" in ended
    assert picked.startswith("second")


@pytest.mark.slow
@needs_browser
def test_a_report_of_2000_nodes_paints_within_a_second_and_nothing_shifts_on_a_phone(tmp_path):
    names = [f"/model/layers.{n // 8}/attention/node_{n}" for n in range(2000)]
    values = with_errors(*(error(name, 30 + n % 20 / 3, bins="1234567890abcdef" * 3) for n, name in enumerate(names)))
    watch = """<script>
let shift = 0, paint = 0;
new PerformanceObserver((list) => list.getEntries().forEach((one) => { shift += one.value; }))
  .observe({type: "layout-shift", buffered: true});
new PerformanceObserver((list) => list.getEntries().forEach((one) => { paint = paint || one.startTime; }))
  .observe({type: "paint", buffered: true});
addEventListener("load", () => setTimeout(() => parent.postMessage(
  [paint, shift, innerWidth, document.documentElement.scrollWidth].join(" "), "*"), 500));
</script>"""
    (tmp_path / "page.html").write_text(without_policy(html.render(values), watch), encoding="utf-8")
    frame = '<iframe src="page.html" style="width:400px;height:800px;border:0"></iframe>'
    told = '<script>addEventListener("message", (event) => { document.title = event.data; });</script>'
    (tmp_path / "frame.html").write_text(f"<!DOCTYPE html><title></title>{told}{frame}", encoding="utf-8")

    flags = ("--allow-file-access-from-files", "--virtual-time-budget=20000")
    paints = []
    for _ in range(3):
        dom, _ = browse(tmp_path / "frame.html", *flags)
        paint, shift, width, needed = map(float, re.search(r"<title>(.*?)</title>", dom)[1].split())
        assert (width, shift) == (400, 0) and needed <= 400
        paints.append(paint)
    assert 0 < min(paints) <= 1000
