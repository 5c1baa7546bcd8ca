"""Questions of an atlas, and regions of them in which a device is wrong."""

from __future__ import annotations

from dataclasses import replace

from intact.backends.probing.answers import Answer
from intact.backends.probing.cases import Case, Chain
from intact.backends.probing.fitting import Factor
from intact.records import dataclass

AS_IT_STANDS = "as it stands"
AGAIN = "again"


@dataclass(frozen=True, slots=True)
class Spot:
    """A question of the atlas: a case or a chain as it stands, or a case at a value of a factor."""

    asked: Case | Chain
    factor: Factor | None = None
    value: float = 0.0
    repeated: bool = False

    @property
    def name(self) -> str:
        """The question in one line, which identifies it."""
        more = f" | {AGAIN}" if self.repeated else ""
        if self.factor is None or self.value == self.factor.usual:
            return f"{self.asked.name}{more}"
        return f"{self.asked.name} | {self.factor.name} = {self.value:.6g}{more}"

    def again(self) -> Spot:
        """The same question, under a name of its own."""
        return replace(self, repeated=True)

    @property
    def output(self) -> str:
        """The type of the result."""
        last = self.asked if isinstance(self.asked, Case) else self.asked.steps[-1]
        return last.output.split()[0]

    @property
    def kind(self) -> str:
        """The name of its factor."""
        return AS_IT_STANDS if self.factor is None else self.factor.name

    def built(self) -> Case | Chain | None:
        """The case to ask about; None where there is none at this value."""
        if self.factor is None or self.value == self.factor.usual:
            return self.asked
        return self.factor.at(self.value)


@dataclass(frozen=True, slots=True)
class Region:
    """Values of a factor at which a device is wrong about a case, and the nearest ones at which it is right.

    Of the neighbours below and above, None stands for one that was not asked. `right` is the value nearest to the last
    wrong one that is right, whatever the order means. The figures are of the worst value, and of the case as it stands.
    """

    wrong: tuple[Spot, ...]
    below: Spot | None
    above: Spot | None
    worst: Answer
    usual: Answer
    right: Spot | None = None

    @property
    def edges(self) -> tuple[Spot, ...]:
        """The values on both sides of each edge; the last that is wrong where there is none."""
        found = (*self.last_wrong, self.below, self.above, self.right)
        return tuple({spot.name: spot for spot in found if spot is not None}.values())

    @property
    def last_wrong(self) -> tuple[Spot, ...]:
        """The wrong values at its edges."""
        first = () if self.below is None else self.wrong[:1]
        return first if first and self.above is None else (*first, self.wrong[-1])

    @property
    def where(self) -> str:
        """The condition in words."""
        factor = self.wrong[0].factor
        if factor is None:
            return AS_IT_STANDS
        if factor.ordered and self.below is None and self.above is not None:
            return f"{factor.name} below {self.above.value:.3g}"
        if factor.ordered and self.above is None and self.below is not None:
            return f"{factor.name} above {self.below.value:.3g}"
        if factor.ordered and self.below is not None and self.above is not None:
            return f"{factor.name} between {self.below.value:.3g} and {self.above.value:.3g}"
        return factor.told([spot.value for spot in self.wrong])

    def __str__(self) -> str:
        return f"{self.wrong[0].asked.name}: {self.where}: {_figures(self.worst)}; as it stands {_figures(self.usual)}"


def _figures(answer: Answer) -> str:
    steps = "" if answer.steps is None else f", {answer.steps:g} steps"
    return f"{answer.sqnr_db} dB{steps}"
