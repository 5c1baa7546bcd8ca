"""Stages as words: the figures that a stage records, said so that nobody has to read JSON."""

from __future__ import annotations

import pytest

from intact.reports.stage_words import stage_words

CENSUS = {"activations": "uint8", "weights": "int8", "nodes": 3, "ops": {"Conv": 3}}


@pytest.mark.parametrize(
    ("name", "details", "said"),
    [
        ("load", {"opset_from": 17, "opset_to": 21, "upgrade_sqnr_db": None}, "opset 17 → 21, upgrade identical"),
        ("load", {"opset_from": 21, "opset_to": 21, "upgrade_sqnr_db": None}, "opset 21"),
        ("optimize", {"rewrites": 1}, "1 rewrite"),
        ("optimize", {"rewrites": 0}, "nothing to simplify"),
        ("quantize", {"types": [CENSUS], "kept_in_float32": {"a": "why"}}, "3 uint8 × int8, 1 node kept in float32"),
        ("rewrite", {"rewrites": 2, "rewriting_identical": True}, "2 rewrites, same numbers"),
        ("rewrite", {"rewrites": 2, "rewriting_identical": False, "rewriting_sqnr_db": 61.25}, "2 rewrites, 61.25 dB"),
        ("analyze", {"npu_percent": 50.0, "compute_nodes": 2}, "50 % of 2 compute nodes fit the device"),
        ("validate", {"violations": [{"node": "a"}]}, "1 violation"),
        ("validate", {"violations": []}, "no violations"),
        ("compile", {"runtime": "a compiler 1.0"}, "a compiler 1.0"),
        ("verify", {"samples": 1, "clipped": [{}, {}]}, "1 sample compared, 2 tensors outside their range"),
        ("search", {"groups": 4, "assignments_tried": 9, "builds": 1}, "4 groups, 9 assignments tried, 1 build"),
        ("a stage of tomorrow", {"figure": 3}, ""),
    ],
)
def test_a_stage_in_words(name, details, said):
    assert stage_words(name, details) == said


@pytest.mark.parametrize(
    "name",
    [
        "load",
        "optimize",
        "quantize",
        "rewrite",
        "analyze",
        "validate",
        "compile",
        "verify",
        "search",
        "mend",
        "debug",
        "perf",
    ],
)
def test_manifests_of_other_versions_without_figures_are_told_too(name):
    assert isinstance(stage_words(name, {}), str)
