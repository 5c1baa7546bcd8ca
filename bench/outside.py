"""Build every model of a folder, side by side in processes of their own, and write one table about them.

For each model: built, passed through (nothing quantized), or refused with its code; the verdict; the least SQNR of each
form; seconds and peak memory. A run that was stopped goes on where it was; two runs can be compared.

python bench/outside.py FOLDER [--device qnn] [--precision w8a16] [--no-strict] [--like PATTERN] [-o results.jsonl]
python bench/outside.py --compare before.jsonl after.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Record = dict[str, Any]

INTACT = Path(sys.executable).with_name("intact")
CODE = re.compile(r"error\[([A-Z]\d{3})\]")


def build(path: Path, asked: argparse.Namespace) -> Record:
    """Build one model, with made-up inputs, and say what came of it.

    One in float, or quantized already, takes no effort, and no precision where it has another: it is built as it came.
    """
    precision, effort = ["--precision", asked.precision], ["--effort", asked.effort]
    found = _build(path, asked, [*precision, *effort])
    if found["code"] in ("S113", "S119"):
        return _build(path, asked, precision)
    return _build(path, asked, []) if found["code"] == "S112" else found


def _build(path: Path, asked: argparse.Namespace, precision: list[str]) -> Record:
    with tempfile.TemporaryDirectory(prefix="outside-") as name:
        out, log = Path(name, "out"), Path(name, "log.txt")
        command = [INTACT, "build", path, "--device", asked.device, "-o", out, "-q"]
        command += [*precision, *(["--no-strict"] if asked.no_strict else []), *asked.flags]
        start = time.monotonic()
        with open(log, "w", encoding="utf-8") as file:
            process = subprocess.Popen(list(map(str, command)), stdout=file, stderr=file, start_new_session=True)
        status, usage = _wait(process, asked.timeout)
        text = log.read_text(encoding="utf-8", errors="replace")
        found: Record = {"model": path.name, "status": status, "seconds": round(time.monotonic() - start, 1)}
        found |= {"cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1), "peak_mb": usage.ru_maxrss // 1024}
        found["code"] = (CODE.findall(text) or [None])[-1]
        found["error"] = _error(text)
        if (out / "manifest.json").is_file():
            found |= _built(json.loads((out / "manifest.json").read_text(encoding="utf-8")))
        found["outcome"] = _outcome(found)
        return found


def _error(text: str) -> str:
    """The error with the reasons that follow it: those of a vendor's compiler stand there in its own words."""
    lines = text.splitlines()
    first = next((index for index, line in enumerate(lines) if "error" in line.lower()), len(lines))
    return "\n".join(lines[first:])[:600]


def _wait(process: subprocess.Popen[bytes], timeout: float) -> tuple[int | None, resource.struct_rusage]:
    """The exit status, None for one that had to be ended, and what the process and its children used."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage
        time.sleep(0.05)
    process.kill()
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = -9
    return None, usage


def _built(manifest: Record) -> Record:
    quantized = next((stage for stage in manifest["stages"] if stage["name"] == "quantize"), {})
    least: dict[str, float | None] = {}
    for row in manifest["accuracy"]:
        known = [value for value in (least.get(row["form"]), row["sqnr_db"]) if value is not None]
        least[row["form"]] = min(known, default=None)
    return {
        "verdict": manifest["verdict"],
        "reasons": manifest["verdict_reasons"],
        "db": least,
        "quantized_nodes": quantized.get("nodes_quantized", 0),
        "mended": [done for stage in manifest["stages"] if stage["name"] == "mend" for done in stage["done"]],
        "on_cpu": [node["name"] for node in manifest["placement"]["cpu_nodes"]],
    }


def _outcome(found: Record) -> str:
    if "verdict" in found:
        return "built" if found["quantized_nodes"] else "passed through"
    return "hung" if found["status"] is None else "crashed" if found["status"] < 0 else "refused"


def sweep(asked: argparse.Namespace) -> list[Record]:
    """Build what is not in the results yet; each line is written when it is known."""
    output = Path(asked.output)
    done = {row["model"]: row for row in read(output)} if output.is_file() else {}
    paths = sorted(path for path in Path(asked.folder).rglob("*.onnx") if re.search(asked.like, path.name))
    todo = [path for path in paths if path.name not in done]
    with ThreadPoolExecutor(asked.workers) as pool, open(output, "a", encoding="utf-8") as file:
        for row in pool.map(lambda path: build(path, asked), todo):
            done[row["model"]] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
    return [done[path.name] for path in paths]


def read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def show(rows: list[Record]) -> None:
    """Counts, and a line for each model that was not built well."""
    print(dict(Counter(row["outcome"] for row in rows)), dict(Counter(row.get("verdict") for row in rows)))
    for row in rows:
        if row["outcome"] not in ("built", "passed through") or row["verdict"] not in ("good", "passed"):
            figures = {form: None if db is None else round(db, 1) for form, db in row.get("db", {}).items()}
            why = (row.get("reasons") or [row["error"]])[0]
            print(f"{row['model']}: {row['outcome']} {row.get('verdict') or row['code']} {figures} {why}")
    slow = max(rows, key=lambda row: row["seconds"], default=None)
    large = max(rows, key=lambda row: row["peak_mb"], default=None)
    if slow is not None and large is not None:
        print(f"slowest {slow['model']} {slow['seconds']} s, largest {large['model']} {large['peak_mb']} MB")


def unsaid(rows: list[Record]) -> list[str]:
    """Models whose compiled form lost more than 6 dB, is below 40 dB, and is not doubted, or without its place."""
    found = []
    for row in rows:
        db = row.get("db", {})
        before, after = db.get("quantized"), db.get("compiled")
        if after is None or (before if before is not None else 999.0) - after <= 6 or after >= 40:
            continue
        if row["verdict"] not in ("suspect", "broken", "failed") or not any(
            "part ways at" in r for r in row["reasons"]
        ):
            found.append(f"{row['model']}: {before} -> {after}: {row['verdict']} {row['reasons']}")
    return found


def compare(before: Path, after: Path) -> None:
    old = {row["model"]: row for row in read(before)}
    for row in read(after):
        was = old.get(row["model"])
        if was is not None and (was["outcome"], was.get("verdict")) != (row["outcome"], row.get("verdict")):
            print(f"{row['model']}: {was['outcome']} {was.get('verdict')} -> {row['outcome']} {row.get('verdict')}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="uint8")
    parser.add_argument("--effort", default="fast")
    parser.add_argument("--no-strict", action="store_true")
    parser.add_argument("--like", default="", help="A regular expression that names of files have to match.")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("-o", "--output", default="outside.jsonl")
    parser.add_argument("--compare", nargs=2, type=Path)
    asked, asked.flags = parser.parse_known_args()
    if asked.compare:
        compare(*asked.compare)
        return 0
    rows = sweep(asked)
    show(rows)
    lost = unsaid(rows)
    print(f"lost in the compiler and not said: {len(lost)}", *lost, sep="\n")
    return int(bool(lost) or any(row["outcome"] in ("hung", "crashed") or row["status"] == 70 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
