"""The name and version of the program, written into the models that it makes."""

from __future__ import annotations

import copy

import onnx_ir as ir

from intact import environment

PRODUCER = "intact"


def stamped(model: ir.Model) -> ir.Model:
    """`model` with this program as its producer; it shares the graph."""
    result = copy.copy(model)
    result.producer_name, result.producer_version = PRODUCER, environment.version("intact")
    return result
