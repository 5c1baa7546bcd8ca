"""Runs a model before and after rewriting, and holds every rule to what it claims."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.errors import GateFailed
from intact.matching import rewriter
from intact.matching.rewriter import EXACT, NEAR, Firing, Rewritten, Rule
from intact.model import edit, query, randomness
from intact.model.copying import copied
from intact.numbers.decibels import sqnr_db
from intact.results import Application
from intact.rules.proof import witness
from intact.rules.proof.reference import runnable, runs_as_it_is
from intact.rules.proof.witness import Pair, Witness
from intact.runtime import pieces, unpacking
from intact.runtime.ort_cpu import Session

Feeds = Mapping[str, np.ndarray]

# One step may grow on its way through a network; below this the rewritten model is another model. An output that moves
# by a step of its own grid did not grow: on a coarse grid that is many dB.
LEAST_SQNR = 20.0
# Where quantizing has cost more than that, a network multiplies every rounding: another one as good moves its outputs
# by the errors of both.
AS_GOOD = 3.0
ONE_STEP = 1.001
# A grid so much coarser rounds nearly every value elsewhere, and costs half a decibel.
OTHER_GRID = 17 / 16

# What a layer must keep of its result. Its weight may keep more, where inputs are correlated or products cancel out.
LEAST_NEAR_SQNR = 40.0

# Floats that are on no grid may move by this share of the largest of them: sums in another order.
LARGEST_SHARE = 1e-4


@dataclass(frozen=True, slots=True)
class KnownRewriting:
    """The record of rewriting a model, the outputs of both forms for each row, and the float model of before.

    Applications are held to their claims one by one on so many rows as `claimed_on` says, or on all.
    """

    seen: Witness | None = None
    outputs: Iterable[tuple[Feeds, Feeds]] | None = None
    twin: ir.Model | None = None
    claimed_on: int | None = None


@dataclass(frozen=True, slots=True)
class Validation:
    """The finding: outputs identical, or their distance in dB, and the steps that each rule moved a tensor by."""

    samples: int
    checked: int
    identical: bool
    sqnr_db: float | None
    moved: Mapping[str, float]


# Any move is many steps of what is on no grid.
_NO_STEP = 1e-300


def validate(
    before: ir.Model,
    after: Rewritten,
    rules: Sequence[Rule],
    rows: Sequence[Feeds],
    known: KnownRewriting | None = None,
) -> Validation:
    """Compare `before` with what `rules` made of it, application by application and then as a whole.

    Without the record of it in what is `known`, the rules are applied once more.
    Raises GateFailed with the name of the rule that does not keep its claim.
    """
    if not after.applications:
        return Validation(len(rows), 0, True, None, {})
    known = known or KnownRewriting()
    seen = witness.of(before, rules) if known.seen is None else known.seen
    claimed = rows[: known.claimed_on]
    moved = _hold_to_claims(seen, claimed)
    # Where random numbers are drawn no two runs are alike: each application is held to its claim, the whole is not.
    comparable = randomness.why_incomparable(before) is None
    outputs = _outputs(before, after.model, rows) if known.outputs is None else known.outputs
    first: list[Feeds] = []
    changed = _changed(before, _noting(outputs, first, len(claimed))) if comparable else {}
    if changed and all(item.exactness == EXACT for item in after.applications):
        raise _broken(_first_to_change(before, rules, rows), "the outputs of the model change")
    sqnr = min((output.sqnr_db for output in changed.values()), default=None)
    far = {name: one.sqnr_db for name, one in changed.items() if not one.steps <= ONE_STEP and one.sqnr_db < LEAST_SQNR}
    allowed = _allowed(before, known.twin, claimed, first) if far else {}
    for name, kept in far.items():
        if kept < (least := allowed.get(name, LEAST_SQNR)):
            worst = max(moved, key=lambda rule: moved[rule], default=after.applications[0].rule)
            raise GateFailed(
                "G111",
                f"rewriting: output {name!r} is {kept:.1f} dB SQNR from that before; {worst} moves tensors most",
                allowed=f"at least {least:.3g} dB",
                fix="rewrite with --exact",
            )
    return Validation(len(claimed), len(seen.pairs), comparable and not changed, sqnr, moved)


def _noting(pairs: Iterable[tuple[Feeds, Feeds]], first: list[Feeds], count: int) -> Iterator[tuple[Feeds, Feeds]]:
    """The pairs, with the first of each noted for so many rows."""
    for pair in pairs:
        if len(first) < count:
            first.append(pair[0])
        yield pair


def _allowed(
    before: ir.Model, twin: ir.Model | None, rows: Sequence[Feeds], outputs: Sequence[Feeds]
) -> dict[str, float]:
    """The SQNR in dB that each output of `before` has to keep where quantizing the float model `twin` has changed it.

    An output for which quantizing cost more than the limit may lose as much again; one beside it may not. Where the
    float model is not known, the same model on other grids, as good ones, tells what other roundings change.
    """
    other = _on_other_grids(before) if twin is None else twin
    cost = _changed(before, zip(_streamed(other, rows), outputs, strict=True))
    return {name: min(LEAST_SQNR, output.sqnr_db - AS_GOOD) for name, output in cost.items()}


def _on_other_grids(model: ir.Model) -> ir.Model:
    """A copy whose computed tensors have coarser grids, by so little that they are as good: every rounding differs."""
    result = copied(model)
    names = edit.Names(result)
    for node in result.graph:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and _is_inside(node):
            scale = query.constant(node.inputs[1])
            if scale is not None:
                wider = (scale * OTHER_GRID).astype(scale.dtype)
                name = names.take(f"{node.name}/other_scale")
                node.replace_input_with(1, edit.add_initializer(result.graph, wider, name))
    return result


def _is_inside(node: ir.Node) -> bool:
    """True for a conversion of what is computed, whose integers do not leave the model or come into it."""
    read = node.inputs[0]
    maker = None if read is None else read.producer()
    if read is None or query.is_constant(read):
        return False
    if node.op_type == "QuantizeLinear":
        return not node.outputs[0].is_graph_output()
    return not read.is_graph_input() and not read.is_graph_output() and not _is_a_weight(maker)


def _is_a_weight(maker: ir.Node | None) -> bool:
    return maker is not None and maker.op_type == "QuantizeLinear" and query.is_constant(maker.inputs[0])


def lossy(model: ir.Model, rules: Sequence[Rule], rows: Sequence[Feeds]) -> dict[str, str]:
    """The layers that would keep less than 40 dB of their results on `rows` with a requantized weight, and how much."""
    if not any(rule.exactness is NEAR for rule in rules):
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
    return tuple(rule.sparing(layers) if rule.exactness is NEAR else rule for rule in rules)


def _kept(seen: Witness, rows: Sequence[Feeds]) -> dict[Pair, float]:
    """The SQNR in dB that every replaced tensor keeps over all rows."""
    powers = {pair: np.zeros(2) for pair in seen.pairs}
    for pair, old, new in _tensors(seen, rows):
        powers[pair] += _powers(old, new)
    return {pair: _kept_db(*found) for pair, found in powers.items()}


def _tensors(seen: Witness, rows: Sequence[Feeds]) -> Iterator[tuple[Pair, np.ndarray, np.ndarray]]:
    """Every pair on every row, with the tensors as they were and as they came."""
    if not seen.pairs:
        return
    pairs_of: dict[str, list[int]] = {}
    for number, pair in enumerate(seen.pairs):
        for name in dict.fromkeys((pair.old, pair.new)):
            pairs_of.setdefault(name, []).append(number)
    # A tensor may come in an earlier part than the one to compare it with.
    waiting: dict[int, dict[str, np.ndarray]] = {}
    for row, tensors in _opened(seen).parts(rows):
        early = waiting.setdefault(row, {})
        known = {**early, **tensors}
        for number in sorted({number for name in tensors for number in pairs_of[name]}):
            pair = seen.pairs[number]
            if pair.old in known and pair.new in known:
                yield pair, known[pair.old], known[pair.new]
            else:
                name = pair.old if pair.old in known else pair.new
                # An array of a session holds on to all the memory that the session had.
                early[name] = known[name].copy()


def _opened(seen: Witness) -> Session:
    """The record of a rewriting, to be run; as it was noted, if it is long and every operator in it runs."""
    noted = seen.as_noted
    if noted is None or not pieces.is_long(noted) or not runs_as_it_is(noted):
        noted = runnable(seen.model)
    return pieces.opened(noted)


def _kept_db(signal: float, noise: float) -> float:
    """The SQNR in dB; where there is no signal a number that JSON can hold."""
    return sqnr_db(max(float(signal), 1e-300), float(noise))


def _hold_to_claims(seen: Witness, rows: Sequence[Feeds]) -> dict[str, float]:
    """The greatest move of a tensor by each rule, in steps."""
    moved = {pair.application.rule: 0.0 for pair in seen.pairs}
    powers = {pair: np.zeros(2) for pair in seen.pairs if pair.application.exactness == NEAR}
    for pair, old, new in _tensors(seen, rows):
        if pair in powers:
            powers[pair] += _powers(old, new)
            continue
        steps = _move(pair, old, new)
        # Written so that NaN is refused as well.
        if not steps <= (0 if pair.application.exactness == EXACT else 1):
            raise _broken(pair.application, f"a tensor moves by {steps:g} steps")
        moved[pair.application.rule] = max(moved[pair.application.rule], steps)
    for pair, found in powers.items():
        kept = _kept_db(*found)
        if not kept >= LEAST_NEAR_SQNR:
            raise _broken(pair.application, f"a tensor keeps {kept:.1f} dB of {LEAST_NEAR_SQNR:g}")
    return moved


def _powers(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """The power of a tensor, as far as it is finite, and of what changed in it."""
    signal = np.where(np.isfinite(old), old, 0).astype(np.float64)
    return np.array([np.sum(signal * signal), np.sum(_difference(old, new) ** 2)])


def _difference(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """The distance that each element moved: infinite to or from NaN, and none from one infinity to the same."""
    a, b = old.astype(np.float64), new.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        moved = np.where(same, 0.0, np.abs(a - b))
    return np.asarray(np.where(np.isnan(moved), np.inf, moved))


def _move(pair: Pair, old: np.ndarray, new: np.ndarray) -> float:
    if old.dtype != new.dtype or old.shape != new.shape:
        return np.inf
    if np.array_equal(old, new, equal_nan=old.dtype.kind == "f"):
        return 0.0
    error = float(_difference(old, new).max())
    if old.dtype.kind != "f":
        return error
    if pair.application.exactness == EXACT:
        return np.inf
    step = pair.step or max(pair.sum_step or 0.0, LARGEST_SHARE * float(np.abs(old).max(initial=1e-30)))
    # Floats a step apart on a grid may seem further apart by as much as each of them was rounded.
    is_neighbour = pair.step is not None and step < error <= step + _rounding(old, new)
    return 1.0 if is_neighbour else error / step


def _rounding(old: np.ndarray, new: np.ndarray) -> float:
    """The most that the distance of two floats on a grid differs from that of their integers: each is rounded once."""
    ends = [np.abs(values[np.isfinite(values)]).max(initial=0) for values in (old, new)]
    return float(np.spacing(max(ends)))


@dataclass(frozen=True, slots=True)
class _Change:
    """The distance of an output from what it was: in dB, and in steps of its grid."""

    sqnr_db: float
    steps: float


def _outputs(before: ir.Model, after: ir.Model, rows: Sequence[Feeds]) -> Iterator[tuple[Feeds, Feeds]]:
    return zip(_streamed(before, rows), _streamed(after, rows), strict=True)


def _streamed(model: ir.Model, rows: Sequence[Feeds]) -> Iterator[Feeds]:
    return pieces.opened(runnable(model)).stream(rows)


def _changed(before: ir.Model, outputs: Iterable[tuple[Feeds, Feeds]]) -> dict[str, _Change]:
    """Measure the outputs that are not identical on all rows."""
    powers: dict[str, np.ndarray] = {}
    largest: dict[str, float] = {}
    for pair in outputs:
        expected, found = map(unpacking.arrays, pair)
        for name, reference in expected.items():
            old, new = unpacking.numbered(reference, found[name])
            powers[name] = powers.get(name, 0.0) + _powers(old, new)
            largest[name] = max(largest.get(name, 0.0), float(_difference(old, new).max(initial=0.0)))
    steps = {value.name: _output_step(value) for value in before.graph.outputs}
    moved = {name: move for name, move in largest.items() if move > 0}
    return {name: _Change(_kept_db(*powers[name]), move / steps.get(name, _NO_STEP)) for name, move in moved.items()}


def _output_step(value: ir.Value) -> float:
    """The step of the grid that an output is on, so small that any move is many of them where it is on none."""
    return 1.0 if query.is_quantized(value) else witness.grid_step(value) or witness.sum_step(value) or _NO_STEP


def _first_to_change(before: ir.Model, rules: Sequence[Rule], rows: Sequence[Feeds]) -> Application:
    """The first application that changes an output, found by replaying them one at a time."""
    count = 0
    while True:
        count += 1
        replayed, application = _replay(before, rules, count)
        if application is None or _changed(before, _outputs(before, replayed, rows)):
            assert application is not None, "some application changed an output"
            return application


class _Enough(Exception):
    """Ends a replay."""


def _replay(model: ir.Model, rules: Sequence[Rule], count: int) -> tuple[ir.Model, Application | None]:
    """The model after the first `count` applications, and the last of them."""
    result = copied(model)
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
