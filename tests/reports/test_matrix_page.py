"""The page of a matrix: the style of all pages, and every figure with its name where a row is narrow."""

from __future__ import annotations

from intact.reports import matrix_page
from intact.reports.pages import text_of
from tests.reports.test_html import HOSTILE, Page

CELL = {
    "device": "qnn",
    "precision": "uint8",
    "status": "built",
    "verdict": "good",
    "verdict_reasons": [],
    "identical": False,
    "sqnr_db": 41.2,
    "npu_percent": 100.0,
    "partitions": 1,
    "bytes": 123456,
    "gates": [],
    "seconds": 12.3,
    "kept": False,
    "folder": "qnn-uint8",
    "error": None,
}


def page(*cells):
    return matrix_page.render({"source": "models/net.onnx", "cells": [CELL | cell for cell in cells]})


def test_has_the_style_that_all_pages_share():
    assert text_of("style.css") in page({})


def test_names_every_figure_beside_it_for_narrow_screens():
    tags = Page(page({})).tags
    cells = [attributes for tag, attributes in tags if tag == "td"]
    heads = [attributes for tag, attributes in tags if tag == "th" and attributes.get("scope") == "col"]
    assert len(cells) == len(heads) - 1 and all(attributes.get("data-label") for attributes in cells)


def test_marks_the_best_of_those_that_passed_and_escapes_what_failed():
    text = page({}, {"sqnr_db": 99.0, "status": "not passed"}, {"status": "failed", "error": HOSTILE, "bytes": None})
    assert text.count('best">41.20<') == 1 and 'best">99.00<' not in text
    assert "1 of 3 cells built" in text and HOSTILE not in text
