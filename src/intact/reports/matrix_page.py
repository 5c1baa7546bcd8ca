"""The page of a matrix: one table to choose a build from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intact.reports.figures import count
from intact.reports.pages import page


def render(matrix: Mapping[str, Any]) -> str:
    """The matrix as a self-contained page; the same values give the same text."""
    return page("matrix.html.j2", **view(matrix))


def view(matrix: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the page: the cells, the best figures among those that passed, and the number that did not."""
    cells = matrix["cells"]
    passed = [cell for cell in cells if cell["status"] == "built"]
    return {
        "model": matrix["source"].replace("\\", "/").rsplit("/", 1)[-1],
        "source": matrix["source"],
        "cells": cells,
        "devices": list(dict.fromkeys(cell["device"] for cell in cells)),
        "built": f"{len(passed)} of {count(len(cells), 'cell')} built",
        "failed": len(cells) - len(passed),
        "most_db": max((cell["sqnr_db"] for cell in passed if cell["sqnr_db"] is not None), default=None),
        "least_bytes": min((cell["bytes"] for cell in passed), default=None),
    }
