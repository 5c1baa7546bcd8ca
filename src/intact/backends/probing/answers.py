"""Answers of a library as a file: one line a question, with the version of the library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Literal

from intact import scratch
from intact.backends import installed
from intact.records import dataclass

# Below this the library's own simulator does not compute what ONNX says: it takes the operator, and gets it wrong.
LEAST_SQNR_DB = 20.0

# Stands for the architecture in answers of a library that knows none.
NO_ARCH = 0

Verdict = Literal["integer", "float", "refused", "died"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a library to one case on one architecture.

    `integer`: it takes it as it is. `float`: it takes the operator, but computes it in float between its own
    Dequantize and Quantize. `refused` and `died` come with a reason. `sqnr_db` compares its simulator with the CPU,
    and `steps` is the greatest difference in steps of the result's grid.
    """

    verdict: Verdict
    reason: str = ""
    sqnr_db: float | None = None
    steps: float | None = None

    @property
    def right(self) -> bool:
        """True if the simulator computes what ONNX says."""
        return self.sqnr_db is not None and self.sqnr_db >= LEAST_SQNR_DB

    @property
    def accepted(self) -> bool:
        """True if the operator runs on the NPU in its own types, and rightly."""
        return self.verdict == "integer" and self.right


@dataclass(frozen=True, slots=True)
class Probed:
    """The answers of one version of a library, by case and architecture, or chip.

    `alike` are those that answered a sample like another one, and whose other answers are taken from it.
    """

    library: str
    answers: Mapping[str, Mapping[int, Answer]]
    alike: Mapping[int, int] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        lines = [f"  {json.dumps(name, ensure_ascii=False)}: {_row(row)}" for name, row in sorted(self.answers.items())]
        alike = f'"alike": {json.dumps(self.alike)}, ' if self.alike else ""
        text = f'{{"library": {json.dumps(self.library)}, {alike}"answers": {{\n' + ",\n".join(lines) + "\n}}\n"
        scratch.write_text(path, text)

    @classmethod
    def read(cls, path: Path) -> Probed:
        """The file at `path`."""
        return cls._parse(path.read_text(encoding="utf-8"))

    @classmethod
    def _parse(cls, text: str) -> Probed:
        data = json.loads(text)
        alike = {int(number): other for number, other in data.get("alike", {}).items()}
        return cls(data["library"], {name: _cells(row) for name, row in data["answers"].items()}, alike)


@cache
def shipped(backend: str) -> Probed | None:
    """The answers that come with a backend, those of the newest library, or None."""
    folder = installed.find(backend).table.with_name("probed")
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return Probed._parse(files[-1].read_text(encoding="utf-8")) if files else None


def _row(row: Mapping[int, Answer]) -> str:
    """A line of the file; architectures with the same answer share it."""
    cells: dict[Answer, list[str]] = {}
    for arch, answer in sorted(row.items()):
        cells.setdefault(answer, []).append(str(arch))
    shared = {" ".join(archs): _cell(answer) for answer, archs in cells.items()}
    return json.dumps(shared, ensure_ascii=False)


def _cell(answer: Answer) -> list[str | float | None]:
    steps = [] if answer.steps is None else [answer.steps]
    return [answer.verdict, answer.reason, answer.sqnr_db, *steps]


def _cells(row: Mapping[str, tuple[Verdict, str, float | None]]) -> dict[int, Answer]:
    return {int(arch): Answer(*cell) for archs, cell in row.items() for arch in archs.split()}
