"""Raising a model to an opset that the quantizer can use, with the same meaning.

onnx.version_converter is not used: it moves linear Upsample and Resize by half a pixel, keeps one scale per group in
GroupNormalization, drops metadata, and needs the whole model as one message, which 2 GiB of weights cannot be.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from intact.errors import ModelError, some
from intact.model import edit, legacy_ops, opset_rules, query, shapes
from intact.model.copying import copied
from intact.model.patch import Patch
from intact.records import dataclass

# From here on, rules know every change of a definition. What an older opset has is taken where it means the same here.
OLDEST = 7
MINIMUM = 21
# The last opset with the first AveragePool.
LAST_POOL = 18
# What runtimes on devices read that are older than those we run on (ONNX Runtime 1.22).
IR_VERSION = 10
SHOWN = 3
# Operators that ONNX Runtime's optimizers put into ONNX's own domain, where no opset has them.
OF_ORT = {"SimplifiedLayerNormalization"}


@dataclass(frozen=True, slots=True)
class Upgraded:
    """A model of opset `to_opset` that computes what it did in `from_opset`, and what a user should know about it."""

    model: ir.Model
    from_opset: int
    to_opset: int
    notes: tuple[str, ...] = ()


def upgrade(model: ir.Model, minimum: int = MINIMUM) -> Upgraded:
    """Return a copy of `model` in opset `minimum`, or in its own where that is newer; nodes of other domains stay."""
    result = copied(model)
    from_opset = result.opset_imports.get("", minimum)
    bodies = bodies_of(result)
    notes: list[str] = []
    _check_oldest(bodies)
    _check_known(result, bodies)
    shapes.infer_shapes(result)
    for body in bodies:
        _raise_body(body, edit.Names(result), notes)
    to_opset = max(minimum, *(body.opset_imports.get("", minimum) for body in bodies))
    for body in bodies:
        body.opset_imports[""] = to_opset
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(result)
    result.ir_version = max(ir_version_for(result.opset_imports), IR_VERSION)
    shapes.infer_shapes(result)
    return Upgraded(result, from_opset, to_opset, tuple(notes))


def bodies_of(model: ir.Model) -> list[ir.Graph | ir.Function]:
    """The holders of nodes that import opsets: the graph, and each function."""
    return [model.graph, *model.functions.values()]


def ir_version_for(opset_imports: Mapping[str, int]) -> int:
    """The IR version to write: the one that the oldest supported runtime reads, or more if the opsets need it."""
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opset_imports.items()]
    needed: int = onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True)
    return max(IR_VERSION, needed)


def import_at_least(model: ir.Model, opset: int) -> None:
    """Import the opset that has something new; from `MINIMUM` on, where models start, operators mean the same."""
    if opset > model.opset_imports.get("", 0):
        model.opset_imports[""] = opset
        model.ir_version = max(model.ir_version or 0, ir_version_for(model.opset_imports))


def keep_kernels(model: ir.Model, from_opset: int) -> None:
    """Import, in place, an opset whose kernels add as those of `from_opset`, where every node means the same in it.

    ONNX Runtime has another AveragePool from opset 19 on: between Q and DQ its ties go to other integers.
    """
    nodes = (node for node in query.all_nodes(model) if node.domain == "")
    if changes_kernels(model, from_opset) and all(is_in(node, LAST_POOL) for node in nodes):
        model.opset_imports[""] = LAST_POOL


def changes_kernels(model: ir.Model, from_opset: int) -> bool:
    """True if ONNX Runtime adds in another order after an upgrade of the model from this opset."""
    pools = (node.op_type == "AveragePool" and node.domain == "" for node in query.all_nodes(model))
    return from_opset <= LAST_POOL and any(pools)


def is_in(node: ir.Node, opset: int) -> bool:
    """True if `opset` has the op with these attributes and types, in the same meaning."""
    schema, rule = schema_of(node.op_type, opset), opset_rules.RULES.get(node.op_type)
    if schema is None or schema.deprecated or (rule is not None and rule.below > opset):
        return False
    if not node.attributes.keys() <= schema.attributes.keys() or len(node.inputs) > schema.max_input:
        return False
    last = len(schema.inputs) - 1
    types = [schema.inputs[min(index, last)].types for index in range(len(node.inputs))]
    return all(value is None or _name_of(value) in known for value, known in zip(node.inputs, types, strict=True))


def _name_of(value: ir.Value) -> str:
    return "unknown" if value.dtype is None else f"tensor({value.dtype.name.lower()})"


@functools.cache
def schema_of(op: str, opset: int) -> onnx.defs.OpSchema | None:
    """The definition that `opset` of the default domain has for `op`, or None."""
    try:
        return onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None


def _raise_body(body: ir.Graph | ir.Function, names: edit.Names, notes: list[str]) -> None:
    opset = body.opset_imports.get("", MINIMUM)
    for node in list(ir.traversal.RecursiveGraphIterator(body)):
        if node.domain:
            continue
        patch = Patch(node, opset, names, notes)
        rule = opset_rules.RULES.get(node.op_type)
        if rule is not None and opset < rule.below:
            rule.apply(patch)
        elif node.op_type in legacy_ops.RULES and not _is_defined(node.op_type, opset):
            _express(patch)


def _express(patch: Patch) -> None:
    """Apply the rule for an op that has no definition, so that nothing was checked about its attributes."""
    node = patch.node
    try:
        legacy_ops.RULES[node.op_type](patch)
    except (TypeError, ValueError) as problem:
        raise ModelError(
            "M118", f"{node.name or 'a node'} ({node.op_type}): its attributes are not as this op had them: {problem}"
        ) from problem


def _check_oldest(bodies: Iterable[ir.Graph | ir.Function]) -> None:
    """Refuse nodes that mean something else in the oldest opset: ONNX Runtime has no kernel for them."""
    for body in bodies:
        opset = body.opset_imports.get("", MINIMUM)
        changed = [node for node in ir.traversal.RecursiveGraphIterator(body) if _changed_before(node, opset)]
        if changed:
            raise ModelError(
                "M120",
                f"the model has opset {opset}, in which {some(_labels(changed), SHOWN)} had another meaning",
                allowed=f"opset {OLDEST} or newer, and older nodes that mean the same there",
                fix=f"onnx.version_converter.convert_version(model, {OLDEST}), or export the model again",
            )


def _changed_before(node: ir.Node, opset: int) -> bool:
    """True if the oldest opset that rules know defines the op otherwise than this one, and no rule bridges that."""
    old, new = (schema_of(node.op_type, version) for version in (opset, OLDEST))
    if node.domain or opset >= OLDEST or old is None or new is None:
        return False
    rule = opset_rules.RULES.get(node.op_type)
    is_bridged = rule is not None and rule.since <= old.since_version
    return bool(old.since_version != new.since_version and not is_bridged)


def _labels(nodes: Iterable[ir.Node]) -> list[str]:
    return [f"{node.name or 'a node'} ({node.op_type})" for node in nodes]


def _check_known(model: ir.Model, bodies: Iterable[ir.Graph | ir.Function]) -> None:
    """Every node of the default domain is an op of ONNX, a function of the model, or expressed by a rule."""
    local = {(domain, name) for domain, name, _ in model.functions}
    unknown: dict[str, list[str]] = {}
    for body in bodies:
        opset = body.opset_imports.get("", MINIMUM)
        for node in ir.traversal.RecursiveGraphIterator(body):
            if node.domain == "" and ("", node.op_type) not in local and not _is_understood(node.op_type, opset):
                unknown.setdefault(f"{node.op_type} (opset {opset})", []).append(node.name or "a node without a name")
    if unknown:
        raise ModelError(
            "M121",
            "ONNX does not define " + "; ".join(f"{op}: {', '.join(nodes)}" for op, nodes in unknown.items()),
            allowed="ops of the opset that the model imports, or a domain of their own",
            fix="export the model with standard ops, or for the opset that has them",
        )


def _is_understood(op: str, opset: int) -> bool:
    return _is_defined(op, opset) or op in legacy_ops.RULES or op in OF_ORT


def _is_defined(op: str, opset: int) -> bool:
    """True if this opset has the op; one that it has only in name is defined where a rule replaces it."""
    schema, rule = schema_of(op, opset), opset_rules.RULES.get(op)
    if schema is None:
        return False
    return not schema.deprecated or (rule is not None and opset < rule.below)
