"""The page of a matrix: one table to choose a build from."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined

from intact.reports.figures import count, decibels, duration, size


def render(matrix: Mapping[str, Any]) -> str:
    """The matrix as a self-contained page; the same values give the same text."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"db": decibels, "duration": duration, "size": size}
    template = resources.files(__package__).joinpath("matrix.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(**view(matrix)) + "\n"


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
