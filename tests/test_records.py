"""Records behave as dataclasses of the standard library do, and write no method before it is needed."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from dataclasses import field

import pytest

from intact import records


def classes(dataclass):
    """The same classes, made by one decorator or the other."""

    @dataclass(frozen=True, slots=True)
    class Point:
        """Fields with and without defaults, and one that is made anew."""

        x: int
        y: float = 0.5
        tags: tuple = ()
        seen: list = field(default_factory=list, compare=False, repr=False)

    @dataclass(frozen=True, slots=True)
    class Single:
        """One field: its hash is that of a tuple, not of the value."""

        x: int

    @dataclass(frozen=True, slots=True)
    class Empty:
        """No field at all."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        """Fields by name only."""

        x: int = 1
        y: int

    @dataclass(frozen=True, slots=True, eq=False, repr=False)
    class Plain:
        """Compared by identity."""

        x: int

    @dataclass(slots=True)
    class Counter:
        """Changes, derives a field, and checks what it is given."""

        x: int
        y: list = field(default_factory=list)
        twice: int = field(init=False)
        rest: int = field(init=False, default=7)

        def __post_init__(self):
            if self.x < 0:
                raise ValueError(self.x)
            self.twice = 2 * self.x

    @dataclass(frozen=True, slots=True)
    class Farther(Point):
        """Fields of a base and its own, with a representation and an equality of its own."""

        z: int = 3

        def __repr__(self):
            return "far"

        def __eq__(self, other):
            return True

    return {cls.__name__: cls for cls in (Point, Single, Empty, Named, Plain, Counter, Farther)}


OURS, THEIRS = classes(records.dataclass), classes(dataclasses.dataclass)
# Found by pickle under their names.
globals().update(OURS)
for _cls in OURS.values():
    _cls.__qualname__ = _cls.__name__
for _cls in THEIRS.values():
    _cls.__qualname__ = _cls.__name__

CALLS = {
    "Point": [((1,), {}), ((1, 2.0, ("a",)), {}), ((), {"x": 3, "seen": [1]})],
    "Single": [((4,), {}), ((5,), {})],
    "Empty": [((), {})],
    "Named": [((), {"y": 2}), ((), {"x": 5, "y": 2})],
    "Plain": [((1,), {})],
    "Counter": [((1,), {}), ((2, [3]), {})],
    "Farther": [((1,), {"z": 9}), ((1,), {})],
}
INSTANCES = [(name, *call) for name, calls in CALLS.items() for call in calls]


@pytest.mark.parametrize(("name", "arguments", "named"), INSTANCES)
def test_an_instance_is_what_the_standard_library_would_make(name, arguments, named):
    ours, theirs = OURS[name](*arguments, **named), THEIRS[name](*arguments, **named)

    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    if name != "Plain":  # whose representation is its address
        assert repr(ours) == repr(theirs)
    assert ours.__match_args__ == theirs.__match_args__
    assert not hasattr(ours, "__dict__")


@pytest.mark.parametrize("name", OURS)
def test_the_signature_is_told_before_the_first_instance(name):
    cls, known = classes(records.dataclass)[name], THEIRS[name]

    def told(of):
        return [(one.name, one.kind, one.annotation) for one in inspect.signature(of).parameters.values()]

    assert told(cls) == told(known)


@pytest.mark.parametrize(("name", "arguments", "named"), INSTANCES)
def test_equality_and_hash_are_those_of_the_standard_library(name, arguments, named):
    def facts(cls):
        one, same = cls(*arguments, **named), cls(*arguments, **named)
        try:
            hashed = hash(one) if name != "Plain" else "of its address"
        except TypeError as error:
            hashed = str(error)
        return one == same, one != same, one == 3, hashed

    assert facts(OURS[name]) == facts(THEIRS[name])


@pytest.mark.parametrize("name", ["Point", "Named", "Farther", "Counter"])
def test_copies_are_equal(name):
    arguments, named = CALLS[name][0]
    one = OURS[name](*arguments, **named)

    for made in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
        assert dataclasses.asdict(made) == dataclasses.asdict(one)
    assert dataclasses.replace(one, x=8).x == 8


@pytest.mark.parametrize("name", ["Point", "Named", "Farther"])
def test_a_frozen_record_does_not_change(name):
    arguments, named = CALLS[name][0]
    one = OURS[name](*arguments, **named)

    with pytest.raises(dataclasses.FrozenInstanceError):
        one.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del one.x


@pytest.mark.parametrize(
    ("name", "arguments", "named"), [("Point", (), {}), ("Named", (1,), {"y": 2}), ("Single", (1, 2), {})]
)
def test_wrong_arguments_are_refused(name, arguments, named):
    with pytest.raises(TypeError, match=r"__init__\(\)"):
        OURS[name](*arguments, **named)


def test_what_a_record_checks_is_checked_and_factories_share_nothing():
    with pytest.raises(ValueError, match="-1"):
        OURS["Counter"](-1)
    assert OURS["Counter"](1).y is not OURS["Counter"](1).y


def test_defining_a_record_compiles_nothing():
    code = (
        "import builtins, intact.records as records\n"
        "builtins.exec = builtins.compile = None\n"
        "@records.dataclass(frozen=True, slots=True)\n"
        "class Point:\n    'A point.'\n    x: int\n    y: int = 2\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
