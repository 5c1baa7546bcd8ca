"""The builds of 8 bits that may have room for layers in float; `search.mixed.room` finds out."""

from __future__ import annotations

from intact.backends import installed
from intact.pipeline.preparation import PreparedModel
from intact.quantization.planning import unquantizable
from intact.quantization.planning.choose import FLOAT


def may_spend(optimized: PreparedModel) -> bool:
    """True if a compiler tells cycles, float is computed beside integers, and the settings leave the choice."""
    target, quant = optimized.target, optimized.config.quantization
    backend = installed.find(target.backend)
    if quant is None or not quant.has_grids or optimized.source.quantized is not None or optimized.config.states:
        return False
    costs = target.costs
    if costs is None or costs.cycle is None or not (backend.estimates and target.halves):
        return False
    both = costs.levels[0].activation == quant.activation_type and costs.levels[-1].activation == FLOAT
    return both and quant.rescue and quant.effort != "fast" and not unquantizable.is_chosen(quant)
