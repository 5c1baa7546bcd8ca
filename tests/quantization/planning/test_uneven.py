"""Tensors that are joined for a reader in float share a grid where a chip has no half precision and they are alike."""

from __future__ import annotations

import numpy as np
import pytest

from intact.events import Log
from intact.model import query
from intact.pipeline import stages
from intact.settings.config import BuildConfig
from tests.builder import Net


def joined(folder, times):
    """Two layers of images, one so many times as large as the other, side by side in front of a Softmax."""
    rng, net = np.random.default_rng(0), Net()
    x = net.input("x", (1, 8, 4, 4))
    weight = rng.standard_normal((8, 8, 1, 1)).astype(np.float32)
    parts = [net.op("Conv", x, factor * weight) for factor in (np.float32(1), np.float32(times))]
    model = net.normalized(net.op("Softmax", net.op("Concat", *parts, axis=1), axis=1))
    (folder / "m.onnx").write_bytes(stages.preparation.io.to_bytes(model))
    np.savez(folder / "rows.npz", x=rng.standard_normal((4, 8, 4, 4)).astype(np.float32))


@pytest.mark.parametrize(
    ("soc", "times", "on_grid"),
    [("rv1106", 1.9, True), ("rv1106", 2.1, False), ("rk3588", 1.9, False), ("rk3566", 1.0, False)],
)
def test_what_is_joined_is_on_a_grid_up_to_twice_the_size_where_it_would_be_on_the_cpu(soc, times, on_grid, tmp_path):
    joined(tmp_path, times)
    quant = {"load_path": str(tmp_path / "rows.npz"), "effort": "fast"}
    compile = {"device": "rknn", "soc": soc}
    config = BuildConfig.from_dict({"precision": "int8", "strict": False, "quant": quant, "compile": compile})
    prepared = stages.prepare(tmp_path / "m.onnx", config, Log())
    (node,) = [node for node in query.all_nodes(prepared.model) if node.op_type == "Concat"]
    readers = {reader.op_type for reader in query.consumers(node.outputs[0])}
    assert readers == ({"QuantizeLinear"} if on_grid else {"Softmax"})
