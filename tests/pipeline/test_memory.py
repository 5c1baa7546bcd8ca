"""The memory of a build: estimated before any work, and kept within what the user allows."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bench.big_graphs import layers
from bench.scale import MOST_APART, graph, measured
from intact.api.build import build
from intact.api.quantize import quantize
from intact.errors import SettingsError, ToolchainError
from intact.model import io
from intact.pipeline import memory
from intact.settings.config import BuildConfig
from tests.builder import from_text

CONFIG = BuildConfig.from_dict({"precision": "uint8", "quant": {"effort": "fast"}})
WIDTH = 1024


def model(width: int = WIDTH, opset: int = 21):
    weight = np.random.default_rng(0).standard_normal((width, width)).astype(np.float32)
    return from_text(
        f"(float[1,{width}] x) => (float[1,{width}] y)", "y = MatMul(x, w)", opset=opset, weights={"w": weight}
    )


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
    weight, activation = 4 * WIDTH**2, 4 * WIDTH
    assert need.graph == memory.PROGRAM + memory.NODE
    assert need.activations == memory.ACTIVATIONS * activation
    # In the file, copied by a session, three times in 8 bits, and once on its way to integers.
    assert need.weights == weight + weight + 3 * weight // 4 + memory.LARGEST_WEIGHT * weight


def test_a_node_of_a_long_graph_needs_less():
    def graph(nodes: int) -> int:
        return memory.needed(ir.from_proto(layers(nodes)), CONFIG).graph

    most = memory.NODES_AT_ONCE
    few, many, more = (graph(nodes) for nodes in (most // 2, 2 * most, 3 * most))
    assert 40_000 <= (more - many) / most <= 0.5 * (few - memory.PROGRAM) / (most // 2)


def test_weights_outside_the_file_need_no_copy_of_their_own(tmp_path):
    assert memory.needed(model(), CONFIG).weights - memory.needed(outside(tmp_path), CONFIG).weights == 4 * WIDTH**2


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
def test_the_limit_ends_with_the_block_and_other_errors_pass_through():
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    with memory.kept_within(BuildConfig(max_memory="3G")):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 3 * 10**9
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
