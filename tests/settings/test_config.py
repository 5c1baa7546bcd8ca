"""Settings: one default each, unknown keys refused, flags over file over presets, nothing lost on the way."""

from __future__ import annotations

import json
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import JsonValue

import intact
from intact.cli import arguments, build
from intact.errors import SettingsError
from intact.settings import config as settings
from intact.settings import devices
from intact.settings.config import (
    BuildConfig,
    CompileConfig,
    QuantConfig,
    Settings,
    TensorOverride,
    checked_settings,
    merge,
    read_settings,
)

HALF = "float16"
NUMBERS = st.one_of(st.booleans(), st.integers(-9, 9), st.floats(-9, 9))
PLAIN = {
    bool: st.booleans(),
    str: st.text(max_size=8),
    type(None): st.none(),
    JsonValue: st.one_of(NUMBERS, st.lists(NUMBERS, max_size=2)),
}
KINDS = [kind for kind in vars(settings).values() if isinstance(kind, type) and issubclass(kind, Settings)]
KINDS.remove(Settings)


def values_of(annotation, limits=()):
    """Values of a field, as they would stand in a file, from its annotation alone: new fields need no new test."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return values_of(inner[0], inner[1:])
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (Union, UnionType):
        return st.one_of(*(values_of(part, limits) for part in inner))
    if origin is dict:
        return st.dictionaries(values_of(inner[0]), values_of(inner[1]), max_size=2)
    if origin is tuple and inner[-1] is ...:
        return st.lists(values_of(inner[0]), max_size=2)
    if origin is tuple:
        return st.tuples(*map(values_of, inner)).map(list)
    if annotation in PLAIN:
        return PLAIN[annotation]
    return _numbers(annotation, limits) if annotation in (int, float) else settings_of(annotation)


def _numbers(kind, limits):
    least = max((getattr(limit, "ge", getattr(limit, "gt", -(10**6))) for limit in limits), default=-(10**6))
    above = any(hasattr(limit, "gt") for limit in limits)
    most = min((limit.le for limit in limits if hasattr(limit, "le")), default=1e9)
    if kind is int:
        return st.integers(least + above, min(least + 10**7, int(most)))
    return st.floats(least, most, exclude_min=above)


def settings_of(kind):
    """Dictionaries that a settings class takes, with any of its fields left out."""
    fields = {name: values_of(field.annotation, field.metadata) for name, field in kind.model_fields.items()}
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: _consistent(kind, values))


def _consistent(kind, values):
    """The values without what only makes sense together, where they came without each other or in the wrong order."""
    if kind is TensorOverride:
        ends = [values.pop(end, None) for end in ("low", "high")]
        values |= dict(zip(("low", "high"), sorted(ends), strict=True)) if None not in ends else {}
    if kind is QuantConfig and HALF in (values.get("weight_type"), values.get("activation_type")):
        values |= {"weight_type": HALF, "activation_type": HALF}
    if kind is CompileConfig and values.get("device") not in (None, *devices.shipped()):
        values["device"] += ".toml"
    if kind is BuildConfig and values.get("max_memory") is not None:
        values["max_memory"] = f"{1 + len(values['max_memory'])}G"
    if kind is BuildConfig and values.get("quant") is not None:
        values.get("compile", {}).pop("quant", None)
    return values


@pytest.mark.parametrize("kind", KINDS)
def test_every_config_survives_a_dictionary_and_json(kind):
    seen = set()

    @given(settings_of(kind))
    @hypothesis_settings(max_examples=60)
    def check(values):
        config = kind.from_dict(values)
        seen.update(config.model_fields_set)
        assert kind.from_dict(config.to_dict()) == config
        assert kind.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False))) == config

    check()
    assert seen == set(kind.model_fields)


def test_defaults_are_those_that_the_documentation_states():
    expected = {
        "weight_type": "int8",
        "activation_type": "uint8",
        "per_channel": True,
        "weight_symmetric": True,
        "activation_symmetric": False,
        "method": "auto",
        "effort": "normal",
        "rescue": True,
        "plan": None,
        "samples": 128,
        "load_path": None,
        "distribution": "normal",
        "seed": 0,
        "op_types": None,
        "exclude_op_types": [],
        "nodes": None,
        "exclude_nodes": [],
        "overrides": {},
        "encodings": None,
        "calibrate_missing": False,
    }
    assert expected.items() <= QuantConfig().to_dict().items()
    expected = {
        "device": "cpu",
        "arch": None,
        "soc": None,
        "ep_options": {},
        "io": "float",
        "timeout": 1800.0,
        "quant": None,
    }
    assert expected.items() <= CompileConfig().to_dict().items()


def test_compile_config_says_nothing_about_quantization_but_its_quant_config():
    assert not set(CompileConfig.model_fields) & set(QuantConfig.model_fields)
    assert CompileConfig.model_fields["quant"].annotation == QuantConfig | None


def test_both_quantizations_set_is_a_value_error_that_says_why():
    with pytest.raises(ValueError, match=r"quant and compile.quant are both set: a model is quantized once"):
        BuildConfig(quant=QuantConfig(), compile=CompileConfig(quant=QuantConfig()))
    with pytest.raises(SettingsError, match="both set"):
        BuildConfig.from_dict({"quant": {}, "compile": {"quant": {}}})


@pytest.mark.parametrize("where", ["quant", "compile"])
def test_the_one_quantization_is_found_wherever_it_was_set(where):
    quant = QuantConfig(method="mse")
    config = BuildConfig(quant=quant) if where == "quant" else BuildConfig(compile=CompileConfig(quant=quant))
    assert config.quantization == quant
    assert BuildConfig().quantization is None


@pytest.mark.parametrize(
    ("values", "where", "near"),
    [
        ({"presision": "uint8"}, "presision", "precision"),
        ({"quant": {"wieght_type": "int8"}}, "wieght_type", "weight_type"),
        ({"compile": {"divice": "cpu"}}, "divice", "device"),
        ({"compile": {"quant": {"methd": "mse"}}}, "methd", "method"),
        ({"quant": {"overrides": {"x": {"symetric": True}}}}, "symetric", "symmetric"),
    ],
)
def test_an_unknown_key_is_refused_at_every_level_with_the_nearest_known_one(values, where, near):
    with pytest.raises(ValueError) as caught:
        BuildConfig.from_dict(values)
    assert isinstance(caught.value, SettingsError) and caught.value.status == 2
    assert f"unknown key {where}; did you mean {near}" in str(caught.value)


def test_every_mistake_is_named_at_once():
    with pytest.raises(SettingsError) as caught:
        BuildConfig.from_dict({"quant": {"samples": 0, "weight_type": "int7"}, "compile": {"io": "both"}})
    for part in ("quant.samples = 0", "quant.weight_type = 'int7'", "compile.io = 'both'", "'uint8', 'int8'"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"low": 0.0}, "set both or neither"),
        ({"high": 0.0}, "set both or neither"),
        ({"low": 2.0, "high": 1.0}, "above high"),
        ({"low": float("nan"), "high": 1.0}, "finite"),
        ({"low": 0.0, "high": float("inf")}, "finite"),
    ],
)
def test_a_range_is_whole_ordered_and_finite(values, message):
    with pytest.raises(SettingsError, match=message):
        TensorOverride.from_dict(values)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (QuantConfig, {"samples": 0}),
        (QuantConfig, {"seed": -1}),
        (CompileConfig, {"timeout": 0}),
        (CompileConfig, {"timeout": float("inf")}),
        (BuildConfig, {"min_sqnr": float("nan")}),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(kind: type[Settings], values):
    with pytest.raises(SettingsError):
        kind.from_dict(values)


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        QuantConfig().method = "mse"


TOML = 'precision = "w8a16"\n[quant]\nmethod = "mse"\n[quant.overrides."a.b"]\nlow = -1.0\nhigh = 2\n'
AS_VALUES = {"precision": "w8a16", "quant": {"method": "mse", "overrides": {"a.b": {"low": -1.0, "high": 2}}}}


@pytest.mark.parametrize(("name", "text"), [("s.toml", TOML), ("s.json", json.dumps(AS_VALUES)), ("S.TOML", TOML)])
def test_settings_files_are_toml_or_json(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_settings(tmp_path / name) == AS_VALUES


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("twice.json", b'{"quant": {"method": "mse", "method": "minmax"}}', "method stands there twice"),
        ("twice.toml", b"[quant]\nseed = 1\nseed = 2", "twice.toml"),
        ("broken.json", b"{", "broken.json"),
        ("list.json", b"[]", "found list"),
        ("latin.toml", b'a = "\xe9"', "latin.toml"),
        ("settings.yaml", b"a: 1", "TOML or JSON"),
    ],
)
def test_a_bad_settings_file_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SettingsError, match=message):
        read_settings(tmp_path / name)


def test_an_absent_settings_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"absent.toml: cannot be read: No such file"):
        read_settings(tmp_path / "absent.toml")


def test_merging_keeps_what_a_later_layer_leaves_out():
    assert merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}}) == {"a": {"b": 1, "c": 4}, "d": 3}
    assert merge({"a": None}, {"a": {"b": 1}}) == {"a": {"b": 1}}


def from_flags(tmp_path, file=None, **flags):
    values = dict(flags)
    if file is not None:
        values["config"] = tmp_path / "settings.json"
        values["config"].write_text(json.dumps(file))
    return arguments.settings(values, *build.SETTINGS)


def test_flags_override_the_file_and_only_what_was_set(tmp_path):
    file = {"precision": "w8a16", "quant": {"method": "mse", "samples": 7}, "compile": {"device": "qnn"}}
    config = from_flags(tmp_path, file, method="percentile", precision=None, dim=["n=2"], ep_option=["k=a=b"])
    assert config.precision == "w8a16"
    assert (config.quant.method, config.quant.samples) == ("percentile", 7)
    assert config.quant.model_fields_set == {"method", "samples"}
    assert (config.compile.device, config.compile.ep_options, config.dims) == ("qnn", {"k": "a=b"}, {"n": 2})


def test_no_flag_leaves_every_setting_unset(tmp_path):
    assert from_flags(tmp_path).model_fields_set == set()


@pytest.mark.parametrize(
    ("file", "inside"),
    [({"compile": {"quant": {"samples": 3}}}, True), ({"compile": {"quant": None}, "quant": {"samples": 3}}, False)],
)
def test_quantization_flags_go_where_the_file_has_its_quantization(tmp_path, file, inside):
    config = from_flags(tmp_path, file, method="mse")
    assert (config.quantization.samples, config.quantization.method) == (3, "mse")
    assert (config.compile.quant is not None) == inside


@pytest.mark.parametrize("file", [{"compile": 3}, {"compile": "quant"}, {"quant": [1]}])
def test_a_file_with_something_else_than_a_table_is_a_settings_error(tmp_path, file):
    with pytest.raises(SettingsError):
        from_flags(tmp_path, file, method="mse")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"dim": ["batch"]}, "expected name=value"),
        ({"dim": ["batch=0"]}, "whole number"),
        ({"dim": ["batch=x"]}, "whole number"),
        ({"dim": ["=3"]}, "expected name=value"),
        ({"ep_option": ["x"]}, "expected name=value"),
        ({"precision": "banana"}, "precision = 'banana'.*'w8a16'"),
        ({"device": "banana"}, "unknown device 'banana'.*qnn"),
        ({"method": "banana"}, "'percentile'"),
    ],
)
def test_a_bad_flag_is_a_settings_error_that_names_what_is_allowed(tmp_path, flags, message):
    with pytest.raises(SettingsError, match=message):
        from_flags(tmp_path, **flags)


def leaves(kind, path=()):
    """The paths of the settings that hold a value of their own."""
    for name, field in kind.model_fields.items():
        union = get_args(field.annotation) if get_origin(field.annotation) in (Union, UnionType) else ()
        parts = [part for part in (field.annotation, *union) if part in KINDS]
        yield from leaves(parts[0], (*path, name)) if parts else [(*path, name)]


def test_every_setting_has_a_flag_but_what_only_a_file_can_hold():
    flags = {option.setting for group in build.SETTINGS for option in group}
    without = {path for path in leaves(BuildConfig) if path[:2] != ("compile", "quant")} - flags
    limits = {path for path in without if path[0] == "verdict"}
    assert without - limits == {("quant", "overrides"), ("quant", "types")} and len(limits) == 6


def test_a_line_shows_every_setting_that_has_a_value():
    line = BuildConfig(precision="uint8", quant=QuantConfig(nodes=("a",))).line()
    for part in ("precision=uint8", "quant.method=auto", "quant.per_channel=true", 'quant.nodes=["a"]'):
        assert part in line
    assert "load_path" not in line


def test_a_line_leaves_out_what_is_usual():
    usual = BuildConfig(precision="uint8", quant=QuantConfig())
    assert usual.line(usual) == ""
    assert BuildConfig(precision="uint8", quant=QuantConfig(seed=3)).line(usual) == "quant.seed=3"


def test_the_public_names_are_these_classes():
    assert (intact.QuantConfig, intact.CompileConfig, intact.BuildConfig) == (QuantConfig, CompileConfig, BuildConfig)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("s.toml", '[quant]\n\nmetod = "mse"\n', r"s\.toml:3: quant: unknown key metod; did you mean method"),
        ("s.toml", 'precision = "unit8"\n', r"s\.toml:1: precision = 'unit8'"),
        ("s.toml", "[compile]\ntimeout = -1\n", r"s\.toml:2: compile\.timeout = -1"),
        ("s.json", '{"precision": "unit8"}', r"s\.json: precision = 'unit8'"),
        ("s.json", "[" * 100_000, r"s\.json: it is nested too deeply"),
        ("s.toml", "a = " + "[" * 100_000, r"s\.toml: "),
    ],
)
def test_a_mistake_in_a_settings_file_is_told_with_file_line_and_key(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(SettingsError, match=words):
        checked_settings(tmp_path / name)
