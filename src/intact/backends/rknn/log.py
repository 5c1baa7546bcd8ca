"""Tables that Rockchip's compiler prints about itself, which are in its log only: layers, cycles and memory."""

from __future__ import annotations

import re

from intact.records import dataclass
from intact.runtime.process import plain

# Layers that stand for the inputs and outputs of the model: nothing is computed there.
_BOUNDARY = ("InputOperator", "OutputOperator")
_STAMP = re.compile(r"^[DIWE] RKNN: \[[\d:.]+\] ")
_HEADER = "Network Layer Information Table"
# The share of zeros among weights stands between cycles and bytes, for chips that skip those.
_LAYER = re.compile(
    r"(?P<id>\d+) +(?P<kind>\S+) +(?P<type>\S+) +(?P<place>[A-Z]+) +(?P<reads>\S+) +(?P<writes>\S+)"
    r" +(?P<memory>\d+)/(?P<compute>\d+)/(?P<total>\d+) +(?:[\d.]+% +)?(?P<moved>\d+)(?: +(?P<name>.*))?"
)
_SIZES = {"activations": "Total Internal Memory Size", "weights": "Total Weight Memory Size"}
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_ERROR = re.compile(r"^(?:ValueError|RuntimeError|\w*Error): (.+)|^E (?:RKNN: \[[\d:.]+\] )?(.+)")
# Printed for every model, also where nothing is wrong, or around the sentence that tells.
_EMPTY = re.compile(r"Unkown op target: 0|rknn-toolkit2 version|Traceback|^=+|^\w+: Traceback|Catch exception")


@dataclass(frozen=True, slots=True)
class CompiledLayer:
    """A layer as the compiler made it: what it computes in, where, and the cycles and bytes that it estimates.

    `name` is the node that it was made of, or begins with it; `cycles` are the greater of those to compute and those
    to move data.
    """

    kind: str
    type: str
    place: str
    name: str
    cycles: int
    memory_cycles: int
    compute_cycles: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class CompilerReport:
    """Everything that the compiler tells of a model: its layers in order, and bytes of weights and activations."""

    layers: tuple[CompiledLayer, ...]
    weight_bytes: int | None
    activation_bytes: int | None

    @property
    def cycles(self) -> int:
        """The cycles of all layers, one after the other."""
        return sum(layer.cycles for layer in self.layers)


def report(log: str) -> CompilerReport:
    """The compiler's report on the last model that it built; without layers where it built none."""
    lines = [_STAMP.sub("", plain(line)) for line in log.splitlines()]
    last = max((number for number, line in enumerate(lines) if _HEADER in line), default=len(lines))
    rows = filter(None, map(_LAYER.fullmatch, lines[last:]))
    layers = tuple(_layer(row) for row in rows if row["kind"] not in _BOUNDARY)
    sizes = {key: _size(lines[last:], text) for key, text in _SIZES.items()}
    return CompilerReport(layers, sizes["weights"], sizes["activations"])


def reason(log: str) -> str:
    """The compiler's reason for refusing a model: the last sentence of its log that sounds like one."""
    found = [match[1] or match[2] for line in log.splitlines() if (match := _ERROR.match(plain(line)))]
    told = [text.strip() for text in found if not _EMPTY.search(text.strip())]
    return told[-1] if told else "no reason was logged"


def _layer(row: re.Match[str]) -> CompiledLayer:
    return CompiledLayer(
        kind=row["kind"],
        type=row["type"],
        place=row["place"],
        # The operator stands before the name of its node.
        name=(row["name"] or "").strip().partition(":")[2],
        cycles=int(row["total"]),
        memory_cycles=int(row["memory"]),
        compute_cycles=int(row["compute"]),
        moved_bytes=int(row["moved"]) * _UNITS["KB"],
    )


def _size(lines: list[str], text: str) -> int | None:
    """A size that the log gives in a unit of its choice, in bytes."""
    found = [match for line in lines if (match := re.match(rf"{text}: ([\d.]+) ?([KMG]?B)", line))]
    return round(float(found[-1][1]) * _UNITS[found[-1][2]]) if found else None
