"""Asks OpenVINO's CPU plugin about one small model; runs in the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from intact.backends.openvino import job as openvino
from intact.backends.probing.probe_job import expected, greatest_error, sqnr

if TYPE_CHECKING:
    from intact.backends.openvino.client import PluginLayer
    from intact.backends.probing.probe_job import ProbeAnswer, ProbeQuestion

# One thread, so that workers do not compete; f32, so that what stays in float differs from ONNX by rounding only.
_OPTIONS = {"INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": "f32"}
# What conversions and constants become; elementwise operators are fused with conversions into a Subgraph.
_AROUND = {"Input", "Output", "Const", "Reorder", "Convert", "FakeQuantize", "Subgraph", "Eltwise"}
_FLOATS = ("f32", "f16", "bf16")


def ask(question: ProbeQuestion) -> ProbeAnswer:
    """Put a question to the plugin; the answer has its error, or the SQNR of its result."""
    try:
        compiled = openvino.compile_model(question["model"], "CPU", _OPTIONS)
    # OpenVINO raises RuntimeError, and others where a type does not convert.
    except Exception as error:
        return {"verdict": "refused", "error": openvino.sentence(error)[:200]}
    feeds, wanted = expected(question)
    found = openvino.infer(compiled, feeds)
    worst = greatest_error(wanted.values(), found, question["step"])
    return {"verdict": _verdict(openvino.layers(compiled)), "sqnr_db": sqnr(wanted.values(), found), "steps": worst}


def _verdict(layers: list[PluginLayer]) -> Literal["float", "integer"]:
    """Tell by its kernel if the operator runs on integers: a layer's precision may be that of its weight alone."""
    own = [layer for layer in layers if layer.kind not in _AROUND and not _shapes_a_constant(layer)]
    return "float" if any(layer.kernel.endswith(_FLOATS) for layer in own or layers) else "integer"


def _shapes_a_constant(layer: PluginLayer) -> bool:
    return any(node.endswith("_flatten_reshape") for node in layer.nodes)
