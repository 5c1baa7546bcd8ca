"""One small quantized operator through a backend's whole toolchain: compiled, loaded and run, as a build would."""

from __future__ import annotations

from typing import Literal

import numpy as np

from intact import scratch
from intact.backends import installed
from intact.backends.base import Device
from intact.backends.probing.cases import Case, cases
from intact.backends.probing.models import inputs_of, model_of, step_of
from intact.errors import IntactError
from intact.records import dataclass
from intact.runtime import ort_cpu
from intact.targets.registry import load_target

TIMEOUT = 120.0
OPERATOR = "Add"
# Every device takes these types, and what it computes may differ from the CPU by the rounding of one step.
SLOTS = ("uint8", "uint8")

Outcome = Literal["runs", "prepared", "wrong", "failed"]


@dataclass(frozen=True, slots=True)
class TriedOperator:
    """The outcome of running one operator: `prepared` is for a device that is not on this machine."""

    outcome: Outcome
    detail: str


def run_one_operator(backend: str, toolchain: str | None = None) -> TriedOperator:
    """Compile and run one operator for a backend; a vendor's code runs in a child process, whose death is an answer.

    `toolchain` is a version of the vendor's library other than the usual one.
    """
    case = _case()
    device = Device.of(load_target(backend), TIMEOUT, toolchain=toolchain)
    try:
        with scratch.folder("trial") as folder:
            found = installed.find(backend).compile(model_of(case), device, folder, {})
            if not found.runs:
                return TriedOperator("prepared", "the device is not on this machine: models are prepared, not run")
            [outputs] = installed.find(backend).run(found.path, [inputs_of(case)], device)
    except IntactError as error:
        return TriedOperator("failed", f"[{error.code}] {error.text()}")
    return _compared(case, next(iter(outputs.values())), found.runtime)


def _case() -> Case:
    return next(case for case in cases([OPERATOR]) if case.slots == SLOTS and case.output == SLOTS[0])


def _compared(case: Case, got: np.ndarray, runtime: str) -> TriedOperator:
    """Hold an output to that of ONNX Runtime's CPU provider without optimizations, within one step of its grid."""
    [expected] = ort_cpu.Session(model_of(case)).run(inputs_of(case)).values()
    off, step = float(np.abs(got - expected).max()), step_of(case) or 0.0
    if off > 1.001 * step:
        return TriedOperator("wrong", f"{OPERATOR} is off by {off:.3g}, and a step of its grid is {step:.3g}")
    return TriedOperator("runs", f"{OPERATOR} in uint8 compiled and run, {runtime}")
