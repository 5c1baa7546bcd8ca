"""The verdict about a result: one word, and the sentences that led to it.

Every limit is a setting (`VerdictConfig`). An accuracy gate takes the place of the limit on what it measures, and of no
other; gates on placement and latency take the place of none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from intact.records import dataclass
from intact.results import Accuracy, Gate, Verdict, Word
from intact.settings.config import VerdictConfig

# From the best word to the worst; `passed` is `good` where gates were set.
ORDER: tuple[Word, ...] = ("good", "passed", "unverified", "suspect", "failed", "broken")
# Forms that are made from the quantized one and should compute what it does.
LATER_FORMS = ("rewritten", "compiled")


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a verdict is reached from.

    `unchecked` are gates that were set and could not be checked, and `unrun` says why the deployed form did not run.
    `doubts` are sentences about the data. `parted` says where a later form leaves the quantized one.
    """

    accuracy: Sequence[Accuracy] = ()
    gates: Sequence[Gate] = ()
    unchecked: Sequence[str] = ()
    unrun: str | None = None
    doubts: Sequence[str] = ()
    parted: str | None = None


@dataclass(frozen=True, slots=True)
class _Finding:
    word: Word
    reason: str


def judge(evidence: Evidence, limits: VerdictConfig | None = None) -> Verdict:
    """Reach the verdict: the worst word of all findings, with every reason, the worst first."""
    found = list(_findings(evidence, limits or VerdictConfig()))
    if not found:
        return Verdict("passed" if evidence.gates else "good")
    found.sort(key=lambda finding: -ORDER.index(finding.word))
    return Verdict(found[0].word, tuple(dict.fromkeys(finding.reason for finding in found)))


def of_gates(gates: Sequence[Gate]) -> Verdict:
    """The verdict of a command that checks gates and compares nothing."""
    reasons = tuple(_unheld(gate) for gate in gates if not gate.passed)
    return Verdict("failed", reasons) if reasons else Verdict("passed" if gates else "good")


def losses(accuracy: Sequence[Accuracy], limits: VerdictConfig | None = None) -> list[Accuracy]:
    """The rows of later forms that are much worse than the quantized form's row of the same output."""
    limits = limits or VerdictConfig()
    return [row for row, lost in _lost(accuracy) if lost > limits.most_lost_db and _db(row) < limits.lost_below_db]


NOTHING_COMPARED = Verdict("unverified", ("nothing could be compared with the original",))


def _findings(evidence: Evidence, limits: VerdictConfig) -> Iterator[_Finding]:
    for gate in evidence.gates:
        if not gate.passed:
            yield _Finding("failed", _unheld(gate))
    for name in evidence.unchecked:
        yield _Finding("failed", f"gate {name} could not be checked" + _because(evidence.unrun))
    if not evidence.accuracy:
        yield _Finding("unverified", NOTHING_COMPARED.reasons[0] + _because(evidence.unrun))
    elif evidence.unrun is not None:
        yield _Finding("unverified", f"the deployed form was not run: {evidence.unrun}")
    gated = {gate.name for gate in evidence.gates}
    for row in evidence.accuracy:
        yield from _about(row, gated, limits)
    yield from _about_losses(evidence, limits)
    for doubt in evidence.doubts:
        yield _Finding("suspect", doubt)


def _about(row: Accuracy, gated: set[str], limits: VerdictConfig) -> Iterator[_Finding]:
    """Judge one output of one form by itself."""
    where = f"output {row.output} of the {row.form} model"
    if row.nonfinite:
        yield _Finding(
            "broken", f"{where} is infinite or no number where the original is finite ({row.nonfinite} values)"
        )
        return
    if row.equal is not None:
        yield from _about_discrete(row, where, limits)
        return
    if row.constant:
        yield _Finding("broken", f"{where} has one value throughout where the original's differ")
    elif row.unmoved:
        yield _Finding("suspect", f"{where} is the same for every input where the original's differ")
    if "min_sqnr" not in gated:
        yield from _about_noise(row, where, limits)
    agreement = row.clear_agreement
    if "max_accuracy_drop" in gated or agreement is None or row.clear_decisions < limits.least_decisions:
        return
    if agreement < limits.least_agreement:
        yield _Finding(
            "suspect",
            f"{where} has the original's best class in {100 * agreement:.1f} % of {row.clear_decisions} clear "
            f"decisions, less than {100 * limits.least_agreement:g} %",
        )


def _about_noise(row: Accuracy, where: str, limits: VerdictConfig) -> Iterator[_Finding]:
    if row.silent and not row.identical:
        yield _Finding("suspect", f"{where} is not zero where the original is zero throughout")
    elif _db(row) < limits.broken_below_db:
        yield _Finding("broken", f"{where} keeps {_db(row):.1f} dB, less than {limits.broken_below_db:g}")
    elif _db(row) < limits.suspect_below_db:
        yield _Finding("suspect", f"{where} keeps {_db(row):.1f} dB, less than {limits.suspect_below_db:g}")


def _about_discrete(row: Accuracy, where: str, limits: VerdictConfig) -> Iterator[_Finding]:
    """Judge classes, indices and decisions by how many are equal: their distance means nothing."""
    assert row.equal is not None, "asked about discrete outputs only"
    share = row.equal / max(row.elements, 1)
    if row.elements >= limits.least_decisions and share < limits.least_agreement:
        yield _Finding(
            "suspect",
            f"{where} equals the original's in {100 * share:.1f} % of {row.elements} values, "
            f"less than {100 * limits.least_agreement:g} %",
        )


def _about_losses(evidence: Evidence, limits: VerdictConfig) -> Iterator[_Finding]:
    for row, lost in _lost(evidence.accuracy):
        if lost <= limits.most_lost_db or _db(row) >= limits.lost_below_db:
            continue
        word: Word = "broken" if _db(row) < limits.suspect_below_db else "suspect"
        less = f"{lost:.1f} dB less than quantized" if math.isfinite(lost) else "where the quantized one is the same"
        what = f"output {row.output} keeps {_db(row):.1f} dB in the {row.form} model, {less}"
        yield _Finding(word, what + ("" if evidence.parted is None else f"; {evidence.parted}"))


def _lost(accuracy: Sequence[Accuracy]) -> Iterator[tuple[Accuracy, float]]:
    """Each row of a later form, with the dB that it lost against the quantized form."""
    quantized: dict[str, float] = {}
    for row in accuracy:
        if row.form == "quantized":
            quantized.setdefault(row.output, _db(row))
    for row in accuracy:
        if row.form in LATER_FORMS and row.equal is None and not row.silent and row.output in quantized:
            yield row, quantized[row.output] - _db(row) if not row.identical else 0.0


def _unheld(gate: Gate) -> str:
    return f"gate {gate.name} {gate.limit:g} does not hold: {gate.detail}"


def _db(row: Accuracy) -> float:
    return math.inf if row.sqnr_db is None else row.sqnr_db


def _because(reason: str | None) -> str:
    return "" if reason is None else f": {reason}"
