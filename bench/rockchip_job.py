"""Rockchip's own quantizer on one model. Its own interpreter runs this file, which needs nothing but numpy and rknn."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from rknn.api import RKNN


def quantize(request: dict[str, Any]) -> dict[str, Any]:
    """Quantize and compile `model` on the rows of `calibration` by `algorithm`, and simulate those of `test`.

    What the simulator finds is written to `outputs`; times are processor seconds, up to the file and after it.
    """
    order = request["inputs"]
    # As it is by default: verbose=True writes copies of the model into files, which takes up to a quarter of the time.
    # The tables about layers are in the log of the compiler, too.
    toolkit = RKNN(verbose=False)
    os.environ["RKNN_LOG_LEVEL"] = "4"
    toolkit.config(target_platform=request["platform"], quantized_algorithm=request["algorithm"])
    start = time.perf_counter()
    if toolkit.load_onnx(model=request["model"]) != 0:
        raise RuntimeError("the model is not read")
    if toolkit.build(do_quantization=True, dataset=_listed(request["calibration"], order)) != 0:
        raise RuntimeError("the model is not built")
    if toolkit.export_rknn("model.rknn") != 0 or toolkit.init_runtime() != 0:
        raise RuntimeError("the model is not written, or the simulator does not start")
    built, wall = sum(os.times()[:4]), time.perf_counter() - start
    results: dict[str, np.ndarray] = {}
    for number, row in enumerate(_rows(request["test"], order)):
        found = toolkit.inference(inputs=row, data_format=["nchw"] * len(row))
        results |= {f"{number}.{index}": value for index, value in enumerate(found)}
    np.savez(request["outputs"], **results)
    return {"built_seconds": built, "seconds": sum(os.times()[:4]), "built_wall_seconds": wall}


def _rows(path: str, order: list[str]) -> list[list[np.ndarray]]:
    """The samples of a file, each with the inputs in the order of the model."""
    with np.load(path, allow_pickle=False) as arrays:
        whole = [arrays[name] for name in order]
    return [[array[number : number + 1] for array in whole] for number in range(len(whole[0]))]


def _listed(path: str, order: list[str]) -> str:
    """The list of files that the toolkit takes, one sample a line."""
    lines = []
    for number, row in enumerate(_rows(path, order)):
        names = [os.path.abspath(f"row.{number}.{index}.npy") for index in range(len(row))]
        for name, array in zip(names, row, strict=True):
            np.save(name, array)
        lines.append(" ".join(names))
    with open("list.txt", "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return "list.txt"
