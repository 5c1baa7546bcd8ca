"""Jobs for Rockchip's toolkit. Its own interpreter runs this file, which needs nothing but numpy and rknn.

`backends.rknn.client` is the side that calls it, with requests and answers of JSON values; arrays travel in .npz files,
by the numbers of the sample and of the array (see `backends.sample_files`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from rknn.api import RKNN

OPENED, BUILT, WRITTEN, STARTED = "opened", "built", "written", "started"


def compile_model(request: dict[str, Any]) -> dict[str, Any]:
    """Compile the ONNX model `model` for `platform`; write it to `rknn` unless that is None."""
    toolkit = RKNN(verbose=True)
    failed = _build(toolkit, request)
    if failed is None and request["rknn"] is not None:
        failed = _failed(WRITTEN, toolkit.export_rknn(request["rknn"]))
    return {"failed": failed}


def run_samples(request: dict[str, Any]) -> dict[str, Any]:
    """Compile as `compile_model`, run the simulator on every sample of `inputs`, and save the results in `outputs`."""
    toolkit = RKNN(verbose=False)
    failed = _build(toolkit, request) or _failed(STARTED, toolkit.init_runtime())
    if failed is not None:
        return {"failed": failed, "outputs": 0}
    results: dict[str, np.ndarray] = {}
    count = 0
    with np.load(request["inputs"], allow_pickle=False) as arrays:
        for row in range(request["samples"]):
            feeds = [arrays["%d.%d" % (row, index)] for index in range(len(request["names"]))]
            found = toolkit.inference(inputs=feeds, data_format=["nchw"] * len(feeds))
            count = len(found)
            results.update({"%d.%d" % (row, index): value for index, value in enumerate(found)})
    np.savez(request["outputs"], **results)
    return {"failed": None, "outputs": count}


def list_platforms(request: dict[str, Any]) -> dict[str, Any]:
    """The platforms that the library compiles for."""
    from rknn.api.rknn_platform import support_soc_npu_target

    return {"platforms": sorted(support_soc_npu_target)}


def _build(toolkit: RKNN, request: dict[str, Any]) -> str | None:
    """The step that failed, or None: the model is read and compiled, with the Q/DQ nodes that it has."""
    toolkit.config(target_platform=request["platform"], **request["options"])
    names = request.get("names")
    opened = toolkit.load_onnx(model=request["model"], **({"inputs": names} if names else {}))
    return _failed(OPENED, opened) or _failed(BUILT, toolkit.build(do_quantization=False))


def _failed(step: str, status: int) -> str | None:
    return None if status == 0 else step
