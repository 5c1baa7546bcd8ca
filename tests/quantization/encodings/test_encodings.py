"""Encodings of other tools: what each format means, what comes back, and what has no place in a plan."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime.quantization as ort
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from intact.errors import ModelError, SettingsError
from intact.model import io
from intact.quantization import encodings
from intact.quantization.calibration.observe import observe
from intact.quantization.calibration.resolve import resolve
from intact.quantization.encodings import GivenGrid, differences, of_model, read_encodings, text
from intact.quantization.encodings.encoded_plan import use
from intact.quantization.insert import insert
from intact.quantization.planning.planner import plan
from intact.quantization.quantizing import quantize
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.quantization.models import model, quantized, rows

RNG = np.random.default_rng(5)
F = np.float32
PLAIN = {"effort": "fast", "rescue": False, "method": "minmax"}
EVERY_FORMAT = pytest.mark.parametrize("form", encodings.FORMATS)


def weight(*shape, scale=1.0):
    return (RNG.standard_normal(shape) * scale).astype(F)


def conv_net():
    body = "c = Conv<pads=[1,1,1,1]>(x, w, b)  r = Relu(c)  d = Conv(r, v)  y = MaxPool<kernel_shape=[2,2]>(d)"
    weights = {"w": weight(4, 3, 3, 3), "b": weight(4), "v": weight(5, 4, 1, 1)}
    return model("float[1,3,6,6] x", "float[1,5,5,5] y", body, **weights), rows({"x": (1, 3, 6, 6)})


NET, FEEDS = conv_net()


def bytes_of(quantized_model):
    return ir.to_proto(quantized_model).SerializeToString()


def grid(bits, scale, zero, **more):
    return GivenGrid(bits, np.array(scale, F).reshape(-1), np.array(zero, np.int64).reshape(-1), **more)


def saved(tmp_path, content):
    path = tmp_path / "e.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def again(tmp_path, found, form="aimet", feeds=(), net=NET, device="cpu", **settings):
    """The float model quantized with these grids, from a file, and with nothing else."""
    path = saved(tmp_path, text(found, form))
    config = QuantConfig.from_dict({**PLAIN, **settings, "encodings": str(path)})
    return quantize(net, load_target(device), config, feeds)


def refused(tmp_path, found, form="aimet", **settings):
    with pytest.raises(SettingsError) as caught:
        again(tmp_path, found, form, **settings)
    assert "e.json" in caught.value.message
    return caught.value


CASES = [
    ("cpu", {}),
    ("cpu", {"activation_type": "int8"}),
    ("cpu", {"activation_type": "uint16"}),
    ("cpu", {"per_channel": False, "weight_symmetric": False, "weight_type": "uint8"}),
    ("qnn", {"activation_type": "uint16"}),
    ("qnn", {"activation_type": "uint16", "weight_type": "int4"}),
]


@EVERY_FORMAT
@pytest.mark.parametrize(("device", "settings"), CASES)
def test_a_model_comes_back_from_its_own_encodings_byte_for_byte(tmp_path, form, device, settings):
    first = quantized(NET, FEEDS, device, **PLAIN, **settings).model
    second = again(tmp_path, of_model(first), form, device=device, **settings)
    assert bytes_of(second.model) == bytes_of(first)
    assert second.warnings == ()


def two_types():
    """A model of which one node is at 16 bits, so that tensors change their type on the way."""
    body = "a = MatMul(x, w)  b = Add(a, x)  c = MatMul(b, v)  y = Add(c, a)"
    net = model("float[4,8] x", "float[4,8] y", body, w=weight(8, 8), v=weight(8, 8))
    target, feeds, config = load_target("qnn"), rows({"x": (4, 8)}), QuantConfig.from_dict(PLAIN)
    planned = plan(net, target, config, {"b": "uint16"})
    resolved = resolve(net, planned, observe(net, planned, feeds))
    return net, target, config, insert(net, planned, resolved), planned


def test_a_second_grid_on_a_tensor_goes_through_onnx_runtimes_format(tmp_path):
    net, target, config, first, planned = two_types()
    assert planned.conversions, "the model is of two types"
    found = of_model(first)
    assert set(planned.tensors) == set(found) - {"w", "v"}
    given = read_encodings(saved(tmp_path, text(found, "ort")))
    result = use(net, target, config, given, "e.json")
    second = insert(net, result.plan, resolve(net, result.plan, {}, result.weights))
    assert bytes_of(second) == bytes_of(first)


def test_without_a_second_grid_the_range_of_the_first_is_kept(tmp_path):
    net, target, config, first, planned = two_types()
    given = read_encodings(saved(tmp_path, text(of_model(first), "aimet")))
    result = use(net, target, config, given, "e.json").plan
    for entry, conversion in planned.conversions.items():
        known, old = result.grids[result.tensors[entry]], given[conversion.tensor]
        new = grid(int(known.dtype.removeprefix("uint")), *known.fixed)
        coarser_step = max(float(new.scale[0]), float(old.scale[0]))
        np.testing.assert_allclose(ends_of(new), ends_of(old), rtol=0, atol=coarser_step / 2)


def ends_of(entry):
    """The least and the greatest value of a grid."""
    scale, zero = float(entry.scale[0]), int(entry.zero_point[0])
    return [-zero * scale, (2**entry.bits - 1 - zero) * scale]


LEGACY = {
    "bitwidth": 8,
    "dtype": "int",
    "is_symmetric": "False",
    "max": 1.41,
    "min": -1.14,
    "offset": -114,
    "scale": 0.01,
}
FIRST = {
    "name": "t",
    "bw": 8,
    "dtype": "INT",
    "enc_type": "PER_TENSOR",
    "is_sym": False,
    "offset": [-114],
    "scale": [0.01],
}
SECOND = {"name": "t", "output_dtype": "int8", "y_scale": [0.5, 0.25], "y_zero_point": [0, 3], "axis": 1}
OVERRIDE = {"quant_type": "QInt8", "scale": 0.5, "zero_point": 3}


def legacy(*entries, part="activation_encodings"):
    return {"version": "0.6.1", part: {"t": list(entries)}}


def first(part="activation_encodings", **changes):
    return {"version": "1.0.0", part: [{**FIRST, **changes}]}


MEANINGS = {
    "legacy": (legacy(LEGACY), grid(8, 0.01, 114)),
    "legacy, offset as a float": (legacy({**LEGACY, "offset": -114.0}), grid(8, 0.01, 114)),
    "legacy, no type, as up to 0.4": (legacy({k: v for k, v in LEGACY.items() if k != "dtype"}), grid(8, 0.01, 114)),
    "legacy per channel": (
        legacy(LEGACY, {**LEGACY, "scale": 0.02}, part="param_encodings"),
        grid(8, [0.01, 0.02], [114, 114], constant=True),
    ),
    "legacy symmetric": (legacy({**LEGACY, "is_symmetric": "True", "offset": -128}), grid(8, 0.01, 128)),
    "strict symmetric": (legacy({**LEGACY, "is_symmetric": "True", "offset": -127}), grid(8, 0.01, 128)),
    "not strict, as it is not symmetric": (legacy({**LEGACY, "offset": -127}), grid(8, 0.01, 127)),
    "1.0.0": (first(), grid(8, 0.01, 114)),
    "1.0.0, symmetric at 16 bits": (first(bw=16, is_sym=True, offset=[-32768]), grid(16, 0.01, 32768)),
    "1.0.0 per channel": (
        first("param_encodings", bw=4, enc_type="PER_CHANNEL", is_sym=True, offset=[-8, -8], scale=[0.5, 0.25]),
        grid(4, [0.5, 0.25], [8, 8], constant=True),
    ),
    "2.0.0": (
        {"version": "2.0.0", "encodings": [SECOND]},
        grid(8, [0.5, 0.25], [128, 131], dtype="int8", axis=1),
    ),
    "2.0.0 without zero points": (
        {"version": "2.0.0", "encodings": [{"name": "t", "output_dtype": "uint16", "y_scale": 0.5}]},
        grid(16, 0.5, 0, dtype="uint16"),
    ),
    "overrides": ({"t": [OVERRIDE]}, grid(8, 0.5, 131, dtype="int8")),
    "overrides under their option": ({"TensorQuantOverrides": {"t": [OVERRIDE]}}, grid(8, 0.5, 131, dtype="int8")),
    "overrides per channel": (
        {"t": [{**OVERRIDE, "axis": 1}, {"scale": 0.25, "zero_point": 0}]},
        grid(8, [0.5, 0.25], [131, 128], dtype="int8", axis=1, constant=True),
    ),
    "overrides with a range": (
        {"t": [{"quant_type": "QUInt8", "rmin": -1.0, "rmax": 1.55}]},
        grid(8, 0.01, 100, dtype="uint8"),
    ),
    "overrides with a symmetric range": (
        {"t": [{"quant_type": "QInt8", "rmin": -1.0, "rmax": 1.27, "symmetric": True}]},
        grid(8, 0.01, 128, dtype="int8"),
    ),
}


@pytest.mark.parametrize("case", MEANINGS)
def test_each_format_means_what_its_tool_means(tmp_path, case):
    content, expected = MEANINGS[case]
    (found,) = read_encodings(saved(tmp_path, content)).values()
    assert (found.bits, found.dtype, found.axis, found.constant) == (
        expected.bits,
        expected.dtype,
        expected.axis,
        expected.constant,
    )
    np.testing.assert_allclose(found.scale, expected.scale, rtol=1e-6)
    assert found.zero_point.tolist() == expected.zero_point.tolist()


@st.composite
def grids(draw):
    dtype = draw(st.sampled_from(["uint8", "int8", "uint16", "int16", "uint4", "int4"]))
    bits = int(dtype.lstrip("uint"))
    size = draw(st.integers(1, 4))
    scales = st.floats(2.0**-60, 2.0**60, width=32)
    scale = draw(st.lists(scales, min_size=size, max_size=size))
    zeros = st.just(2 ** (bits - 1)) if draw(st.booleans()) else st.integers(0, 2**bits - 1)
    zero = draw(st.lists(zeros, min_size=size, max_size=size))
    per_channel = size > 1 or draw(st.booleans())
    return grid(bits, scale, zero, dtype=dtype, axis=0 if per_channel else None, constant=per_channel)


@EVERY_FORMAT
@for_all(entry=grids())
def test_a_grid_comes_back_from_every_format_bit_for_bit(tmp_path_factory, form, entry):
    path = saved(tmp_path_factory.mktemp("e"), text({"t": entry}, form))
    found = read_encodings(path)["t"]
    assert differences({"t": entry}, {"t": found}) == []
    back = found.encoding(found.type_like(entry.dtype), entry.axis)
    assert back.same_grid(entry.encoding(entry.dtype, entry.axis))


def test_the_range_that_aimet_is_told_is_the_one_of_the_grid():
    entry = json.loads(text({"t": grid(8, 0.5, 100)}, "aimet-0.6.1"))["activation_encodings"]["t"][0]
    assert (entry["min"], entry["max"], entry["offset"], entry["is_symmetric"]) == (-50.0, 77.5, -100, "False")


WRONG = {
    "no bit width": legacy({k: v for k, v in LEGACY.items() if k != "bitwidth"}),
    "a bit width of 99": legacy({**LEGACY, "bitwidth": 99}),
    "channels of two widths": legacy(LEGACY, {**LEGACY, "bitwidth": 4}),
    "no entries": legacy(),
    "a float tensor": legacy({"bitwidth": 16, "dtype": "float"}),
    "a float tensor in 1.0.0": first(dtype="FLOAT"),
    "scales per block": first(enc_type="PER_BLOCK"),
    "scales per block in 2.0.0": {"version": "2.0.0", "encodings": [{**SECOND, "block_size": 32}]},
    "a positive offset": first(offset=[11]),
    "an offset below the grid": first(offset=[-256]),
    "half an offset": first(offset=[-1.5]),
    "a scale of zero": first(scale=[0.0]),
    "a scale that float32 does not have": first(scale=[1e300]),
    "a scale in words": first(scale="small"),
    "two scales, three offsets": first(scale=[1, 2], offset=[0, 0, 0]),
    "a truth value that is none": first(is_sym="perhaps"),
    "a tensor twice": {"version": "1.0.0", "activation_encodings": [FIRST, FIRST]},
    "a number where entries should be": {"version": "1.0.0", "activation_encodings": [3]},
    "an unknown type": {"t": [{**OVERRIDE, "quant_type": "QFloat8"}]},
    "no type": {"t": [{"scale": 1.0, "zero_point": 0}]},
    "half a grid": {"t": [{"quant_type": "QInt8", "scale": 1.0}]},
    "half a range": {"t": [{"quant_type": "QInt8", "rmin": 1.0}]},
    "a range upside down": {"t": [{"quant_type": "QInt8", "rmin": 1.0, "rmax": 0.0}]},
    "a reduced range": {"t": [{"quant_type": "QInt8", "rmin": -1.0, "rmax": 1.0, "reduce_range": True}]},
    "channels without an axis": {"t": [OVERRIDE, OVERRIDE]},
    "channels along two axes": {"t": [{**OVERRIDE, "axis": 0}, {**OVERRIDE, "axis": 1}]},
    "an axis in words": {"t": [{**OVERRIDE, "axis": "first"}]},
    "an axis between two in 2.0.0": {"version": "2.0.0", "encodings": [{**SECOND, "axis": 0.5}]},
    "a second grid that is a number": {"t": [{**OVERRIDE, "convert": 3}]},
    "readers that are no list": {"t": [{**OVERRIDE, "convert": {**OVERRIDE, "recv_nodes": 3}}]},
}


@pytest.mark.parametrize("case", WRONG)
def test_an_entry_that_makes_no_sense_is_named(tmp_path, case):
    with pytest.raises(SettingsError) as caught:
        read_encodings(saved(tmp_path, WRONG[case]))
    assert caught.value.code == "S161" and "e.json" in caught.value.message


@pytest.mark.parametrize("content", ["not json", "[]", "{}", '{"a": 1}'])
def test_a_file_without_encodings_is_refused(tmp_path, content):
    with pytest.raises(SettingsError) as caught:
        read_encodings(saved(tmp_path, content))
    assert caught.value.code == "S160"


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        read_encodings(tmp_path / "none.json")


def test_an_unknown_format_is_refused():
    with pytest.raises(SettingsError, match="aimet-2"):
        text({}, "aimet-3")


OWN = of_model(quantized(NET, FEEDS, **PLAIN).model)


def changed(name, **changes):
    return {**OWN, name: replace(OWN[name], **changes)}


def test_missing_encodings_are_an_error_that_names_them(tmp_path):
    error = refused(tmp_path, {"x": OWN["x"], "w": OWN["w"]})
    assert error.code == "S165" and error.message.endswith("no encodings for r, d, v")


def test_missing_encodings_are_calibrated_on_request_and_named(tmp_path):
    half = changed("x", scale=OWN["x"].scale * 2)
    del half["r"], half["v"]
    result = again(tmp_path, half, feeds=FEEDS, calibrate_missing=True)
    assert len(result.warnings) == 1 and "r, v: calibrated" in result.warnings[0]
    found = of_model(result.model)
    assert [entry.tensor for entry in differences(OWN, found)] == ["x"]
    assert np.array_equal(found["x"].scale, half["x"].scale)


def test_what_shares_a_grid_needs_one_encoding_only(tmp_path):
    """y is the MaxPool of d: its values only move."""
    one = {name: entry for name, entry in OWN.items() if name != "y"}
    assert bytes_of(again(tmp_path, one).model) == bytes_of(again(tmp_path, OWN).model)


def test_the_given_grid_is_used_whatever_the_data_say(tmp_path):
    result = again(tmp_path, changed("r", scale=OWN["r"].scale * 3, zero_point=OWN["r"].zero_point + 7), feeds=FEEDS)
    (entry,) = differences(OWN, of_model(result.model))
    assert (entry.tensor, round(entry.scale_ratio, 5), entry.zero_point_steps) == ("r", 3.0, 7)


def test_types_and_granularity_of_weights_are_those_of_the_file(tmp_path):
    tensor_wide = changed("v", scale=OWN["v"].scale[:1], zero_point=OWN["v"].zero_point[:1], axis=None)
    found = of_model(again(tmp_path, tensor_wide).model)
    assert found["v"].scale.tolist() == tensor_wide["v"].scale.tolist() and found["v"].axis is None


PLACELESS = {
    "a misspelt name": ({**OWN, "rr": OWN["r"]}, "S166", "did you mean r"),
    "a tensor before a Relu": ({**OWN, "c": OWN["r"]}, "S166", "quantizes nothing there"),
    "other bits than the reader of an input takes": (changed("x", bits=16), "S167", "x is uint16"),
    "bits that the target does not have": (changed("r", bits=2, zero_point=np.array([0])), "S167", "r is uint2"),
    "bits that no weight has": (changed("v", bits=3, zero_point=np.full(5, 4)), "S167", "v is int3"),
    "bits of a weight that the target does not take": (
        changed("v", bits=16, zero_point=np.full(5, 2**15)),
        "S167",
        "v: int16 is not a type that cpu takes there",
    ),
    "two grids for values that only move": (changed("y", scale=OWN["y"].scale * 2), "S164", "d and y share one grid"),
    "channels of an activation": (
        changed("r", scale=np.repeat(OWN["r"].scale, 2), zero_point=np.repeat(OWN["r"].zero_point, 2)),
        "S168",
        "r has 2 scales",
    ),
    "too few channels of a weight": (
        changed("v", scale=OWN["v"].scale[:3], zero_point=OWN["v"].zero_point[:3]),
        "S168",
        "v has 3 scales",
    ),
    "a zero point that is not the middle": (
        changed("w", zero_point=OWN["w"].zero_point - 1),
        "S169",
        "w has a zero point",
    ),
}


@pytest.mark.parametrize("case", PLACELESS)
def test_an_encoding_without_a_place_in_the_plan_is_an_error_that_names_it(tmp_path, case):
    found, code, words = PLACELESS[case]
    error = refused(tmp_path, found)
    assert error.code == code and words in error.message


def test_another_axis_or_a_type_that_is_not_taken_there_is_an_error(tmp_path):
    assert refused(tmp_path, changed("v", axis=1), "ort").code == "S168"
    signed = changed("x", dtype="int8")
    assert refused(tmp_path, signed, "ort").code == "S167"


def test_settings_allow_zero_points_where_the_target_does(tmp_path):
    moved = changed("w", zero_point=OWN["w"].zero_point - 1)
    result = again(tmp_path, moved, weight_symmetric=False)
    assert [entry.tensor for entry in differences(OWN, of_model(result.model))] == ["w"]


def test_the_encoding_of_a_bias_is_not_used_and_said_so(tmp_path):
    result = again(tmp_path, {**OWN, "b": grid(32, [1.0] * 4, [2**31] * 4, constant=True)})
    assert len(result.warnings) == 1 and "of b are not used" in result.warnings[0]
    assert differences(OWN, of_model(result.model)) == []


def test_a_weight_scale_that_leaves_the_bias_no_room_is_raised_and_said_so(tmp_path):
    result = again(tmp_path, changed("w", scale=OWN["w"].scale * F(1e-9)))
    assert any("w: its given scale is raised" in warning for warning in result.warnings)


def test_calibrate_missing_needs_a_file():
    with pytest.raises(SettingsError) as caught:
        quantized(NET, FEEDS, **PLAIN, calibrate_missing=True)
    assert caught.value.code == "S163"


class Reader(ort.CalibrationDataReader):
    def __init__(self):
        self.feeds = iter(FEEDS)

    def get_next(self):
        return next(self.feeds, None)


def with_onnx_runtime(tmp_path, **options):
    """The model as ONNX Runtime's own quantizer makes it."""
    io.save(NET, tmp_path / "float.onnx")
    ort.quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "ort.onnx",
        Reader(),
        quant_format=ort.QuantFormat.QDQ,
        per_channel=True,
        extra_options=options,
    )
    return tmp_path / "ort.onnx"


