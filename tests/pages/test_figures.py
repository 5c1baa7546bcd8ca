"""The pictures of the explanation pages are those that the measured figures give."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.pages.blocks import ROOT

FIGURES = ROOT / "docs/figures"


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FIGURES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PICTURES = _script("draw").pictures()


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_up_to_date(name: str) -> None:
    assert (FIGURES / name).read_text(encoding="utf-8") == PICTURES[name], "run: python docs/figures/draw.py"
