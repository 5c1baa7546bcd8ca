"""Print the oldest versions that pyproject.toml allows, as constraints for pip: `python tests/oldest.py`.

Extras that are not in this list are not held to theirs: torch is large, and vendors' toolchains have one version.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
EXTRAS = ("openvino", "images")
_BOUND = re.compile(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)")


def constraints(requirements: Iterable[str]) -> list[str]:
    """Each requirement with a lower bound, pinned to that."""
    return [f"{found[1]}=={found[2]}" for text in requirements if (found := _BOUND.match(text))]


def oldest() -> list[str]:
    """The constraints of the project."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = [text for name in EXTRAS for text in project["optional-dependencies"][name]]
    return constraints([*project["dependencies"], *extras])


if __name__ == "__main__":
    print("\n".join(oldest()))
