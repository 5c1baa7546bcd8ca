"""`intact lint`: what is wrong with a quantized model, and its repair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from intact.cli import arguments
from intact.cli.options import MODEL, TALK, Option, takes

NAME = "lint"
FINDINGS_REMAIN = 1
LINT = (
    Option("fix", bool, typer.Option("--fix", help="Write the repaired model; needs -o.", show_default=False)),
    Option("output", Path | None, typer.Option("-o", "--output", help="Where the repaired model goes.")),
    Option("overwrite", bool, typer.Option("--overwrite", help="Replace what is there.", show_default=False)),
    Option(
        "severity",
        str | None,
        typer.Option(
            "--severity", help="Exit with 1 from this severity on: error, warning or info. [default: warning]"
        ),
    ),
)


@takes(MODEL, LINT, TALK)
def run(values: dict[str, Any]) -> None:
    """Find what is wrong with a quantized model, and with --fix repair what can be repaired exactly.

    Example: intact lint model.onnx --fix -o fixed.onnx
    """
    from intact.api.lint import lint
    from intact.cli import console
    from intact.errors import SettingsError

    if values["fix"] != (values["output"] is not None):
        raise SettingsError("S181", "--fix and -o go together", fix="intact lint model.onnx --fix -o fixed.onnx")
    chosen = _severity(values["severity"])
    report = lint(arguments.model_path(values), output=values["output"], overwrite=values["overwrite"])
    result = report.to_dict()
    if values["as_json"]:
        console.print_json(result)
    elif not values["quiet"]:
        _show(result, console.say)
    if any(finding.severity.at_least(chosen) for finding in report.standing):
        raise typer.Exit(FINDINGS_REMAIN)


def _severity(given: str | None) -> Any:
    from intact.api.lint import Severity
    from intact.errors import SettingsError

    try:
        return Severity(given or Severity.WARNING)
    except ValueError as problem:
        allowed = ", ".join(Severity)
        raise SettingsError("S182", f"--severity {given}: unknown severity", allowed=allowed) from problem


def _show(result: dict[str, Any], say: Any) -> None:
    for item in result["findings"]:
        say(f"{item['severity']}[{item['code']}]: {item['node']} ({item['op']}): {item['message']}")
        say("  fixed" if item["fixed"] else f"  fix: {item['fix']} (intact explain {item['code']})")
    total, fixed = len(result["findings"]), sum(item["fixed"] for item in result["findings"])
    say(
        f"{total} finding{'' if total == 1 else 's'}"
        + (f", {fixed} fixed: {result['output']}" if result["output"] else "")
    )
