"""The report: one HTML file, drawn from the manifest alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def write(manifest: dict[str, Any], folder: Path) -> Path:
    """Write `report.html` into a folder."""
    path = folder / "report.html"
    path.write_text(str(manifest), encoding="utf-8")
    return path
