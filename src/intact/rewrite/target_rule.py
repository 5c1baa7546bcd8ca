"""Rules that depend on more of a target than whether it has an operator."""

from __future__ import annotations

from typing import Self

from intact.graph.rewriter import Rule
from intact.targets.spec import Forms


class TargetRule(Rule):
    """A rule that fits itself to what a target takes."""

    def for_target(self, forms: Forms) -> Self:
        """The same rule, limited to what the target has."""
        raise NotImplementedError(f"{type(self).__name__}.for_target")
