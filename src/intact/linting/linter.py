"""Lint a quantized model: findings with stable codes, and their explanations."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import onnx_ir as ir

from intact import linting
from intact.errors import SettingsError
from intact.linting import saturated, sight
from intact.linting.check import Check, Finding, Severity
from intact.matching.rewriter import Rule

__all__ = [
    "CHECKS",
    "SATURATED",
    "Check",
    "Finding",
    "Severity",
    "check_of",
    "checks",
    "findings",
    "markdown",
]

# Files of this folder that use checks instead of defining them.
_USERS = ("linter", "repairs")


def _discovered() -> Iterator[Check]:
    """Every class with a code in a file of this folder: nothing else lists it."""
    for name in (item.name for item in pkgutil.iter_modules(linting.__path__) if item.name not in _USERS):
        module = importlib.import_module(f"{linting.__name__}.{name}")
        classes = [item for item in vars(module).values() if isinstance(item, type) and issubclass(item, Check)]
        yield from (kind() for kind in classes if kind.__module__ == module.__name__ and "code" in vars(kind))


CHECKS: tuple[Check, ...] = tuple(sorted(_discovered(), key=lambda check: check.code))

SATURATED = saturated.SaturatedSums.code


def findings(model: ir.Model, *, opset: int | None = None, saturates: bool | None = None) -> tuple[Finding, ...]:
    """Everything that is wrong with the model, the worst first, then by code and in the order of its nodes.

    `opset` is that of the file which the model was before it was upgraded: some faults are those of newer ones only.
    `saturates` says that kernels of the machine which will run it add pairs of products in 16 bits; None: as here.
    """
    seen = sight.seen(model)
    concerned = [check for check in checks(saturates) if opset is None or check.since <= opset]
    found = [finding for check in concerned for finding in check.find(seen)]
    order = list(Severity)
    return tuple(sorted(found, key=lambda finding: (order.index(finding.severity), finding.code)))


def checks(saturates: bool | None) -> tuple[Check, ...]:
    """All checks, for a machine whose kernels saturate or do not."""
    machine = saturated.SaturatedSums(saturates)
    return tuple(machine if isinstance(check, saturated.SaturatedSums) else check for check in CHECKS)


def check_of(code: str) -> Check:
    """The check with this code, in upper or lower case."""
    codes = {check.code: check for check in CHECKS}
    if code.upper() in codes:
        return codes[code.upper()]
    import difflib

    near = difflib.get_close_matches(code.upper(), codes, n=3, cutoff=0.5)
    raise SettingsError(
        "S180",
        f"no check has the code {code!r}",
        allowed=", ".join(codes),
        fix=f"did you mean {' or '.join(near)}?" if near else None,
    )


def markdown() -> str:
    """The page of the documentation about all checks, made from their docstrings."""
    head = (
        "# What `intact lint` finds\n\n"
        "`intact lint model.onnx` looks for what is wrong with a quantized model; `intact explain CODE` prints one of\n"
        "these texts. `--fix -o fixed.onnx` repairs what can be repaired without changing what the model computes.\n"
        "This page is the output of `intact explain --all`.\n\n"
        "| code | severity | fixable | what is wrong |\n| --- | --- | --- | --- |\n"
    )
    rows = "".join(
        f"| [{c.code}](#{c.code.lower()}) | {c.severity} | {'yes' if isinstance(c, Rule) else 'no'} | {c.title()} |\n"
        for c in CHECKS
    )
    texts = "".join(f"\n## {check.code}\n\n{check.explanation()}\n" for check in CHECKS)
    return head + rows + texts
