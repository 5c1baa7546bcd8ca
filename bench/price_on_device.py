"""Measure the price of being right on a device: each model built as usual, and as if nobody knew where it is wrong.

The other build has a table without the regions in which the device computes wrongly, avoids none of them, and mends
nothing. Compared are the cost of what is compiled, by the rule of the table, and the CPU seconds of the build, in a
process of its own and without starting it, the least of several. The bars: cost at most 1.05 times, and CPU seconds at
most 1.3 times where nothing was wrong.

python bench/price_on_device.py FOLDER… [--device qnn] [--precision w8a16] [--arch v73] [--like PATTERN] [--repeats 2]
    [-o price.jsonl]
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

Record = dict[str, Any]

MOST_COST, MOST_TIME = 1.05, 1.3
# Keys of a table, and requirements, that say where a device takes something and computes it wrongly.
WRONG_KEYS, WRONG_CHECKS = ("right", "requantizes_wrongly"), ("input_scale_at_least",)


def unknowing(table: object) -> object:
    """A part of a table without what it says about wrong numbers."""
    if isinstance(table, dict):
        return {key: unknowing(value) for key, value in table.items() if key not in WRONG_KEYS}
    if isinstance(table, list):
        rows = [row for row in table if not (isinstance(row, dict) and row.get("check") in WRONG_CHECKS)]
        return [unknowing(row) for row in rows]
    return table


def toml(value: object) -> str:
    """A value as TOML, tables inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def write_unknowing(device: str, folder: Path) -> Path:
    """Write the table of a device without what it says about wrong numbers."""
    from intact.settings.devices import TABLE
    from intact.targets import registry

    source = Path(registry.__file__).parents[1] / "backends" / device / TABLE
    table = unknowing(tomllib.loads(source.read_text(encoding="utf-8")))
    assert isinstance(table, dict), "a document is a table"
    path = folder / f"{device}.toml"
    path.write_text("".join(f"{json.dumps(key)} = {toml(part)}\n" for key, part in table.items()), encoding="utf-8")
    return path


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def build(asked: argparse.Namespace) -> Record:
    """Build a model, `asked.bare` with nothing known about wrong numbers, and return its cost and its CPU seconds."""
    from intact.events import Log
    from intact.pipeline import cost_estimate, deployment, mending, stages, verifying
    from intact.pipeline.stages import BuildOptions
    from intact.search.debug.device import first_on_device
    from intact.search.mending.mender import mend
    from intact.search.mending.steering import steer
    from intact.settings.config import BuildConfig

    with tempfile.TemporaryDirectory(prefix="price-") as name:
        device = str(write_unknowing(asked.device, Path(name))) if asked.bare else asked.device
        values: Record = {"precision": asked.precision, "compile": {"device": device, "arch": asked.arch}}
        if asked.precision != "fp16":
            values["quant"] = {"effort": "fast"}
        start, log = cpu_seconds(), Log()
        prepared = stages.prepare(asked.one, BuildConfig.from_dict(values), log)
        rewritten = deployment.rewrite_once(prepared, log)
        Path(name, "out").mkdir()
        deploy = partial(stages.deploy, folder=Path(name, "out"), options=BuildOptions(), log=log)
        helped = (None, None) if asked.bare else (mend, steer)
        compiled, verified = mending.deploy_best(rewritten, deploy, *helped, log)
        verifying.placed_once(compiled, verified, None if asked.bare else first_on_device, log)
        seconds = cpu_seconds() - start
        costs = prepared.target.costs
        assert costs is not None, "a device with a simulator has a rule for costs"
        off = {node.name for node in compiled.compiled.placement.cpu_nodes}
        cost, _ = cost_estimate.prices(compiled.before.rewritten.model, costs, off)
        return {
            "cpu_seconds": seconds,
            "cost": cost,
            "db": min(
                (row.sqnr_db for row in verified.accuracy if row.form == "compiled" and row.sqnr_db), default=None
            ),
            "missed_db": mending.shortfall(verified.accuracy),
            "mended": [text for text in log.warnings if text.startswith("mended")],
        }


def in_process(path: Path, asked: argparse.Namespace, *, bare: bool) -> Record | str:
    """`build` in a process of its own; the last words of one that fails."""
    flags = ["--device", asked.device, "--precision", asked.precision, "--arch", asked.arch]
    command = [sys.executable, __file__, "--one", str(path), *flags, *(["--bare"] if bare else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no words"])[-1]
    found: Record = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(path: Path, asked: argparse.Namespace) -> Record:
    """Both builds of a model, in turn, as often as asked."""
    runs: dict[bool, list[Record]] = {True: [], False: []}
    for _ in range(asked.repeats):
        for bare, found in runs.items():
            row = in_process(path, asked, bare=bare)
            if isinstance(row, str):
                return {"model": path.stem, "error": row}
            found.append(row)
    best = {bare: min(found, key=lambda row: row["cpu_seconds"]) for bare, found in runs.items()}
    return {
        "model": f"{path.parent.name}/{path.stem} {asked.precision} {asked.arch}",
        "cost": best[False]["cost"] / best[True]["cost"],
        "time": best[False]["cpu_seconds"] / best[True]["cpu_seconds"],
        "wrong": best[True]["missed_db"] > 0 or bool(best[False]["mended"]),
        "usual": best[False],
        "bare": best[True],
    }


def show(rows: list[Record]) -> int:
    """Print a line for each model and the bars; return how many models miss one."""
    missed = 0
    for row in rows:
        if "error" in row:
            print(f"{row['model']}: not built: {row['error']}")
            continue
        is_dear = row["cost"] > MOST_COST or (not row["wrong"] and row["time"] > MOST_TIME)
        missed += is_dear
        seconds = " and ".join(f"{row[kind]['cpu_seconds']:.1f}" for kind in ("usual", "bare"))
        kept = " and ".join(
            "exact" if row[kind]["db"] is None else f"{row[kind]['db']:.1f}" for kind in ("usual", "bare")
        )
        wrong = "wrong without" if row["wrong"] else "nothing wrong"
        print(f"{row['model']}: cost {row['cost']:.3f}, time {row['time']:.2f} ({seconds} CPU s), {kept} dB, {wrong}")
    built = [row for row in rows if "error" not in row]
    right = [row["time"] for row in built if not row["wrong"]]
    if built and right:
        dearest = max(row["cost"] for row in built)
        print(f"{len(built)} models: cost at most {dearest:.3f}; of {len(right)} with nothing wrong, time at most")
        print(f"{max(right):.2f}, in the middle {statistics.median(right):.2f}; {missed} beyond a bar")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--device", default="qnn")
    parser.add_argument("--precision", default="w8a16")
    parser.add_argument("--arch", default="v73")
    parser.add_argument("--like", default="", help="A regular expression that paths have to match.")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--one", type=Path, help="Build this one here, and print its row.")
    parser.add_argument("--bare", action="store_true", help="With --one: nothing known about wrong numbers.")
    parser.add_argument("-o", "--output", type=Path, default=Path("price.jsonl"))
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(build(asked)))
        return 0
    found = [path for folder in asked.folders for path in sorted(Path(folder).rglob("*.onnx"))]
    rows = [compare(path, asked) for path in found if re.search(asked.like, str(path))]
    asked.output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return int(show(rows) > 0)


if __name__ == "__main__":
    sys.exit(main())