def test_onnx_runtime_takes_the_overrides_and_its_model_has_their_grids(tmp_path):
    sixteenth = {name: replace(entry, scale=entry.scale * F(1.25)) for name, entry in OWN.items()}
    overrides = json.loads(text(sixteenth, "ort"))
    for entries in overrides.values():
        for entry in entries:
            entry["quant_type"] = ort.QuantType.from_string(entry["quant_type"])
            entry["scale"] = np.array(entry["scale"], F)
            entry["zero_point"] = np.array(entry["zero_point"], np.int8 if "axis" in entry else np.uint8)
    path = with_onnx_runtime(tmp_path, TensorQuantOverrides=overrides)
    onnx.checker.check_model(path)
    assert differences(sixteenth, encodings.load(path)) == []


def test_the_grids_of_onnx_runtimes_model_have_the_names_of_the_float_model(tmp_path):
    found = encodings.load(with_onnx_runtime(tmp_path))
    assert set(found) == set(OWN)
    assert {name for name, entry in found.items() if entry.constant} == {"w", "v"}


def test_integers_at_the_boundary_keep_the_names_of_inputs_and_outputs():
    net = model(
        "uint8[2] x",
        "float[2] y",
        "f = DequantizeLinear(x, s, z)  a = Relu(f)  q = QuantizeLinear(a, s, z)  y = DequantizeLinear(q, s, z)",
        s=F(0.5),
        z=np.uint8(3),
    )
    found = of_model(net)
    assert set(found) == {"x", "y"} and found["x"].zero_point.tolist() == [3]


