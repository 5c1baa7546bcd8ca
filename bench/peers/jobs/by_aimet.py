"""AIMET: its simulation with 8 bits by the configuration that the setting names, exported with Q/DQ nodes."""

from __future__ import annotations

import aimet_onnx
import onnx
from frame import Job, run


def quantize(job: Job) -> None:
    model = onnx.load(job.model)
    simulation = aimet_onnx.QuantizationSimModel(
        model, param_type="int8", activation_type="int8", config_file=job.setting, providers=["CPUExecutionProvider"]
    )
    simulation.compute_encodings(job.rows())
    onnx.save(simulation.to_onnx_qdq(export_int32_bias=True, prequantize_constants=True), job.result)


run(quantize)
