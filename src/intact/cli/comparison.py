"""Models beside each other, for people on a narrow terminal and for programs: what `verify` and `perf` found."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table

from intact.cli.console import print_wrapped, say, table, verdict_line
from intact.reports.figures import MISSING, decibels, figure, share, size

if TYPE_CHECKING:
    from intact.api.verify import Verification, VerifiedModel
    from intact.profiling.measure import Measurement, Performance
    from intact.results import Accuracy, Gate
    from intact.verification.tolerance import Tolerance

OPS_SHOWN = 5
BLAMED_SHOWN = 4
NODES_IN_JSON = 20


def verification(found: Verification) -> dict[str, object]:
    """A comparison for programs; `gate` is the first gate, for those that set one."""
    gates = [asdict(gate) for gate in found.gates]
    return {
        "verdict": found.judged.word,
        "verdict_reasons": list(found.judged.reasons),
        "samples": found.samples,
        "reference": _identity(found.reference),
        "models": [{**_identity(model), "tolerance": asdict(model.tolerance)} for model in found.models],
        "outputs": [{"model": model.path, **asdict(row)} for model in found.models for row in model.accuracy],
        "gate": gates[0] if gates else None,
        "gates": gates,
        "warnings": list(found.warnings),
    }


def _identity(model: VerifiedModel) -> dict[str, object]:
    return {
        "path": model.path,
        "form": model.form,
        "runtime": model.runtime,
        "task_accuracy": [asdict(row) for row in model.task_accuracy],
    }


def show_verification(found: Verification) -> None:
    """A table for each model, its accuracy on labels, and the tolerance that it would pass."""
    say(verdict_line(found.judged))
    say(f"{found.samples} samples, compared with {found.reference.path}{_right(found.reference)}")
    for model in found.models:
        say("")
        say(f"{model.path}: {model.form}, on {model.runtime}{_right(model)}")
        print_wrapped(_accuracy(model.accuracy))
        say(f"would pass: {_passing(model.tolerance)}")
    for gate in found.gates:
        word = "passed" if gate.passed else "FAILED"
        say(f"gate {gate.name} {gate.limit:g}: {word}, {gate.detail}")


def _right(model: VerifiedModel) -> str:
    parts = [
        f"\n  accuracy of {row.output}: {row.correct} of {row.total}, {100 * row.accuracy:.2f} %"
        for row in model.task_accuracy
    ]
    return "".join(parts)


def _accuracy(rows: tuple[Accuracy, ...]) -> Table:
    shown = table(["output"], ("SQNR dB", "cosine", "max error", "mean error", "top-1", "top-5"))
    for row in rows:
        db = "identical" if row.identical or row.sqnr_db is None else decibels(row.sqnr_db)
        errors = (figure(row.max_abs_error, ".3g"), figure(row.mean_abs_error, ".3g"))
        agreement = (share(row.top1_agreement), share(row.top5_agreement))
        shown.add_row(row.output, db, figure(row.cosine, ".5f"), *errors, *agreement)
    return shown


def _passing(found: Tolerance) -> str:
    if found.min_sqnr is None or found.min_cosine is None:
        return "any; the outputs are identical"
    return (
        f"--min-sqnr {found.min_sqnr:.2f}, --min-cosine {found.min_cosine:.6f};\n"
        f"  numpy.allclose with rtol={found.rtol:g} atol={found.atol:g}, or rtol=0 atol={found.max_abs_error:g}"
    )


def performance(found: Measurement, gate: Gate | None) -> dict[str, object]:
    """A measurement for programs, in milliseconds and bytes."""
    return {
        "runtime": found.runtime,
        "threads": found.threads or None,
        "warm_up": found.warm_up,
        "runs": found.rounds,
        "models": [_performance(model) for model in found.models],
        "gate": None if gate is None else asdict(gate),
    }


def _performance(model: Performance) -> dict[str, object]:
    latency = model.latency
    return {
        "path": model.path,
        "runtime": model.runtime,
        "bytes": model.bytes,
        **{f"{name}_ms": 1000 * getattr(latency, name) for name in ("p50", "p90", "p99")},
        "ratio_to_first": latency.ratio_to_first,
        "ratio_interval": [latency.ratio_low, latency.ratio_high],
        "slower": latency.is_slower,
        "peak_memory_bytes": model.peak_bytes,
        "model_memory_bytes": model.used_bytes,
        "ops": [{"op": o.op, "count": o.count, "ms": 1000 * o.seconds, "share": o.share} for o in model.ops],
        "nodes": [{"name": n.name, "op": n.op, "ms": 1000 * n.seconds} for n in model.nodes[:NODES_IN_JSON]],
        "blame": [
            {
                "ops": list(part.ops),
                "ops_of_first": list(part.first_ops),
                "ms": 1000 * part.seconds,
                "ms_of_first": 1000 * part.first_seconds,
            }
            for part in model.blame
        ],
    }


def show_performance(found: Measurement) -> None:
    """Latency beside each other, the slowest operators of each model, and who is slower than the first."""
    threads = found.threads or "one for each core"
    print_wrapped(f"{found.runtime}; threads: {threads}; {found.rounds} runs each, in turns")
    shown = table([""], ("p50 ms", "p90 ms", "p99 ms", "ratio", "95 % range", "memory", "size"))
    for letter, model in zip(_letters(found), found.models, strict=True):
        times = (_ms(getattr(model.latency, name)) for name in ("p50", "p90", "p99"))
        memory = MISSING if model.peak_bytes is None else size(model.peak_bytes)
        shown.add_row(letter, *times, *_ratio(model), memory, size(model.bytes))
    print_wrapped(shown)
    for letter, model in zip(_letters(found), found.models, strict=True):
        say(f"\n{letter}  {model.path}, on {model.runtime}")
        print_wrapped(_operators(model))
    for letter, model in zip(_letters(found)[1:], found.models[1:], strict=True):
        print_wrapped(f"\n{_verdict(letter, model)}")
        if model.latency.is_slower and model.blame:
            print_wrapped(_blamed(model))


def _ratio(model: Performance) -> tuple[str, str]:
    latency = model.latency
    return f"{latency.ratio_to_first:.3f}", f"{latency.ratio_low:.3f}–{latency.ratio_high:.3f}"


def _letters(found: Measurement) -> list[str]:
    return [chr(ord("A") + index) if index < 26 else str(index + 1) for index in range(len(found.models))]


def _operators(model: Performance) -> Table:
    shown = table(["operator"], ("nodes", "ms", "share"))
    for row in model.ops[:OPS_SHOWN]:
        shown.add_row(row.op, str(row.count), _ms(row.seconds), share(row.share))
    rest = model.ops[OPS_SHOWN:]
    if rest:
        whole = (sum(row.count for row in rest), sum(row.seconds for row in rest), sum(row.share for row in rest))
        shown.add_row(f"{len(rest)} more", str(whole[0]), _ms(whole[1]), share(whole[2]))
    return shown


def _verdict(letter: str, model: Performance) -> str:
    ratio = model.latency.ratio_to_first
    if model.latency.ratio_high < 1:
        return f"{letter} is {1 / ratio:.2f} times as fast as A."
    if not model.latency.is_slower:
        return f"{letter} and A are as fast as each other, as far as this can tell; --runs with more may."
    blamed = "" if model.blame else "; no operator alone is to blame: none of them grew"
    return f"{letter} is SLOWER than A: it takes {ratio:.2f} times as long{blamed}."


def _blamed(model: Performance) -> Table:
    """The work that grew most. Both names of it fold: a fused operator stands for many, and a terminal is narrow."""
    shown = table(["to blame"], ("ms", "ms in A"), ["operators in A"])
    for part in model.blame[:BLAMED_SHOWN]:
        time = _ms(part.first_seconds) if part.first_ops else MISSING
        shown.add_row(", ".join(part.ops), _ms(part.seconds), time, ", ".join(part.first_ops) or "nothing like it")
    return shown


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f}" if seconds < 0.1 else f"{1000 * seconds:.1f}"
