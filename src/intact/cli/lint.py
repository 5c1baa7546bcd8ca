"""`intact lint`: what is wrong with a quantized model, and its repair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from intact.cli import arguments
from intact.cli.options import MODEL, TALK, Flags, option, takes

if TYPE_CHECKING:
    from intact.api.lint import LintReport, Severity

NAME = "lint"
FINDINGS_REMAIN = 1
LINT = (
    option("fix", "Write the repaired model; needs -o.", bool),
    option("output", "Where the repaired model goes.", Path | None, "-o", "--output"),
    option("overwrite", "Replace what is there.", bool),
    option("sarif", "Write the findings as SARIF 2.1.0 into this file too; it is replaced.", Path | None),
    option("severity", "Exit with 1 from this severity on: error, warning or info. [default: warning]"),
)


@takes(MODEL, LINT, TALK)
def run(values: Flags) -> None:
    """Find what is wrong with a quantized model, and with --fix repair what can be repaired exactly.

    Example: intact lint model.onnx --fix -o fixed.onnx
    """
    from intact.errors import SettingsError

    if values["fix"] != (values.get("output") is not None):
        raise SettingsError("S181", "--fix and -o go together", fix="intact lint model.onnx --fix -o fixed.onnx")
    path = arguments.model_path(values)
    from intact.api.lint import lint
    from intact.cli import console
    from intact.scratch import write_text

    chosen = _severity(values["severity"])
    report = lint(path, output=values.get("output"), overwrite=values["overwrite"])
    if (place := values.get("sarif")) is not None:
        write_text(place, report.to_sarif())
    if values["as_json"]:
        console.print_json(report.to_dict())
    elif not values["quiet"]:
        _show(report, console.say)
    if any(finding.severity.at_least(chosen) for finding in report.standing):
        raise typer.Exit(FINDINGS_REMAIN)


def _severity(given: str | None) -> Severity:
    from intact.api.lint import Severity
    from intact.errors import SettingsError

    try:
        return Severity(given or Severity.WARNING)
    except ValueError as problem:
        allowed = ", ".join(Severity)
        raise SettingsError("S182", f"--severity {given}: unknown severity", allowed=allowed) from problem


def _show(report: LintReport, say: Callable[[str], None]) -> None:
    for item, fixed in zip(report.findings, report.fixed, strict=True):
        say(f"{item.severity}[{item.code}]: {item.node} ({item.op}): {item.message}")
        say("  fixed" if fixed else f"  fix: {item.fix} (intact explain {item.code})")
    total = len(report.findings)
    repaired = f", {sum(report.fixed)} fixed: {report.output}" if report.output else ""
    if not report.quantized:
        say(f"{report.path}: not quantized, so most checks have nothing to look at")
    say(f"{total} finding{'' if total == 1 else 's'}{repaired}")
