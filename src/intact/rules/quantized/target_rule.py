"""Rules that depend on more of a target than whether it has an operator."""

from __future__ import annotations

from typing import ClassVar, Self

from intact.matching.rewriter import LocalRule
from intact.targets.spec import Forms


class TargetRule(LocalRule):
    """A rule that fits itself to what a target takes."""

    exact_in_integers: ClassVar[bool] = False
    """True if integer kernels find the same sums, though floats between DQ and Q may round otherwise."""

    def is_needed(self, forms: Forms) -> bool:
        """True if the target, whose table names the rule, has any use for it: its version may do without."""
        return True

    def for_target(self, forms: Forms) -> Self:
        """The same rule, limited to what the target has."""
        raise NotImplementedError(f"{type(self).__name__}.for_target")
