"""The job of `runtime.loads`: sessions for models, in a child process that imports ONNX Runtime and nothing of ours."""

from __future__ import annotations

from typing import TypedDict


class TrialLoad(TypedDict):
    """Model files to make sessions for, with the optimizations of ONNX Runtime or without."""

    models: list[str]
    optimize: bool


def load(order: TrialLoad) -> dict[str, dict[str, str]]:
    """Job: make a session for each model; what ONNX Runtime refuses is answered, what crashes it ends this process."""
    import onnxruntime as ort

    refused = {}
    for path in order["models"]:
        options = ort.SessionOptions()
        if not order["optimize"]:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        # Nothing is run: threads would only wait.
        options.intra_op_num_threads = 1
        try:
            ort.InferenceSession(path, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        # ORT's exception classes have no common base but Exception.
        except Exception as error:
            from intact.runtime.ort_message import sentence

            refused[path] = sentence(error)
    return {"refused": refused}
