"""Mistakes that a command line tells before anything is loaded: the same words as from the API, which loads."""

from __future__ import annotations

import pytest

import intact
from intact.api import early
from intact.errors import IntactError
from intact.settings.keywords import configured

WRONG = {
    "a chip that the device does not have": ("S126", {"device": "qnn", "soc": "SM9999"}),
    "an architecture that it does not have": ("S124", {"device": "qnn", "arch": "v99"}),
    "a chip of another architecture": ("S125", {"device": "qnn", "soc": "SM8550", "arch": "v75"}),
    "a precision that it has no use for": ("S111", {"device": "openvino", "precision": "w4a16"}),
    "a table that is not there": ("S122", {"device": "nothere.toml"}),
    "a version of no runtime": ("S138", {"device": "cpu", "assume_ort": "abc"}),
    "a gate on an NPU that is none": ("S118", {"device": "cpu", "require_npu": 90}),
    "inputs that are not there": ("D101", {"data": "nothere.npz"}),
    "test inputs that are not there": ("D101", {"test_data": "nothere.npz"}),
    "labels that are not there": ("D132", {"labels": "nothere.npy", "data": __file__}),
    "a plan that is not there": ("S170", {"plan": "nothere.toml"}),
    "encodings that are not there": ("S160", {"encodings": "nothere.json"}),
    "accuracy without labels": ("S139", {"max_accuracy_drop": 1.0}),
    "a search without a goal": ("S106", {"precision": "auto"}),
    "a search with types that are set": ("S108", {"precision": "auto", "min_sqnr": 30.0, "weight_type": "int8"}),
}


def check(settings):
    config = configured(None, settings)
    early.check_device(config)
    early.check_search(config)


@pytest.mark.parametrize(("code", "settings"), WRONG.values(), ids=WRONG)
def test_the_words_are_those_of_the_build(code, settings, zoo, tmp_path):
    with pytest.raises(IntactError) as early_one:
        check(settings)
    if code == "D132":
        settings = settings | {"data": str(zoo.data("residual_cnn"))}
    with pytest.raises(IntactError) as caught:
        intact.build(zoo.model("residual_cnn"), output=tmp_path / "out", **settings)
    assert caught.value.code == code
    for part in ("code", "status", "message", "allowed", "fix"):
        assert getattr(early_one.value, part) == getattr(caught.value, part)


@pytest.mark.parametrize(
    "settings",
    [
        {"device": "qnn", "soc": "Snapdragon 8 Gen 3", "precision": "w8a16"},
        {"data": "module:function", "test_data": "s3://bucket/rows.npz"},
        {"data": __file__, "labels": __file__, "max_accuracy_drop": 1.0},
        {"precision": "auto", "min_sqnr": 30.0},
    ],
    ids=["a chip as it is sold", "a function and a URL", "files that are there", "a search with a goal"],
)
def test_what_can_be_built_passes(settings):
    check(settings)


def test_a_matrix_is_refused_for_any_of_its_cells():
    config = configured(None, {})
    early.check_cells(["cpu", "qnn@2.6.0:SM8650"], ["uint8", "w8a16"], config)
    with pytest.raises(IntactError, match="did you mean qnn"):
        early.check_cells(["cpu", "qnm:v75"], ["uint8"], config)
    with pytest.raises(IntactError, match="uint7"):
        early.check_cells(["cpu"], ["uint8", "uint7"], config)
