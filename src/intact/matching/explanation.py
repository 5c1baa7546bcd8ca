"""Says why rules do not fire at a node: what stands in the way of a match, or what its check found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from intact.matching.pattern import Pattern
from intact.matching.rewriter import PreparedRule, Rule
from intact.model import query
from intact.results import Refusal

_NO_MATCH = "does not match"
_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")


def explain(model: ir.Model, rules: Iterable[Rule], node_name: str) -> tuple[Refusal, ...]:
    """Tell for each rule that has a place for the node why it does not fire, those that match first."""
    nodes = [node for node in query.all_nodes(model) if node.name == node_name]
    found = (
        Refusal(rule.name, node_name, reason)
        for node in nodes
        for rule in rules
        if (reason := _why_not(PreparedRule(rule, explain=True), node)) is not None
    )
    # What a rule that matches was in doubt about tells more than that another has nothing to do with the node.
    return tuple(sorted(found, key=lambda refusal: refusal.reason.startswith(_NO_MATCH)))


def doubts(model: ir.Model, rules: Iterable[Rule]) -> Iterator[tuple[Rule, str, str | None]]:
    """Wherever rules match: the rule, the name of the match's last node, and why it does not fire (None: it would)."""
    prepared = [PreparedRule(rule) for rule in rules]
    for node in query.all_nodes(model):
        for item in prepared:
            if (node.domain, node.op_type) in item.pattern.keys:
                answers = list(_answers(item, node, [node]))
                yield from ((item.rule, node.name or "", None if None in answers else one) for one in answers[:1])


def fires_at(model: ir.Model, rule: Rule, node_name: str) -> bool:
    """True if a rule would fire with the node in its match."""
    prepared = PreparedRule(rule)
    nodes = [node for node in query.all_nodes(model) if node.name == node_name]
    return any(None in _answers(prepared, node, _roots(prepared.pattern, node)) for node in nodes)


def _why_not(prepared: PreparedRule, node: ir.Node) -> str | None:
    roots = _roots(prepared.pattern, node)
    answers = list(_answers(prepared, node, roots))
    if answers:
        return None if None in answers else answers[0]
    # Nearly every pattern has a Q or DQ somewhere before its root: that it could have been this one tells nothing.
    if node not in roots and (not _has_place(prepared.pattern, node) or node.op_type in _CONVERSIONS):
        return None
    if not roots:
        return f"{_NO_MATCH}: no {' or '.join(sorted(op for _, op in prepared.pattern.keys)[:3])} follows"
    return f"{_NO_MATCH}: {prepared.matcher.failure or 'no other node completes the pattern'}"


def _answers(prepared: PreparedRule, node: ir.Node, roots: Sequence[ir.Node]) -> Iterator[str | None]:
    """Ask the rule about each match from `roots` that covers the node."""
    for root in roots:
        yield from (prepared.check(match) for match in prepared.matcher.matches(root) if node in match.covered())


def _roots(pattern: Pattern, node: ir.Node) -> list[ir.Node]:
    """The node and those that follow it, as far as a match could start there and reach it, the nearest first."""
    level, found = {node: None}, dict[ir.Node, None]()
    for _ in range(pattern.depth if _has_place(pattern, node) else 0):
        found |= {item: None for item in level if (item.domain, item.op_type) in pattern.keys}
        level = {user: None for item in level for output in item.outputs for user in query.consumers(output)}
    return list(found)


def _has_place(pattern: Pattern, node: ir.Node) -> bool:
    return any((node.domain, node.op_type) in item.keys for item in pattern.most_uses)
