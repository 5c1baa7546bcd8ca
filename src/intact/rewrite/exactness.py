"""Runs a model before and after rewriting, and holds every rule to what it claims."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.errors import GateFailed
from intact.graph import rewriter
from intact.graph.rewriter import EXACT, NEAR, Firing, Rewritten, Rule
from intact.results import Application
from intact.rewrite import witness
from intact.rewrite.reference import runnable
from intact.rewrite.symmetric import RequantizeWeight
from intact.rewrite.witness import Pair
from intact.vendor import cpu

Feeds = Mapping[str, np.ndarray]

# One step may grow on its way through a network; below this the rewritten model is another model.
LEAST_SQNR = 20.0

# What a layer must keep of its result. Its weight may keep more, where inputs are correlated or products cancel out.
LEAST_NEAR_SQNR = 40.0

# Floats that are on no grid may move by this share of the largest of them: sums in another order.
LARGEST_SHARE = 1e-4


@dataclass(frozen=True, slots=True)
class Validation:
    """What was found: outputs identical, or how far apart in dB, and the steps that each rule moved a tensor by."""

    samples: int
    checked: int
    identical: bool
    sqnr_db: float | None
    moved: Mapping[str, float]


def validate(before: ir.Model, after: Rewritten, rules: Sequence[Rule], rows: Sequence[Feeds]) -> Validation:
    """Compare `before` with what `rules` made of it, application by application and then as a whole.

    Raises GateFailed with the name of the rule that does not keep its claim.
    """
    if not after.applications:
        return Validation(len(rows), 0, True, None, {})
    seen = witness.of(before, rules)
    moved = _hold_to_claims(seen, rows)
    sqnr = _sqnr(before, after.model, rows)
    if sqnr is not None and all(item.exactness == EXACT for item in after.applications):
        raise _broken(_first_to_change(before, rules, rows), "the outputs of the model change")
    if sqnr is not None and sqnr < LEAST_SQNR:
        worst = max(moved, key=lambda rule: moved[rule])
        raise GateFailed(
            "G111",
            f"rewriting: outputs are {sqnr:.1f} dB SQNR from those before; {worst} moves tensors most",
            allowed=f"at least {LEAST_SQNR:g} dB",
            fix="rewrite with --exact",
        )
    return Validation(len(rows), len(seen.pairs), sqnr is None, sqnr, moved)


def lossy(model: ir.Model, rules: Sequence[Rule], rows: Sequence[Feeds]) -> dict[str, str]:
    """The layers that would keep less than 40 dB of their results on `rows` with a requantized weight, and how much."""
    if not any(isinstance(rule, RequantizeWeight) for rule in rules):
        return {}
    seen = witness.of(model, rules)
    near = dataclasses.replace(seen, pairs=tuple(p for p in seen.pairs if p.application.exactness == NEAR))
    return {
        pair.application.node: f"on data the layer keeps {kept:.1f} dB, not {LEAST_NEAR_SQNR:g}"
        for pair, kept in _kept(near, rows).items()
        if not kept >= LEAST_NEAR_SQNR
    }


def except_at(rules: Sequence[Rule], layers: Mapping[str, str]) -> tuple[Rule, ...]:
    """The rules, of which none requantizes the weight of these layers, for the reasons given."""
    return tuple(rule.except_at(layers) if isinstance(rule, RequantizeWeight) else rule for rule in rules)


def _kept(seen: witness.Witness, rows: Sequence[Feeds]) -> dict[Pair, float]:
    """The SQNR in dB that every replaced tensor keeps over all rows."""
    session = cpu.Session(runnable(seen.model)) if seen.pairs else None
    powers = {pair: np.zeros(2) for pair in seen.pairs}
    for row in rows if session is not None else ():
        assert session is not None, "there are pairs to look at"
        tensors = session.run(row)
        for pair in seen.pairs:
            powers[pair] += _powers(tensors[pair.old], tensors[pair.new])
    return {pair: _decibels(*found) for pair, found in powers.items()}


def _decibels(signal: float, noise: float) -> float:
    return np.inf if noise == 0 else float(10 * np.log10(max(signal, 1e-300) / noise))


def _hold_to_claims(seen: witness.Witness, rows: Sequence[Feeds]) -> dict[str, float]:
    """The greatest move of a tensor by each rule, in steps."""
    moved = {pair.application.rule: 0.0 for pair in seen.pairs}
    session = cpu.Session(runnable(seen.model)) if seen.pairs else None
    powers = {pair: np.zeros(2) for pair in seen.pairs if pair.application.exactness == NEAR}
    for row in rows if session is not None else ():
        assert session is not None, "there are pairs to look at"
        tensors = session.run(row)
        for pair in seen.pairs:
            if pair in powers:
                powers[pair] += _powers(tensors[pair.old], tensors[pair.new])
                continue
            steps = _move(pair, tensors[pair.old], tensors[pair.new])
            # Written so that NaN is refused as well.
            if not steps <= (0 if pair.application.exactness == EXACT else 1):
                raise _broken(pair.application, f"a tensor moves by {steps:g} steps")
            moved[pair.application.rule] = max(moved[pair.application.rule], steps)
    for pair, found in powers.items():
        kept = _decibels(*found)
        if not kept >= LEAST_NEAR_SQNR:
            raise _broken(pair.application, f"a tensor keeps {kept:.1f} dB of {LEAST_NEAR_SQNR:g}")
    return moved


def _powers(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """The power of a tensor, and of what changed in it."""
    a, b = old.astype(np.float64), new.astype(np.float64)
    return np.array([np.sum(a * a), np.sum((a - b) ** 2)])


def _move(pair: Pair, old: np.ndarray, new: np.ndarray) -> float:
    if old.dtype != new.dtype or old.shape != new.shape:
        return np.inf
    if np.array_equal(old, new, equal_nan=old.dtype.kind == "f"):
        return 0.0
    error = float(np.abs(old.astype(np.float64) - new.astype(np.float64)).max())
    if old.dtype.kind != "f":
        return error
    if pair.application.exactness == EXACT:
        return np.inf
    return error / (pair.step or LARGEST_SHARE * float(np.abs(old).max(initial=1e-30)))


def _sqnr(before: ir.Model, after: ir.Model, rows: Sequence[Feeds]) -> float | None:
    """The least SQNR in dB of any output over all rows, or None where every output is identical."""
    first, second = cpu.Session(runnable(before)), cpu.Session(runnable(after))
    signal = {port.name: 0.0 for port in first.outputs}
    noise = dict(signal)
    identical = True
    for row in rows:
        expected, found = first.run(row), second.run(row)
        for name, reference in expected.items():
            identical &= np.array_equal(reference, found[name], equal_nan=reference.dtype.kind == "f")
            a, b = reference.astype(np.float64), found[name].astype(np.float64)
            signal[name] += float(np.sum(a * a))
            noise[name] += float(np.sum((a - b) ** 2))
    if identical:
        return None
    return min(float(10 * np.log10(max(signal[name], 1e-300) / noise[name])) for name in noise if noise[name] > 0)


def _first_to_change(before: ir.Model, rules: Sequence[Rule], rows: Sequence[Feeds]) -> Application:
    """The first application that changes an output, found by replaying them one at a time."""
    count = 0
    while True:
        count += 1
        replayed, application = _replay(before, rules, count)
        if application is None or _sqnr(before, replayed, rows) is not None:
            assert application is not None, "some application changed an output"
            return application


class _Enough(Exception):
    """Ends a replay."""


def _replay(model: ir.Model, rules: Sequence[Rule], count: int) -> tuple[ir.Model, Application | None]:
    """The model after the first `count` applications, and the last of them."""
    result = model.clone()
    seen: list[Application] = []

    def watch(firing: Firing) -> None:
        if len(seen) == count:
            raise _Enough
        seen.append(firing.application)

    try:
        rewriter.apply(result, rules, watch=watch)
    except _Enough:
        return result, seen[-1]
    return result, seen[-1] if len(seen) == count else None


def _broken(application: Application, what: str) -> GateFailed:
    return GateFailed(
        "G110",
        f"rewriting: {application.rule} at {application.node!r} does not keep its claim: {what}",
        allowed=application.exactness,
        fix="leave the rule out of the target's table, and report the model",
    )
