"""What `intact quantize` writes loads in ONNX Runtime with and without optimizations, and means the same in both."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest

from intact.api.quantize import quantize
from intact.linting import linter
from intact.model import io
from intact.runtime import ort_cpu
from intact.settings.config import BuildConfig, Precision
from intact.verification.compare import compare
from tests.zoo import ZOO

EXAMPLES = {path.parent.name: path.parent for path in Path(__file__).parents[2].glob("examples/*/model.onnx")}
# Sums in another order move one value in a thousand to the next step of its grid, which grows on its way.
LEAST_SQNR = {"uint8": 25.0, "int8": 25.0}
LEAST_SQNR_OF_FINER_GRIDS = 50.0

every_model = pytest.mark.parametrize("name", [*ZOO, *sorted(EXAMPLES)])
every_precision = pytest.mark.parametrize("precision", sorted(set(get_args(Precision)) - {"fp32", "w8a8", "auto"}))


@pytest.fixture(name="written")
def written_(zoo, tmp_path):
    """Quantizes a model by name into a file, and returns its path and one row of inputs."""

    def write(name, precision, device):
        folder = EXAMPLES.get(name)
        path = zoo.model(name) if folder is None else folder / "model.onnx"
        rows = zoo.data(name) if folder is None else folder / "calibration.npz"
        fast = {"effort": "fast"} if precision != "fp16" else {}
        quant = {"load_path": str(rows), "samples": 4, **fast}
        config = {"precision": precision, "quant": quant, "compile": {"device": device}}
        output = tmp_path / "quantized.onnx"
        quantize(path, config=BuildConfig.from_dict(config), output=output)
        return output, {key: values[:1] for key, values in _load(rows).items()}

    return write


@functools.cache
def _load(path: Path) -> dict[str, np.ndarray]:
    return dict(np.load(path))


def sessions(path: Path) -> list[ort_cpu.Session]:
    """The model without and with optimizations, after onnx has looked at it."""
    onnx.checker.check_model(path, full_check=True)
    model = io.load(path)
    return [ort_cpu.Session(model, optimize=optimize, threads=1) for optimize in (False, True)]


@every_model
@every_precision
def test_a_model_for_the_cpu_loads_at_every_precision_and_optimizing_it_keeps_its_outputs(written, name, precision):
    path, row = written(name, precision, "cpu")
    assert not [item for item in linter.findings(io.load(path)) if item.severity is linter.Severity.ERROR]
    plain, optimized = (
        [session.run({port.name: row[port.name] for port in session.inputs})] for session in sessions(path)
    )
    least = LEAST_SQNR.get(precision, LEAST_SQNR_OF_FINER_GRIDS)
    for found in compare("quantized", "cpu", plain, optimized):
        assert found.sqnr_db is None or found.sqnr_db > least


@every_model
@pytest.mark.parametrize(
    "device", ["qnn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("openvino", "dml"))]
)
def test_a_model_for_an_npu_loads_with_int8_activations_too(written, name, device):
    path, _ = written(name, "int8", device)
    assert len(sessions(path)) == 2
