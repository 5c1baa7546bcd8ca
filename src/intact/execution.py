"""Running any form of a model: in ONNX Runtime, and compiled, where its device or a simulator of it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact import compile as compiling
from intact import data
from intact.config import CompileConfig
from intact.graph import io
from intact.rewrite import reference
from intact.targets.spec import Target
from intact.vendor import cpu

Outputs = Mapping[str, np.ndarray]


def session(model_or_path: ir.Model | Path) -> cpu.Session:
    """A model on the CPU; what ONNX Runtime refuses in it is computed in another way, with the same integers."""
    model = io.load(model_or_path) if isinstance(model_or_path, Path) else model_or_path
    known = reference.runnable(model)
    return cpu.Session(model_or_path if known is model else known)


def run(model_or_path: ir.Model | Path, rows: list[data.Feeds]) -> list[Outputs]:
    """What a model gives for each row on the CPU, as it is written: without optimizations."""
    opened = session(model_or_path)
    return [opened.run(row) for row in rows]


def run_compiled(
    path: Path, rows: list[data.Feeds], target: Target, config: CompileConfig
) -> list[dict[str, np.ndarray]]:
    return compiling.run(
        path,
        rows,
        device=target.backend,
        arch=target.arch,
        soc_id=target.soc.id if target.soc is not None else None,
        ep_options=config.ep_options,
        timeout=config.timeout,
    )
