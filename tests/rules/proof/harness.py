"""Proof of what rules claim: generated models, before and after one rule, in plain numpy arithmetic.

`tests/rules/quantized/cases/*.py` expose `CASES`, which maps the name of a rule to a function that generates `Case`s
from a seeded generator of random numbers. Every case has to let the rule fire.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from intact.matching import rewriter
from intact.matching.rewriter import EXACT, NEAR, Rule
from intact.rules.proof.exactness import LEAST_NEAR_SQNR
from tests.rules.proof.interpreter import evaluate

CASES_FOLDER = Path(__file__).parents[1] / "quantized" / "cases"


@dataclass(frozen=True)
class Case:
    """A model on which a rule has to fire, inputs for it, and what a step is where outputs are floats."""

    label: str
    model: ir.Model
    feeds: Sequence[Mapping[str, np.ndarray]] = field(repr=False)
    step: float | None = None


Generator = Callable[[np.random.Generator], Iterator[Case]]


def all_cases() -> dict[str, Generator]:
    """The generators of every file of cases, by the name of the rule."""
    found: dict[str, Generator] = {}
    for item in pkgutil.iter_modules([str(CASES_FOLDER)]):
        module = importlib.import_module(f"tests.rules.quantized.cases.{item.name}")
        assert not found.keys() & module.CASES.keys(), f"{item.name}: a rule has its cases elsewhere"
        found |= module.CASES
    return found


def prove(rule: Rule, case: Case) -> int:
    """Assert what the rule claims about one case; return how many elements were compared."""
    before = case.model
    done = rewriter.apply(before.clone(), [rule])
    reasons = [refusal.reason for refusal in done.refusals]
    assert done.applications, f"{case.label}: {rule.name} does not fire: {reasons}"
    return sum(compare(rule, case, before, done.model, feeds) for feeds in case.feeds)


def compare(rule: Rule, case: Case, before: ir.Model, after: ir.Model, feeds: Mapping[str, np.ndarray]) -> int:
    """Assert that the outputs of two models differ by no more than the rule allows."""
    expected, found = evaluate(before, feeds), evaluate(after, feeds)
    for name, reference in expected.items():
        assert found[name].dtype == reference.dtype, f"{case.label}: {name} is {found[name].dtype}"
        assert found[name].shape == reference.shape, f"{case.label}: {name} has shape {found[name].shape}"
        moved = distance(reference, found[name], case.step)
        if rule.exactness is NEAR:
            noise = ((reference - found[name]).astype(np.float64) ** 2).mean() / (reference**2).mean(dtype=np.float64)
            assert noise < 10 ** (-LEAST_NEAR_SQNR / 10), f"{case.label}: {name} keeps {-10 * np.log10(noise):.1f} dB"
            continue
        limit = 0 if rule.exactness is EXACT else 1
        assert moved <= limit, f"{case.label}: {name} moves by {moved} steps, {rule.exactness} is claimed"
    return sum(array.size for array in expected.values())


def distance(a: np.ndarray, b: np.ndarray, step: float | None) -> float:
    """The largest difference, in levels of integers or in steps of floats; identical arrays are 0 apart."""
    if np.array_equal(a, b):
        return 0
    if a.dtype.kind in "iub" or step is None:
        return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max()) if a.dtype.kind in "iub" else np.inf
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max() / step)


def every_level(dtype: Any, shape: Sequence[int]) -> np.ndarray:
    """An array in which each integer of the type occurs, in a fixed order."""
    info = np.iinfo(dtype)
    levels = np.arange(info.min, info.max + 1).astype(dtype)
    return np.resize(levels, shape)


def integers(rng: np.random.Generator, dtype: Any, shape: Sequence[int]) -> np.ndarray:
    """Integers over the whole range of a type."""
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def zero_points(dtype: Any) -> list[Any]:
    """The ends of a type, its middle, and one beside."""
    info = np.iinfo(dtype)
    return [dtype(value) for value in (info.min, info.min + 3, (info.min + info.max + 1) // 2, info.max)]


def fired(rule: Rule, model: ir.Model) -> list[str]:
    """The operators that are left after a rule that has to fire."""
    done = rewriter.apply(model.clone(), [rule])
    assert {item.rule for item in done.applications} == {rule.name}, [item.reason for item in done.refusals]
    return [node.op_type for node in done.model.graph]


def refused(rule: Rule, model: ir.Model) -> str:
    """The reason of a rule that has to match and may not fire."""
    done = rewriter.apply(model.clone(), [rule])
    assert not done.applications, "the rule fires"
    assert done.refusals, "the rule does not match"
    return done.refusals[0].reason
