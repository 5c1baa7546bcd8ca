"""Jobs for Rockchip's toolkit. Its own interpreter runs this file, which needs nothing but numpy and rknn.

`backends.rknn.client` is the side that calls it, with requests and answers of JSON values; arrays travel in .npz files,
by the numbers of the sample and of the array (see `backends.sample_files`).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np


class _LateModule(ModuleType):
    """A module that is run when something in it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run(), name)

    def run(self) -> ModuleType:
        """The module itself."""
        if sys.modules[self.__name__] is self:
            assert self.__spec__ is not None and self.__spec__.loader is not None, f"{self.__name__} was found"
            sys.modules[self.__name__] = module_from_spec(self.__spec__)
            self.__spec__.loader.exec_module(sys.modules[self.__name__])
        return sys.modules[self.__name__]


class _LateAlgorithms(_LateModule):
    """A module whose classes and functions are imported by name, and run when one is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **named: getattr(self.run(), name)(*given, **named)


class _Numbers:
    """0, 1, 2, … in some order and shape, as a tensor of torch has them; asked for more than that, it becomes one."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def reshape(self, *shape: Any) -> _Numbers:
        return _Numbers(self.array.reshape(*shape))

    def tolist(self) -> Any:
        return self.array.tolist()

    def tensor(self) -> Any:
        """The tensor itself."""
        return sys.modules["torch"].from_numpy(self.array)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor(), name)


def _as_a_tensor_does(name: str) -> Any:
    return lambda self, *given: getattr(self.tensor(), name)(*_tensors(given))


# Python asks the class for these, not the object.
for _name in (
    *("eq", "ne", "lt", "le", "gt", "ge", "len", "iter", "getitem", "bool", "int", "index", "array", "contains"),
    *("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "mod", "rmod"),
):
    setattr(_Numbers, f"__{_name}__", _as_a_tensor_does(f"__{_name}__"))


def _tensors(given: Any) -> Any:
    """The arguments of a function, with tensors in the place of numbers."""
    if isinstance(given, (list, tuple)):
        return type(given)(map(_tensors, given))
    return given.tensor() if isinstance(given, _Numbers) else given


class _LateTorch(_LateModule):
    """Torch, which a rule of the compiler uses to count: how elements move through Split, Reshape and Concat.

    For that it need not be there. Whatever is called in another way is torch's own.
    """

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name.startswith("__") or isinstance(found, (type, ModuleType)) or not callable(found):
            return found
        return lambda *given, **named: found(*_tensors(given), **{key: _tensors(one) for key, one in named.items()})

    def arange(self, *given: Any, **named: Any) -> Any:
        if len(given) == 1 and isinstance(given[0], int) and not named:
            return _Numbers(np.arange(given[0], dtype=np.int64))
        return self.__getattr__("arange")(*given, **named)

    def split(self, tensor: Any, sizes: Any, dim: int = 0) -> Any:
        if isinstance(tensor, _Numbers) and isinstance(sizes, list) and sum(sizes) == tensor.array.shape[dim]:
            return tuple(map(_Numbers, np.split(tensor.array, np.cumsum(sizes)[:-1], axis=dim)))
        return self.__getattr__("split")(tensor, sizes, dim=dim)

    def cat(self, tensors: Any, dim: int = 0, **named: Any) -> Any:
        if not named and all(isinstance(tensor, _Numbers) for tensor in tensors):
            return _Numbers(np.concatenate([tensor.array for tensor in tensors], axis=dim))
        return self.__getattr__("cat")(tensors, dim=dim, **named)


def _leave_torch_for_later() -> None:
    """Have the toolkit's imports leave torch out until it is used.

    Torch takes three quarters of the time. A few rules of the compiler use it, for some models, and one algorithm of
    the quantizer, which nobody asks for here, cannot be imported without it.
    """
    package = PathFinder.find_spec("rknn")
    if package is None:
        return
    inside = [os.path.join(place, "api") for place in package.submodule_search_locations or ()]
    for kind, name, places in (_LateTorch, "torch", None), (_LateAlgorithms, "rknn.api.gdq_quant", inside):
        found = PathFinder.find_spec(name, places)
        if found is not None and name not in sys.modules:
            sys.modules[name] = kind(name)
            sys.modules[name].__spec__ = found


def _toolkit() -> Any:
    """The class that the toolkit is used by."""
    _leave_torch_for_later()
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
    toolkit = _reporting()
    toolkit.config(target_platform=request["platform"], **request["options"])
    opened: int = toolkit.load_onnx(model=request["model"])
    if opened != 0 or toolkit.build(do_quantization=dataset is not None, dataset=dataset) != 0:
        return None
    if dataset is None:
        _LAST[key] = toolkit
    return toolkit


def _reporting() -> RKNN:
    """The toolkit, whose compiler will print its tables about layers, cycles and memory.

    `RKNN(verbose=True)` would print them, too, and write four copies of the model into files that nobody reads, for up
    to a quarter of the time. The level of the compiler's log has to be told for each model anew.
    """
    toolkit = RKNN(verbose=False)
    os.environ["RKNN_LOG_LEVEL"] = "4"
    return toolkit


def _key(request: dict[str, Any]) -> str:
    """The bytes of a model, with its weights in other files, the chip and the options."""
    found = hashlib.sha256(json.dumps([request["platform"], request["options"]]).encode())
    folder, name = os.path.split(request["model"])
    for file in sorted(entry for entry in os.listdir(folder) if entry.startswith(name)):
        with open(os.path.join(folder, file), "rb") as opened:
            while part := opened.read(1 << 24):
                found.update(part)
    return found.hexdigest()


def _last_line(error: ValueError) -> str:
    """The sentence at the end of an error, before which a whole traceback stands."""
    lines = str(error).strip().splitlines() or ["no reason was given"]
    return lines[-1].rpartition("Error: ")[2]
