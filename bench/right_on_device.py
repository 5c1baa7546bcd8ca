"""Build many models at many precisions and architectures, and hold each compiled form to what its device can keep.

The bar: a compiled form keeps at least min(quantized - 3, 33) dB at its worst output, and all of it is on the NPU, or
each node that is not is one that the vendor's library refuses. Models of every folder are built for the first
architecture, every fourth also for each of the others. A run that was stopped goes on where it was, and a part of the
cells can be asked for.

python bench/right_on_device.py FOLDER… [--precisions w8a16,uint8] [--archs v73,v69,v75,v79] [--like PATTERN]
    [--cells N] [-o results.jsonl]
python -m tests.exporting.small_models FOLDER makes small transformers, python bench/right_on_device.py --zoo FOLDER the
models of the tests' zoo.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path

# Run as a script, this file finds its neighbour by itself; the zoo is in the folder above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import outside
from outside import Record

PRECISIONS = "w8a16,uint8,w4a16,fp16"
ARCHS = "v73,v69,v75,v79"
EVERY = 4
ALLOWED_LOSS_DB, ENOUGH_DB = 3.0, 33.0


@dataclass(frozen=True, slots=True)
class Cell:
    """A model at a precision on an architecture."""

    path: Path
    precision: str
    arch: str

    @property
    def key(self) -> str:
        return f"{self.path.parent.name}/{self.path.stem} {self.precision} {self.arch}"


def cells(asked: argparse.Namespace) -> list[Cell]:
    """Every model at every precision on the first architecture, and every fourth on each of the others.

    In an order of chance, always the same, so that a part of them holds something of every kind.
    """
    paths = models(asked)
    first, *others = asked.archs.split(",")
    every = [(path, precision) for precision in asked.precisions.split(",") for path in paths]
    found = [Cell(path, precision, first) for path, precision in every]
    for start, arch in enumerate(others):
        found += [Cell(path, precision, arch) for path, precision in every[start % EVERY :: EVERY]]
    random.Random(0).shuffle(found)
    return found


def models(asked: argparse.Namespace) -> list[Path]:
    """The models of all folders that are asked for."""
    found = [path for folder in asked.folders for path in sorted(Path(folder).rglob("*.onnx"))]
    return [path for path in found if re.search(asked.like, str(path))]


def build(cell: Cell, asked: argparse.Namespace) -> Record:
    """Build a cell, strictly, and with what the NPU refuses on the CPU where that is refused."""
    flags = ["--arch", cell.arch, *asked.flags]
    settings = {"precision": cell.precision, "effort": "fast", "device": "qnn", "timeout": asked.timeout}
    order = argparse.Namespace(**settings, flags=flags, no_strict=False)
    found = outside.build(cell.path, order)
    if found["outcome"] == "refused" and (found["code"] or "").startswith("T"):
        order.no_strict = True
        found = {**outside.build(cell.path, order), "refused_with": found["code"]}
    return {"cell": cell.key, **found}


def shortfall(row: Record) -> float:
    """The dB that a compiled form misses of the bar; 0 where it misses nothing."""
    db = row.get("db", {})
    quantized, compiled = db.get("quantized"), db.get("compiled")
    if "compiled" not in db or compiled is None:
        return 0.0
    wanted = ENOUGH_DB if quantized is None else min(quantized - ALLOWED_LOSS_DB, ENOUGH_DB)
    return max(0.0, wanted - compiled)


def is_said(row: Record) -> bool:
    """True if the build itself doubts its result."""
    return row.get("verdict") in ("suspect", "broken", "failed", "unverified")


def show(rows: list[Record]) -> int:
    """Print one line for each cell below the bar and each that was not built, and counts; return how many there are."""
    below = [row for row in rows if shortfall(row) > 0]
    unbuilt = [row for row in rows if row["outcome"] not in ("built", "passed through")]
    for row in (*below, *unbuilt):
        figures = {form: None if db is None else round(db, 1) for form, db in row.get("db", {}).items()}
        why = (row.get("reasons") or [row["error"]])[0]
        print(f"{row['cell']}: {row['outcome']} {row.get('verdict') or row['code']} {figures} {why}")
    unsaid = [row["cell"] for row in below if not is_said(row)]
    print(f"{len(rows)} cells: {len(below)} below the bar, {len(unsaid)} of them not said; {len(unbuilt)} not built")
    seconds = sum(row["cpu_seconds"] for row in rows)
    print(f"{seconds:.0f} CPU s of builds; mended: {sum(bool(row.get('mended')) for row in rows)}")
    return len(below) + len(unbuilt)


def write_zoo(folder: Path) -> None:
    """Write the models of the tests' zoo as files."""
    import onnx

    from tests.zoo import ZOO

    folder.mkdir(parents=True, exist_ok=True)
    for name, make in ZOO.items():
        onnx.save(make(), folder / f"{name}.onnx")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--precisions", default=PRECISIONS)
    parser.add_argument("--archs", default=ARCHS)
    parser.add_argument("--like", default="", help="A regular expression that paths have to match.")
    parser.add_argument("--cells", type=int, help="Build at most so many cells that are not in the results yet.")
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--zoo", type=Path, help="Write the zoo into this folder, and do nothing else.")
    parser.add_argument("-o", "--output", type=Path, default=Path("right_on_device.jsonl"))
    asked, asked.flags = parser.parse_known_args()
    if asked.zoo is not None:
        write_zoo(asked.zoo)
        return 0
    done = {row["cell"]: row for row in outside.read(asked.output)} if asked.output.is_file() else {}
    wanted = cells(asked)
    todo = [cell for cell in wanted if cell.key not in done][: asked.cells]
    with open(asked.output, "a", encoding="utf-8") as file:
        for cell in todo:
            row = done[cell.key] = build(cell, asked)
            file.write(json.dumps(row) + "\n")
            file.flush()
    return int(show([done[cell.key] for cell in wanted if cell.key in done]) > 0)


if __name__ == "__main__":
    sys.exit(main())
