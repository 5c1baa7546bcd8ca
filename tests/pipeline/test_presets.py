"""What a precision means on a device, and what becomes of combinations that make no sense."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import get_args

import pytest

from intact.errors import NotAvailable, SettingsError
from intact.model.detect import Quantized
from intact.pipeline import presets
from intact.settings import devices
from intact.settings.config import BuildConfig, Precision, merge
from intact.targets.registry import known_backends, load_target

DEVICES = devices.shipped()
PRECISIONS = get_args(Precision)
COMBINATIONS = list(itertools.product(DEVICES, PRECISIONS))


def asked(**values):
    return BuildConfig.from_dict(values)


def resolved(precision=None, device="cpu", **values):
    return presets.resolve(asked(**merge({"precision": precision, "compile": {"device": device}}, values)))


@pytest.mark.parametrize(
    ("precision", "activation", "weight"),
    [
        ("uint8", "uint8", "int8"),
        ("w8a8", "uint8", "int8"),
        ("int8", "int8", "int8"),
        ("w8a16", "uint16", "int8"),
        ("int16", "uint16", "int16"),
        ("w4a16", "uint16", "int4"),
    ],
)
def test_a_precision_means_these_types(precision, activation, weight):
    preset = presets.PRECISIONS[precision]
    assert (preset["activation_type"], preset["weight_type"]) == (activation, weight)


@pytest.mark.parametrize("device", ["cpu", "qnn"])
@pytest.mark.parametrize("precision", ["uint8", "w8a8", "int8", "int16", "w8a16"])
def test_every_quantized_precision_is_per_channel_symmetric_by_default(device, precision):
    quant = resolved(precision, device).quant
    assert (quant.per_channel, quant.weight_symmetric, quant.activation_symmetric) == (True, True, False)


def test_every_precision_has_a_meaning():
    assert tuple(sorted(presets.PRECISIONS)) == tuple(sorted(PRECISIONS))


@pytest.mark.parametrize(("device", "precision"), COMBINATIONS)
def test_a_combination_works_or_says_why_not(device, precision):
    target = load_target(device)
    if precision in target.precisions:
        assert resolved(precision, device).precision == precision
    elif precision in target.later:
        with pytest.raises(NotAvailable) as caught:
            resolved(precision, device)
        assert caught.value.status == 5 and target.later[precision] in str(caught.value)
    else:
        with pytest.raises(SettingsError) as caught:
            resolved(precision, device)
        assert caught.value.status == 2 and all(works in str(caught.value) for works in target.precisions)


def test_a_device_that_is_not_built_yet_is_refused_without_a_precision_too(tmp_path):
    device = str(tmp_path / "mine.toml")
    Path(device).write_text('[target]\nname = "mine"\nnpu = true\n[later]\nuint8 = "soon"\n', encoding="utf-8")
    with pytest.raises(NotAvailable):
        presets.available(asked(compile={"device": device}))
    with pytest.raises(NotAvailable):
        presets.resolve(asked(compile={"device": device}), quantized=Quantized((("QLinearConv", 1),), ("uint8",), ()))


def test_a_precision_that_makes_no_sense_on_a_device_is_a_usage_error_that_names_what_does():
    with pytest.raises(SettingsError, match="w8 makes no sense on qnn") as caught:
        resolved("w8", "qnn")
    assert "w8a16" in caught.value.allowed


def test_what_was_set_lies_over_the_preset_and_the_preset_over_the_defaults():
    quant = resolved("w8a16", quant={"weight_type": "int16", "samples": 5}).quant
    assert (quant.activation_type, quant.weight_type, quant.samples) == ("uint16", "int16", 5)


def test_without_a_precision_it_is_uint8_and_without_a_device_cpu():
    config = presets.resolve(BuildConfig())
    assert (config.precision, config.compile.device, config.quant.activation_type) == ("uint8", "cpu", "uint8")


@pytest.mark.parametrize("device", [name for name in known_backends() if load_target(name).precisions])
def test_every_device_has_a_usual_precision_that_it_takes(device):
    usual = {"rknn": "int8"}.get(device, "uint8")
    assert load_target(device).usual_precision == usual
    assert presets.resolve(asked(compile={"device": device})).precision == usual


@pytest.mark.parametrize(
    ("values", "arch"),
    [
        ({}, "v73"),
        ({"arch": "v75"}, "v75"),
        ({"arch": "68"}, "v68"),
        ({"soc": "SM8650"}, "v75"),
        ({"soc": "sm8550"}, "v73"),
    ],
)
def test_the_architecture_is_resolved_too(values, arch):
    assert resolved("uint8", "qnn", compile=values).compile.arch == arch


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"arch": "v74"}, r"unknown architecture 'v74'.*\n.*v73, v75"),
        ({"soc": "SM8551"}, "did you mean.*SM8550"),
        ({"soc": "SM8550", "arch": "v75"}, "SM8550 is v73, not v75"),
    ],
)
def test_a_chip_that_does_not_exist_is_refused_with_its_neighbours(values, message):
    with pytest.raises(SettingsError, match=message):
        resolved("uint8", "qnn", compile=values)


def test_the_cpu_has_no_architecture():
    with pytest.raises(SettingsError, match="cpu has no architectures"):
        resolved("uint8", "cpu", compile={"arch": "v73"})


FED_BACK = [
    {},
    {"precision": "w8a16", "quant": {"method": "mse", "overrides": {"x": {"low": 0, "high": 1}}}},
    {"precision": "fp32", "quant": {"load_path": "d.npz"}},
    {"compile": {"device": "qnn", "soc": "SM8650", "quant": {"samples": 9}}},
    {"precision": "int8", "dims": {"n": 1}, "min_sqnr": 3, "quant": {"op_types": ["Conv"], "load_path": "d.npz"}},
]


@pytest.mark.parametrize("values", FED_BACK)
def test_a_resolved_configuration_resolves_to_itself(values):
    once = presets.resolve(asked(**values))
    again = presets.resolve(BuildConfig.from_dict(json.loads(json.dumps(once.to_dict()))))
    assert again == once


def test_a_float_build_keeps_its_data_for_verification():
    config = resolved("fp32", quant={"load_path": "d.npz"})
    assert config.quantization is None and config.test_path == "d.npz"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"quant": {"method": "mse"}}, "fp32 quantizes nothing: method would have no effect"),
        ({"compile": {"quant": {"per_channel": False}}}, "per_channel would have no effect"),
        ({"compile": {"io": "quantized"}}, "no integers for --io quantized"),
    ],
)
def test_a_quantization_setting_for_a_float_build_is_an_error_not_a_no_op(values, message):
    with pytest.raises(SettingsError, match=message):
        resolved("fp32", **values)


QDQ = Quantized((("QuantizeLinear", 3),), ("uint8",), ("int8",))
WIDE = Quantized((("QuantizeLinear", 3),), ("uint16",), ("int16", "uint8"))
UNSIGNED = Quantized((("QLinearConv", 3),), ("uint8",), ("uint8",))
OPAQUE = Quantized((("EPContext", 1),), (), ())


@pytest.mark.parametrize(
    ("found", "precision"),
    [(QDQ, None), (QDQ, "uint8"), (QDQ, "w8a8"), (WIDE, "int16"), (UNSIGNED, "w8a8"), (OPAQUE, None)],
)
def test_a_quantized_model_is_left_as_it_is_where_nothing_contradicts(found, precision):
    config = presets.resolve(asked(precision=precision, quant={"load_path": "d.npz"}), quantized=found)
    assert (config.quantization, config.test_path, config.precision) == (None, "d.npz", precision)


@pytest.mark.parametrize(
    ("found", "precision", "message"),
    [
        (QDQ, "w8a16", "uint16 activations"),
        (QDQ, "int8", "int8 activations"),
        (QDQ, "fp32", "a float model"),
        (Quantized((), ("uint16",), ("int8",)), "int16", "int16 weights"),
        (Quantized((), ("uint16",), ("int16",)), "w8a16", "int8 weights"),
        (OPAQUE, "uint8", "measured uint8 grids, of which this model has none"),
        (Quantized((("MatMulNBits", 2),), (), ()), "uint8", "2 MatMulNBits"),
        (Quantized((("MatMulInteger", 1),), (), ()), "uint8", "measured uint8 grids, of which this model has none"),
    ],
)
def test_a_precision_that_a_quantized_model_contradicts_is_an_error(found, precision, message):
    with pytest.raises(SettingsError, match=message) as caught:
        presets.resolve(asked(precision=precision), quantized=found)
    assert caught.value.status == 2 and "already quantized" in str(caught.value)


def test_a_quantization_setting_for_a_quantized_model_is_an_error():
    with pytest.raises(SettingsError, match="method would have no effect"):
        presets.resolve(asked(quant={"method": "mse"}), quantized=QDQ)
