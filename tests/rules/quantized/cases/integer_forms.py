"""Clips, differences and signs: the same integers in another form."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, every_level, integers, zero_points
from tests.rules.quantized.cases.to_qlinear import IMAGE, SHAPES, X_SCALE, output_scale, weight_grid

MICROSOFT = "com.microsoft"
U8, I8 = np.uint8, np.int8


def relu(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in (U8, I8):
        for zero in zero_points(dtype)[1:]:
            net, x = Net(), rng.normal(0, 9, 4000).astype(np.float32)
            y = net.quantize(net.op("Relu", "x"), 0.1, zero)
            yield Case(f"{dtype.__name__} {zero}", net.model({"x": x}, y), [{"x": x}])


def clip(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, ends in itertools.product((U8, I8), ((-1.03, 2.57), (0.35, None), (None, 3.0), (2.0, 9e9))):
        for zero in zero_points(dtype)[1:3]:
            net, x = Net(), np.linspace(-9, 9, 4001).astype(np.float32)
            given = (None if end is None else np.float32(end) for end in ends)
            y = net.quantize(net.op("Clip", "x", *given), 0.1, zero)
            yield Case(f"{dtype.__name__} {ends} {zero}", net.model({"x": x}, y), [{"x": x}])


def sub(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, constant in itertools.product((U8, I8), (True, False)):
        for zero in zero_points(dtype):
            net, feeds = Net(), {"a": every_level(dtype, (4, 256)), "b": integers(rng, dtype, (4, 256))}
            second = feeds.pop("b") if constant else "b"
            first = net.dequantize("a", 0.02, rng.choice(zero_points(dtype)))
            result = net.op("Sub", first, net.dequantize(second, 0.05, zero))
            y = net.quantize(result, 0.07, rng.choice(zero_points(dtype)))
            yield Case(f"{dtype.__name__} {zero} {constant}", net.model(feeds, y), [feeds])


def activation(rng: np.random.Generator) -> Iterator[Case]:
    for zero, scale in itertools.product(zero_points(I8), (1e-6, 0.02, 30.0)):
        net, x = Net(), (rng.normal(0, 90, 4000) * scale).astype(np.float32)
        y = net.dequantize(net.quantize("x", scale, zero), scale, zero)
        yield Case(f"{zero} {scale}", net.model({"x": x}, y), [{"x": x}])


def moved_activation(rng: np.random.Generator) -> Iterator[Case]:
    moves = (("Transpose", {"perm": [0, 2, 3, 1]}), ("MaxPool", {"kernel_shape": [2, 2]}), ("Flatten", {}))
    for (op, attributes), zero in itertools.product(moves, zero_points(I8)):
        net, x = Net(), rng.normal(0, 3, IMAGE).astype(np.float32)
        y = net.dequantize(net.op(op, net.quantize("x", 0.05, zero), **attributes), 0.05, zero)
        yield Case(f"{op} {zero}", net.model({"x": x}, y), [{"x": x}])
    for ends, zero in itertools.product(((I8(-100), I8(90)), (I8(3), None), (None, I8(0))), zero_points(I8)):
        net, x = Net(), rng.normal(0, 3, IMAGE).astype(np.float32)
        y = net.dequantize(net.op("Clip", net.quantize("x", 0.05, zero), *ends), 0.05, zero)
        yield Case(f"Clip {ends} {zero}", net.model({"x": x}, y), [{"x": x}])


def constant(rng: np.random.Generator) -> Iterator[Case]:
    for op, zero in itertools.product(("Add", "Mul", "Sub"), zero_points(I8)):
        net, x = Net(), every_level(U8, (256,))
        y = net.op(op, net.dequantize("x", 0.02, U8(100)), net.dequantize(integers(rng, I8, (256,)), 0.05, zero))
        yield Case(f"{op} {zero}", net.model({"x": x}, y), [{"x": x}])


def convert(net: Net, x: str, scale: Any, zero: Any) -> str:
    """The same grid in the other sign: `zero` is the zero point after it."""
    other = np.asarray(int(zero) + (128 if zero.dtype == I8 else -128), U8 if zero.dtype == I8 else I8)
    return net.quantize(net.dequantize(x, scale, other), scale, zero)


def joined(rng: np.random.Generator) -> Iterator[Case]:
    for zero, scale in itertools.product((*zero_points(I8), *zero_points(U8)), (0.02, 30.0)):
        net, x = Net(), (rng.normal(0, 90, 4000) * 0.5).astype(np.float32)
        other = (U8 if zero.dtype == I8 else I8)(7)
        y = convert(net, net.quantize("x", 0.5, other), scale, zero)
        yield Case(f"{zero.dtype} {zero} {scale}", net.model({"x": x}, y), [{"x": x}])


def conv_of(rng: np.random.Generator, act: Any, wt: Any) -> Iterator[Case]:
    """QLinearConv of every shape, per tensor and per channel."""
    for (group, multiplier, spatial), per_channel in itertools.product(SHAPES, (True, False)):
        outside = 8 * multiplier if group > 1 else 6
        net, x = Net(), integers(rng, act, (2, 8, *(5,) * spatial))
        scale, zero = weight_grid(rng, wt, outside, per_channel)
        w = integers(rng, wt, (outside, 8 // group, *(3,) * spatial))
        grids = output_scale(rng, X_SCALE * scale, w[0].size), rng.choice(zero_points(act))
        bias = rng.integers(-3000, 3000, outside).astype(np.int32)
        inputs = net.op("Identity", "x"), X_SCALE, rng.choice(zero_points(act)), w, scale, zero, *grids, bias
        y = net.op("QLinearConv", *inputs, group=group, pads=[1] * 2 * spatial)
        yield Case(f"conv {group} {multiplier} {spatial}d {per_channel}", net.model({"x": x}, y), [{"x": x}])


def product_of(rng: np.random.Generator, act: Any, wt: Any) -> Iterator[Case]:
    """QLinearMatMul, QGemm to integers and to float, and MatMulIntegerToFloat, per tensor and per channel."""
    for per_channel, a_zero in itertools.product((True, False), zero_points(act)):
        scale, zero = weight_grid(rng, wt, 10, per_channel)
        b, a = integers(rng, wt, (12, 10)), integers(rng, act, (7, 12))
        grid = output_scale(rng, X_SCALE * scale, 12), rng.choice(zero_points(act))
        bias = rng.integers(-3000, 3000, 10).astype(np.int32)
        net = Net()
        data = net.op("Identity", "a")
        outputs = [
            net.op("QLinearMatMul", data, X_SCALE, a_zero, b, scale, zero, *grid),
            net.op("QGemm", data, X_SCALE, a_zero, b, scale, zero, bias, *grid, _domain=MICROSOFT),
            net.op("QGemm", data, X_SCALE, a_zero, b, scale, zero, bias, _domain=MICROSOFT),
            net.op("MatMulIntegerToFloat", data, b, X_SCALE, scale, a_zero, zero, _domain=MICROSOFT),
        ]
        yield Case(f"product {per_channel} {a_zero}", net.model({"a": a}, *outputs), [{"a": a}])


def unsigned_operator(rng: np.random.Generator) -> Iterator[Case]:
    """One operator a model: among several, one that the rule passes over would not be missed."""
    second, last = (np.float32(0.05), I8(-7)), (np.float32(0.06), I8(9))
    for zero in zero_points(I8):
        feeds = {"a": every_level(U8, (1, 4, 8, 8)), "b": integers(rng, I8, (1, 4, 8, 8))}
        for op, rest, attributes in (
            ("Add", ("b", *second, *last), {}),
            ("Mul", (integers(rng, I8, (8,)), *second, *last), {}),
            ("Sigmoid", last, {}),
            ("LeakyRelu", last, {"alpha": 0.1}),
            ("AveragePool", last, {"kernel_shape": [2, 2]}),
            ("GlobalAveragePool", last, {}),
            ("Where", ("b", *second, *last), {}),
        ):
            net = Net()
            condition = [rng.random(8) < 0.5] if op == "Where" else []
            x = convert(net, "a", 0.02, zero), np.float32(0.02), zero
            y = net.op(f"QLinear{op}", *condition, *x, *rest, _domain=MICROSOFT, **attributes)
            yield Case(f"{op} {zero}", net.model(feeds, y), [feeds])


def unsigned_concat(rng: np.random.Generator) -> Iterator[Case]:
    for zero in zero_points(I8):
        net, feeds = Net(), {"a": every_level(U8, (1, 256)), "b": integers(rng, I8, (1, 256))}
        x = convert(net, "a", 0.02, zero)
        grids = (np.float32(0.06), I8(9)), (np.float32(0.02), zero), (np.float32(0.05), I8(-7))
        y = net.op("QLinearConcat", *grids[0], x, *grids[1], "b", *grids[2], _domain=MICROSOFT, axis=1)
        yield Case(f"{zero}", net.model(feeds, y), [feeds])


def second_operand(rng: np.random.Generator) -> Iterator[Case]:
    # A product may take integers for another scale and zero point than they were written with.
    for zero, moves, (scale, offset) in itertools.product(
        zero_points(U8), (0, 1, 2), ((0.05, 0), (0.02, 0), (0.05, 7))
    ):
        net, feeds = Net(), {"a": integers(rng, U8, (2, 4, 6)), "b": rng.normal(0, 3, (2, 6, 5)).astype(np.float32)}
        b = net.quantize("b", scale, U8((int(zero) + offset) % 256))
        for _ in range(moves):
            b = net.op("Transpose", b, perm=[0, 2, 1])
        if moves == 1:
            feeds["b"] = feeds["b"].transpose(0, 2, 1).copy()
        grids = X_SCALE, U8(100), b, np.float32(0.05), zero
        to_float = "a", b, X_SCALE, np.float32(0.05), U8(100), zero
        outputs = {
            "integers": net.op("QLinearMatMul", "a", *grids, np.float32(0.6), U8(90)),
            "float": net.op("MatMulIntegerToFloat", *to_float, _domain=MICROSOFT),
        }
        for name, output in outputs.items():
            single = Net()
            single.constants, single.nodes = dict(net.constants), _needed(net, output)
            yield Case(f"{zero} {moves} {scale} {offset} {name}", single.model(feeds, output), [feeds])


def _needed(net: Net, output: str) -> list[Any]:
    """The nodes behind one output: a value that several products read does not change its sign."""
    wanted, kept = {output}, []
    for node in reversed(net.nodes):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            kept.append(node)
    return kept[::-1]


def _unsigned_products(rng: np.random.Generator) -> Iterator[Case]:
    yield from conv_of(rng, I8, I8)
    yield from product_of(rng, I8, I8)


def _signed_weights(rng: np.random.Generator) -> Iterator[Case]:
    yield from conv_of(rng, U8, U8)
    yield from product_of(rng, U8, U8)


def _unsigned_weights(rng: np.random.Generator) -> Iterator[Case]:
    yield from conv_of(rng, U8, I8)
    yield from product_of(rng, U8, I8)
    for op, zero in itertools.product(("ConvInteger", "MatMulInteger"), (None, *zero_points(I8))):
        shapes = ((1, 4, 5, 5), (6, 4, 3, 3)) if op == "ConvInteger" else ((7, 12), (12, 10))
        net, x, w = Net(), integers(rng, U8, shapes[0]), integers(rng, I8, shapes[1])
        y = net.op(op, "x", w, U8(100), zero)
        yield Case(f"{op} {zero}", net.model({"x": x}, y), [{"x": x}])


def _mixed_signs(rng: np.random.Generator) -> Iterator[Case]:
    yield from conv_of(rng, I8, U8)
    yield from product_of(rng, I8, U8)
    for zero in zero_points(U8):
        net, feeds = Net(), {"a": integers(rng, I8, (2, 4, 6)), "b": integers(rng, U8, (2, 6, 5))}
        grids = X_SCALE, I8(-5), "b", np.float32(0.05), zero, np.float32(0.6), I8(9)
        yield Case(f"computed {zero}", net.model(feeds, net.op("QLinearMatMul", "a", *grids)), [feeds])


CASES: dict[str, Generator] = {
    "relu_to_integer_clip": relu,
    "clip_to_integer_clip": clip,
    "sub_to_add": sub,
    "unsign_activation": activation,
    "unsign_moved_activation": moved_activation,
    "unsign_constant": constant,
    "join_shifted_grids": joined,
    "unsign_product": _unsigned_products,
    "unsign_operator": unsigned_operator,
    "unsign_concat": unsigned_concat,
    "sign_weight": _signed_weights,
    "unsign_weight": _unsigned_weights,
    "sign_second_operand": second_operand,
    "match_weight_sign": _mixed_signs,
}
