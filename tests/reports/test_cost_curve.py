"""The cost of a build, and accuracy against it: tried points have the room, and a phone shows labels in full."""

from __future__ import annotations

import re

import pytest

from intact.reports import html
from intact.reports.cost_curve import curve
from intact.reports.cost_words import cost_words
from tests.reports.sample import manifest


def point(cost, predicted, measured=None, compiled=None):
    known = {"predicted_db": predicted, "measured_db": measured, "compiled_db": compiled}
    return {"cost": cost, "groups": {"w8a8": 3}, "passed": None} | known


POINTS = [
    point(1.0, 30.0),
    point(1.1, 33.0, 34.0),
    point(1.15, 31.0, 32.0),
    point(1.2, 36.0, 35.5, 35.0),
    point(1.3, 40.0),
    *(point(1.4 + i / 10, 45.0 + i) for i in range(20)),
]
SEARCH = {"points": POINTS, "chosen": 3, "uniform": {"w8a8": 1.0, "int16": 4.0}, "worst": [], "cost_source": "rule"}


def test_dots_are_spread_over_the_drawing_although_the_curve_goes_on():
    drawn = curve(SEARCH, 35.0)
    places = [x for x, _, _ in drawn["measured"]]
    assert max(places) - min(places) > 25
    assert len(drawn["line"].split()) == 4, "of 25 points those near the tried ones, without the one that is worse"


def test_the_goal_the_ticks_and_the_chosen_point_lie_where_their_values_do():
    drawn = curve(SEARCH, 35.0)
    labels = [(place, float(label)) for place, label in drawn["y_ticks"]]
    (low, at_low), (high, at_high) = [(db, place) for place, db in (labels[0], labels[-1])]
    assert (low, high) == (30, 40) and [db for _, db in labels] == [30, 32, 34, 36, 38, 40], (
        "round, and no more of them"
    )
    assert drawn["goal"] == pytest.approx(at_low + (at_high - at_low) * (35 - low) / (high - low), abs=0.2)
    assert drawn["chosen"][1] == drawn["compiled"][0][1] == drawn["goal"], "the compiled form has 35 dB"


def test_one_point_and_no_signal_are_drawn():
    lonely = SEARCH | {"points": [point(1.0, 30.0, -3.4e38)], "chosen": 0}
    drawn = curve(lonely, None)
    assert drawn["chosen"] == (50.0, 50.0) and drawn["measured"] == [] and drawn["goal"] is None


def test_the_page_has_labels_as_text_outside_the_picture_and_the_cost_as_a_tile():
    page = html.render(manifest() | {"search": SEARCH})
    [plot] = re.findall(r'<div class="plot".*?</ol>\n</div>', page, re.DOTALL)
    assert "<text" not in plot and "0.30</li>" in plot and "40 dB</li>" in plot
    assert '<p class="value">0.30×</p>' in page and "at 0.300 of the cost in int16 throughout" in page


RULE = {"ratio": 0.381, "float_bits": 16, "source": "backends/qnn/table.toml [cost], rule: bits and bytes"}
TIMED = {"name": "max_latency_ratio", "value": 0.62, "limit": 1.0, "passed": True, "detail": "", "fix": ""}


@pytest.mark.parametrize(
    ("device", "changed", "said"),
    [
        ("qnn", {"estimate": RULE}, ("Estimated cost", "0.38×", "float16 on this device", "rule: bits and bytes; no")),
        ("qnn", {"estimate": RULE, "search": SEARCH}, ("Estimated cost", "0.38×", "float16", "nothing was measured")),
        ("cpu", {}, ("Latency", "not measured", "intact perf", "")),
        ("cpu", {"gates": [TIMED]}, ("Latency", "0.62×", "as given", "measured on this machine")),
        ("dml", {}, ("Estimated cost", "not known", "time it on the", "")),
        ("gone", {}, ("Estimated cost", "not known", "time it on the", "")),
    ],
)
def test_every_build_says_what_is_known_of_its_cost(device, changed, said):
    found = manifest()
    found["config"]["compile"]["device"] = device
    words = cost_words(found | {"gates": []} | changed)
    assert all(part in word for part, word in zip(said, words, strict=True)), words


@pytest.mark.parametrize(("milliseconds", "said"), [(1.5, "1.5 ms"), (None, "1200 cycles")])
def test_the_estimate_of_a_compiler_is_a_tile_where_nothing_was_searched_for(milliseconds, said):
    cost = {"cycles": 1200, "weight_bytes": None, "activation_bytes": None, "milliseconds": milliseconds}
    assert f'<p class="value">{said}</p>' in html.render(manifest() | {"cost": cost})
