"""Differences that are meant: scales that move from one layer into another are followed until they are undone."""

from __future__ import annotations

import numpy as np
import pytest

from intact.search.debug.bisect import compare_layers
from intact.search.debug.layers import Layer, first_parted
from intact.search.debug.paired_models import PairedModels
from tests.quantization.models import model

RNG = np.random.default_rng(0)
W, V, B = (RNG.standard_normal(shape).astype(np.float32) for shape in ((8, 8), (8, 8), (8,)))
ROWS = [{"x": RNG.standard_normal((4, 8)).astype(np.float32)} for _ in range(3)]
S = np.float32(0.25)
CHANNELS = np.linspace(0.1, 4.0, 8, dtype=np.float32)
HEAD = "a = MatMul(x, w)  b = Add(a, bias)  c = Identity(b)"


def layers(reference: str, candidate: str, constants: dict, changed: dict) -> list[Layer]:
    shapes = ("float[4,8] x", "float[4,8] y")
    models = [model(*shapes, reference, **constants), model(*shapes, candidate, **(constants | changed))]
    return compare_layers(PairedModels(*models), ROWS)


def named(found: list[Layer]) -> str | None:
    first = first_parted(found)
    return None if first is None else first.node


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, None), (1.5, "a"), (8.0, "a")], ids=["sound", "a scale is wrong", "far wrong"]
)
def test_a_scale_that_moved_into_a_weight_and_a_bias_is_meant_and_what_only_moves_values_is_not_blamed(
    factor, expected
):
    """`d` reads what is a quarter of the reference's; the reference multiplies there, the candidate only moves."""
    found = layers(
        f"{HEAD}  d = Mul(c, s)  y = MatMul(d, v)",
        f"{HEAD}  d = Identity(c)  y = MatMul(d, v)",
        {"w": W, "v": V, "bias": B, "s": S},
        {"w": W * S * np.float32(factor), "bias": B * S},
    )
    assert named(found) == expected
    if expected is None:
        assert {"a", "b"} <= {layer.node for layer in found if layer.meant}


@pytest.mark.parametrize(("factor", "expected"), [(1.0, None), (1.5, "y"), (50.0, "y")])
def test_a_layer_that_undoes_scales_but_for_a_factor_is_to_blame_for_it(factor, expected):
    found = layers(
        f"{HEAD}  y = MatMul(c, v)",
        f"{HEAD}  y = MatMul(c, v)",
        {"w": W, "v": V, "bias": B},
        {"w": W * CHANNELS, "bias": B * CHANNELS, "v": (V / CHANNELS[:, None]) * np.float32(factor)},
    )
    assert named(found) == expected


def test_a_later_fault_does_not_put_the_blame_on_a_difference_that_was_undone():
    body = f"{HEAD}  d = MatMul(c, v)  e = Sigmoid(d)  f = MatMul(e, w)  y = Add(f, d)"
    spoiled = body.replace("f = MatMul(e, w)", "f = MatMul(e, u)")
    found = layers(
        body,
        spoiled,
        {"w": W, "v": V, "bias": B},
        {"w": W * CHANNELS, "bias": B * CHANNELS, "v": V / CHANNELS[:, None], "u": 3 * W},
    )
    assert named(found) == "f"
