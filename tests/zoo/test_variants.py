"""Variants are what they claim: the same every time, alive from input to output, in forms that nobody tidied up."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from tests.zoo import ZOO
from tests.zoo.variants import VARIANTS, rows

EVERY_VARIANT = pytest.mark.parametrize("name", VARIANTS)


def test_every_network_has_a_variant():
    assert VARIANTS.keys() == ZOO.keys()


@EVERY_VARIANT
def test_a_builder_gives_the_same_bytes_twice(name):
    assert VARIANTS[name]().SerializeToString() == VARIANTS[name]().SerializeToString()


@EVERY_VARIANT
def test_every_output_depends_on_the_input_and_is_finite(name):
    model = VARIANTS[name]()
    session = ort.InferenceSession(model.SerializeToString())
    results = [session.run(None, row) for row in rows(model, 2)]
    for first, second in zip(*results, strict=True):
        assert np.isfinite(first).all()
        assert np.abs(first - second).max() > 0.01


@pytest.mark.parametrize("name", ["residual_cnn", "depthwise_cnn", "vit"])
def test_images_are_bytes_with_every_pure_colour(name):
    (row,) = rows(VARIANTS[name](), 1)
    pixels = row["image"] if name == "vit" else row["image"].transpose(0, 2, 3, 1)
    assert np.array_equal(pixels, np.clip(np.rint(pixels), 0, 255))
    assert len(np.unique(pixels[0, 0, :8], axis=0)) == 8 and np.isin(pixels[0, 0, :8], (0, 255)).all()
