"""The step that a report offers after a build is one that finds what went wrong."""

from __future__ import annotations

from typing import Any

import pytest

from intact.reports.next_steps import next_steps
from tests.reports.sample import manifest

PORTABLE = {"path": "model.qdq.onnx", "kind": "portable quantized model", "bytes": 1, "sha256": "c3" * 32}
DEBUGGED = {"name": "debug", "status": "ran", "reason": "", "seconds": 1.0}


def _after(verdict: str, **changes: Any) -> tuple[str, str]:
    values = manifest() | {"verdict": verdict}
    values["artifacts"].append(PORTABLE)
    (step,) = next_steps(values | changes)
    return step.words, step.command


@pytest.mark.parametrize("verdict", ["suspect", "failed", "broken"])
def test_a_model_that_quantizing_spoiled_is_compared_with_the_original(verdict: str) -> None:
    _, command = _after(verdict)
    assert command == "intact debug models/net.onnx model.qdq.onnx --data inputs.npz"


@pytest.mark.parametrize(
    ("chip", "told"), [({}, ""), ({"arch": "v75"}, " --arch v75"), ({"soc": "SM8650"}, " --soc SM8650")]
)
def test_a_model_that_the_device_spoiled_is_compared_with_the_device(chip: dict[str, str], told: str) -> None:
    values = manifest()
    values["config"]["compile"].update(chip)
    _, command = _after("suspect", config=values["config"], stages=[*values["stages"], DEBUGGED])
    assert command == f"intact debug model.qdq.onnx --device qnn{told} --data inputs.npz"


def test_a_debug_stage_that_was_left_out_says_nothing_about_the_device() -> None:
    skipped = [DEBUGGED | {"status": "skipped"}]
    assert "--device" not in _after("broken", stages=skipped)[1]


def test_a_good_model_is_deployed() -> None:
    assert _after("good") == ("Next: deploy model.onnx, as below", "")


def test_an_unverified_model_is_compared_where_it_runs() -> None:
    assert _after("unverified")[1] == "intact verify models/net.onnx model.onnx --data inputs.npz"
