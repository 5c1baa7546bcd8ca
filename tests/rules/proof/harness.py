"""Proof of what rules claim: generated models, before and after one rule, in plain numpy arithmetic.

`tests/rules/quantized/cases/*.py` expose `CASES`, which maps the name of a rule to a function that generates `Case`s
from a seeded generator of random numbers. Every case has to let the rule fire.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from intact.matching import rewriter
from intact.matching.rewriter import EXACT, NEAR, Rule
from intact.rules.proof.exactness import LEAST_NEAR_SQNR
from tests.rules.proof.interpreter import evaluate

CASES_FOLDER = Path(__file__).parents[1] / "quantized" / "cases"


@dataclass(frozen=True)
class Case:
    """A model on which a rule has to fire, inputs for it, and what a step is where outputs are floats."""

    label: str
    model: ir.Model
    feeds: Sequence[Mapping[str, np.ndarray]] = field(repr=False)
    step: float | None = None


Generator = Callable[[np.random.Generator], Iterator[Case]]


def all_cases() -> dict[str, Generator]:
    """The generators of every file of cases, by the name of the rule."""
    found: dict[str, Generator] = {}
    for item in pkgutil.iter_modules([str(CASES_FOLDER)]):
        module = importlib.import_module(f"tests.rules.quantized.cases.{item.name}")
        assert not found.keys() & module.CASES.keys(), f"{item.name}: a rule has its cases elsewhere"
        found |= module.CASES
    return found


def prove(rule: Rule, case: Case) -> int:
    """Assert what the rule claims about one case; return how many elements were compared."""
    before = case.model
    done = rewriter.apply(before.clone(), [rule])
    reasons = [refusal.reason for refusal in done.refusals]
    assert done.applications, f"{case.label}: {rule.name} does not fire: {reasons}"
    return sum(compare(rule, case, before, done.model, feeds) for feeds in case.feeds)


def compare(rule: Rule, case: Case, before: ir.Model, after: ir.Model, feeds: Mapping[str, np.ndarray]) -> int:
    """Assert that the outputs of two models differ by no more than the rule allows."""
    expected, found = evaluate(before, feeds), evaluate(after, feeds)
    for name, reference in expected.items():
        assert found[name].dtype == reference.dtype, f"{case.label}: {name} is {found[name].dtype}"
        assert found[name].shape == reference.shape, f"{case.label}: {name} has shape {found[name].shape}"
        moved = distance(reference, found[name], case.step)
        if rule.exactness is NEAR:
            noise = ((reference - found[name]).astype(np.float64) ** 2).mean() / (reference**2).mean(dtype=np.float64)
            assert noise < 10 ** (-LEAST_NEAR_SQNR / 10), f"{case.label}: {name} keeps {-10 * np.log10(noise):.1f} dB"
            continue
        limit = 0 if rule.exactness is EXACT else 1
        assert moved <= limit, f"{case.label}: {name} moves by {moved} steps, {rule.exactness} is claimed"
    return sum(array.size for array in expected.values())


def distance(a: np.ndarray, b: np.ndarray, step: float | None) -> float:
    """The largest difference, in levels of integers or in steps of floats; identical arrays are 0 apart."""
    if np.array_equal(a, b):
        return 0
    if a.dtype.kind in "iub" or step is None:
        return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max()) if a.dtype.kind in "iub" else np.inf
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max() / step)


class Net:
    """Builds a small model: nodes, constants, and Q/DQ in one call."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def constant(self, value: Any) -> str:
        """An initializer; names are numbered."""
        name = f"k{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def op(self, op_type: str, *inputs: Any, _domain: str = "", _output: str = "", **attributes: Any) -> str:
        """A node; inputs are names, arrays, or None."""
        given = ["" if item is None else item if isinstance(item, str) else self.constant(item) for item in inputs]
        while given and not given[-1]:
            given.pop()
        output = _output or f"t{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op_type, given, [output], name=f"the_{output}", domain=_domain, **attributes)
        )
        return output

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        """A Split into parts of these sizes."""
        first = f"t{len(self.nodes)}"
        outputs = [f"{first}_{index}" for index in range(len(sizes))]
        given = [x, self.constant(np.array(sizes, np.int64))]
        self.nodes.append(helper.make_node("Split", given, outputs, name=f"the_{first}", axis=axis))
        return outputs

    def quantize(self, x: str, scale: Any, zero: Any, **attributes: Any) -> str:
        """A Q node; `zero` is a numpy number or array of the type wanted."""
        return self.op("QuantizeLinear", x, np.asarray(scale, np.float32), zero, **attributes)

    def dequantize(self, x: Any, scale: Any, zero: Any, **attributes: Any) -> str:
        """A DQ node."""
        return self.op("DequantizeLinear", x, np.asarray(scale, np.float32), zero, **attributes)

    def model(self, inputs: Mapping[str, np.ndarray], *outputs: str) -> ir.Model:
        """A model with inputs like these arrays; types and shapes of values are inferred where ONNX can."""
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info(n, _type(a.dtype), a.shape) for n, a in inputs.items()],
            [helper.make_empty_tensor_value_info(name) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return ir.from_proto(onnx.shape_inference.infer_shapes(proto, data_prop=True))


def _type(dtype: np.dtype) -> int:
    return int(helper.np_dtype_to_tensor_dtype(dtype))


def every_level(dtype: Any, shape: Sequence[int]) -> np.ndarray:
    """An array in which each integer of the type occurs, in a fixed order."""
    info = np.iinfo(dtype)
    levels = np.arange(info.min, info.max + 1).astype(dtype)
    return np.resize(levels, shape)


def integers(rng: np.random.Generator, dtype: Any, shape: Sequence[int]) -> np.ndarray:
    """Integers over the whole range of a type."""
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def zero_points(dtype: Any) -> list[Any]:
    """The ends of a type, its middle, and one beside."""
    info = np.iinfo(dtype)
    return [dtype(value) for value in (info.min, info.min + 3, (info.min + info.max + 1) // 2, info.max)]


def fired(rule: Rule, model: ir.Model) -> list[str]:
    """The operators that are left after a rule that has to fire."""
    done = rewriter.apply(model.clone(), [rule])
    assert {item.rule for item in done.applications} == {rule.name}, [item.reason for item in done.refusals]
    return [node.op_type for node in done.model.graph]


def refused(rule: Rule, model: ir.Model) -> str:
    """The reason of a rule that has to match and may not fire."""
    done = rewriter.apply(model.clone(), [rule])
    assert not done.applications, "the rule fires"
    assert done.refusals, "the rule does not match"
    return done.refusals[0].reason
