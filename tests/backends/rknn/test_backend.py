"""A build for Rockchip: the table everywhere, the compiler and its simulator where they are installed."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from intact.backends import installed
from intact.backends.base import Device
from intact.backends.rknn import backend, client
from intact.backends.rknn.backend import BACKEND, platform_of
from intact.backends.rknn.toolchain import TOOLCHAIN
from intact.errors import NotAvailable, SettingsError
from intact.events import Log, Silence
from intact.model import io
from intact.pipeline import acceptance, stages
from intact.results import PlacedNode, Placement
from intact.runtime import toolchains
from intact.settings.config import BuildConfig
from intact.targets.registry import known_socs, load_target
from intact.targets.validate import validate
from tests.builder import from_text
from tests.zoo import data
from tests.zoo.large import vit_small
from tests.zoo.transformer import bert

needs_toolchain = pytest.mark.skipif(
    toolchains.find(TOOLCHAIN) is None, reason=f"{TOOLCHAIN.package} is not installed: {TOOLCHAIN.command()}"
)
# A step of a grid of 8 bits in each of three layers leaves this much.
LEAST_DB = 30.0


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A CNN with a global pool and a classifier, and inputs for it."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("rknn")
    weights = {
        "w": rng.normal(0, 0.3, (16, 3, 3, 3)).astype(np.float32),
        "v": rng.normal(0, 0.1, (16, 16, 3, 3)).astype(np.float32),
        "m": rng.normal(0, 0.3, (16, 10)).astype(np.float32),
    }
    body = """
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        r = Relu (c)
        d = Conv (r, v)
        e = Relu (d)
        p = GlobalAveragePool (e)
        f = Flatten (p)
        y = Gemm (f, m)
    """
    model = from_text("(float[1, 3, 9, 9] x) => (float[1, 10] y)", body, weights=weights)
    io.save(model, folder / "m.onnx")
    np.savez(folder / "data.npz", x=rng.normal(0, 1, (24, 3, 9, 9)).astype(np.float32))
    return folder


def config(folder, soc="rk3588", **more):
    quant = {"load_path": str(folder / "data.npz"), "effort": "fast"}
    return BuildConfig.from_dict(
        {"precision": "int8", "quant": quant, "compile": {"device": "rknn", "soc": soc}, **more}
    )


def test_every_chip_of_the_library_but_one_that_takes_no_int8_is_in_the_table():
    # As rknn-toolkit2 2.5.0 lists them, without rk2118, which refuses a Conv in int8.
    names = ["rk3562", "rk3566", "rk3568", "rk3576", "rk3588", "rv1103", "rv1103b", "rv1106", "rv1106b", "rv1126b"]
    assert sorted(chip.name.lower() for chip in known_socs("rknn")) == names
    assert load_target("rknn").name == "rknn/rk3588" and load_target("rknn", soc="rv1106").name == "rknn/rv1106"
    assert load_target("rknn").halves and not load_target("rknn", soc="rv1106").halves


def test_a_model_is_quantized_without_the_toolchain_in_an_opset_that_it_reads(given):
    found = stages.prepare(given / "m.onnx", config(given), Log(Silence()))
    assert found.model.opset_imports[""] <= 19 and found.calibrated
    assert "GlobalAveragePool" not in [node.op_type for node in found.model.graph]


def test_a_build_without_the_toolchain_names_the_command_that_installs_it(given, tmp_path, monkeypatch):
    monkeypatch.setattr(toolchains, "find", lambda recipe, version=None: None)
    monkeypatch.delenv(TOOLCHAIN.variable, raising=False)
    monkeypatch.setattr(toolchains, "home", lambda: tmp_path)
    with pytest.raises(NotAvailable) as refused:
        stages.build(given / "m.onnx", config(given), tmp_path / "out")
    assert refused.value.fix == "intact toolchain install rknn" and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "value"), [("quantized_dtype", "w8a8"), ("compress_weight", "perhaps")])
def test_an_option_that_the_compiler_does_not_take_is_refused(name, value):
    with pytest.raises(SettingsError, match=name):
        BACKEND.check({name: value})


def test_the_chip_of_a_target_is_the_platform_of_the_toolkit():
    device = Device.of(load_target("rknn", soc="RV1106"), 1.0, {"optimization_level": "2"})
    assert platform_of(device) == client.Platform("rv1106", {"optimization_level": 2})


def test_a_gate_on_cycles_is_for_compilers_that_estimate_them():
    with pytest.raises(SettingsError, match=r"--max-cycles 5(.|\n)*rknn"):
        acceptance.check_settings(BuildConfig(max_cycles=5), load_target("cpu"))


def test_the_snippet_loads_what_a_build_writes():
    found = installed.find("rknn").snippet({}, whole=True)
    assert any('load_rknn("model.rknn")' in line for line in found.loading)


def test_the_program_in_c_names_every_port_with_its_type_and_grid():
    x = {"name": "x", "dtype": "int8", "scale": 0.5, "zero_point": -3}
    mask = {"name": "mask", "dtype": "float", "scale": None, "zero_point": None}
    language, code = BACKEND.native_code([x, mask], [{"name": "y", "dtype": "float", "scale": None}])
    assert language == "C" and '"model.rknn"' in code and code.count("{") == code.count("}")
    assert ".index = 0, .type = RKNN_TENSOR_INT8" in code and "x: q = round(real / 0.5) + -3" in code
    assert ".index = 1, .type = RKNN_TENSOR_FLOAT32" in code and "rknn_inputs_set(context, 2, inputs)" in code
    assert BACKEND.native_code([{**x, "dtype": "bool"}], []) is None


@pytest.mark.parametrize(("exponent", "found"), [(0.5, []), (2.0, []), (3.0, []), (1.7, ["input 1 has 1.7"])])
def test_a_power_is_taken_at_the_exponents_that_the_npu_has(exponent, found):
    weights = {"e": np.array([exponent], np.float32)}
    model = from_text("(float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y)", "y = Pow (x, e)", weights=weights)
    violations = validate(model, load_target("rknn"), strict=False)
    assert [violation.found for violation in violations] == found


@pytest.mark.parametrize(("soc", "count"), [("rk3588", 0), ("rk3562", 0), ("rk3566", 1), ("rk3568", 1)])
def test_softmax_is_left_to_the_cpu_by_chips_that_do_not_have_it(soc, count):
    model = from_text("(float[1, 8, 16] x) => (float[1, 8, 16] y)", "y = Softmax <axis = -1> (x)")
    assert len(validate(model, load_target("rknn", soc=soc), strict=False)) == count


@needs_toolchain
@pytest.mark.slow
def test_a_build_is_whole_on_the_npu_with_cycles_and_as_accurate_on_the_simulator(given, tmp_path):
    built = stages.build(given / "m.onnx", config(given, max_cycles=10), tmp_path / "out")
    found = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert (tmp_path / "out" / "model.rknn").stat().st_size > 0
    assert found["placement"]["cpu_nodes"] == [] and found["placement"]["partitions"] == 1
    assert found["cost"]["cycles"] == sum(layer["cycles"] for layer in found["placement"]["layers"]) > 0
    named = {node for layer in found["placement"]["layers"] for node in layer["nodes"]}
    assert {"c", "d", "y"} <= named
    rows = {row.form: row.sqnr_db for row in built.accuracy}
    assert rows["compiled"] > LEAST_DB and rows["compiled"] > rows["quantized"] - 3
    [gate] = [gate for gate in built.gates if gate.name == "max_cycles"]
    assert not gate.passed and not built.passed
    onnx.checker.check_model(str(tmp_path / "out" / "model.onnx"))


@needs_toolchain
@pytest.mark.slow
def test_patches_in_integers_before_a_transformer_in_half_precision_are_taken(tmp_path):
    """The compiler dies of this model where its patches are computed in one stride."""
    model = vit_small(image=64, layers=1, width=48, heads=3, classes=10)
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", **data(model, 16))
    quant = {"load_path": str(tmp_path / "data.npz"), "effort": "fast", "rescue": False}
    built = stages.build(tmp_path / "m.onnx", config(tmp_path, quant=quant), tmp_path / "out")
    patches = [layer for layer in built.placement.layers if any(name.startswith("/Conv_0") for name in layer.nodes)]
    assert [layer.precision for layer in patches if layer.kind == "Conv"] == ["INT8", "INT8"]
    assert built.placement.cpu_nodes == ()
    assert {row.form: row.sqnr_db for row in built.accuracy}["compiled"] > LEAST_DB - 5


@needs_toolchain
@pytest.mark.slow
def test_linear_layers_of_a_transformer_are_integers_around_attention_in_half_precision(tmp_path):
    """The compiler dies of this model where the integers of a layer are made of the result of attention itself."""
    model = bert()
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", **data(model, 16))
    built = stages.build(tmp_path / "m.onnx", config(tmp_path, strict=False), tmp_path / "out")
    layers = [layer for layer in built.placement.layers if layer.kind.startswith("Conv")]
    assert {layer.precision for layer in layers} == {"INT8"} and len(layers) == 14
    attention = [layer.precision for layer in built.placement.layers if layer.kind == "exSDPAttention"]
    assert attention == ["FLOAT16", "FLOAT16"]
    assert min(row.sqnr_db for row in built.accuracy if row.form == "compiled") > LEAST_DB - 10


def test_nodes_that_table_and_compiler_place_otherwise_are_told_apart():
    on_npu, on_cpu = (PlacedNode("sum", "Add"),), (PlacedNode("product", "Mul", "why"), PlacedNode("known", "Mul"))
    told = backend._warnings(Placement(on_npu, on_cpu, 1), {"sum": "refused", "known": "refused"})
    assert [line.split(":")[0] for line in told] == ["sum", "product"]
    assert "after all" in told[0] and "on the CPU" in told[1]
