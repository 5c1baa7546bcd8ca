"""`intact init`: a settings file that means what was resolved, and that a later flag still overrides."""

from __future__ import annotations

from pathlib import Path

import pytest

import intact
from intact.errors import OutputError
from intact.pipeline import presets
from intact.settings import hand_written
from intact.settings.config import BuildConfig, checked_settings, merge
from intact.settings.keywords import configured
from tests.cli import command

ASKED = [
    {},
    {"precision": "w8a16", "device": "qnn", "soc": "SM8650"},
    {"precision": "fp16", "device": "qnn"},
    {"precision": "fp32"},
    {"precision": "w4", "min_sqnr": 30.0, "exclude_op_type": ("Add", 'od"d'), "dim": {"a b": 2}},
    {"device": "openvino", "ep_option": {"device": "GPU", "x=y": "\x7f"}, "image_mean": (0.5, 0.25, 0.1)},
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_the_file_resolves_to_the_same_settings(asked, tmp_path):
    text = intact.init(output=tmp_path / "intact.toml", **asked)
    assert (tmp_path / "intact.toml").read_text(encoding="utf-8") == text
    values = checked_settings(tmp_path / "intact.toml")
    expected = presets.resolve(configured(None, asked))
    assert presets.resolve(BuildConfig.from_dict(values)) == expected


def test_every_setting_is_there_with_what_it_means():
    text = intact.init()
    for name, field in BuildConfig.model_fields.items():
        assert f"{name} =" in text or f"[{name}]" in text, name
        assert " ".join((field.description or "").split()[:4]) in text


def test_what_follows_from_the_precision_is_a_comment_so_that_a_flag_still_decides():
    text = intact.init(precision="uint8")
    assert '# activation_type = "uint8"' in text and '\nprecision = "uint8"' in text
    values = merge(hand_written.parse_toml(text), {"precision": "w8a16"})
    assert presets.resolve(BuildConfig.from_dict(values)).quantization.activation_type == "uint16"


def test_a_file_that_is_there_stays(tmp_path):
    place = tmp_path / "intact.toml"
    place.write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        intact.init(output=place)
    assert place.read_text() == "mine"
    intact.init(output=place, overwrite=True)
    assert 'device = "cpu"' in place.read_text()


def test_the_command_prints_it_or_writes_it(monkeypatch, tmp_path):
    def call(*args: object) -> str:
        status, out, _ = command.run("init", *args)
        assert status == 0
        return out

    monkeypatch.chdir(tmp_path)
    assert call("--device", "qnn") == intact.init(device="qnn") and not list(Path().iterdir())
    assert call("-o", "mine.toml") == "mine.toml\n" and Path("mine.toml").read_text() == intact.init()
