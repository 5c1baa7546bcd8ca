"""Operators on integers: what `to_qlinear` makes of its own cases, and what moves or clips integers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from intact.matching import rewriter
from intact.rules.quantized import matmul_integer, to_qlinear
from tests.builder import Net
from tests.rules.proof.harness import Case, Generator, every_level, zero_points
from tests.rules.quantized.cases import matmul_integer as products
from tests.rules.quantized.cases import to_qlinear as forward

MICROSOFT = "com.microsoft"


def reverse(rule: rewriter.Rule, cases: Generator) -> Generator:
    """The cases of a rule of the other direction, after it has fired."""

    def reversed_cases(rng: np.random.Generator) -> Iterator[Case]:
        for case in cases(rng):
            yield Case(case.label, rewriter.apply(case.model.clone(), [rule]).model, case.feeds, case.step)

    return reversed_cases


def float_product(rng: np.random.Generator) -> Iterator[Case]:
    rules = [matmul_integer.MatMulToFloat(), matmul_integer.AddToMatMulToFloat()]
    for case in forward.both(products.matmul_to_float, products.add_to_float)(rng):
        yield Case(case.label, rewriter.apply(case.model.clone(), rules).model, case.feeds, case.step)


def reduce_mean(rng: np.random.Generator) -> Iterator[Case]:
    for act, axes, keepdims in itertools.product((np.uint8, np.int8), ((1,), (2, 3)), (0, 1)):
        net, x = Net(), every_level(act, forward.IMAGE)
        grids = np.float32(0.02), rng.choice(zero_points(act)), np.float32(0.03), rng.choice(zero_points(act))
        y = net.op("QLinearReduceMean", "x", *grids, _domain=MICROSOFT, axes=list(axes), keepdims=keepdims)
        yield Case(f"{act.__name__} {axes} {keepdims}", net.model({"x": x}, y), [{"x": x}])


def move(rng: np.random.Generator) -> Iterator[Case]:
    moves = (("Transpose", {"perm": [0, 2, 3, 1]}), ("MaxPool", {"kernel_shape": [2, 2]}), ("Flatten", {}))
    for dtype, (op, attributes) in itertools.product((np.uint8, np.int8, np.uint16), moves):
        for zero in zero_points(dtype):
            net, x = Net(), rng.normal(0, 3, forward.IMAGE).astype(np.float32)
            y = net.op(op, net.quantize("x", 0.05, zero), **attributes)
            yield Case(f"{dtype.__name__} {op} {zero}", net.model({"x": x}, y), [{"x": x}])


def interpolate(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, factor in itertools.product((np.uint8, np.int8), (2, 1.5)):
        for zero in zero_points(dtype):
            net, x = Net(), rng.normal(0, 5, forward.IMAGE).astype(np.float32)
            y = net.op("Resize", net.quantize("x", 0.05, zero), None, np.float32([1, 1, factor, factor]), mode="linear")
            yield Case(f"{dtype.__name__} {factor} {zero}", net.model({"x": x}, y), [{"x": x}])


def concat_integers(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in (np.uint8, np.int8, np.uint16):
        for zero in zero_points(dtype):
            net, feeds = Net(), {name: rng.normal(0, 3, (4, 16)).astype(np.float32) for name in ("a", "b")}
            y = net.op("Concat", *(net.quantize(name, 0.05, zero) for name in feeds), axis=1)
            yield Case(f"{dtype.__name__} {zero}", net.model(feeds, y), [feeds])


def clip(rng: np.random.Generator) -> Iterator[Case]:
    for zero in (*zero_points(np.uint8), *zero_points(np.int8)):
        dtype = type(zero)
        low, high = dtype(np.iinfo(dtype).min + 20), dtype(np.iinfo(dtype).max - 30)
        for ends in ((low, high), (low, None), (None, high)):
            net, x = Net(), rng.normal(0, 9, 2000).astype(np.float32)
            y = net.op("Clip", net.quantize("x", 0.1, zero), *ends)
            yield Case(f"{dtype.__name__} {zero} {ends}", net.model({"x": x}, y), [{"x": x}])


CASES: dict[str, Generator] = {
    "conv_to_qdq": reverse(to_qlinear.ConvToQLinear(), forward.conv),
    "mat_mul_to_qdq": reverse(to_qlinear.MatMulToQLinear(), forward.matmul),
    "gemm_to_qdq": forward.both(
        reverse(to_qlinear.GemmToQGemm(), forward.gemm), reverse(to_qlinear.GemmToFloatQGemm(), forward.float_gemm)
    ),
    "mat_mul_to_float_to_qdq": float_product,
    "add_to_qdq": reverse(forward.kernel_rule("Add"), forward.CASES["add_to_qlinear"]),
    "mul_to_qdq": reverse(forward.kernel_rule("Mul"), forward.CASES["mul_to_qlinear"]),
    "sigmoid_to_qdq": reverse(forward.kernel_rule("Sigmoid"), forward.CASES["sigmoid_to_qlinear"]),
    "leaky_relu_to_qdq": reverse(forward.kernel_rule("LeakyRelu"), forward.CASES["leaky_relu_to_qlinear"]),
    "softmax_to_qdq": reverse(forward.kernel_rule("Softmax"), forward.CASES["softmax_to_qlinear"]),
    "average_pool_to_qdq": reverse(forward.kernel_rule("AveragePool"), forward.CASES["average_pool_to_qlinear"]),
    "global_average_pool_to_qdq": reverse(
        forward.kernel_rule("GlobalAveragePool"), forward.CASES["global_average_pool_to_qlinear"]
    ),
    "reduce_mean_to_qdq": reduce_mean,
    "concat_to_qdq": reverse(to_qlinear.ConcatToQLinear(), forward.concat),
    "where_to_qdq": reverse(to_qlinear.WhereToQLinear(), forward.where),
    "move_to_qdq": move,
    "interpolate_to_qdq": interpolate,
    "concat_integers_to_qdq": concat_integers,
    "clip_to_qdq": clip,
}
