"""Small models that ask for much: a few hundred bytes whose results take gigabytes, or that never end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HUGE = 1 << 31
"""Elements of a result: 8 GiB of float32."""

F, INT = TensorProto.FLOAT, TensorProto.INT64


def model(
    nodes: Sequence[onnx.NodeProto],
    constants: dict[str, np.ndarray] | None = None,
    *,
    shape: Sequence[int | str] = (1, 4),
    functions: Sequence[onnx.FunctionProto] = (),
    type_: int = F,
) -> onnx.ModelProto:
    """A model with the input `x` and the output `y`, whose shape it does not tell."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", type_, shape)],
        [helper.make_tensor_value_info("y", F, None)],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", 21), *([helper.make_opsetid("own", 1)] if functions else [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=functions)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def node(op: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def summed(*nodes: onnx.NodeProto, constants: dict[str, np.ndarray] | None = None, **more: object) -> onnx.ModelProto:
    """A model that adds up the tensor `big`, so that no more than a number leaves it."""
    return model([*nodes, node("ReduceSum", "big", "y", keepdims=0)], constants, **more)


def _computed(op: Callable[[str], onnx.NodeProto], zero: Sequence[float] = (21.5,)) -> onnx.ModelProto:
    """A size that is not in the file: e to a power, rounded; shape inference does not follow that."""
    power = numpy_helper.from_array(np.array(zero, np.float32), "power")
    nodes = [
        node("Exp", "power", "size_f"),
        node("Cast", "size_f", "size", to=INT),
        op("size"),
        node("ReduceSum", "big", "total", keepdims=0),
        node("Add", "x total", "y"),
    ]
    made = model(nodes)
    made.graph.initializer.append(power)
    return made


def _fed(op: Callable[[str], onnx.NodeProto]) -> onnx.ModelProto:
    """A size that depends on the input, whatever that is."""
    nodes = [
        node("Mul", "x zero", "zeros"),
        node("Add", "zeros power", "powers"),
        node("ReduceMax", "powers", "most", keepdims=0),
        node("Exp", "most", "size_f"),
        node("Unsqueeze", "size_f first", "size_v"),
        node("Cast", "size_v", "size", to=INT),
        op("size"),
        node("ReduceSum", "big", "total", keepdims=0),
        node("Add", "x total", "y"),
    ]
    return model(nodes, {"zero": np.float32([0]), "power": np.float32([21.5]), "first": ints(0)})


def loop(*, limit: int | None = None, grows: bool = False) -> onnx.ModelProto:
    """A Loop whose condition stays true; it may have a number of rounds, and may gather what it makes."""
    body = helper.make_graph(
        [
            node("Identity", "going", "still"),
            node("Add", "v v", "next"),
            *([node("Neg", "v", "kept")] if grows else []),
        ],
        "body",
        [
            helper.make_tensor_value_info("round", INT, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", F, [1, 4]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", F, [1, 4]),
            *([helper.make_tensor_value_info("kept", F, [1, 4])] if grows else []),
        ],
    )
    outputs = ["last", *(["all"] if grows else [])]
    rounds = {} if limit is None else {"rounds": np.array(limit, np.int64)}
    inputs = ["" if limit is None else "rounds", "true", "x"]
    looping = helper.make_node("Loop", inputs, outputs, body=body)
    return model([looping, node("Relu", "last", "y")], {"true": np.array(True), **rounds})


def functions(depth: int = 40, calls: int = 2) -> onnx.ModelProto:
    """Functions that call the one below several times: 2 to the power of 40 nodes when they are written out."""

    def body(level: int) -> list[onnx.NodeProto]:
        if level == 0:
            return [node("Relu", "a", "b")]
        names = ["a", *(f"t{step}" for step in range(calls - 1)), "b"]
        return [
            helper.make_node(f"f{level - 1}", [before], [after], domain="own")
            for before, after in itertools.pairwise(names)
        ]

    imports = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    made = [helper.make_function("own", f"f{level}", ["a"], ["b"], body(level), imports) for level in range(depth)]
    return model([helper.make_node(f"f{depth - 1}", ["x"], ["y"], domain="own")], functions=made)


SIZES: dict[str, Callable[[], onnx.ModelProto]] = {
    "Expand": lambda: summed(node("Expand", "x to", "big"), constants={"to": ints(HUGE // 4, 4)}),
    "Tile": lambda: summed(node("Tile", "x by", "big"), constants={"by": ints(HUGE // 4, 1)}),
    "Pad": lambda: summed(node("Pad", "x by", "big"), constants={"by": ints(0, 0, HUGE // 4, 0)}),
    "ConstantOfShape": lambda: model(
        [node("ConstantOfShape", "to", "c"), node("ReduceSum", "c", "s", keepdims=0), node("Add", "x s", "y")],
        {"to": ints(HUGE)},
    ),
    "Range": lambda: model(
        [
            node("Range", "from to by", "c"),
            node("ReduceSum", "c", "s", keepdims=0),
            node("Cast", "s", "f", to=F),
            node("Add", "x f", "y"),
        ],
        {"from": np.array(0), "to": np.array(HUGE), "by": np.array(1)},
    ),
    "OneHot": lambda: summed(
        node("Cast", "x", "i", to=INT),
        node("OneHot", "i depth values", "big"),
        constants={"depth": ints(HUGE // 4), "values": np.float32([0, 1])},
    ),
    "Resize": lambda: summed(
        helper.make_node("Resize", ["x", "", "by"], ["big"]),
        constants={"by": np.float32([1, 1, 20000, 20000])},
        shape=(1, 1, 2, 2),
    ),
    "MatMul": lambda: summed(
        node("Reshape", "x row", "r"),
        node("Reshape", "x column", "c"),
        node("MatMul", "c r", "big"),
        constants={"row": ints(1, 1 << 16), "column": ints(1 << 16, 1)},
        shape=(1, 1 << 16),
    ),
    "chain": lambda: summed(
        node("Concat", "x x x x", "t0", axis=0),
        *(node("Concat", f"t{i} t{i} t{i} t{i}", f"t{i + 1}", axis=0) for i in range(15)),
        node("Identity", "t15", "big"),
    ),
}
"""The results of these are as large as their files say."""

COMPUTED: dict[str, Callable[[], onnx.ModelProto]] = {
    "computed ConstantOfShape": lambda: _computed(lambda size: node("ConstantOfShape", size, "big")),
    "computed Expand": lambda: _computed(lambda size: node("Expand", f"power {size}", "big")),
    "fed ConstantOfShape": lambda: _fed(lambda size: node("ConstantOfShape", size, "big")),
    "fed Expand": lambda: _fed(lambda size: node("Expand", f"power {size}", "big")),
}
"""The sizes of these are the results of computations."""

ENDLESS: dict[str, Callable[[], onnx.ModelProto]] = {
    "endless Loop": loop,
    "long Loop": lambda: loop(limit=1 << 62),
    "growing Loop": lambda: loop(grows=True),
}
