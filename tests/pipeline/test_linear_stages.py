"""Every stage takes as long for a node of a large graph as for one of a small graph: calls are counted, not seconds."""

from __future__ import annotations

import cProfile
import gc
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from bench.big_graphs import GRAPHS
from intact.matching import rewriter
from intact.model import io, normalize, shapes, upgrade
from intact.pipeline import memory
from intact.quantization import quantizing
from intact.reports import network
from intact.rules.float import optimization
from intact.rules.proof import witness
from intact.rules.quantized import families
from intact.settings.config import BuildConfig, QuantConfig
from intact.targets.registry import load_target

FEW, MANY = 60, 180
# Room for what rounds up: constants that graphs share, and the last node of each.
MOST_GROWTH = 1.15
CPU = load_target("cpu")
CONFIG = QuantConfig.from_dict({"effort": "fast"})


def calls(work: Callable[[], object]) -> int:
    """The number of functions, of Python and of C, that some work calls."""
    profile = cProfile.Profile()
    gc.collect()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())


def stages(kind: str, nodes: int) -> dict[str, int]:
    """The number of calls of each stage on a graph of one kind."""
    counts: dict[str, int] = {}

    def counted(name: str, work: Callable[[], ir.Model]) -> ir.Model:
        found: list[ir.Model] = []
        counts[name] = calls(lambda: found.append(work()))
        return found[0]

    given = ir.from_proto(GRAPHS[kind](nodes))
    shape = [dim if isinstance(dim, int) else 1 for dim in given.graph.inputs[0].shape or ()]
    rows = [{"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)} for seed in range(2)]
    upgraded = counted("upgrade", lambda: upgrade.upgrade(given).model)
    model = counted("normalize", lambda: normalize.normalize(upgraded))
    counts["shapes"] = calls(lambda: shapes.infer_shapes(model))
    counts["memory"] = calls(lambda: memory.needed(model, BuildConfig()))
    optimized = counted("optimize", lambda: optimization.optimize(model).model)
    quantized = counted("quantize", lambda: quantizing.quantize(optimized, CPU, CONFIG, rows).model)
    rules = families.rules_for(CPU)
    rewritten = counted("rewrite", lambda: rewriter.apply(quantized.clone(), rules).model)
    counts["witness"] = calls(lambda: witness.of(quantized, rules))
    counts["write"] = calls(lambda: io.to_bytes(rewritten))
    counts["report"] = calls(lambda: network.layers_of(rewritten))
    return counts


@pytest.mark.parametrize(
    "kind", [kind if kind == "layers" else pytest.param(kind, marks=pytest.mark.slow) for kind in GRAPHS]
)
def test_calls_of_each_stage_grow_no_faster_than_the_graph(kind):
    stages(kind, 30)  # what is made once and kept: patterns of rules, tables
    few, many = stages(kind, FEW), stages(kind, MANY)
    growth = {name: many[name] / few[name] / (MANY / FEW) for name in few}
    assert {name: round(found, 2) for name, found in growth.items() if found > MOST_GROWTH} == {}
