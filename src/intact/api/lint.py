"""`intact.lint`: what is wrong with a quantized model, and its repair."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from intact.errors import about
from intact.events import Log
from intact.linting import linter, repairs, sarif
from intact.linting.linter import Finding, Severity
from intact.matching.rewriter import Rewritten
from intact.model import detect, io, normalize, upgrade
from intact.pipeline import model_files, trial
from intact.records import dataclass
from intact.results import Application
from intact.rules.float import constant_folding
from intact.settings.keywords import AnyPath

__all__ = ["Finding", "LintReport", "Severity", "lint"]


@dataclass(frozen=True, slots=True)
class LintReport:
    """The faults of a model; where a repaired copy is at `output`, `fixed` tells which of them are gone there.

    Most checks are about what is quantized: of a model that is not, no findings say little.
    """

    path: Path
    output: Path | None
    findings: tuple[Finding, ...]
    fixed: tuple[bool, ...]
    rewrites: tuple[Application, ...] = ()
    quantized: bool = True

    @property
    def standing(self) -> tuple[Finding, ...]:
        """The findings that are not repaired."""
        return tuple(finding for finding, fixed in zip(self.findings, self.fixed, strict=True) if not fixed)

    def to_dict(self) -> dict[str, object]:
        """The report for programs."""
        pairs = zip(self.findings, self.fixed, strict=True)
        return {
            "path": str(self.path),
            "quantized": self.quantized,
            "output": None if self.output is None else str(self.output),
            "findings": [asdict(finding) | {"fixed": fixed} for finding, fixed in pairs],
            "rewrites": [asdict(application) for application in self.rewrites],
        }

    def to_sarif(self) -> str:
        """The findings that are not repaired as SARIF 2.1.0, for code hosts."""
        codes = {finding.code for finding in self.standing}
        explanations = {code: linter.check_of(code).explanation() for code in codes}
        return sarif.document(self.path, self.standing, explanations)


def lint(model: AnyPath, *, output: AnyPath | None = None, overwrite: bool = False) -> LintReport:
    """Find what is wrong with a quantized model; with `output`, a repaired copy of it goes there."""
    path, place = Path(model), None if output is None else Path(output)
    if place is not None:
        model_files.check_output(place, overwrite, path)
    given = io.load(path)
    if place is not None:
        with about(path):
            trial.refuse_bombs(path, given)  # ONNX Runtime loads what is written
    normal = normalize.normalize(upgrade.upgrade(given).model)
    # ONNX Runtime does so before it fuses: what is constant to it has to be constant here.
    constant_folding.fold(normal)
    found = tuple(linter.findings(normal, opset=given.opset_imports.get("")))
    repaired = Rewritten(normal) if place is None else repairs.repair(normal)
    standing = {(finding.code, finding.node) for finding in linter.findings(repaired.model)}
    if place is not None:
        model_files.write_model(repaired.model, place, path, Log())
    fixed = tuple((finding.code, finding.node) not in standing for finding in found)
    quantized = detect.detect(given) is not None
    return LintReport(path, place, found, fixed, tuple(repaired.applications), quantized)
