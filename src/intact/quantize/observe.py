"""Runs the float model once over the data and remembers what the plan needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx_ir as ir

from intact.errors import DataError
from intact.quantize.sketch import Sketch
from intact.results import QuantPlan
from intact.vendor import cpu


def observe(
    model: ir.Model,
    plan: QuantPlan,
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Sketch]:
    """A sketch of every tensor that decides a grid, over all `rows`."""
    constants = {name: value.const_value for name, value in model.graph.initializers.items()}
    sketches = {name: Sketch(histogram=_needs_histogram(plan, name)) for name in plan.observed}
    for name in plan.observed:
        tensor = constants.get(name)
        if tensor is not None:
            sketches[name].add(tensor.numpy())
    inputs = {value.name for value in model.graph.inputs}
    computed = [name for name in plan.observed if name not in inputs and name not in constants]
    session = cpu.Session(model, optimize=True, outputs=computed)
    for feeds in rows:
        outputs = session.run(feeds) if computed else {}
        for name in plan.observed:
            value = outputs.pop(name, feeds.get(name))
            if value is not None:
                sketches[name].add(value)
        progress()
    _refuse_empty(sketches)
    return sketches


def _needs_histogram(plan: QuantPlan, tensor: str) -> bool:
    return plan.grids[plan.tensors[tensor]].method != "minmax"


def _refuse_empty(sketches: Mapping[str, Sketch]) -> None:
    """A tensor that never had a finite value has no range: name it rather than invent one."""
    empty = [name for name, seen in sketches.items() if seen.count == 0]
    if empty:
        raise DataError(
            "D140",
            f"{empty[0]}: the model gave no finite value there in any sample ({len(empty)} such tensors)",
            fix="check the calibration inputs: their scale, layout and missing values",
        )
