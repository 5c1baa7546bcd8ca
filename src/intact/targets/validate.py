"""Checks a model against a target's table: every violation, with what is required, found, cited and to be done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from intact.errors import TargetError
from intact.model import normalize, query
from intact.model.node_encodings import encoding_of
from intact.numbers.integer_types import limits as bounds
from intact.results import Violation
from intact.targets import faults, predicates
from intact.targets.match import Kind, Mismatch, nearest
from intact.targets.operands import DEQUANTIZE, FREE, QUANTIZE, NodeOperand, Use, describe, use_of
from intact.targets.spec import OpSpec, Requirement, Signature, Target

# A code a kind of requirement, and what to do about it.
_CODES: dict[Kind, str] = {
    "type": "T102",
    "arity": "T102",
    "group": "T102",
    "check": "T109",
    "arch": "T103",
    "symmetry": "T104",
    "axis": "T105",
    "granularity": "T105",
    "constant": "T106",
    "scale": "T106",
    "blocks": "T114",
    "form": "T114",
}
UNKNOWN_OPERATOR, FIXED, SHARED, CHECKED, UNQUANTIZED = "T101", "T107", "T108", "T109", "T111"
DISTINCT, WRONG = "T115", "T118"

_ALL_LENIENT = "--no-strict goes on: these nodes run on the CPU, unless the compiler takes them after all"
_LENIENT = "--no-strict goes on: this node runs on the CPU, unless the compiler takes it after all"
_FIXES = {
    "T102": f"quantize with --device {{backend}}, which chooses types that it takes; {_LENIENT}",
    "T103": f"compile for {{wanted}} or newer, or choose a precision with other types; {_LENIENT}",
    "T104": f"intact rewrite --device {{backend}} makes weights symmetric, and so does quantizing for it; {_LENIENT}",
    "T105": f"quantize with --device {{backend}}, which places scales so; {_LENIENT}",
    "T109": f"change the operator, or quantize it to other types; {_LENIENT}",
    "T114": "quantize with --device {backend} --precision w4a16 --block-size 32, which writes blocks as it takes them "
    f"and leaves other weights per channel; {_LENIENT}",
    "T106": f"make it a constant: fold what computes it, or write its value into the model; {_LENIENT}",
}


class Violations(TargetError):
    """The target does not take the model; `violations` are all the reasons."""

    def __init__(self, violations: Sequence[Violation], target: Target, fix: str = _ALL_LENIENT) -> None:
        self.violations = tuple(violations)
        first = violations[0]
        nodes = len({violation.node for violation in violations})
        listed = "".join(f"\n{violation}" for violation in violations)
        super().__init__(
            first.code,
            f"{target.name} does not take {nodes} node{'s' if nodes != 1 else ''} of the model:{listed}",
            fix=fix,
        )


def validate(model: ir.Model, target: Target, *, strict: bool = True) -> tuple[Violation, ...]:
    """Every requirement of `target` that a node of `model` does not meet; if `strict`, raised as `Violations`."""
    found = tuple(violation for node in compute_nodes(model, target) for violation in violations_of(node, target))
    if strict and found:
        raise Violations(found, target)
    return found


def doubts(model: ir.Model, target: Target) -> tuple[Violation, ...]:
    """List what a target takes and is known to compute wrongly: no reason to refuse it, and one to compare it."""
    return tuple(doubt for node in compute_nodes(model, target) for doubt in _doubts_of(node, target))


def _doubts_of(node: ir.Node, target: Target) -> Iterator[Violation]:
    use = use_of(node, target.clipping)
    spec = target.op(use.domain, use.op)
    by_table = list(_named_by_table(use, spec))
    yield from by_table
    # Rules of the table say more, and how it is mended.
    met = faults.met(use, target.wrong, target.arch) if not by_table else None
    if met is not None:
        yield _violation(use, WRONG, met.fault.requirement, str(met), met.fault.source, _COMPARED)
    for operand, value in zip(use.inputs, node.inputs, strict=False):
        if operand is not None and operand.type in target.rewrite.requantizes_wrongly and _is_cut(value):
            required = f"no {operand.type} grid stands right behind a wider one"
            fix = f"intact rewrite --device {target.backend} leaves one of them; {_COMPARED}"
            found = f"{operand.name} was on a wider grid right before"
            yield _violation(use, WRONG, required, found, target.rewrite.source, fix)


def _named_by_table(use: Use, spec: OpSpec | None) -> Iterator[Violation]:
    for rule in () if spec is None else spec.right:
        failed = predicates.check(use.node, rule)
        if failed is not None and spec is not None:
            yield _violation(use, WRONG, failed[0], failed[1], str(rule.get("source", spec.source)), _mended(rule))


_COMPARED = "a build compares what comes out, and looks for another form where it is wrong"


def _mended(rule: Requirement) -> str:
    return f"{rule['fix']}; {_COMPARED}" if "fix" in rule else _COMPARED


def _is_cut(value: ir.Value | None) -> bool:
    """True if a dequantized value comes from a grid of the same type that holds more, with nothing in between."""
    second = None if value is None else value.producer()
    written = None if second is None or second.inputs[0] is None else second.inputs[0].producer()
    source = None if written is None or written.op_type != QUANTIZE else written.inputs[0]
    first = None if source is None else source.producer()
    if second is None or first is None or {first.op_type, second.op_type} != {DEQUANTIZE}:
        return False
    wide, narrow = encoding_of(first), encoding_of(second)
    if wide is None or narrow is None or wide.dtype != narrow.dtype or wide.scale.size > 1:
        return False
    (low, high), (least, most) = wide.ends(), narrow.ends()
    # A step of the first grid more or less is rounding.
    return bool(least > low + wide.scale or most < high - wide.scale)


def left_to_cpu(model: ir.Model, target: Target, violations: Sequence[Violation]) -> dict[str, str]:
    """The nodes that stay on the CPU because of `violations`, by name, with the reasons; all of them is an error.

    A clipping node that belongs to one of them stays with it.
    """
    reasons: dict[str, list[str]] = {}
    for violation in violations:
        reasons.setdefault(violation.node, []).append(f"[{violation.code}] {violation.found}; {violation.requirement}")
    nodes = compute_nodes(model, target)
    if violations and all(node.name in reasons for node in nodes):
        idle = "no compute node is left for the NPU, so that --no-strict cannot help"
        asked = normalize.advised_dims(model) or "intact analyze --live shows what the vendor's library says of each"
        raise Violations(violations, target, fix=f"{idle}; {asked}")
    off = {name: "; ".join(found) for name, found in reasons.items()}
    for node in nodes:
        if node.name in reasons:
            absorbed = use_of(node, target.clipping).absorbed
            off |= {taken.name or "?": f"it belongs to {node.name}, which stays on the CPU" for taken in absorbed}
    return off


def compute_nodes(model: ir.Model, target: Target) -> list[ir.Node]:
    """The nodes that a target has to take: not constants, conversions, or what belongs to the node before it."""
    nodes = [node for node in query.all_nodes(model) if node.op_type not in FREE]
    absorbed = {taken for node in nodes for taken in use_of(node, target.clipping).absorbed}
    return [node for node in nodes if node not in absorbed]


def violations_of(node: ir.Node, target: Target) -> list[Violation]:
    """The violations of one node."""
    use = use_of(node, target.clipping)
    refused = _distinct(use, target)
    if refused is not None:
        return [refused]
    spec = target.op(use.domain, use.op)
    if spec is None:
        # What rewriting makes for a target is one of its kernels, and needs no row of its own.
        made = (node.domain, node.op_type) in target.rewrite.kernels
        return [] if made else [_unknown(use, target)]
    closest = nearest(use, spec, target)
    if closest is None:
        return [_unknown(use, target)]
    signature, mismatches = closest
    if mismatches:
        return list(_mismatched(use, spec, signature, mismatches, target))
    return [*_checked(use, spec), *_fixed(use, spec, target), *_shared(use, spec, target)]


def _violation(use: Use, code: str, requirement: str, found: str, source: str, fix: str) -> Violation:
    return Violation(use.node.name or "?", use.node.op_type, requirement, found, source, fix, code)


def _unknown(use: Use, target: Target) -> Violation:
    name = f"{use.domain}::{use.op}" if use.domain else use.op
    return _violation(
        use,
        UNKNOWN_OPERATOR,
        f"{target.name} takes only operators of its table",
        f"{name} is not among them",
        target.table,
        f"replace it by operators that the target takes (docs/targets/{target.backend}.md); {_LENIENT}",
    )


def _distinct(use: Use, target: Target) -> Violation | None:
    """The violation of a convolution that a runtime refuses to run for the zero points of its weight."""
    kernel = _kernel(use)
    zeros = _weight_zero_points(use)
    if kernel not in target.rewrite.refuses_distinct or len(set(zeros)) < 2:
        return None
    fix = f"intact rewrite --device {target.backend} takes them out of constant weights, and so do build and compile"
    listed = ", ".join(map(str, zeros[:3])) + (", …" if len(zeros) > 3 else "")
    return _violation(
        use,
        DISTINCT,
        f"{target.name} takes one zero point for all channels of the weight of a {kernel}",
        f"zero points of the weight differ by channel ({listed})",
        target.rewrite.source,
        fix,
    )


def _kernel(use: Use) -> str:
    """The operator that a runtime computes a node with: between grids, a Conv is a QLinearConv."""
    grids = (*use.inputs[:2], *use.outputs)
    is_between = all(operand is not None and operand.on_grid for operand in grids)
    return "QLinearConv" if use.domain == "" and use.op == "Conv" and is_between else use.op


def _weight_zero_points(use: Use) -> list[int]:
    """The constant zero points of the weight of a convolution."""
    if use.op == "ConvInteger":
        points = query.constant(query.input_(use.node, 3))
    else:
        weight = use.inputs[1] if len(use.inputs) > 1 else None
        points = None if weight is None else weight.zero_point
    return [] if points is None else [int(point) for point in points.reshape(-1)]


def _mismatched(
    use: Use, spec: OpSpec, signature: Signature, mismatches: list[Mismatch], target: Target
) -> Iterator[Violation]:
    allowed = f"{target.name} takes {signature}"
    source = f"{spec.source}; {signature.source}" if signature.source not in spec.source else spec.source
    unquantized = all(operand is None or not operand.on_grid for operand in (*use.inputs, *use.outputs))
    if unquantized and any(mismatch.kind != "arch" for mismatch in mismatches):
        in_half = any(value is not None and value.dtype == ir.DataType.FLOAT16 for value in use.node.inputs)
        quantize = "choose --precision w8a16 or uint8 in place of fp16" if in_half else "quantize it"
        fix = f"{quantize}, or give it a form that the target takes; {_LENIENT}"
        yield _violation(use, UNQUANTIZED, allowed, f"it is not quantized: ({describe(use.inputs)})", source, fix)
        return
    for mismatch in mismatches:
        code = _CODES[mismatch.kind]
        fix = _FIXES[code].format(backend=target.backend, wanted=mismatch.wanted)
        if mismatch.kind == "arch":
            combination = f"({describe(use.inputs)}) → {describe(use.outputs)}"
            needed = f"{signature} needs {mismatch.wanted} or newer"
            yield _violation(use, code, needed, f"{combination} on {target.name}", source, fix)
        elif mismatch.kind in ("check", "form"):
            yield _violation(use, code, f"{allowed}: {mismatch.wanted}", mismatch.found, source, fix)
        else:
            required = f"{allowed}: {mismatch.wanted}" if mismatch.kind == "scale" else allowed
            yield _violation(use, code, required, f"{mismatch.place}: {mismatch.found}", source, fix)


def _checked(use: Use, spec: OpSpec) -> Iterator[Violation]:
    for rule in spec.require:
        failed = predicates.check(use.node, rule)
        if failed is not None:
            source, fix = rule.get("source", spec.source), rule.get("fix", f"change the operator; {_LENIENT}")
            yield _violation(use, CHECKED, failed[0], failed[1], str(source), str(fix))


def _fixed(use: Use, spec: OpSpec, target: Target) -> Iterator[Violation]:
    for output in use.outputs:
        grid, must = spec.fixed.get(output.type), spec.must_fix.get(output.type)
        if grid is None or must is None or output.scale is None or output.zero_point is None:
            continue
        scale, zero_point = float(output.scale.reshape(-1)[0]), int(output.zero_point.reshape(-1)[0])
        if (must == "both" and not _same_range(scale, grid[0], output.type)) or zero_point != grid[1]:
            wanted = f"scale {grid[0]:g} and " if must == "both" else ""
            required = f"the output of {use.op} has {wanted}zero point {grid[1]}"
            found = f"{output.name} has scale {scale:g} and zero point {zero_point}"
            fix = f"quantize with --device {target.backend}, which fixes this grid; {_LENIENT}"
            yield _violation(use, FIXED, required, found, spec.source, fix)


def _same_range(scale: float, fixed: float, dtype: str) -> bool:
    """True if grids with these scales end at the same value, to a step: tools write [0, 1] in 255 steps or in 256."""
    least, greatest = bounds(dtype)
    return abs(scale - fixed) * (greatest - least) <= 1.01 * fixed


def _shared(use: Use, spec: OpSpec, target: Target) -> Iterator[Violation]:
    if spec.grid == "own" or not spec.must_share:
        return
    members = [operand for operand in use.inputs if operand is not None and operand.on_grid]
    members = members[:1] if spec.grid == "input" else members
    if not members:
        return
    for operand in (*members[1:], *use.outputs):
        if operand.on_grid and not operand.same_grid(members[0]):
            required = f"the output of {use.op} shares the grid of its input"
            found = f"{operand.name} ({_numbers(operand)}) and {members[0].name} ({_numbers(members[0])}) differ"
            fix = f"quantize with --device {target.backend}, which shares grids; {_LENIENT}"
            yield _violation(use, SHARED, required, found, spec.source, fix)


def _numbers(operand: NodeOperand) -> str:
    assert operand.scale is not None and operand.zero_point is not None, "only grids are compared"
    return f"scale {float(operand.scale.reshape(-1)[0]):g}, zero point {int(operand.zero_point.reshape(-1)[0])}"
