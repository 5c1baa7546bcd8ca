"""Lessons of builds are kept in a file, the latest about a condition, and a file of something else is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from intact.backends import lessons
from intact.backends.lessons import Lesson
from intact.errors import SettingsError

ONE = Lesson("::Softmax(uint16) -> uint16", "", "widen_inputs", 17.5, 60.0, "a-library 1.0", 73)


def test_what_is_kept_is_read_again_and_added_to(tmp_path):
    place = tmp_path / "new" / "learnt.json"
    assert lessons.read(place) == ()
    lessons.keep([ONE], place)
    other = replace(ONE, arch=75, right_db=None)
    lessons.keep([other], place)
    assert lessons.read(place) == (ONE, other)


def test_a_later_lesson_about_the_same_condition_takes_the_place_of_an_earlier_one(tmp_path):
    later = replace(ONE, remedy="widen_more", right_db=70.0)
    for lesson in (ONE, later):
        lessons.keep([lesson], tmp_path / "learnt.json")
    assert lessons.read(tmp_path / "learnt.json") == (later,)


@pytest.mark.parametrize("text", ["", "[1]", '{"lessons": [{"operator": "x"}]}', '{"lessons": 3}'])
def test_another_file_is_refused_and_stays(text, tmp_path):
    place = tmp_path / "learnt.json"
    place.write_text(text)
    with pytest.raises(SettingsError, match="holds no lessons") as refused:
        lessons.keep([ONE], place)
    assert refused.value.code == "S207" and place.read_text() == text


def test_the_file_is_among_the_settings_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert lessons.default_place() == tmp_path / "intact" / "learnt.json"
