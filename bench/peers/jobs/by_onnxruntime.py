"""onnxruntime.quantization: its pre-processing, then static quantization; `qnn` is its preset for Hexagon."""

from __future__ import annotations

from frame import Job, Reader, run
from onnxruntime import quantization
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model
from onnxruntime.quantization.shape_inference import quant_pre_process

KINDS = quantization.QuantType


class Rows(Reader, quantization.CalibrationDataReader):
    """Rows of the type that it checks for."""


def quantize(job: Job) -> None:
    if job.setting == "qnn":
        for_qnn(job)
    else:
        generic(job)


def generic(job: Job) -> None:
    ready = f"{job.result}.ready.onnx"
    quant_pre_process(job.model, ready, skip_symbolic_shape=True)
    quantization.quantize_static(
        ready,
        job.result,
        Rows(job.rows()),
        per_channel=True,
        weight_type=KINDS.QInt8,
        calibrate_method=quantization.CalibrationMethod[job.setting],
    )


def for_qnn(job: Job) -> None:
    """The steps of its documentation: the preset's own pre-processing in the place of the general one."""
    changed = f"{job.result}.qnn.onnx"
    model = changed if qnn_preprocess_model(job.model, changed) else job.model
    config = get_qnn_qdq_config(model, Rows(job.rows()), activation_type=KINDS.QUInt8, weight_type=KINDS.QUInt8)
    quantization.quantize(model, job.result, config)


run(quantize)
