"""The networks of the zoo as quantizers write them: who, in which types, with which settings."""

from __future__ import annotations

import contextlib
import io as text
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.api.quantize import quantize
from intact.model import io, normalize, upgrade
from intact.runtime import ort_cpu
from intact.settings.config import BuildConfig
from tests.zoo import ZOO, data, variants

ROWS = 4

# Every operator is quantized that can be, whether or not what it reads is quantized already.
_FORCED = {"ForceQuantizeNoInputCheck": True}
_PRODUCTS = ["Conv", "MatMul", "Gemm"]

# Settings by name, for each tool in its own terms.
SETTINGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "intact": {
        "": {},
        "symmetric": {"quant": {"activation_symmetric": True}},
        "asymmetric": {"quant": {"weight_symmetric": False}},
        "for-qnn": {"compile": {"device": "qnn"}},
    },
    "ort-qdq": {
        "": {},
        "forced": {"extra_options": _FORCED},
        "asymmetric": {"extra_options": {**_FORCED, "WeightSymmetric": False}},
        "reduced": {"reduce_range": True, "extra_options": {**_FORCED, "WeightSymmetric": False}},
        "pairs": {
            "extra_options": {
                **_FORCED,
                "AddQDQPairToWeight": True,
                "DedicatedQDQPair": True,
                "QDQKeepRemovableActivations": True,
            }
        },
        "products": {
            "op_types_to_quantize": [*_PRODUCTS, "Relu", "LeakyRelu"],
            "extra_options": {"OpTypesToExcludeOutputQuantization": _PRODUCTS},
        },
        "mixed": {"extra_options": {**_FORCED, "QDQKeepRemovableActivations": True}},
    },
    "ort-qoperator": {
        "": {},
        "forced": {"extra_options": _FORCED},
        "symmetric": {"extra_options": {**_FORCED, "ActivationSymmetric": True}},
        "asymmetric": {"extra_options": {**_FORCED, "WeightSymmetric": False}},
        "reduced": {"reduce_range": True, "extra_options": {**_FORCED, "WeightSymmetric": False}},
        "products": {
            "op_types_to_quantize": [*_PRODUCTS, "Sigmoid", "Where"],
            "extra_options": {**_FORCED, "extra.Sigmoid.nnapi": True},
        },
    },
    "ort-dynamic": {"": {}, "asymmetric": {"extra_options": {"WeightSymmetric": False}}},
}


@dataclass(frozen=True)
class Kind:
    """Who quantized a model, and how; `is_variant` takes the network as others write it, with nothing folded."""

    model: str
    tool: str
    activation: str
    weight: str
    per_channel: bool
    settings: str = ""
    is_variant: bool = False

    @property
    def is_static(self) -> bool:
        """Whether grids are known before the model runs; an NPU has no operator that finds them then."""
        return self.tool != "ort-dynamic"

    def __str__(self) -> str:
        scales = "channel" if self.per_channel else "tensor"
        name = f"{self.model}-{self.tool}-{self.activation}-{self.weight}-{scales}"
        return "-".join([*(["variant"] if self.is_variant else []), name, *([self.settings] if self.settings else [])])


def variant(model: str, tool: str, activation: str, weight: str, settings: str = "", per_channel: bool = True) -> Kind:
    """A network as others write it, in the hands of a tool with these settings."""
    return Kind(model, tool, activation, weight, per_channel, settings, is_variant=True)


def built(kind: Kind) -> onnx.ModelProto:
    """The network in float."""
    return (variants.VARIANTS if kind.is_variant else ZOO)[kind.model]()


def rows(kind: Kind, count: int = ROWS) -> list[dict[str, np.ndarray]]:
    """Inputs of the network, one row each."""
    model = built(kind)
    if kind.is_variant:
        return variants.rows(model, count)
    values = data(model, count)
    return [{name: array[index : index + 1] for name, array in values.items()} for index in range(count)]


def originals(kind: Kind) -> list[dict[str, np.ndarray]]:
    """Outputs of the network on each row of it, before it is quantized."""
    session = ort_cpu.Session(ir.from_proto(built(kind)), optimize=False)
    return [session.run(row) for row in rows(kind)]


def quantized(kind: Kind, folder: Path) -> ir.Model:
    """The network, quantized and in the form that stages take."""
    source, target = folder / "model.onnx", folder / "quantized.onnx"
    onnx.save(built(kind), source)
    quantize = by_intact if kind.tool == "intact" else by_onnxruntime
    quantize(kind, source, target)
    return normalize.normalize(upgrade.upgrade(io.load(target)).model)


def by_intact(kind: Kind, source: Path, target: Path) -> None:
    """The stages of `intact quantize`, which fold what they can first."""
    given = rows(kind, 16)
    path = source.with_name("rows.npz")
    np.savez(path, **{name: np.concatenate([row[name] for row in given]) for name in given[0]})
    chosen = SETTINGS["intact"][kind.settings]
    types = {"activation_type": kind.activation, "weight_type": kind.weight, "per_channel": kind.per_channel}
    quant = {**types, "load_path": str(path), **chosen.get("quant", {})}
    quantize(
        source, config=BuildConfig.from_dict({"quant": quant, "compile": chosen.get("compile", {})}), output=target
    )


def by_onnxruntime(kind: Kind, source: Path, target: Path) -> None:
    """Networks of the zoo are prepared as its documentation advises; variants are taken as they are written."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    shapes = pytest.importorskip("onnxruntime.quantization.shape_inference")
    prepared = source if kind.is_variant else source.with_name("prepared.onnx")
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(text.StringIO()):
            if prepared is not source:
                shapes.quant_pre_process(str(source), str(prepared))
            _quantize(quantization, kind, prepared, target)
    finally:
        logging.disable(logging.NOTSET)


def _quantize(quantization: Any, kind: Kind, source: Path, target: Path) -> None:
    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.rows = iter(rows(kind))

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

    types = {"uint8": quantization.QuantType.QUInt8, "int8": quantization.QuantType.QInt8}
    settings: dict[str, Any] = {"weight_type": types[kind.weight], "per_channel": kind.per_channel}
    settings |= SETTINGS[kind.tool][kind.settings]
    if kind.settings == "mixed":
        overrides = _in_16_bits(quantization.QuantType, built(kind))
        settings["extra_options"] = {**settings["extra_options"], "TensorQuantOverrides": overrides}
    if kind.tool == "ort-dynamic":
        quantization.quantize_dynamic(str(source), str(target), **settings)
        return
    forms = {"ort-qdq": quantization.QuantFormat.QDQ, "ort-qoperator": quantization.QuantFormat.QOperator}
    settings |= {"quant_format": forms[kind.tool], "activation_type": types[kind.activation]}
    quantization.quantize_static(str(source), str(target), Reader(), **settings)


def _in_16_bits(types: Any, model: onnx.ModelProto) -> dict[str, list[dict[str, Any]]]:
    """Overrides for a model of mixed precision: clips are in 16 bits between operators of 8, so that grids meet."""
    overrides: dict[str, list[dict[str, Any]]] = {}
    for node in model.graph.node:
        if node.op_type in ("Relu", "Clip"):
            wider = {"quant_type": types.QUInt16, "recv_nodes": {node.name}}
            overrides[node.input[0]] = [{"quant_type": types.QUInt8, "convert": wider}]
            overrides[node.output[0]] = [{"quant_type": types.QUInt16, "convert": {"quant_type": types.QUInt8}}]
    return overrides
