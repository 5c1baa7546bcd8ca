"""What makes the search for matches fast leaves none of them out: plans, and the index of rules."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import pytest

from intact.matching.index import PatternIndex
from intact.matching.matcher import Matcher
from intact.matching.occurrence import Match
from intact.matching.rewriter import PreparedRule
from intact.rules.quantized.families import RULES
from tests.rules.proof.harness import all_cases

CASES = all_cases()
MOST_CASES = 4
PREPARED = [PreparedRule(rule) for rule in RULES]
INDEX = PatternIndex(PREPARED)


def nodes_of(name: str) -> Iterator[ir.Node]:
    """The nodes of a few models on which a rule fires."""
    for case in itertools.islice(CASES[name](np.random.default_rng(0)), MOST_CASES):
        yield from case.model.graph


def contents(match: Match) -> tuple[object, ...]:
    """All that a match says, in an order."""
    return sorted(match.bindings.items()), match.covered(), match.replaced


@pytest.mark.parametrize("prepared", PREPARED, ids=lambda prepared: prepared.rule.name)
def test_a_plan_finds_what_a_search_finds(prepared):
    fast, thorough = Matcher(prepared.pattern), Matcher(prepared.pattern, explain=True)
    found = 0
    for node in nodes_of(prepared.rule.name):
        expected = [contents(match) for match in thorough.matches(node)]
        assert [contents(match) for match in fast.matches(node)] == expected
        found += len(expected)
    assert found > 0


@pytest.mark.parametrize("prepared", PREPARED, ids=lambda prepared: prepared.rule.name)
def test_every_rule_that_matches_at_a_node_is_a_candidate_there(prepared):
    for node in nodes_of(prepared.rule.name):
        matching = [item for item in PREPARED if any(True for _ in item.matcher.matches(node))]
        assert set(matching) <= set(INDEX.candidates(node))
