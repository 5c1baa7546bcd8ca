"""Models that the integer kernels of any machine compute rightly, for tests about something else than saturation."""

from __future__ import annotations

import onnx_ir as ir

from intact.linting import repairs
from intact.linting.repairs import Purpose
from intact.runtime import host_cpu


def exact(model: ir.Model) -> ir.Model:
    """`model` itself, or with uint8 instead of int8 weights where kernels for uint8 × int8 of this machine saturate."""
    return repairs.repair(model, Purpose.MULTIPLY, saturates=True).model if host_cpu.adds_pairs_in_16_bits() else model
