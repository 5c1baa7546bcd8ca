"""What tests share: zoo models as files, and reasons to skip."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import settings

from intact.backends.rknn.toolchain import TOOLCHAIN as RKNN
from intact.runtime import host_cpu, loads, toolchains, trial_load
from tests.zoo import ZOO, data

SHARED_MODELS = Path(__file__).resolve().parents[1].parent / "shared/models"
ROWS = 24

# A run is the same every time, on a busy machine too; HYPOTHESIS_PROFILE=default looks for new examples.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a vendor's toolchain where it is not installed, and kernels that the processor does not have."""
    for extra, package in (("qnn", "onnxruntime_qnn"), ("openvino", "openvino")):
        if importlib.util.find_spec(package) is None:
            skip = pytest.mark.skip(reason=f"{package} is not installed (extra: {extra})")
            for item in filter(lambda item: item.get_closest_marker(extra) is not None, items):
                item.add_marker(skip)
    if toolchains.find(RKNN) is None:
        skip = pytest.mark.skip(reason=f"{RKNN.package} is not installed ({RKNN.command()}, or make .venv/rknn)")
        for item in filter(lambda item: item.get_closest_marker("rknn") is not None, items):
            item.add_marker(skip)
    if host_cpu.adds_pairs_in_16_bits():
        skip = pytest.mark.skip(reason="needs a processor whose kernels for uint8 × int8 do not saturate")
        for item in filter(lambda item: item.get_closest_marker("vnni") is not None, items):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _numbers_of_its_own(request: pytest.FixtureRequest) -> None:
    """Every test draws the same random numbers from its module's RNG, whichever ran before it in this process."""
    if isinstance(numbers := getattr(request.module, "RNG", None), np.random.Generator):
        numbers.bit_generator.state = np.random.default_rng(0).bit_generator.state


def _load_here(
    *paths: Path, timeout: float = loads.TIMEOUT, optimize: bool = True, loader: loads.Loader | None = None
) -> dict[Path, str]:
    """The job of `loads.problems` without its process."""
    found = trial_load.load({"models": [str(path) for path in paths], "optimize": optimize})["refused"]
    return {path: found[str(path)] for path in paths if str(path) in found}


@pytest.fixture(scope="session", autouse=True)
def _written_models_are_loaded_here() -> Iterator[None]:
    """A build looks twice whether what it wrote loads, each time in a new process, which costs as much as the build.

    Tests do the same in their own process. What they run as a command, and those with `loads_in_a_child`, do not.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loads, "problems", _load_here)
        patch.setattr(loads, "loader", nullcontext)
        yield


_IN_A_CHILD, _CHILD = loads.problems, loads.loader


@pytest.fixture
def loads_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written models are loaded in a process of their own, as users' are."""
    monkeypatch.setattr(loads, "problems", _IN_A_CHILD)
    monkeypatch.setattr(loads, "loader", _CHILD)


class SavedZoo:
    """Zoo models and rows of inputs for them, each written to a file when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def model(self, name: str) -> Path:
        path = self.folder / f"{name}.onnx"
        if not path.exists():
            onnx.save(ZOO[name](), path)
        return path

    def data(self, name: str) -> Path:
        path = self.folder / f"{name}.npz"
        if not path.exists():
            np.savez(path, **data(ZOO[name](), ROWS))
        return path


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> SavedZoo:
    return SavedZoo(tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="session")
def ultraface() -> Path:
    """A face detector of opset 9, as its authors published it."""
    path = SHARED_MODELS / "ultraface.onnx"
    if not path.is_file():
        pytest.skip("ultraface.onnx is not beside the repository (shared/models)")
    return path
