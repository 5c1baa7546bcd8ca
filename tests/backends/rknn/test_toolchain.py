"""Rockchip's compiler and simulator in an environment of their own."""

from __future__ import annotations

import re

import pytest

from intact.backends.rknn.toolchain import TOOLCHAIN
from intact.runtime import installation, toolchains


def test_every_requirement_is_pinned_and_the_package_is_one_of_them():
    pins = TOOLCHAIN.pins("1.2.3")
    assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9.-]+==[0-9.]+", pin)] == []
    assert f"{TOOLCHAIN.package}==1.2.3" in pins and len({pin.partition("==")[0] for pin in pins}) == len(pins)


@pytest.mark.rknn
def test_the_environment_that_is_here_compiles_and_simulates_an_operator():
    installation.check(TOOLCHAIN, toolchains.require(TOOLCHAIN))
