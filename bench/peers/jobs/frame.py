"""The frame of every job: `python by_x.py MODEL DATA RESULT SETTING` writes the quantized model and RESULT.json.

A job runs in the environment of its tool and knows nothing of the others. Time and memory are measured from outside;
the seconds of loading and of work, which only the job can tell apart, are written by it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

START = time.perf_counter()

Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A float model, the .npz of its calibration samples, the file to write, and a setting of the tool."""

    model: str
    data: str
    result: str
    setting: str

    def rows(self) -> list[Row]:
        """The samples one by one, each with a batch of one."""
        import numpy as np

        with np.load(self.data) as arrays:
            whole = {name: arrays[name] for name in arrays.files}
        count = len(next(iter(whole.values())))
        return [{name: array[n : n + 1] for name, array in whole.items()} for n in range(count)]


class Reader:
    """Rows one at a time, as onnxruntime.quantization and those who follow it take them."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.rewind()

    def rewind(self) -> None:
        """Begin again."""
        self.left: Iterator[Row] = iter(self.rows)

    def get_next(self) -> Row | None:
        """The next row, or None at the end."""
        return next(self.left, None)


def run(quantize: Callable[[Job], None]) -> None:
    """Call `quantize` with the job of the command line, and write how long loading and work took."""
    job = Job(*sys.argv[1:5])
    loaded = time.perf_counter()
    quantize(job)
    seconds = {"loading": loaded - START, "work": time.perf_counter() - loaded}
    with open(f"{job.result}.json", "w", encoding="utf-8") as file:
        json.dump(seconds, file)
