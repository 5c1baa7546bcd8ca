"""Jobs for Rockchip's toolkit. Its own interpreter runs this file, which needs nothing but numpy and rknn.

`backends.rknn.client` is the side that calls it, with requests and answers of JSON values; arrays travel in .npz files,
by the numbers of the sample and of the array (see `backends.sample_files`).
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

# Python looks for cycles whenever so many objects more are there than before. The toolkit makes them by the million,
# and keeps most of them: to look as often as usual takes a tenth of its time.
_OBJECTS_BETWEEN_COLLECTIONS = 500_000


class _LateModule(ModuleType):
    """A module that is run when a name in it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run(), name)

    def run(self) -> ModuleType:
        """The module itself, which stands in the place of this one from then on."""
        if sys.modules[self.__name__] is self:
            assert self.__spec__ is not None and self.__spec__.loader is not None, f"{self.__name__} was found"
            sys.modules[self.__name__] = module_from_spec(self.__spec__)
            self.__spec__.loader.exec_module(sys.modules[self.__name__])
        return sys.modules[self.__name__]


class _CountingTorch(_LateModule):
    """Torch, of which one rule of the compiler uses three functions, to number elements and see where they come to.

    Numpy has these, too. Whatever else is asked for is torch's own; so are these, once `counts` is False.
    """

    counts = True
    has_counted = False

    def arange(self, *given: int, **named: object) -> np.ndarray:
        self.has_counted = self.counts
        return np.arange(*given) if self.counts else self.run().arange(*given, **named)

    def split(self, tensor: np.ndarray, sizes: list[int], dim: int = 0) -> list[np.ndarray]:
        parts: list[np.ndarray] = (
            np.split(tensor, np.cumsum(sizes)[:-1], axis=dim)
            if self.counts
            else self.run().split(tensor, sizes, dim=dim)
        )
        return parts

    def cat(self, tensors: list[np.ndarray], dim: int = 0) -> np.ndarray:
        return np.concatenate(tensors, axis=dim) if self.counts else self.run().cat(tensors, dim=dim)


class _LateFunctions(_LateModule):
    """A module whose names can be imported from it, and that is run when one of them is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **named: getattr(self.run(), name)(*given, **named)


def _leave_torch_for_later() -> None:
    """Have the toolkit's imports leave torch out until something of it is used.

    The toolkit always imports torch, which takes three quarters of the time of its imports. Compiling uses it to count.
    An algorithm of the quantizer, which nobody asks for here, has classes of torch as bases: its module waits until
    somebody calls it.
    """
    package = PathFinder.find_spec("rknn")
    if package is None:
        return
    inside = [os.path.join(place, "api") for place in package.submodule_search_locations or ()]
    for kind, name, places in (_CountingTorch, "torch", None), (_LateFunctions, "rknn.api.gdq_quant", inside):
        found = PathFinder.find_spec(name, places)
        if found is not None and name not in sys.modules:
            sys.modules[name] = kind(name)
            sys.modules[name].__spec__ = found


def _toolkit() -> Any:
    """The class that the toolkit is used by."""
    _leave_torch_for_later()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    from rknn.api import RKNN

    return RKNN


if TYPE_CHECKING:
    from rknn.api import RKNN
else:
    RKNN = _toolkit()


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
    try:
        toolkit = _built(request, dataset)
        written = toolkit is not None and (request["rknn"] is None or toolkit.export_rknn(request["rknn"]) == 0)
    except ValueError as error:
        return {"compiled": False, "error": _last_line(error)}
    return {"compiled": bool(written), "error": None}


def run_samples(request: dict[str, Any]) -> dict[str, Any]:
    """Compile as `compile_model`, run the simulator on every sample of `inputs`, and save the results in `outputs`.

    A file that was compiled runs on the device alone: the simulator runs what was just built in its process.
    """
    toolkit = _built(request, None)
    if toolkit is None or toolkit.init_runtime() != 0:
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


# The last model that was built, by what it was made from: a process that stays need not build it again to run it.
_LAST: dict[str, RKNN] = {}


def _built(request: dict[str, Any], dataset: str | None) -> RKNN | None:
    """The toolkit with the model, with the Q/DQ nodes that it has or quantized on `dataset`; None where it refuses."""
    key = _key(request)
    if dataset is None and key in _LAST:
        return _LAST[key]
    while _LAST:
        _LAST.popitem()[1].release()
    toolkit = _with_torch_if_need_be(lambda: _build(request, dataset))
    if dataset is None and toolkit is not None:
        _LAST[key] = toolkit
    return toolkit


def _build(request: dict[str, Any], dataset: str | None) -> RKNN | None:
    toolkit = _reporting()
    toolkit.config(target_platform=request["platform"], **request["options"])
    opened: int = toolkit.load_onnx(model=request["model"])
    if opened != 0 or toolkit.build(do_quantization=dataset is not None, dataset=dataset) != 0:
        return None
    return toolkit


def _with_torch_if_need_be(build: Callable[[], RKNN | None]) -> RKNN | None:
    """Build, and where that fails after numpy has counted for torch, once more with torch itself."""
    torch = sys.modules.get("torch")
    if not isinstance(torch, _CountingTorch):
        return build()
    torch.has_counted = False
    try:
        toolkit = build()
    except ValueError:
        if not torch.has_counted:
            raise
        toolkit = None
    if toolkit is None and torch.has_counted:
        torch.counts = False
        return build()
    return toolkit


def _reporting() -> RKNN:
    """The toolkit, whose compiler will print its tables about layers, cycles and memory.

    `RKNN(verbose=True)` would print them, too, and write four copies of the model into files that nobody reads, for up
    to a quarter of the time. The level of the compiler's log has to be told for each model anew.
    """
    toolkit = RKNN(verbose=False)
    os.environ["RKNN_LOG_LEVEL"] = "4"
    return toolkit


def _key(request: dict[str, object]) -> str:
    """The bytes of a model, with its weights in other files, the chip and the options."""
    found = hashlib.sha256(json.dumps([request["platform"], request["options"]]).encode())
    folder, name = os.path.split(str(request["model"]))
    for file in sorted(entry for entry in os.listdir(folder) if entry.startswith(name)):
        with open(os.path.join(folder, file), "rb") as opened:
            while part := opened.read(1 << 24):
                found.update(part)
    return found.hexdigest()


def _last_line(error: ValueError) -> str:
    """The sentence at the end of an error, before which a whole traceback stands."""
    lines = str(error).strip().splitlines() or ["no reason was given"]
    return lines[-1].rpartition("Error: ")[2]