def test_a_model_without_grids_is_refused():
    with pytest.raises(ModelError) as caught:
        of_model(NET)
    assert caught.value.code == "M191"


DIFFERENT = {
    "only in a": ({"t": grid(8, 1, 0)}, {}),
    "only in b": ({}, {"t": grid(8, 1, 0)}),
    "bits 8 against 16": ({"t": grid(8, 1, 0)}, {"t": grid(16, 1, 0)}),
    "type int8 against uint8": ({"t": grid(8, 1, 0, dtype="int8")}, {"t": grid(8, 1, 0, dtype="uint8")}),
    "axis 0 against 1": ({"t": grid(8, 1, 0, axis=0)}, {"t": grid(8, 1, 0, axis=1)}),
    "1 scales against 2": ({"t": grid(8, 1, 0)}, {"t": grid(8, [1, 1], [0, 0])}),
    "scale by a factor of 4, zero point by 2": (
        {"t": grid(8, [1, 2], [5, 5])},
        {"t": grid(8, [1.5, 0.5], [5, 3])},
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_difference_says_what_differs(what):
    (found,) = differences(*DIFFERENT[what])
    assert (found.tensor, found.what) == ("t", what)


def test_a_format_that_says_less_contradicts_nothing():
    assert differences({"t": grid(8, 1, 0, dtype="int8", axis=0)}, {"t": grid(8, 1, 0)}) == []
