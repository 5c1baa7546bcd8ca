"""AMD Quark: its preset for uint8 activations and int8 weights, with a scale for each channel."""

from __future__ import annotations

from frame import Job, Reader, run
from quark.onnx import Config, ModelQuantizer
from quark.onnx.quantization.config import get_default_config


def quantize(job: Job) -> None:
    settings = get_default_config("U8S8_AAWS")
    settings.per_channel = True
    ModelQuantizer(Config(global_quant_config=settings)).quantize_model(job.model, job.result, Reader(job.rows()))


run(quantize)
