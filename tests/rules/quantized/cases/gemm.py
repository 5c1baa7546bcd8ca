"""A Gemm of DQ nodes with factors and with a transposed input."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.builder import Net
from tests.rules.proof.harness import Case, Generator
from tests.rules.quantized.cases.to_qlinear import BIASES, KINDS, gemm_nodes


def fold_factors(rng: np.random.Generator) -> Iterator[Case]:
    for kind, bias, (alpha, beta) in itertools.product(
        KINDS, BIASES, ((0.25, 1.0), (0.3, 0.7), (1.0, -2.0), (3.0, 0.0))
    ):
        if bias == "none" and alpha == 1.0:
            continue
        net = Net()
        result, a, steps = gemm_nodes(net, rng, kind, bias, (0, 1), True, alpha=alpha, beta=beta)
        step = float((steps * alpha).max())
        yield Case(f"{kind} {bias} {alpha} {beta}", net.model({"a": a}, result), [{"a": a}], step=step)


def fold_transpose(rng: np.random.Generator) -> Iterator[Case]:
    for kind, bias in itertools.product(KINDS, BIASES):
        net = Net()
        result, a, _ = gemm_nodes(net, rng, kind, bias, (1, 0), True)
        yield Case(f"{kind} {bias}", net.model({"a": a}, result), [{"a": a}])


CASES: dict[str, Generator] = {"fold_gemm_factors": fold_factors, "fold_gemm_transpose": fold_transpose}
