"""Reading the log of Rockchip's compiler."""

from __future__ import annotations

import pytest

from intact.backends.rknn import log as rknn_log

# As rknn-toolkit2 2.5.0 prints it about a small CNN of ours, without the lines between.
RK3588 = r"""
D RKNN: [11:32:43.660]                             Network Layer Information Table
D RKNN: [11:32:43.660] ID   OpType          DataType Target InputShape                   OutputShape   Cycles(DDR/NPU/Total)  RW(KB)  FullName
D RKNN: [11:32:43.660] 0    InputOperator   INT8     CPU    \                            (1,3,32,32)   0/0/0                  0       InputOperator:x
D RKNN: [11:32:43.660] 1    ConvRelu        INT8     NPU    (1,3,32,32),(16,3,3,3),(16)  (1,16,32,32)  931/9216/9216          5       Conv:first conv
D RKNN: [11:32:43.660] 2    Conv            INT8     NPU    (1,16,7,7),(1,16,1,1),(16)   (1,16,7,7)    78/64/78               1
D RKNN: [11:32:43.660] 3    Conv            FLOAT16  NPU    (1,16,1,1),(10,16,1,1),(10)  (1,10,1,1)    19/32/32               0       Conv:Gemm_0#2
D RKNN: [11:32:43.660] 4    Reshape         FLOAT16  CPU    (1,10,1,1),(2)               (1,10)        0/0/0                  0       Reshape:y_mm_tp_rs
D RKNN: [11:32:43.660] 5    OutputOperator  FLOAT16  CPU    (1,10)                       \             0/0/0                  0       OutputOperator:y
D RKNN: [11:32:43.660] 1   ConvRelu       x                          INT8      NC1HWC2      (1,3,32,32)
D RKNN: [11:32:43.660] Total Internal Memory Size: 67KB
D RKNN: [11:32:43.660] Total Weight Memory Size: 9.6875KB
"""  # noqa: E501

# A chip that skips zeros among weights has a column more.
RK3576 = r"""
D RKNN: [11:40:42.501]   Network Layer Information Table
D RKNN: [11:40:42.501] 0    InputOperator  INT8  CPU  \                           (1,16,7,7)  0/0/0                0    InputOperator:x
D RKNN: [11:40:42.501] 1    Conv           INT8  NPU  (1,16,7,7),(1,16,7,7),(16)  (1,16,1,1)  271/784/784     0%   1    Conv:a_q_gavg_2conv0
"""  # noqa: E501


def test_layers_cycles_and_memory_are_read_and_the_ends_of_the_model_are_no_layers():
    found = rknn_log.report(RK3588)
    assert [(layer.kind, layer.type, layer.place, layer.name, layer.cycles) for layer in found.layers] == [
        ("ConvRelu", "INT8", "NPU", "first conv", 9216),
        ("Conv", "INT8", "NPU", "", 78),
        ("Conv", "FLOAT16", "NPU", "Gemm_0#2", 32),
        ("Reshape", "FLOAT16", "CPU", "y_mm_tp_rs", 0),
    ]
    assert (found.cycles, found.weight_bytes, found.activation_bytes) == (9326, 9920, 68608)
    first = found.layers[0]
    assert (first.memory_cycles, first.compute_cycles, first.moved_bytes) == (931, 9216, 5120)


def test_the_share_of_zeros_among_weights_is_not_taken_for_bytes():
    [layer] = rknn_log.report(RK3576).layers
    assert (layer.name, layer.cycles, layer.moved_bytes) == ("a_q_gavg_2conv0", 784, 1024)


def test_of_several_tables_the_last_one_counts():
    assert [layer.kind for layer in rknn_log.report(RK3588 + RK3576).layers] == ["Conv"]


def test_a_log_without_a_table_has_no_layers():
    found = rknn_log.report("D RKNN: [11:32:43.660] >>>>>> start: OpEmit")
    assert (found.layers, found.cycles, found.weight_bytes) == ((), 0, None)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "E RKNN: [11:32:43.659] Unkown op target: 0\n"
            "\x1b[1;31mE\x1b[0m \x1b[1;31mrknn-toolkit2 version: 2.5.0\x1b[0m\n"
            "ValueError: The Conv('c') not supported 'float16' dtype at rv1103/rv1106!\n",
            "The Conv('c') not supported 'float16' dtype at rv1103/rv1106!",
        ),
        ("E RKNN: [11:40:53.453] Meet unsupported conv, input type: 3\n", "Meet unsupported conv, input type: 3"),
        ("E RKNN: [11:32:43.659] Unkown op target: 0\n", "no reason was logged"),
    ],
)
def test_the_reason_of_a_refusal_is_the_sentence_that_tells(log, reason):
    assert rknn_log.reason(log) == reason
