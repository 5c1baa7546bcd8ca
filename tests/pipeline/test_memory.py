"""The memory of a build: estimated before any work, and kept within what the user allows."""

from __future__ import annotations

import json
import sys
import threading

import numpy as np
import onnx
import onnx.version_converter
import onnx_ir as ir
import pytest

from bench.big_graphs import layers
from bench.scale import ESTIMATED, MOST_APART, graph, measured
from intact.api.build import build
from intact.api.quantize import quantize
from intact.errors import ModelError, SettingsError, ToolchainError
from intact.model import io, shapes
from intact.pipeline import loading, memory, preparation
from intact.runtime import ort_cpu
from intact.settings.config import BuildConfig
from tests.builder import from_text

CONFIG = BuildConfig.from_dict({"precision": "uint8", "quant": {"effort": "fast"}})
WIDTH, LAYERS = 512, 8
LAYER = 4 * WIDTH**2
WEIGHTS = LAYERS * LAYER
PACKED = int(memory.PACKED * WEIGHTS)


def model():
    """Layers of products, one behind the other."""
    rng = np.random.default_rng(0)
    weights = {f"w{number}": rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 16 for number in range(LAYERS)}
    names = ["x", *(f"x{number}" for number in range(1, LAYERS)), "y"]
    text = " ".join(f"{names[n + 1]} = MatMul({names[n]}, w{n})" for n in range(LAYERS))
    made = from_text(f"(float[1,{WIDTH}] x) => (float[1,{WIDTH}] y)", text, opset=21, weights=weights)
    shapes.infer_shapes(made)
    return made


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.onnx"
    io.save(model(), path)
    return path


def outside(tmp_path):
    """The same model with its weights in a file of their own."""
    path = tmp_path / "outside.onnx"
    io.save(model(), path, external_threshold=0)
    return io.load(path)


def test_weights_activations_and_nodes_are_counted():
    need = memory.needed(model(), CONFIG)
    assert need.graph == memory.PROGRAM + LAYERS * memory.NODE
    assert need.activations == memory.ACTIVATIONS * LAYERS * 4 * WIDTH
    # In the file, read and packed by a session of it, three times in 8 bits, and dequantized again.
    assert need.weights == WEIGHTS + PACKED + WEIGHTS + 3 * WEIGHTS // 4 + memory.DEQUANTIZED * LAYER


def test_of_one_large_weight_the_way_to_its_integers_takes_the_most(tmp_path):
    weight = np.zeros((WIDTH, WIDTH), np.float32)
    one = from_text(f"(float[1,{WIDTH}] x) => (float[1,{WIDTH}] y)", "y = MatMul(x, w)", weights={"w": weight})
    io.save(one, tmp_path / "one.onnx", external_threshold=0)
    assert memory.needed(io.load(tmp_path / "one.onnx"), CONFIG).weights == memory.LARGEST_WEIGHT * LAYER


