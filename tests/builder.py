"""The one builder of models for tests and benches: from text, or inputs, constants, nodes and Q/DQ pairs by calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper, parser

from intact.model import normalize


def from_text(
    signature: str, body: str, *, constants: str = "", opset: int = 21, weights: Mapping[str, np.ndarray] | None = None
) -> ir.Model:
    """A model from ONNX text, with constants as text or as arrays; each node is named after its first output."""
    declared = f"<{constants}>" if constants else ""
    header = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    proto = parser.parse_model(f"{header} main {signature} {declared} {{ {body} }}")
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in (weights or {}).items())
    result = ir.from_proto(proto)
    for graph in result.graphs():
        for node in graph:
            node.name = node.outputs[0].name
    return result


def contrib_model(signature: str, body: str, weights: Mapping[str, np.ndarray]) -> ir.Model:
    """A model whose output `y` nobody described, as behind operators of ONNX Runtime, with what weights it reads."""
    used = {name: array for name, array in weights.items() if name in body}
    model = from_text(f"{signature}) => (float y)", body, weights=used)
    model.graph.outputs[0].shape = None
    return model


class Net:
    """A graph in the making; every method returns the name of a value.

    Names are numbered: node n is `the_t<n>` and writes `t<n>`, constants are `k<n>`. A subclass may have others.
    """

    node_name: ClassVar[str] = "the_{output}"
    output_name: ClassVar[str] = "t{number}"
    constant_name: ClassVar[str] = "k{number}"
    opsets: ClassVar[Mapping[str, int]] = {"": 21, "com.microsoft": 1}
    ir_version: ClassVar[int] = 10

    def __init__(self, name: str = "net") -> None:
        self.name = name
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> str:
        """An input of the graph."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def constant(self, value: Any, kind: int | None = None) -> str:
        """An initializer; `kind` is a type that numpy does not have."""
        name, array = self.constant_name.format(number=len(self.constants)), np.asarray(value)
        if kind is None:
            self.constants[name] = numpy_helper.from_array(array, name)
        else:
            integers = array.astype(int).reshape(-1).tolist()
            self.constants[name] = helper.make_tensor(name, kind, array.shape, integers)
        return name

    def op(self, op_type: str, *inputs: Any, _domain: str = "", _output: str = "", **attributes: Any) -> str:
        """A node; inputs are names, arrays, or None."""
        given = ["" if item is None else item if isinstance(item, str) else self.constant(item) for item in inputs]
        while given and not given[-1]:
            given.pop()
        number = len(self.nodes)
        output = _output or self.output_name.format(op=op_type, number=number)
        name = self.node_name.format(op=op_type, number=number, output=output)
        self.nodes.append(helper.make_node(op_type, given, [output], name=name, domain=_domain or None, **attributes))
        return output

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        """A Split into parts of these sizes."""
        first = f"t{len(self.nodes)}"
        outputs = [f"{first}_{index}" for index in range(len(sizes))]
        given = [x, self.constant(np.array(sizes, np.int64))]
        self.nodes.append(helper.make_node("Split", given, outputs, name=f"the_{first}", axis=axis))
        return outputs

    def quantize(self, x: str, scale: Any, zero: Any, kind: int | None = None, **attributes: Any) -> str:
        """A Q node; `zero` is a number or array of the type wanted, or of `kind`."""
        return self.op("QuantizeLinear", x, *self._grid(scale, zero, kind), **attributes)

    def dequantize(self, x: Any, scale: Any, zero: Any, kind: int | None = None, **attributes: Any) -> str:
        """A DQ node."""
        return self.op("DequantizeLinear", x, *self._grid(scale, zero, kind), **attributes)

    def qdq(self, x: str, scale: Any, zero: Any, kind: int | None = None, **attributes: Any) -> str:
        """A Q node and a DQ node on the same grid."""
        return self.dequantize(self.quantize(x, scale, zero, kind, **attributes), scale, zero, kind, **attributes)

    def proto(self, *ports: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
        """The model as it is so far, with these inputs and these outputs."""
        graph = helper.make_graph(self.nodes, self.name, *ports, list(self.constants.values()))
        opsets = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=self.ir_version)

    def model(self, inputs: Mapping[str, np.ndarray], *outputs: str) -> ir.Model:
        """A model with further inputs like these arrays; types and shapes of values are inferred where ONNX can."""
        types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in inputs.items()}
        further = [helper.make_tensor_value_info(name, types[name], array.shape) for name, array in inputs.items()]
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        proto = self.proto([*self.inputs, *further], results)
        return ir.from_proto(onnx.shape_inference.infer_shapes(proto, data_prop=True))

    def normalized(self, *outputs: str) -> ir.Model:
        """The model in the form that stages take."""
        return normalize.normalize(self.model({}, *outputs))

    def _grid(self, scale: Any, zero: Any, kind: int | None) -> tuple[Any, Any]:
        steps = self.constant(np.asarray(scale, np.float32))
        return steps, zero if zero is None or isinstance(zero, str) else self.constant(zero, kind)
