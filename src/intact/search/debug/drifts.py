"""Differences on their way through a model: which sources a tensor differs by, and what it is with some of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from intact.records import dataclass
from intact.search.debug.layers import Rows
from intact.verification.compare import Difference

Sources = frozenset[str]


@dataclass(slots=True)
class TracedTensor:
    """A tensor of the candidate on its way through the comparison.

    `value` is what it is where everything before it is right. `drifts` is what it is where some sources alone differ:
    each by itself, all together, and those that make up for each other. `calm` says for how many layers in a row the
    difference of a source has not shown, `way` how many layers lie behind it.
    """

    name: str
    own: Difference | None
    value: Rows
    drifts: dict[Sources, Rows] = field(default_factory=dict)
    calm: dict[str, int] = field(default_factory=dict)
    way: dict[str, int] = field(default_factory=dict)

    @property
    def sources(self) -> Sources:
        return frozenset(self.calm)


def sources_of(before: Sequence[TracedTensor]) -> list[str]:
    """All that makes some of these tensors differ."""
    return sorted(frozenset().union(*(tensor.sources for tensor in before)))


def subsets(before: Sequence[TracedTensor]) -> list[Sources]:
    """All sources, each alone, all but one, and what was followed so far: what a layer undoes shows in one of these."""
    sources = sources_of(before)
    everything = frozenset(sources)
    some = [everything, *(frozenset({source}) for source in sources), *(everything - {source} for source in sources)]
    some += [found for tensor in before for found in tensor.drifts]
    return [found for found in dict.fromkeys(some) if found]


def kept(tried: Mapping[Sources, Rows], chosen: Collection[Sources], sources: Sources) -> dict[Sources, Rows]:
    """Choose what is followed on of what was tried, by the sources that are left.

    What is undone no longer tells apart what else differs with it; where both were followed, that alone counts.
    """
    result: dict[Sources, Rows] = {}
    for found, rows in sorted(tried.items(), key=lambda item: not item[0] <= sources):
        rest = found & sources
        if rest and (found in chosen or rest in chosen):
            result.setdefault(rest, rows)
    return result
