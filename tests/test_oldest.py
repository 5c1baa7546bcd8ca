"""The lower bounds of pyproject.toml as constraints for pip."""

from __future__ import annotations

import tomllib

from tests.oldest import PROJECT, constraints, oldest


def test_every_package_that_is_needed_has_a_lower_bound() -> None:
    needed = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    assert len(constraints(needed)) == len(needed)
    assert {"numpy==2.0", "openvino==2025.1"} <= set(oldest())


def test_a_bound_becomes_a_version() -> None:
    assert constraints(["a>=1.2", "b[x,y]>=3,<4", "c"]) == ["a==1.2", "b==3"]
