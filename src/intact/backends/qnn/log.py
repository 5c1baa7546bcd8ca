"""Messages of the QNN provider about itself, which are in its log only."""

from __future__ import annotations

import re
from dataclasses import field

from intact.records import dataclass
from intact.runtime.process import plain

_STARTUP = re.compile(
    r"QNN SetupBackend failed (.*)|GetCapability\(\) for QNNExecutionProvider failed with error: (.*)"
)
_SETTING = re.compile(
    r"Invalid HTP architecture: .*|Unrecognized soc_model .*|Htp performance mode not valid\.|Invalid value for .*"
)
_NODE = re.compile(r"Operator type: \S+ Node name: (.*) Node index: \d+")
_CONFIG = re.compile(r"Qnn_OpConfig node name: .* QNN_op_type: (\S+)")
_TENSOR = re.compile(r"name=.* dataType=QNN_DATATYPE_(\w+) .*dimensions=\(([\d ]*)\)")
_BACKEND = re.compile(r"backendValidateOpConfig\(\) failed for node .* with error code (\d+)")


def startup_failure(log: str) -> str | None:
    """The reason that the provider did not start; ORT itself would go on without it."""
    found = _STARTUP.search(log)
    return plain(found[1] or found[2]) if found else None


def refused_settings(log: str) -> list[str]:
    """Settings that the provider did not understand and ignored."""
    return list(dict.fromkeys(line for line in map(plain, log.splitlines()) if _SETTING.fullmatch(line)))


def reasons(log: str) -> dict[str, str]:
    """The reason against each node that the provider refused, by the node's name, from a verbose log."""
    reader = _Reader()
    for line in log.splitlines():
        reader.read(plain(line))
    return reader.reasons


@dataclass(slots=True)
class _Reader:
    """Reads a log line by line: configurations that the backend was asked about, then the verdict on a node unit."""

    reasons: dict[str, str] = field(default_factory=dict)
    _unit: list[str] | None = None
    _op: str = ""
    _inputs: list[str] = field(default_factory=list)
    _outputs: list[str] = field(default_factory=list)
    _side: list[str] = field(default_factory=list)
    _refused: str = ""

    def read(self, line: str) -> None:
        if found := _CONFIG.search(line):
            self._op, self._inputs, self._outputs = found[1], [], []
        elif line == "node_inputs:":
            self._side = self._inputs
        elif line == "node_outputs:":
            self._side = self._outputs
        elif found := _TENSOR.match(line):
            self._side.append(f"{found[1]}[{','.join(found[2].split())}]")
        elif found := _BACKEND.search(line):
            signature = f"{self._op}({', '.join(self._inputs)}) -> {', '.join(self._outputs)}"
            self._refused = f" The backend refuses {signature} (error {found[1]})."
        elif "Validation FAILED for" in line:
            self._unit = []
        elif "Validation PASSED for" in line:
            self._refused = ""
        elif self._unit is not None:
            self._verdict(line, self._unit)

    def _verdict(self, line: str, unit: list[str]) -> None:
        if found := _NODE.match(line):
            unit.append(found[1])
        elif line.startswith("REASON : "):
            reason = line.removeprefix("REASON : ") + self._refused
            self.reasons |= dict.fromkeys(unit, reason)
            self._unit, self._refused = None, ""
