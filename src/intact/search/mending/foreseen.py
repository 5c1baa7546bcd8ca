"""Other forms for what a target's table says that the device computes wrongly: nothing has to be compiled to see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from intact.model import edit, shapes
from intact.pipeline.mending import Mended
from intact.search.mending.aim import prices_of
from intact.search.mending.fault_site import FaultSite
from intact.search.mending.other_forms import REMEDIES
from intact.settings.config import CompileConfig
from intact.targets import predicates
from intact.targets.spec import Requirement, Target
from intact.targets.validate import compute_nodes

_REMEDIES = {remedy.__name__: remedy for remedy in REMEDIES}


def foresee(
    model: ir.Model, rows: Sequence[Mapping[str, np.ndarray]], target: Target, config: CompileConfig
) -> Mended | None:
    """Give each node that its target is known to compute wrongly the form that the table names; None without any."""
    done = []
    for tensor, rule in _known_wrong(model, target):
        form = _cheapest(model, tensor, rule, target)
        if form is not None:
            model, told = form
            done.append(f"{told}, since the device is wrong about it otherwise ({rule.get('source')})")
    return Mended(model, tuple(done)) if done else None


def remedies_of(rule: Requirement) -> tuple[str, ...]:
    """The remedies that a rule of a table names: one, or several of which the cheapest is taken."""
    named = rule["remedy"]
    return tuple(map(str, named)) if isinstance(named, list | tuple) else (str(named),)


def _cheapest(model: ir.Model, tensor: str, rule: Requirement, target: Target) -> tuple[ir.Model, str] | None:
    """The form that costs least of those that the remedies of a rule give, and what was done; None without any."""
    forms: list[tuple[ir.Model, str]] = []
    for name in remedies_of(rule):
        site = FaultSite(_described(model), tensor)
        told = _REMEDIES[name](site)
        if told is not None:
            edit.prune(site.model)
            site.model.graph.sort()
            forms.append((site.model, told))
    price = prices_of(model, target.costs) if len(forms) > 1 else lambda form: 1.0
    return min(forms, key=lambda form: price(form[0]), default=None)


def _known_wrong(model: ir.Model, target: Target) -> Iterator[tuple[str, Requirement]]:
    """The result of each node that has a remedy in the table, with the rule that it does not meet."""
    rules = {key: [rule for rule in spec.right if "remedy" in rule] for key, spec in target.ops.items()}
    concerned = {key for key, found in rules.items() if found}
    # Most models have none of these operators, and large ones take long to describe.
    if not concerned & {(node.domain, node.op_type) for node in model.graph}:
        return
    for node in compute_nodes(_described(model), target):
        known = rules.get((node.domain, node.op_type), [])
        failed = next((rule for rule in known if predicates.check(node, rule) is not None), None)
        if failed is not None and node.outputs[0].name:
            yield node.outputs[0].name, failed


def _described(model: ir.Model) -> ir.Model:
    described = model.clone()
    shapes.infer_shapes(described)
    return described
