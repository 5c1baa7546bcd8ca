"""Holds whole models to what rules claim, in plain numpy: by no runtime, and not by how the product judges itself.

Rules are applied one after another. Between one state of the model and the next, the first tensor that changes is the
one that a rule replaced; what changes behind it follows from that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from intact.matching import rewriter
from intact.matching.rewriter import EXACT, NEAR, Firing, Rule
from intact.results import Application
from tests.rules.proof.interpreter import Arrays, evaluate, tensors

Feeds = Mapping[str, np.ndarray]

# One step may grow on its way through a network, but not to a tenth of it, nor to more than quantizing it has changed.
LEAST_SQNR_DB = 20.0
# Another rounding of the same sums is as near to the network before it was quantized, but for chance.
CHANCE_DB = 3.0
# Floats that are on no grid may move by this share of the largest of them: sums in another order.
LARGEST_SHARE = 1e-4


def hold_to_claims(model: ir.Model, rules: Sequence[Rule], rows: Sequence[Feeds], floats: Sequence[Arrays]) -> None:
    """Assert what each application claims on the first of `rows`, and that outputs are the same model's on them all.

    `floats` are the outputs, on each of the rows, of what the model was quantized from.
    """
    subject = model.clone()
    before: list[tuple[Application, Arrays]] = []

    def look() -> Arrays:
        found = tensors(subject, rows[0], _needed(subject))
        if before:
            _hold(*before.pop(), found)
        return found

    def watch(firing: Firing) -> None:
        found = look()
        before.append((firing.application, found))

    rewriter.apply(subject, rules, watch=watch)
    look()
    expected, found = ([evaluate(one, row) for row in rows] for one in (model, subject))
    assert [each.keys() for each in expected] == [each.keys() for each in found]
    for name in expected[0]:
        _hold_output(*(np.stack([each[name] for each in some]) for some in (floats, expected, found)))


def _hold_output(original: np.ndarray, expected: np.ndarray, found: np.ndarray) -> None:
    """Assert that an output is the same model's: close to what it was, row by row, and as close to the original."""
    lost = _decibels(original, expected)
    for old, new in zip(expected, found, strict=True):
        assert _steps(old, new) <= 1 or _decibels(old, new) >= min(LEAST_SQNR_DB, lost)
    assert _decibels(original, found) >= lost - CHANCE_DB


def _needed(model: ir.Model) -> list[ir.Node]:
    """The nodes that outputs need: what was replaced is still there, without its inputs, until the end."""
    needed = {value.producer() for value in model.graph.outputs}
    for node in reversed(model.graph):
        if node in needed:
            needed |= {value.producer() for value in node.inputs if value is not None}
    return [node for node in model.graph if node in needed]


def _hold(application: Application, before: Arrays, after: Arrays) -> None:
    """Assert that the first tensor that changes does so by no more than was claimed."""
    changed = [name for name in before if name in after and not _same(before[name], after[name])]
    if not changed:
        return
    name = changed[0]
    where = f"{application.rule} at {application.node}: {name}"
    assert application.exactness != EXACT, f"{where} changes, and exact is claimed"
    if application.exactness == NEAR:
        return
    moved = _steps(before[name], after[name])
    assert moved <= 1, f"{where} moves by {moved:g} steps, within one step is claimed"


def _same(old: np.ndarray, new: np.ndarray) -> bool:
    """Whether a tensor stays as it is; a name may come to stand for a tensor in another form."""
    if old.dtype != new.dtype or old.shape != new.shape:
        return True
    return np.array_equal(old, new, equal_nan=old.dtype.kind == "f")


def _steps(old: np.ndarray, new: np.ndarray) -> float:
    """The largest move: in levels of integers, or in what sums in another order may move floats by."""
    moved = np.abs(old.astype(np.float64) - new.astype(np.float64)).max(initial=0.0)
    if old.dtype.kind != "f":
        return float(moved)
    return float(moved / max(LARGEST_SHARE * np.abs(old).max(initial=0.0), 1e-30))


def _decibels(expected: np.ndarray, found: np.ndarray) -> float:
    assert expected.dtype == found.dtype and expected.shape == found.shape
    noise = np.sum((expected.astype(np.float64) - found.astype(np.float64)) ** 2)
    signal = np.sum(expected.astype(np.float64) ** 2)
    return float(np.inf if noise == 0 else 10 * np.log10(max(signal, 1e-300) / noise))
