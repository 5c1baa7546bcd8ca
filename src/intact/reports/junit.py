"""A build as JUnit's XML, which continuous integration reads: a test case for the verdict and one for each gate."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from intact.errors import printable
from intact.results import Build


def document(built: Build) -> str:
    """One suite; what forbids deployment is a failure, and a verdict that nothing supports is skipped."""
    seconds = sum(stage.seconds for stage in built.stages)
    cases = [_verdict(built), *(_case(f"gate {gate.name}", gate.passed, gate.detail) for gate in built.gates)]
    suite = Element("testsuite", name=f"intact build {printable(built.source_path)}", time=f"{seconds:.3f}")
    suite.extend(cases)
    for kind, tag in (("tests", "."), ("failures", "failure"), ("skipped", "skipped")):
        suite.set(kind, str(sum(case.find(tag) is not None for case in cases)))
    indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(suite, encoding="unicode") + "\n"


def _verdict(built: Build) -> Element:
    reasons = "; ".join(built.verdict_reasons)
    case = _case("verdict", built.passed, f"{built.verdict}: {reasons}" if reasons else built.verdict)
    if built.verdict == "unverified":
        SubElement(case, "skipped", message=printable(reasons))
    return case


def _case(name: str, passed: bool, said: str) -> Element:
    case = Element("testcase", classname="intact.build", name=name)
    if not passed:
        SubElement(case, "failure", message=printable(said)).text = printable(said)
    return case
