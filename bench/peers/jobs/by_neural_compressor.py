"""Intel Neural Compressor: static quantization with its default settings, written with Q/DQ nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from frame import Job, Row, run
from neural_compressor import PostTrainingQuantConfig, quantization


class Loader:
    """Rows with a label each, which nothing looks at, as its calibration takes them."""

    batch_size = 1

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        for row in self.rows:
            # A model with one input gets it without its name.
            yield (row if len(row) > 1 else next(iter(row.values()))), 0


def quantize(job: Job) -> None:
    rows = job.rows()
    settings = PostTrainingQuantConfig(approach="static", quant_format="QDQ", calibration_sampling_size=[len(rows)])
    found = quantization.fit(job.model, settings, calib_dataloader=Loader(rows))
    if found is None:
        # It has said why.
        sys.exit(1)
    found.save(job.result)


run(quantize)
