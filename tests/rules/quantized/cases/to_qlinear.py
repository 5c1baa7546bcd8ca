"""Operators between DQ and Q: types, shapes, per tensor and per channel, extremes of grids, saturating outputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from intact.matching import rewriter
from intact.rules.quantized import to_qlinear
from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, every_level, integers, zero_points

KINDS = ((np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8))
SHAPES = ((1, 1, 2), (2, 1, 2), (8, 1, 2), (8, 2, 2), (1, 1, 1), (1, 1, 3))
"""Groups, channels out for each channel in, spatial dimensions."""

X_SCALE = np.float32(0.02)
BIASES = ("none", "int32", "int8", "float")


def kernel_rule(op: str) -> rewriter.Rule:
    """The rule of one row of the table."""
    return to_qlinear.KernelToQLinear(next(row for row in to_qlinear.ROWS if row.op == op))


def weight_grid(
    rng: np.random.Generator, dtype: Any, channels: int, per_channel: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Scales and zero points of a weight, one or one for each channel."""
    count = (channels,) if per_channel else ()
    return rng.uniform(0.002, 0.01, count).astype(np.float32), integers(rng, dtype, count)


def add_bias(net: Net, rng: np.random.Generator, kind: str, steps: np.ndarray, channels: int) -> str | None:
    """A bias of each kind that a model may have: on the grid of the accumulator, on another one, in float."""
    if kind == "none":
        return None
    if kind == "float":
        return net.constant(rng.normal(0, 2, channels).astype(np.float32))
    if kind == "int8":
        return net.dequantize(integers(rng, np.int8, (channels,)), np.float32(0.03), np.int8(5))
    levels, scale = rng.integers(-3000, 3000, channels).astype(np.int32), np.broadcast_to(steps, (channels,))
    return net.dequantize(levels, scale, np.zeros(channels, np.int32), axis=0)


def output_scale(rng: np.random.Generator, steps: np.ndarray, terms: int) -> np.float32:
    """A scale for sums of that many products; some of them saturate."""
    return np.float32(steps.max() * 90 * 70 * np.sqrt(terms) / rng.choice([20, 60, 120]))


