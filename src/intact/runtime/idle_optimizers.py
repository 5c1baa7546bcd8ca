"""The optimizers of ONNX Runtime that have nothing to do in a file.

Each sorts the graph before it looks for anything, in a time that grows with the square of the readers of a tensor: with
16,667 readers all of them take a minute and a half.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from intact.model.file_nodes import NodeInFile, nodes_of

# The optimizer that makes equal constants one, and the one that makes equal nodes one.
SHARING = "ConstantSharing"
EQUAL_NODES = "CommonSubexpressionElimination"

_WINDOWS = ("Conv", "Pool", "Resize", "Upsample")
_LAYER_NORMS = frozenset(
    {"LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization", "RMSNormalization", "Sqrt"}
)
_PRODUCTS = frozenset({"MatMul", "FusedMatMul", "Gemm", "MatMulNBits"})

# What an optimizer begins with: where a file has none of these operators, it finds nothing, and neither does any other
# optimizer make one for it. Those that need a grid inside the graph, and those of windows, are below.
_BEGIN_WITH: dict[str, frozenset[str]] = {
    "AttentionFusion": _LAYER_NORMS | {"Softmax", "Attention"},
    "BiasDropoutFusion": frozenset({"Dropout"}),
    "BiasGeluFusion": frozenset({"Gelu", "FastGelu", "Erf", "Tanh"}),
    "BiasSkipLayerNormFusion": _LAYER_NORMS,
    "BiasSoftmaxFusion": frozenset({"Softmax"}),
    "DynamicQuantizeMatMulFusion": frozenset({"DynamicQuantizeLinear"}),
    "EmbedLayerNormFusion": frozenset({"Gather"}),
    "FastGeluFusion": frozenset({"Tanh", "FastGelu", "Gelu"}),
    "GatherSliceToSplitFusion": frozenset({"Gather", "Slice"}),
    "GatherToSliceFusion": frozenset({"Gather"}),
    "GatherToSplitFusion": frozenset({"Gather"}),
    "GeluFusionL1": frozenset({"Erf"}),
    "GeluFusionL2": frozenset({"Erf"}),
    "GemmActivationFusion": _PRODUCTS,
    "GroupQueryAttentionFusion": frozenset({"GroupQueryAttention"}),
    "GroupQueryAttentionPreNormFusion": frozenset({"GroupQueryAttention"}),
    "LabelEncoderFusion": frozenset({"LabelEncoder"}),
    "LayerNormFusionL1": _LAYER_NORMS,
    "LayerNormFusionL2": _LAYER_NORMS,
    "MatMulActivationFusion": _PRODUCTS,
    "MatMulAddFusion": _PRODUCTS,
    "MatMulIntegerToFloatFusion": frozenset({"MatMulInteger"}),
    "MatMulNBitsFusion": _PRODUCTS,
    "MatMulNBitsMlpFusion": _PRODUCTS,
    "MatMulNBitsQkvFusion": _PRODUCTS,
    "MatMulScaleFusion": _PRODUCTS,
    "MatmulTransposeFusion": frozenset({"Transpose"}),
    "QuickGeluFusion": frozenset({"Sigmoid", "QuickGelu"}),
    "ReshapeFusion": frozenset({"Reshape"}),
    "SimplifiedLayerNormFusion": _LAYER_NORMS,
    "SkipLayerNormFusion": _LAYER_NORMS,
    "SliceConcatToSpaceToDepthFusion": frozenset({"Slice"}),
    "TransposeOptimizer": frozenset({"Transpose"}),
}
_OF_GRIDS = (
    "DQMatMulNBitsFusion",
    "DoubleQDQPairsRemover",
    "EnsureUniqueDQForNodeUnit",
    "QDQFinalCleanupTransformer",
    "QDQPropagationTransformer",
    "QDQSelectorActionTransformer",
    "WeightBiasQuantization",
)
_OF_WINDOWS = ("ConvActivationFusion", "ConvAddActivationFusion", "NchwcTransformer", "NhwcTransformer")


def idle(path: Path) -> tuple[str, ...]:
    """The optimizers that find nothing in the model of a file whose equal constants are one."""
    nodes = nodes_of(path)
    ops = {node.op_type for node in nodes}
    found = [SHARING, *(name for name, begins in _BEGIN_WITH.items() if not ops & begins)]
    if not _has_equal(nodes):
        found.append(EQUAL_NODES)
    if not _has_grids_inside(nodes):
        found += _OF_GRIDS
    if not any(word in op for op in ops for word in _WINDOWS):
        found += _OF_WINDOWS
    return tuple(found)


def _has_equal(nodes: Iterable[NodeInFile]) -> bool:
    """True if two nodes compute the same from the same tensors."""
    seen = set()
    for node in nodes:
        key = node._replace(outputs=())
        if key in seen:
            return True
        seen.add(key)
    return False


def _has_grids_inside(nodes: Sequence[NodeInFile]) -> bool:
    """True if there is a DequantizeLinear, or a QuantizeLinear that an optimizer could move to before another node."""
    computed = {name for node in nodes for name in node.outputs}
    return any(
        node.op_type == "DequantizeLinear" or (node.op_type == "QuantizeLinear" and node.inputs[0] in computed)
        for node in nodes
    )
