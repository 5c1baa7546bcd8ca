"""Records of nodes by operator, and who is to blame."""

from __future__ import annotations

import json

import pytest

from intact.profiling.profile import NodeTime, blame, by_op, read_profile, work_of


def nodes(**seconds):
    return by_op([NodeTime(f"{op}_{i}", op, s) for op, times in seconds.items() for i, s in enumerate(times)])


def test_a_record_gives_the_median_of_each_node_after_the_warm_up(tmp_path):
    def event(name, micros, cat="Node"):
        return {"cat": cat, "name": name, "dur": micros, "args": {"op_name": "Conv"}}

    events = [event("a_kernel_time", micros) for micros in (999, 999, 3, 5, 4)]
    events += [event("a_fence_before", 7), event("model_run", 80, "Session")]
    (tmp_path / "record.json").write_text(json.dumps(events))
    (node,) = read_profile(tmp_path / "record.json", skip=2)
    assert (node.name, node.op, node.seconds) == ("a", "Conv", pytest.approx(4e-6))


def test_operators_are_summed_with_the_slowest_first():
    rows = nodes(Relu=[1.0], Conv=[2.0, 4.0], Add=[1.0])
    assert [(row.op, row.count, row.seconds, row.share) for row in rows] == [
        ("Conv", 2, 6.0, 0.75),
        ("Relu", 1, 1.0, 0.125),
        ("Add", 1, 1.0, 0.125),
    ]


@pytest.mark.parametrize(
    ("kernel", "work"),
    [
        ("QLinearConv", "Conv"),
        ("FusedConv", "Conv"),
        ("NhwcFusedConv", "Conv"),
        ("ConvInteger", "Conv"),
        ("QGemm", "MatMul"),
        ("FusedGemm", "MatMul"),
        ("MatMulIntegerToFloat", "MatMul"),
        ("DynamicQuantizeMatMul", "MatMul"),
        ("MatMulNBits", "MatMul"),
        ("FullyConnected", "MatMul"),
        ("Convolution", "Conv"),
        ("QLinearAdd", "Add"),
        ("QuantizeLinear", "QuantizeLinear"),
        ("Transpose", "Transpose"),
    ],
)
def test_kernels_of_the_same_work_are_counterparts(kernel, work):
    assert work_of(kernel) == work


def test_work_that_grew_or_is_new_is_to_blame_and_the_worst_comes_first():
    first = nodes(Conv=[3.0], Gemm=[1.0], Relu=[1.0])
    other = nodes(QLinearConv=[4.0], QGemm=[0.5], DequantizeLinear=[2.0], QuantizeLinear=[0.001])
    found = [(part.ops, part.first_ops, part.grown) for part in blame(first, other)]
    assert found == [(("DequantizeLinear",), (), 2.0), (("QLinearConv",), ("Conv",), 1.0)]