def conv(rng: np.random.Generator) -> Iterator[Case]:
    variants = itertools.cycle(itertools.product(BIASES, (True, False)))
    for (act, wt), (group, multiplier, spatial) in itertools.product(KINDS, SHAPES):
        for bias, per_channel in itertools.islice(variants, 3):
            outside = 8 * multiplier if group > 1 else 6
            # Depthwise weights with distinct zero points are not for this rule.
            scale, zero = weight_grid(rng, wt, outside, per_channel)
            zero = np.full_like(zero, wt(3)) if group == 8 else zero
            net, x_zero, y_zero = Net(), rng.choice(zero_points(act)), rng.choice(zero_points(act))
            w = integers(rng, wt, (outside, 8 // group, *(3,) * spatial))
            steps = X_SCALE * scale
            x = integers(rng, act, (2, 8, *(5,) * spatial))
            data = net.dequantize("x", X_SCALE, x_zero)
            weight = net.dequantize(w, scale, zero, axis=0)
            added = add_bias(net, rng, bias, steps, outside)
            result = net.op("Conv", data, weight, added, group=group, pads=[1] * 2 * spatial, strides=[2] * spatial)
            y = net.quantize(result, output_scale(rng, steps, w[0].size), y_zero)
            label = f"{act.__name__} {wt.__name__} {group} {multiplier} {spatial}d {bias} {per_channel}"
            yield Case(label, net.model({"x": x}, y), [{"x": x}])


def matmul(rng: np.random.Generator) -> Iterator[Case]:
    for (act, wt), per_channel, shape in itertools.product(KINDS, (True, False), ((7, 12), (2, 3, 12), (2, 2, 3, 12))):
        net, a_zero, y_zero = Net(), rng.choice(zero_points(act)), rng.choice(zero_points(act))
        scale, zero = weight_grid(rng, wt, 10, per_channel)
        b = integers(rng, wt, (12, 10))
        product = net.op("MatMul", net.dequantize("a", X_SCALE, a_zero), net.dequantize(b, scale, zero, axis=1))
        y = net.quantize(product, output_scale(rng, X_SCALE * scale, 12), y_zero)
        a = integers(rng, act, shape)
        yield Case(f"{act.__name__} {wt.__name__} {per_channel} {shape}", net.model({"a": a}, y), [{"a": a}])
    for act, wt in KINDS:
        net, a_zero, b_zero = Net(), rng.choice(zero_points(act)), rng.choice(zero_points(wt))
        left, right = net.dequantize("a", X_SCALE, a_zero), net.dequantize("b", X_SCALE, b_zero)
        y = net.quantize(net.op("MatMul", left, right), output_scale(rng, X_SCALE * X_SCALE, 6), a_zero)
        feeds = {"a": integers(rng, act, (2, 4, 6)), "b": integers(rng, wt, (2, 6, 5))}
        yield Case(f"two activations {act.__name__} {wt.__name__}", net.model(feeds, y), [feeds])


def gemm_nodes(
    net: Net,
    rng: np.random.Generator,
    kind: Any,
    bias: str,
    trans: tuple[int, int],
    per_channel: bool,
    **factors: float,
) -> tuple[str, np.ndarray, np.ndarray]:
    """A Gemm of DQ nodes: its output, the integers it wants, and the step of its accumulator."""
    (act, wt), (trans_a, trans_b) = kind, trans
    scale, zero = weight_grid(rng, wt, 10, per_channel)
    b = integers(rng, wt, (10, 12) if trans_b else (12, 10))
    data = net.dequantize("a", X_SCALE, rng.choice(zero_points(act)))
    weight = net.dequantize(b, scale, zero, axis=0 if trans_b else 1)
    added = add_bias(net, rng, bias, X_SCALE * scale, 10)
    result = net.op("Gemm", data, weight, added, transA=trans_a, transB=trans_b, **factors)
    return result, integers(rng, act, (12, 7) if trans_a else (7, 12)), X_SCALE * scale


def gemm(rng: np.random.Generator) -> Iterator[Case]:
    for kind, bias, trans in itertools.product(KINDS, BIASES, ((0, 0), (0, 1), (1, 0))):
        net = Net()
        result, a, steps = gemm_nodes(net, rng, kind, bias, trans, bias != "int8")
        y = net.quantize(result, output_scale(rng, steps, 12), rng.choice(zero_points(kind[0])))
        yield Case(f"{kind} {bias} {trans}", net.model({"a": a}, y), [{"a": a}])


def float_gemm(rng: np.random.Generator) -> Iterator[Case]:
    for kind, bias, trans in itertools.product(KINDS, BIASES, ((0, 0), (0, 1), (1, 0))):
        net = Net()
        result, a, steps = gemm_nodes(net, rng, kind, bias, trans, bias != "int8")
        yield Case(f"{kind} {bias} {trans}", net.model({"a": a}, result), [{"a": a}], step=float(steps.max()))


def elementwise(op: str) -> Generator:
    def cases(rng: np.random.Generator) -> Iterator[Case]:
        for act, shape, scales in itertools.product(
            (np.uint8, np.int8), ((4, 256), (256,), (4, 1)), ((0.02, 0.05), (0.5, 0.003))
        ):
            net = Net()
            first = net.dequantize("a", scales[0], rng.choice(zero_points(act)))
            second = net.dequantize("b", scales[1], rng.choice(zero_points(act)))
            scale = max(scales) * 1.3 if op == "Add" else scales[0] * scales[1] * 90
            y = net.quantize(net.op(op, first, second), scale, rng.choice(zero_points(act)))
            feeds = {"a": every_level(act, (4, 256)), "b": integers(rng, act, shape)}
            yield Case(f"{act.__name__} {shape} {scales}", net.model(feeds, y), [feeds])

    return cases


def unary(op: str, y_scale: float | None = None, shape: Sequence[int] = (4, 64), **attributes: Any) -> Generator:
    def cases(rng: np.random.Generator) -> Iterator[Case]:
        for act, scale in itertools.product((np.uint8, np.int8), (0.003, 0.05, 0.5)):
            for zero in zero_points(act):
                net, x = Net(), every_level(act, shape)
                result = net.op(op, net.dequantize("x", scale, zero), **attributes)
                y = net.quantize(result, y_scale or scale * 0.7, rng.choice(zero_points(act)))
                yield Case(f"{act.__name__} {scale} {zero}", net.model({"x": x}, y), [{"x": x}])

    return cases


def concat(rng: np.random.Generator) -> Iterator[Case]:
    for act, scale in itertools.product((np.uint8, np.int8), (0.003, 0.05, 0.5)):
        net, x = Net(), every_level(act, (1, 256))
        grids = [(scale, zero) for zero in zero_points(act)]
        parts = [net.dequantize("x", *grid) for grid in (*grids, (0.05, act(7)))]
        y = net.quantize(net.op("Concat", *parts, axis=1), 0.05, act(7))
        yield Case(f"{act.__name__} {scale}", net.model({"x": x}, y), [{"x": x}])


def where(rng: np.random.Generator) -> Iterator[Case]:
    for act, scale in itertools.product((np.uint8, np.int8), (0.003, 0.05, 0.5)):
        net, feeds = Net(), {"c": rng.random(256) < 0.5, "a": every_level(act, (256,)), "b": integers(rng, act, (256,))}
        first = net.dequantize("a", scale, rng.choice(zero_points(act)))
        second = net.dequantize("b", 0.05, rng.choice(zero_points(act)))
        y = net.quantize(net.op("Where", "c", first, second), 0.05, rng.choice(zero_points(act)))
        yield Case(f"{act.__name__} {scale}", net.model(feeds, y), [feeds])


def both(*generators: Callable[[np.random.Generator], Iterator[Case]]) -> Generator:
    """The cases of several generators."""
    return lambda rng: (case for generator in generators for case in generator(rng))


IMAGE = (1, 4, 8, 8)
CASES: dict[str, Generator] = {
    "conv_to_qlinear": conv,
    "mat_mul_to_qlinear": matmul,
    "gemm_to_qgemm": gemm,
    "gemm_to_float_qgemm": float_gemm,
    "add_to_qlinear": elementwise("Add"),
    "mul_to_qlinear": elementwise("Mul"),
    "sigmoid_to_qlinear": both(unary("Sigmoid", 1 / 256), unary("Sigmoid", 0.003)),
    "leaky_relu_to_qlinear": both(unary("LeakyRelu", alpha=0.1), unary("LeakyRelu", 0.02)),
    "softmax_to_qlinear": both(unary("Softmax", 1 / 256, axis=-1), unary("Softmax", 1 / 256, axis=0)),
    "average_pool_to_qlinear": both(
        unary("AveragePool", None, IMAGE, kernel_shape=[3, 3], strides=[2, 2]),
        unary("AveragePool", None, IMAGE, kernel_shape=[3, 2], pads=[1, 1, 1, 0]),
        unary("AveragePool", None, IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    ),
    "global_average_pool_to_qlinear": unary("GlobalAveragePool", None, IMAGE),
    "concat_to_qlinear": concat,
    "where_to_qlinear": where,
}
