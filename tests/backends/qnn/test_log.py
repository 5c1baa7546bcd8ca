"""Reading the QNN provider's log."""

from __future__ import annotations

import pytest

from intact.backends.qnn import log as qnn_log

STAMP = "2026-01-01 00:00:00.1 [V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport]"
TENSOR = " name=t id=0 type=NATIVE dataType=QNN_DATATYPE_{0} rank=2 dimensions=({1} ) memType=RAW"


def verdict(word, op, *names, reason=""):
    lines = [f"{STAMP} Validation {word} for {len(names)} nodes in OrtNodeUnit ({op}) :"]
    lines += [f"\tOperator type: {op} Node name: {name} Node index: 1" for name in names]
    return "\n".join([*lines, *([f"\tREASON : {reason}"] if reason else []), "", ""])


def config(op, *, refused):
    lines = [f"{STAMP} Qnn_OpConfig node name: n package_name: qti.aisw QNN_op_type: {op} num_of_inputs: 2"]
    lines += [" node_inputs:", TENSOR.format("SFIXED_POINT_16", "1 4"), TENSOR.format("SFIXED_POINT_8", "4 4")]
    lines += [" node_outputs:", TENSOR.format("SFIXED_POINT_16", "1 4"), " node_params:", ""]
    if refused:
        lines += [
            f"\x1b[0;93m{STAMP} QNN.backendValidateOpConfig() failed for node `n` of type `{op}` with error code 3110"
        ]
    return "\n".join([*lines, "\x1b[m", ""])


def test_a_refused_unit_gives_its_reason_to_each_of_its_nodes():
    log = verdict("PASSED", "Relu", "fine") + verdict("FAILED", "Acos", "a b", "c", reason="not supported.")
    assert qnn_log.reasons(log) == {"a b": "not supported.", "c": "not supported."}


def test_what_the_backend_refused_is_spelt_out_and_not_carried_over_to_other_nodes():
    log = config("MatMul", refused=True) + verdict("FAILED", "MatMul", "m", reason="Failed to add node.")
    log += config("Add", refused=False) + verdict("FAILED", "Add", "n", reason="Cannot get shape")
    assert qnn_log.reasons(log) == {
        "m": "Failed to add node. The backend refuses "
        "MatMul(SFIXED_POINT_16[1,4], SFIXED_POINT_8[4,4]) -> SFIXED_POINT_16[1,4] (error 3110).",
        "n": "Cannot get shape",
    }


def test_a_unit_that_passes_at_the_second_attempt_leaves_no_trace():
    log = config("Conv2d", refused=True) + verdict("PASSED", "Conv", "c") + verdict("FAILED", "Add", "n", reason="no")
    assert qnn_log.reasons(log) == {"n": "no"}


@pytest.mark.parametrize(
    ("log", "failure"),
    [
        ("all is well", None),
        (f"{STAMP} QNN SetupBackend failed Unable to load backend\x1b[m\n", "Unable to load backend"),
        ("OrtEp::GetCapability() for QNNExecutionProvider failed with error: dead\n", "dead"),
    ],
)
def test_a_provider_that_did_not_start_is_noticed(log, failure):
    assert qnn_log.startup_failure(log) == failure


def test_settings_that_the_provider_ignores_are_noticed_once():
    line = f"\x1b[0;93m{STAMP} Invalid HTP architecture: 74\x1b[m\n"
    assert qnn_log.refused_settings(line + "chat\n" + line) == ["Invalid HTP architecture: 74"]