def test_a_node_of_a_long_graph_needs_less():
    def graph(nodes: int) -> int:
        return memory.needed(ir.from_proto(layers(nodes)), CONFIG).graph

    most = memory.NODES_AT_ONCE
    few, many, more = (graph(nodes) for nodes in (most // 2, 2 * most, 3 * most))
    # 50,000 nodes of convolutions with shortcuts hold 1.96 GB (bench/results/scale.txt).
    assert 35_000 <= (more - many) / most <= 0.5 * (few - memory.PROGRAM) / (most // 2)


def test_weights_outside_the_file_need_no_copy_of_their_own(tmp_path):
    more = memory.needed(model(), CONFIG).weights - memory.needed(outside(tmp_path), CONFIG).weights
    assert more == 2 * WEIGHTS, "in this process, and in the session of the file"


def test_sessions_of_large_models_copy_no_weights(tmp_path, monkeypatch):
    before = memory.needed(outside(tmp_path), CONFIG).weights
    monkeypatch.setattr(ort_cpu, "LARGEST_COPIED", WEIGHTS - 1)
    assert before - memory.needed(outside(tmp_path), CONFIG).weights == PACKED


def test_fewer_bits_and_less_effort_need_less(tmp_path):
    four = BuildConfig.from_dict({"quant": {"effort": "fast", "weight_type": "int4"}})
    normal = BuildConfig.from_dict({"quant": {"effort": "normal"}})
    totals = [memory.needed(outside(tmp_path), config).total for config in (four, CONFIG, normal)]
    assert totals == sorted(set(totals))


def test_a_limit_below_the_estimate_is_refused_with_the_figure_before_any_work(saved, tmp_path):
    with pytest.raises(SettingsError, match=r"--max-memory 100M: the build needs about 0\.2 GB") as caught:
        build(saved, output=tmp_path / "built", device="cpu", max_memory="100M")
    assert (caught.value.code, caught.value.status) == ("S240", 2)
    assert not (tmp_path / "built").exists()


def test_a_limit_above_it_changes_no_byte_and_is_recorded(saved, tmp_path):
    plain, limited = (tmp_path / name for name in ("plain.onnx", "limited.onnx"))
    quantize(saved, output=plain, device="cpu", effort="fast")
    quantize(saved, output=limited, device="cpu", effort="fast", max_memory="2G")
    assert plain.read_bytes() == limited.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory that no file backs")
def test_what_takes_more_than_was_allowed_is_stopped():
    config = BuildConfig.from_dict({"max_memory": "2G"})
    with pytest.raises(ToolchainError, match="needs more than was estimated") as caught, memory.kept_within(config):
        np.ones(3 * 10**9, np.uint8)
    assert (caught.value.code, caught.value.status) == ("E180", 5)
    assert np.ones(10**6).sum() == 10**6


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory that no file backs")
def test_the_limit_ends_with_the_block_and_other_errors_pass_through(monkeypatch):
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    monkeypatch.setattr(memory, "_untouched", lambda: 5_000_000)
    with memory.kept_within(BuildConfig(max_memory="3G")):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 3 * 10**9 + 5_000_000
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    with pytest.raises(SettingsError, match="no amount"), memory.kept_within(BuildConfig(max_memory="3G")):
        BuildConfig.from_dict({"max_memory": "much"})


def test_the_estimate_is_told_and_stands_in_the_manifest(saved, tmp_path):
    class Told(list):
        def note(self, text):
            self.append(text)

    from intact.events import Silence

    told = Told()
    events = Silence()
    events.note = told.note
    built = build(saved, output=tmp_path / "built", device="cpu", effort="fast", events=events)
    assert any(text.startswith("needs about 0.2 GB") for text in told)
    load = next(stage for stage in built.stages if stage.name == "load")
    assert load.details["memory_needed_bytes"] == memory.needed(io.load(saved), CONFIG).total
    assert onnx.load(tmp_path / "built" / "model.onnx").producer_name == "intact"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc says what a process holds on Linux only")
def test_a_build_holds_what_it_said(tmp_path):
    cost = measured(*graph(tmp_path, "layers", 1_500))
    assert max(cost.needed, cost.peak) <= MOST_APART * min(cost.needed, cost.peak)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says what a process holds on Linux only")
def test_what_was_asked_for_and_never_used_does_not_count():
    before = memory._untouched()
    reserved = np.empty(10**9, np.uint8)
    assert memory._untouched() - before == pytest.approx(10**9, rel=0.02)
    reserved[: 10**8] = 1
    assert memory._untouched() - before == pytest.approx(9 * 10**8, rel=0.02)


def test_sessions_under_a_limit_ask_for_no_more_than_they_use(saved, monkeypatch):
    found = []
    created = ort_cpu._create

    def watched(given, options, *others):
        found.append(options.enable_cpu_mem_arena)
        return created(given, options, *others)

    monkeypatch.setattr(ort_cpu, "_create", watched)
    with memory.kept_within(BuildConfig(max_memory="3G")):
        ort_cpu.Session(saved)
    ort_cpu.Session(saved)
    assert found == [sys.platform != "linux", True]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory that no file backs")
@pytest.mark.parametrize("name", ["layers", "inside", "weights", "w4"])
def test_a_build_that_was_not_refused_is_not_stopped(name, tmp_path):
    make, settings = ESTIMATED[name]
    given = make(tmp_path)
    said = measured(*given, json.dumps(settings)).needed
    measured(*given, json.dumps({**settings, "max_memory": f"{-(-said // 10**6)}M"}))


@pytest.mark.parametrize(("most", "order"), [(WEIGHTS - 1, ["compared", "optimized"]), (WEIGHTS, ["optimized"])])
def test_an_upgrade_of_a_model_with_large_weights_is_compared_before_anything_else_runs(
    most, order, saved, tmp_path, monkeypatch
):
    begun = threading.Event()
    happened: list[str] = []

    def compared(*_):
        begun.wait(0.5 if most < WEIGHTS else 60)
        happened.append("compared")
        return None, ()

    def optimized(*_):
        happened.append("optimized")
        seen = list(happened)
        begun.set()
        raise SettingsError("S240", " ".join(seen))

    older = onnx.version_converter.convert_version(onnx.load(saved), 17)
    onnx.save(older, tmp_path / "older.onnx")
    monkeypatch.setattr(loading, "MOST_COPIED_BESIDE", most)
    monkeypatch.setattr(loading.same_nodes, "are_same", lambda *_: False)  # or there is nothing to compare
    monkeypatch.setattr(loading, "_check_upgrade", compared)
    monkeypatch.setattr(preparation, "optimize", optimized)
    with pytest.raises(SettingsError, match=f"^{' '.join(order)}$"):
        quantize(tmp_path / "older.onnx", output=tmp_path / "q.onnx", device="cpu", effort="fast")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory that no file backs")
def test_no_memory_for_the_comparison_of_an_upgrade_is_told_as_such(saved, tmp_path, monkeypatch):
    def compared(*_):
        raise ModelError("M130", "ORT refuses the model: std::bad_alloc")

    onnx.save(onnx.version_converter.convert_version(onnx.load(saved), 17), tmp_path / "older.onnx")
    monkeypatch.setattr(loading.same_nodes, "are_same", lambda *_: False)  # or there is nothing to compare
    monkeypatch.setattr(loading, "_check_upgrade", compared)
    with pytest.raises(ToolchainError, match="needs more than was estimated"):
        quantize(tmp_path / "older.onnx", output=tmp_path / "q.onnx", device="cpu", effort="fast", max_memory="2G")
