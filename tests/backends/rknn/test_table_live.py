"""The table against the compiler: both place the nodes of every network of the zoo, and of every example, alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from intact.backends.live import place_live
from intact.backends.rknn import client
from intact.events import Log, Silence
from intact.model import normalize, shapes
from intact.pipeline.stages import prepare
from intact.rules.quantized import families
from intact.settings.config import BuildConfig
from intact.targets import validate as validation
from intact.targets.registry import load_target
from tests.zoo import ZOO, data

EXAMPLES = {path.parent.name: path for path in sorted(Path(__file__).parents[3].glob("examples/*/model.onnx"))}
CHIPS = ("rk3588", "rk3576", "rk3566", "rv1106")
SHORT = ("depthwise_cnn", "rv1106")
PLACES = [
    pytest.param(name, soc, marks=[] if (name, soc) == SHORT else [pytest.mark.slow])
    for name in (*ZOO, *EXAMPLES)
    for soc in CHIPS
]
# Types and forms do not depend on how many rows are seen.
ROWS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("zoo")
    for name, builder in ZOO.items():
        model = builder()
        onnx.save(model, made / f"{name}.onnx")
        np.savez(made / f"{name}.npz", **data(model, 8))
    return made


@pytest.mark.rknn
@pytest.mark.parametrize(("name", "soc"), PLACES)
def test_the_table_and_the_compiler_leave_the_same_nodes_to_the_cpu(folder, name, soc):
    path = EXAMPLES.get(name, folder / f"{name}.onnx")
    rows = path.with_name("calibration.npz") if name in EXAMPLES else path.with_suffix(".npz")
    quant = {"load_path": str(rows), "samples": ROWS, "effort": "fast"}
    settings = {"precision": "int8", "strict": False, "quant": quant, "compile": {"device": "rknn", "soc": soc}}
    prepared = prepare(path, BuildConfig.from_dict(settings), Log(Silence()))
    target = load_target("rknn", soc=soc)
    model = families.rewrite(prepared.model, target).model
    normalize.name_nodes(model)
    shapes.infer_shapes(model)
    by_table = set(validation.left_to_cpu(model, target, validation.validate(model, target, strict=False)))
    live = place_live(model, target, timeout=300)
    names = {node.name for node in model.graph}
    assert live.npu_nodes and {node.name for node in live.cpu_nodes} == by_table & names


@pytest.mark.rknn
@pytest.mark.parametrize(("soc", "refuses"), [("rk3588", False), ("rv1106", True)])
def test_the_compiler_refuses_floats_on_the_chips_for_which_the_table_has_none(tmp_path, soc, refuses):
    """Beside integers it lists them for the NPU all the same: `backends/rknn/placing.py` goes by this word, too."""
    onnx.save(ZOO["residual_cnn"](), tmp_path / "m.onnx")
    found = client.compile_rknn(tmp_path / "m.onnx", None, client.Platform(soc), timeout=300)
    assert load_target("rknn", soc=soc).halves is not refuses
    assert ("not support do_quantization = False" in (found.error or "")) is refuses
