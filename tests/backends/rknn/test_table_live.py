"""The table against the compiler: both place the nodes of every network of the zoo alike."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from intact.backends.live import place_live
from intact.backends.rknn.toolchain import TOOLCHAIN
from intact.events import Log, Silence
from intact.model import normalize, shapes
from intact.pipeline.stages import prepare
from intact.rules.quantized import families
from intact.runtime import toolchains
from intact.settings.config import BuildConfig
from intact.targets import validate as validation
from intact.targets.registry import load_target
from tests.zoo import ZOO, data

HALVES = ("rk3588", "rk3576", "rk3566")
# Without half precision the compiler takes float layers beside integers all the same; the chip has no units for them.
PLACES = [(name, soc) for name in ZOO for soc in (*HALVES, *(("rv1106",) if name.endswith("cnn") else ()))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("zoo")
    for name, builder in ZOO.items():
        model = builder()
        onnx.save(model, made / f"{name}.onnx")
        np.savez(made / f"{name}.npz", **data(model, 8))
    return made


@pytest.mark.skipif(toolchains.find(TOOLCHAIN) is None, reason=f"{TOOLCHAIN.package} is not installed")
@pytest.mark.slow
@pytest.mark.parametrize(("name", "soc"), PLACES)
def test_the_table_and_the_compiler_leave_the_same_nodes_to_the_cpu(folder, name, soc):
    quant = {"load_path": str(folder / f"{name}.npz"), "effort": "fast"}
    settings = {"precision": "int8", "strict": False, "quant": quant, "compile": {"device": "rknn", "soc": soc}}
    prepared = prepare(folder / f"{name}.onnx", BuildConfig.from_dict(settings), Log(Silence()))
    target = load_target("rknn", soc=soc)
    model = families.rewrite(prepared.model, target).model
    normalize.name_nodes(model)
    shapes.infer_shapes(model)
    by_table = validation.left_to_cpu(model, target, validation.validate(model, target, strict=False))
    live = place_live(model, target, timeout=300)
    assert live.npu_nodes and {node.name for node in live.cpu_nodes} == set(by_table)
