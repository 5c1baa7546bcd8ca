"""A valid manifest of a small build, for tests to change."""

from __future__ import annotations

from typing import Any

from intact.settings.config import BuildConfig, CompileConfig, QuantConfig


def manifest(device: str = "qnn", precision: str = "uint8") -> dict[str, Any]:
    """One Conv and one QuantizeLinear: on the NPU, or on the CPU where that is the device."""
    quant = None if precision == "fp32" else QuantConfig(load_path="inputs.npz")
    config = BuildConfig(precision=precision, quant=quant, compile=CompileConfig(device=device))
    nodes = [{"name": "conv", "op": "Conv", "reason": ""}, {"name": "x_Q", "op": "QuantizeLinear", "reason": ""}]
    on_npu = device != "cpu"
    return {
        "intact": {"version": "0.1.0", "schema": 1},
        "created": "2026-01-02T03:04:05+00:00",
        "source": {"path": "models/net.onnx", "sha256": "a1" * 32, "opset": 17},
        "config": config.to_dict(),
        "environment": {"python": "3.12.1", "onnxruntime": "1.31.1"},
        "calibration": {"kind": "npz", "samples": 18, "sha256": "b2" * 32},
        "stages": [
            {"name": "quantize", "status": "ran", "reason": "", "seconds": 0.25, "nodes_quantized": 4321},
            {"name": "compile", "status": "ran", "reason": "", "seconds": 61.0, "runtime": "runtime 9.9"},
            {"name": "verify", "status": "ran", "reason": "", "seconds": 1.5, "samples": 6},
        ],
        "rewrites": [{"rule": "absorb_relu", "node": f"relu_{i}", "exactness": "exact"} for i in range(3)],
        "placement": {
            "npu_nodes": nodes if on_npu else [],
            "cpu_nodes": [] if on_npu else nodes,
            "partitions": int(on_npu),
        },
        "io": [
            {"name": "x", "direction": "input", "dtype": "float", "scale": None, "zero_point": None},
            {"name": "y", "direction": "output", "dtype": "uint8", "scale": 0.25, "zero_point": 128},
        ],
        "accuracy": [row("quantized", "y", 41.25), row("compiled", "y", 39.5)],
        "task_accuracy": [],
        "status": "passed",
        "gates": [],
        "artifacts": [{"path": "model.onnx", "kind": "deployable model", "bytes": 61440, "sha256": "c3" * 32}],
        "warnings": [],
    }


def row(form: str, output: str, sqnr: float | None) -> dict[str, Any]:
    """One row of accuracy; no SQNR means identical outputs."""
    return {
        "form": form,
        "runtime": "onnxruntime",
        "output": output,
        "sqnr_db": sqnr,
        "identical": sqnr is None,
        "cosine": 0.999944,
        "max_abs_error": 0.0 if sqnr is None else 0.027,
        "mean_abs_error": 0.0 if sqnr is None else 0.0108,
        "top1_agreement": 1.0,
        "top5_agreement": None,
        "atol_beside_rtol": 0.0,
    }


def gate(*, passed: bool) -> dict[str, Any]:
    """A gate on the SQNR."""
    detail = "the least SQNR is 27.50 dB"
    return {"name": "min_sqnr", "limit": 30.0, "value": 27.5, "passed": passed, "detail": detail, "fix": ""}
