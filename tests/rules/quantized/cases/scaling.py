"""Constant factors and shifts beside Q and DQ nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, every_level, zero_points
from tests.rules.quantized.cases.folding import TYPES, floats

FACTORS = (1e-3, 0.3, 1.0, 3.7, 1e4)
POWERS = (2.0**-20, 0.5, 1.0, 4.0, 2.0**20)


def before_quantize(factors: tuple[float, ...]) -> Generator:
    def generate(rng: np.random.Generator) -> Iterator[Case]:
        for dtype, op, factor in itertools.product(TYPES, ("Mul", "Div"), factors):
            applied = factor if op == "Mul" else 1 / factor
            for zero in zero_points(dtype)[::3]:
                net, x = Net(), floats(rng, 0.02 / applied)
                net.quantize(net.op(op, "x", np.float32([factor])), 0.02, zero)
                yield Case(f"{dtype.__name__} {op} {factor} {zero}", net.model({"x": x}, "t1"), [{"x": x}])

    return generate


def after_dequantize(factors: tuple[float, ...]) -> Generator:
    def generate(rng: np.random.Generator) -> Iterator[Case]:
        for dtype, op, factor in itertools.product((np.uint8, np.int8, np.int16), ("Mul", "Div"), factors):
            for zero in zero_points(dtype):
                net, x = Net(), every_level(dtype, (np.iinfo(dtype).max - np.iinfo(dtype).min + 1,))
                net.op(op, net.dequantize("x", 0.0171, zero), np.float32(factor))
                step = 0.0171 * (factor if op == "Mul" else 1 / factor)
                yield Case(f"{dtype.__name__} {op} {factor} {zero}", net.model({"x": x}, "t1"), [{"x": x}], step)

    return generate


def fold_shift_into_dequantize(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, op, steps in itertools.product((np.uint8, np.int8, np.int16), ("Add", "Sub"), (-100, -1, 0, 7)):
        net, x = Net(), every_level(dtype, (np.iinfo(dtype).max - np.iinfo(dtype).min + 1,))
        zero = dtype((np.iinfo(dtype).min + np.iinfo(dtype).max) // 2)
        net.op(op, net.dequantize("x", 0.25, zero), np.float32(steps * 0.25))
        yield Case(f"{dtype.__name__} {op} {steps}", net.model({"x": x}, "t1"), [{"x": x}])


def fold_shift_into_quantize(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, op, steps in itertools.product(TYPES, ("Add", "Sub"), (-100, -1, 0, 7)):
        scale = np.float32(0.013)
        net, x = Net(), floats(rng, float(scale))
        zero = dtype((np.iinfo(dtype).min + np.iinfo(dtype).max) // 2)
        net.quantize(net.op(op, "x", np.float32(steps) * scale), scale, zero)
        yield Case(f"{dtype.__name__} {op} {steps}", net.model({"x": x}, "t1"), [{"x": x}])


CASES: dict[str, Generator] = {
    "fold_scale_into_quantize": before_quantize(FACTORS),
    "fold_power_of_two_into_quantize": before_quantize(POWERS),
    "fold_scale_into_dequantize": after_dequantize(FACTORS),
    "fold_power_of_two_into_dequantize": after_dequantize(POWERS),
    "fold_shift_into_dequantize": fold_shift_into_dequantize,
    "fold_shift_into_quantize": fold_shift_into_quantize,
}
