"""Jobs for Rockchip's toolkit. Its own interpreter runs this file, which needs nothing but numpy and rknn.

`backends.rknn.client` is the side that calls it, with requests and answers of JSON values; arrays travel in .npz files,
by the numbers of the sample and of the array (see `backends.sample_files`).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from rknn.api import RKNN


def compile_model(request: dict[str, Any]) -> dict[str, Any]:
    """Compile the ONNX model `model` for `platform`; write it to `rknn` unless that is None.

    The toolkit tells in its log alone what it did, and often why it fails.
    """
    return _compiled(request, None)


def compile_quantized(request: dict[str, Any]) -> dict[str, Any]:
    """Compile the float model `model` as `compile_model`, after the toolkit's own quantizer has seen `inputs`."""
    with np.load(request["inputs"], allow_pickle=False) as arrays:
        rows = [
            [_saved(f"{row}.{index}.npy", arrays[f"{row}.{index}"]) for index in range(len(request["names"]))]
            for row in range(request["samples"])
        ]
    with open("dataset.txt", "w", encoding="utf-8") as file:
        file.writelines(" ".join(row) + "\n" for row in rows)
    return _compiled(request, "dataset.txt")


def _saved(name: str, array: np.ndarray) -> str:
    np.save(name, array)
    return os.path.abspath(name)


def _compiled(request: dict[str, Any], dataset: str | None) -> dict[str, Any]:
    toolkit = RKNN(verbose=True)
    try:
        built = _build(toolkit, request, dataset)
        written = built and (request["rknn"] is None or toolkit.export_rknn(request["rknn"]) == 0)
    except ValueError as error:
        return {"compiled": False, "error": _last_line(error)}
    return {"compiled": bool(written), "error": None}


def run_samples(request: dict[str, Any]) -> dict[str, Any]:
    """Compile as `compile_model`, run the simulator on every sample of `inputs`, and save the results in `outputs`.

    A file that was compiled runs on the device alone: the simulator runs what was just built in its process.
    """
    toolkit = RKNN(verbose=False)
    if not _build(toolkit, request) or toolkit.init_runtime() != 0:
        raise RuntimeError("the simulator does not start")
    results: dict[str, Any] = {}
    count = 0
    with np.load(request["inputs"], allow_pickle=False) as arrays, open(request["outputs"] + ".count", "wb", 0) as told:
        for row in range(request["samples"]):
            feeds = [arrays[f"{row}.{index}"] for index in range(len(request["names"]))]
            found = toolkit.inference(inputs=feeds, data_format=["nchw"] * len(feeds))
            count = len(found)
            results.update({f"{row}.{index}": value for index, value in enumerate(found)})
            told.write(b".")
    np.savez(request["outputs"], **results)
    return {"outputs": count}


def _build(toolkit: RKNN, request: dict[str, Any], dataset: str | None = None) -> bool:
    """True if the model was read and compiled: with the Q/DQ nodes that it has, or quantized on `dataset`."""
    toolkit.config(target_platform=request["platform"], **request["options"])
    opened: int = toolkit.load_onnx(model=request["model"])
    return opened == 0 and toolkit.build(do_quantization=dataset is not None, dataset=dataset) == 0


def _last_line(error: ValueError) -> str:
    """The sentence at the end of an error, before which a whole traceback stands."""
    lines = str(error).strip().splitlines() or ["no reason was given"]
    return lines[-1].rpartition("Error: ")[2]
