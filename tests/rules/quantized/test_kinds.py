"""Models of every kind, quantized by intact and by onnxruntime.quantization, rewritten for the CPU and for the NPU.

A sample of the matrix runs always, the whole of it with `-m slow`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from intact.backends import compiling
from intact.rules.quantized import families
from intact.runtime import ort_cpu
from intact.targets.registry import load_target
from tests.rules.quantized.end_to_end import hold_to_claims
from tests.rules.quantized.kinds import Kind, originals, quantized, rows, variant
from tests.zoo import ZOO
from tests.zoo.variants import VARIANTS

TYPES = (("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"))

MATRIX = [
    Kind(model, tool, *types, per_channel)
    for model, tool, types, per_channel in itertools.product(
        ZOO, ("intact", "ort-qdq", "ort-qoperator"), TYPES, (True, False)
    )
]
SAMPLE = [MATRIX[index] for index in np.random.default_rng(0).choice(len(MATRIX), 5, replace=False)]

# How variants of the networks are quantized: tool, types of activations and weights, settings, scales per channel.
RECIPES = [
    ("intact", "uint8", "int8", "", True),
    ("intact", "int8", "int8", "symmetric", True),
    ("intact", "uint8", "int8", "asymmetric", True),
    ("intact", "uint8", "uint8", "asymmetric", True),
    ("intact", "uint8", "int8", "for-qnn", False),
    ("ort-qdq", "uint8", "int8", "forced", True),
    ("ort-qdq", "int8", "int8", "", False),
    ("ort-qdq", "uint8", "uint8", "asymmetric", True),
    ("ort-qdq", "uint8", "uint8", "reduced", True),
    ("ort-qdq", "uint8", "int8", "pairs", True),
    ("ort-qdq", "uint8", "int8", "products", True),
    ("ort-qdq", "uint8", "int8", "mixed", True),
    ("ort-qoperator", "uint8", "uint8", "", True),
    ("ort-qoperator", "uint8", "int8", "forced", False),
    ("ort-qoperator", "int8", "int8", "symmetric", True),
    ("ort-qoperator", "uint8", "uint8", "asymmetric", True),
    ("ort-qoperator", "uint8", "uint8", "reduced", True),
    ("ort-qoperator", "uint8", "int8", "products", True),
    ("ort-dynamic", "uint8", "int8", "", False),
    ("ort-dynamic", "uint8", "uint8", "asymmetric", True),
]
VARIANT_MATRIX = [
    variant(model, *recipe)
    for model, recipe in itertools.product(VARIANTS, RECIPES)
    # The quantizer itself refuses this one, unless it is forced: it leaves Where without its operand.
    if (model, recipe[0], recipe[3]) != ("bert", "ort-qoperator", "")
]
EVERY_KIND = [*MATRIX, *VARIANT_MATRIX]


Models = Callable[[Kind], ir.Model]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Quantized models, of which the last few are kept for the other tests of the same."""
    kept = functools.lru_cache(maxsize=len(SAMPLE))(lambda kind: quantized(kind, tmp_path_factory.mktemp("kind")))
    return lambda kind: kept(kind).clone()


def holds_on_cpu(kind: Kind, model: ir.Model) -> set[str]:
    """Assert that every rule keeps its claim and that the runtime takes the result; return the rules that fired."""
    target = load_target("cpu", vnni=True)
    done = families.rewrite(model, target)
    hold_to_claims(model, families.rules_for(target), rows(kind), originals(kind))
    ort_cpu.Session(done.model, optimize=True).run(rows(kind)[0])
    assert not families.rewrite(done.model, target).applications, "a second time changes something"
    return {item.rule for item in done.applications}


def holds_when_converted(kind: Kind, given: ir.Model) -> None:
    """Assert that a model keeps its numbers in either form of its operators, from one to the other and back."""
    for ways in (("qdq", "qlinear"), ("qlinear", "qdq")):
        model = given
        for form in ways:
            target = families.conversion(form)
            done = families.rewrite(model, target)
            hold_to_claims(model, families.rules_for(target), rows(kind), originals(kind))
            model = done.model


def accepted_by_the_npu(kind: Kind, model: ir.Model, folder: Path) -> None:
    """Assert that every rule keeps its claim and that the vendor's compiler takes the result."""
    target = load_target("qnn")
    assert target.soc is not None
    done = families.rewrite(model, target)
    hold_to_claims(model, families.rules_for(target), rows(kind)[:1], originals(kind)[:1])
    compiled = compiling.compile(done.model, compiling.Device("qnn", 600, target.arch, target.soc.id), folder)
    assert compiled.placement.npu_nodes


@pytest.mark.parametrize("kind", SAMPLE, ids=str)
def test_a_sample_of_models_keeps_every_claim(kind, models):
    holds_on_cpu(kind, models(kind))


@pytest.mark.parametrize("kind", SAMPLE, ids=str)
def test_a_sample_of_models_keeps_its_numbers_in_either_form(kind, models):
    holds_when_converted(kind, models(kind))


@pytest.mark.qnn
@pytest.mark.parametrize("kind", SAMPLE[:2], ids=str)
def test_a_sample_of_models_is_accepted_by_the_npu(kind, models, tmp_path):
    accepted_by_the_npu(kind, models(kind), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EVERY_KIND, ids=str)
def test_every_model_keeps_every_claim(kind, models):
    holds_on_cpu(kind, models(kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", EVERY_KIND, ids=str)
def test_every_model_keeps_its_numbers_in_either_form(kind, models):
    holds_when_converted(kind, models(kind))


@pytest.mark.slow
@pytest.mark.qnn
@pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if kind.is_static], ids=str)
def test_every_model_is_accepted_by_the_npu(kind, models, tmp_path):
    accepted_by_the_npu(kind, models(kind), tmp_path)
