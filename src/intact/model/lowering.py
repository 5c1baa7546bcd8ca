"""Writing a model in an older opset than models are brought to, for a toolchain that reads no newer one.

Only the number is lowered: every node has to mean the same in the older opset. What it lacks is expressed before, by
rules that replace operators that a target does not have (`Rule.replaces`).
"""

from __future__ import annotations

import onnx_ir as ir

from intact.errors import ModelError
from intact.model import query, shapes, upgrade
from intact.model.copying import copied


def lowered(model: ir.Model, opset: int) -> ir.Model:
    """A copy of `model` in `opset`, or in its own where that is older; a node that has no such form is refused."""
    result = copied(model)
    if result.opset_imports.get("", 0) <= opset:
        return result
    shapes.infer_shapes(result)
    newer = [node for node in query.all_nodes(result) if node.domain == "" and not upgrade.is_in(node, opset)]
    if newer:
        found = ", ".join(dict.fromkeys(f"{node.name} ({node.op_type})" for node in newer[:3]))
        raise ModelError(
            "M172",
            f"opset {opset}, the newest that the target's toolchain reads, has no form of {found}",
            allowed="operators, attributes and types of that opset",
            fix="replace them by older operators, or leave them out of quantization if it is their type",
        )
    for body in upgrade.bodies_of(result):
        body.opset_imports[""] = opset
    result.ir_version = upgrade.ir_version_for(result.opset_imports)
    return result
