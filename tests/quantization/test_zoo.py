"""Every zoo model at every precision on every device: valid, runnable, accurate, the same bytes twice."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.model import normalize, upgrade
from intact.pipeline import presets
from intact.quantization import quantizing
from intact.rules.float import optimization
from intact.runtime import ort_cpu
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from intact.verification.compare import compare
from tests.zoo import ZOO, data

# dB against the float model, on the rows that were calibrated on: what rounding alone costs, with a margin of 3.
LEAST_SQNR = {"uint8": 14, "int8": 14, "w8a16": 28, "int16": 60}

every_model = pytest.mark.parametrize("name", ZOO)
every_device = pytest.mark.parametrize("device", ["cpu", "qnn"])
every_precision = pytest.mark.parametrize("precision", LEAST_SQNR)


@functools.cache
def float_model(name):
    return optimization.optimize(normalize.normalize(upgrade.upgrade(ir.from_proto(ZOO[name]())).model)).model


@functools.cache
def feeds(name):
    """Rows without masked tokens: what a mask of -10000 does to 8 bits is another question."""
    arrays = data(ZOO[name](), 12, seed=7)
    arrays |= {"attention_mask": np.ones_like(arrays["attention_mask"])} if "attention_mask" in arrays else {}
    return [{key: array[i : i + 1] for key, array in arrays.items()} for i in range(12)]


@functools.cache
def quantized(name, device, precision):
    return quantized_anew(name, device, precision)


def quantized_anew(name, device, precision):
    quant = QuantConfig.from_dict(presets.PRECISIONS[precision])
    return quantizing.quantize(float_model(name), load_target(device), quant, feeds(name))


@functools.cache
def reference(name):
    session = ort_cpu.Session(float_model(name))
    return [session.run(row) for row in feeds(name)]


def least_sqnr(name, model, *, optimized):
    session = ort_cpu.Session(model, optimize=optimized)
    rows = compare("quantized", "cpu", reference(name), [session.run(row) for row in feeds(name)])
    return min(row.sqnr_db for row in rows)


@every_model
@every_device
@every_precision
def test_a_quantized_model_is_valid_runs_and_is_accurate(name, device, precision):
    result = quantized(name, device, precision)
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    assert len(result.plan.nodes) >= 10
    assert least_sqnr(name, result.model, optimized=False) > LEAST_SQNR[precision]


@every_model
@pytest.mark.parametrize("precision", ["uint8", "w8a16", "int16"])
def test_onnx_runtime_optimizes_a_quantized_model_without_losing_accuracy(name, precision):
    model = quantized(name, "cpu", precision).model
    assert least_sqnr(name, model, optimized=True) > LEAST_SQNR[precision]


@every_model
@every_device
def test_quantizing_twice_gives_the_same_bytes(name, device):
    results = (quantized(name, device, "uint8"), quantized_anew(name, device, "uint8"))
    first, second = (ir.to_proto(result.model).SerializeToString() for result in results)
    assert first == second


@every_model
def test_every_compute_node_that_an_npu_takes_reads_and_writes_integers_only(name):
    model = quantized(name, "qnn", "w8a16").model
    for node in model.graph:
        if node.op_type not in ("Conv", "Gemm", "MatMul", "Add", "Mul", "Softmax"):
            continue
        producers = [value.producer() for value in node.inputs if value is not None]
        if any(producer is not None and producer.op_type == "DequantizeLinear" for producer in producers):
            assert all(producer.op_type == "DequantizeLinear" for producer in producers), node.name
