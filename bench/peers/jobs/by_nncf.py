"""NNCF: post-training quantization with its default preset; models with attention are told to be transformers."""

from __future__ import annotations

import nncf
import onnx
from frame import Job, run


def quantize(job: Job) -> None:
    model, rows = onnx.load(job.model), job.rows()
    attention = any(node.op_type == "Softmax" for node in model.graph.node[:-2])
    kind = nncf.ModelType.TRANSFORMER if attention else None
    onnx.save(nncf.quantize(model, nncf.Dataset(rows), subset_size=len(rows), model_type=kind), job.result)


run(quantize)
