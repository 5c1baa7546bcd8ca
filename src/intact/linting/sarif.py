"""Findings as SARIF 2.1.0, which code hosts show beside the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from intact.linting.check import Finding, Severity

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def document(path: Path, findings: Sequence[Finding], explanations: Mapping[str, str]) -> str:
    """One run of intact over one model; a node is a logical location, for a model has no lines."""
    driver = {"name": "intact", "rules": [_rule(code, explanations[code]) for code in sorted(explanations)]}
    results = [_result(path, finding) for finding in findings]
    run = {"tool": {"driver": driver}, "results": results}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(code: str, explanation: str) -> dict[str, object]:
    return {
        "id": code,
        "shortDescription": {"text": explanation.partition("\n")[0]},
        "fullDescription": {"text": explanation},
    }


def _result(path: Path, finding: Finding) -> dict[str, object]:
    place = {
        "physicalLocation": {"artifactLocation": {"uri": path.as_posix()}},
        "logicalLocations": [{"name": finding.node, "kind": "element"}],
    }
    return {
        "ruleId": finding.code,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.node} ({finding.op}): {finding.message}. {finding.fix}"},
        "locations": [place],
    }
