"""The same rules for onnxscript's rewriter: patterns, checks and rewrites of ours, in its own objects.

Wherever its language of patterns is the poorer one, its rule is the simpler one and has less to do: of several types
or alternatives it gets the first, operands are not swapped, a rule with two roots or for every output of a node is
looked for at the first only and refuses. Both rewriters run to the point at which nothing fires any more.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import pattern as other

from intact.matching.pattern import AnyOf, Each, Output, Pattern, ValuePattern, Var, names
from intact.matching.rewriter import Rule
from intact.model import query


def apply(model: ir.Model, rules: Sequence[Rule]) -> int:
    """Apply the rules with onnxscript until none fires; return how often they did."""
    translated = other.RewriteRuleSet([_Translated(rule).rule() for rule in rules])
    return sum(iter(lambda: translated.apply_to_model(model), 0))


class _Translated:
    """One rule; names of a pattern become identifiers, and a node is known by its first output."""

    def __init__(self, rule: Rule) -> None:
        self.ours = rule
        self.pattern = Pattern(rule.pattern)
        self.nodes: dict[str, str] = {}
        self.built: dict[Any, Any] = {}
        self.constants: set[str] = set()

    def rule(self) -> other.RewriteRule:
        """The rule as onnxscript wants it; shared nodes stay, and what nothing uses goes at the end."""
        return other.RewriteRule(self._target, self._replace, self._check, name=self.ours.name, remove_nodes=False)

    def _target(self, op: Any) -> Any:
        self.built.clear()
        return self._build(op, self.pattern.starts[0])

    def _build(self, op: Any, item: ValuePattern) -> Any:
        if isinstance(item, AnyOf):
            return self._build(op, item.options[0])
        key = item.node if isinstance(item, Output) else item.name if isinstance(item, Var) else None
        if key is not None and key not in self.built:
            self.built[key] = self._variable(item) if isinstance(item, Var) else self._node(op, item)
        return self.built.get(key)

    def _variable(self, item: Var) -> Any:
        if item.constant:
            self.constants.add(_word(item.name))
        return other.Var(_word(item.name), can_match_none=item.optional)

    def _node(self, op: Any, item: Output) -> Any:
        domain, op_type = sorted(item.node.keys)[0]
        inputs = [self._build(op, child) for child in item.node.inputs if not isinstance(child, Each)]
        label = f"node_{len(self.nodes)}_{len(self.built)}"
        if item.node.name is not None:
            self.nodes[item.node.name] = label
        free = {"_allow_other_inputs": True, "_allow_other_attributes": True}
        return getattr(op, op_type)(*inputs, _domain=domain, _outputs=[label], **free)

    def _bound(self, found: dict[str, Any], method: Any) -> dict[str, Any]:
        wanted = inspect.signature(method).parameters
        bindings: dict[str, Any] = dict.fromkeys(names(self.pattern.roots))
        bindings |= {name: found.get(_word(name)) for name in bindings if _word(name) in found}
        bindings |= {name: found[label].producer() for name, label in self.nodes.items()}
        takes_all = any(item.kind is item.VAR_KEYWORD for item in wanted.values())
        return {name: value for name, value in bindings.items() if takes_all or name in wanted}

    def _check(self, context: Any, **found: Any) -> bool:
        replaces_several = self.pattern.others or self.pattern.starts[0].index is None
        if replaces_several or not all(query.is_constant(found.get(name)) for name in self.constants):
            return False
        return self.ours.check(**self._bound(found, self.ours.check)) is None

    def _replace(self, op: Any, **found: Any) -> Any:
        return self.ours.rewrite(_Builder(op), **self._bound(found, self.ours.rewrite))


def _word(name: str) -> str:
    return "v_" + name.replace(".", "_")


class _Builder:
    """What rules build with, on onnxscript's tape."""

    _numbers = itertools.count()

    def __init__(self, tape: Any) -> None:
        self._tape = tape

    def __getattr__(self, op_type: str) -> Any:
        return lambda *inputs, **attributes: self.node(op_type, *inputs, **attributes)

    def node(
        self, op_type: str, *inputs: Any, _domain: str = "", _name: str = "", _outputs: int = 1, **given: Any
    ) -> Any:
        return self._tape.op(op_type, *inputs, **given)

    def constant(self, array: np.ndarray, hint: str = "constant") -> Any:
        return self._tape.initializer(ir.tensor(array, name=f"{hint}_{next(self._numbers)}"))
