"""One operator through the vendor's compiler and simulator, to see that an environment works; it runs there alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

PLATFORM = "rk3588"


def compile_one(request: dict[str, Any]) -> dict[str, object]:
    """Compile the Relu in `model`, simulate it, and compare; raises where a step fails or the numbers are wrong."""
    from rknn.api import RKNN

    os.chdir(request["folder"])
    vendor = RKNN(verbose=False)
    vendor.config(target_platform=PLATFORM)
    steps: tuple[tuple[str, Callable[[], int]], ...] = (
        ("load_onnx", lambda: vendor.load_onnx(model=request["model"])),
        ("build", lambda: vendor.build(do_quantization=False)),
        ("export_rknn", lambda: vendor.export_rknn("model.rknn")),
        ("init_runtime", lambda: vendor.init_runtime()),
    )
    for name, step in steps:
        if status := step():
            raise RuntimeError(f"{name} returned {status}")
    values = np.linspace(-2, 2, 256, dtype=np.float32).reshape(1, 4, 8, 8)
    (found,) = vendor.inference(inputs=[values], data_format="nchw")
    if not np.allclose(found, np.maximum(values, 0), atol=1e-2):
        raise RuntimeError("the simulator computes a wrong Relu")
    return {"bytes": os.path.getsize("model.rknn")}
