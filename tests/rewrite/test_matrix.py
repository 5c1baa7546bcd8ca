"""Models of every kind, quantized by intact and by onnxruntime.quantization, rewritten for the CPU and for the NPU.

A sample of the matrix runs always, the whole of it with `-m slow`.
"""

from __future__ import annotations

import contextlib
import io as text
import itertools
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact import compile as compiling
from intact import files, rewrite
from intact.config import BuildConfig
from intact.graph import io, normalize, upgrade
from intact.rewrite import exactness
from intact.targets.registry import load_target
from intact.vendor import cpu
from tests.zoo import ZOO, data

ROWS = 4


@dataclass(frozen=True)
class Kind:
    """Who quantized a model, and how."""

    model: str
    tool: str
    activation: str
    weight: str
    per_channel: bool

    def __str__(self) -> str:
        scales = "channel" if self.per_channel else "tensor"
        return f"{self.model}-{self.tool}-{self.activation}-{self.weight}-{scales}"


MATRIX = [
    Kind(model, tool, *types, per_channel)
    for model, tool, types, per_channel in itertools.product(
        ZOO,
        ("intact", "ort-qdq", "ort-qoperator"),
        (("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")),
        (True, False),
    )
]
SAMPLE = [MATRIX[index] for index in np.random.default_rng(0).choice(len(MATRIX), 5, replace=False)]


def quantized(kind: Kind, folder: Path) -> ir.Model:
    """The model of the zoo, quantized and in the form that stages take."""
    source, target, model = folder / "model.onnx", folder / "quantized.onnx", ZOO[kind.model]()
    onnx.save(model, source)
    if kind.tool == "intact":
        np.savez(folder / "rows.npz", **data(model, 16))
        types = {"activation_type": kind.activation, "weight_type": kind.weight, "per_channel": kind.per_channel}
        config = BuildConfig.from_dict({"quant": {**types, "load_path": str(folder / "rows.npz")}})
        files.quantize_file(source, config, target)
    else:
        by_onnxruntime(kind, model, source, target)
    return normalize.normalize(upgrade.upgrade(io.load(target)).model)


def by_onnxruntime(kind: Kind, model: onnx.ModelProto, source: Path, target: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    shapes = pytest.importorskip("onnxruntime.quantization.shape_inference")

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            self.rows = iter(rows(kind))

        def get_next(self):
            return next(self.rows, None)

    types = {"uint8": quantization.QuantType.QUInt8, "int8": quantization.QuantType.QInt8}
    forms = {"ort-qdq": quantization.QuantFormat.QDQ, "ort-qoperator": quantization.QuantFormat.QOperator}
    prepared = source.with_name("prepared.onnx")
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(text.StringIO()):
            shapes.quant_pre_process(str(source), str(prepared))
            quantization.quantize_static(
                str(prepared),
                str(target),
                Reader(),
                quant_format=forms[kind.tool],
                activation_type=types[kind.activation],
                weight_type=types[kind.weight],
                per_channel=kind.per_channel,
            )
    finally:
        logging.disable(logging.NOTSET)


def rows(kind: Kind) -> list[dict[str, np.ndarray]]:
    values = data(ZOO[kind.model](), ROWS)
    return [{name: array[index : index + 1] for name, array in values.items()} for index in range(ROWS)]


def holds_on_cpu(kind: Kind, folder: Path) -> set[str]:
    """Assert that every rule keeps its claim and that the runtime takes the result; return the rules that fired."""
    target, model = load_target("cpu", vnni=True), quantized(kind, folder)
    done = rewrite.rewrite(model, target)
    exactness.validate(model, done, rewrite.rules_for(target), rows(kind))
    cpu.Session(done.model, optimize=True).run(rows(kind)[0])
    assert not rewrite.rewrite(done.model, target).applications, "a second time changes something"
    return {item.rule for item in done.applications}


def holds_when_converted(kind: Kind, folder: Path) -> None:
    """Assert that a model keeps its numbers in either form of its operators, from one to the other and back."""
    given = quantized(kind, folder)
    for ways in (("qdq", "qlinear"), ("qlinear", "qdq")):
        model = given
        for form in ways:
            target = rewrite.conversion(form)
            done = rewrite.rewrite(model, target)
            exactness.validate(model, done, rewrite.rules_for(target), rows(kind))
            model = done.model


def accepted_by_the_npu(kind: Kind, folder: Path) -> None:
    """Assert that every rule keeps its claim and that the vendor's compiler takes the result."""
    target, model = load_target("qnn"), quantized(kind, folder)
    assert target.soc is not None
    done = rewrite.rewrite(model, target)
    exactness.validate(model, done, rewrite.rules_for(target), rows(kind)[:1])
    compiled = compiling.compile(done.model, compiling.Device("qnn", 600, target.arch, target.soc.id), folder)
    assert compiled.placement.npu_nodes


@pytest.mark.parametrize("kind", SAMPLE, ids=str)
def test_a_sample_of_models_keeps_every_claim(kind, tmp_path):
    holds_on_cpu(kind, tmp_path)


@pytest.mark.parametrize("kind", SAMPLE, ids=str)
def test_a_sample_of_models_keeps_its_numbers_in_either_form(kind, tmp_path):
    holds_when_converted(kind, tmp_path)


@pytest.mark.qnn
@pytest.mark.parametrize("kind", SAMPLE[:2], ids=str)
def test_a_sample_of_models_is_accepted_by_the_npu(kind, tmp_path):
    accepted_by_the_npu(kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MATRIX, ids=str)
def test_every_model_keeps_every_claim(kind, tmp_path):
    holds_on_cpu(kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MATRIX, ids=str)
def test_every_model_keeps_its_numbers_in_either_form(kind, tmp_path):
    holds_when_converted(kind, tmp_path)


@pytest.mark.slow
@pytest.mark.qnn
@pytest.mark.parametrize("kind", MATRIX, ids=str)
def test_every_model_is_accepted_by_the_npu(kind, tmp_path):
    accepted_by_the_npu(kind, tmp_path)
