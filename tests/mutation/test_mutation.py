"""The faults that are planted, and the tests that they are given to."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.mutation import child, imports, run
from tests.mutation.mutants import mutants


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        ("x = a < b", {"x = a <= b", "x = a > b"}),
        ("x = a is None", {"x = a is not None"}),
        ("x = a + 1", {"x = a - 1", "x = a + 2", "x = a + 0"}),
        ("x = 0.5", {"x = 1.0"}),
        ("x = a and not b", {"x = a or not b", "x = a and b"}),
        ("x = min(a)", {"x = max(a)"}),
        ("x = np.rint(a)", {"x = np.floor(a)"}),
        ("x = a if b else c", {"x = c if b else a"}),
        ("f(a)", {"pass"}),
        ("def f():\n    return a", {"def f():\n    return None"}),
        ("x = a[0]", {"x = a[1]"}),
        ("x = a[1]", {"x = a[2]", "x = a[0]"}),
        ("x = a.reshape(-1)", {"x = a.reshape(1)"}),
        ("if a == b:\n    c = d", {"if a != b:\n    c = d"}),
        ("if a:\n    c = d", {"if not a:\n    c = d"}),
    ],
)
def test_a_text_has_these_faults(source, faults):
    assert {ast.unparse(mutant.tree(source)) for mutant in mutants(source)} == faults


@pytest.mark.parametrize(
    "source",
    [
        '"""1 < 2"""',
        "x: int | None",
        "def f(a: int | str) -> A | B:\n    pass",
        "@dataclass(frozen=True)\nclass A:\n    pass",
        "assert 1 < 2, 3",
        "x = f'{a + 1}'",
        "if TYPE_CHECKING:\n    x = 1",
        "X: TypeAlias = int | None",
        "x = zip(a, b, strict=True)",
        "def f():\n    return None",
    ],
)
def test_what_no_test_has_to_pin_down_has_none(source):
    assert mutants(source) == []


def test_a_fault_is_named_without_its_line_so_that_it_stays_the_same():
    before, after = (mutants(f"{space}def f(a):\n    return a < 1 or a < 1\n") for space in ("", "\n\n"))
    assert [mutant.key for mutant in before] == [mutant.key for mutant in after]
    assert len({mutant.key for mutant in before}) == len(before)


def test_every_pattern_of_subjects_fits_a_module(monkeypatch):
    assert len(run.subjects()) > 40
    monkeypatch.setattr(run, "SUBJECTS", ("intact.nowhere.*",))
    with pytest.raises(AssertionError, match=r"no module fits 'intact\.nowhere\.\*'"):
        run.subjects()


def test_the_tests_of_a_module_are_those_that_import_it():
    nearest, *others = imports.tests_of("intact.numbers.encoding")
    assert nearest[0].name == "test_encoding.py" and others
    assert not {path for ring in others for path in ring} & set(nearest)


def test_the_same_faults_are_drawn_every_time():
    first, second = (run.draw(20, seed=3) for _ in range(2))
    assert [planted.key for planted in first] == [planted.key for planted in second]
    assert [planted.key for planted in run.draw(20, seed=4)] != [planted.key for planted in first]


def test_every_equivalent_is_a_fault_that_can_be_drawn():
    known = {planted.key for planted in run.draw(10**9, seed=0)}
    assert [key for key in run.equivalents() if key not in known] == []
    assert all(len(reason) > 20 for reason in run.equivalents().values())


CHILD = """
import ast, sys
from tests.mutation import child, imports, run
source = imports.SOURCES.joinpath("intact", "numbers", "encoding.py").read_text(encoding="utf-8")
tests = ["tests/numbers/test_encoding.py::test_a_two_bit_grid_uses_its_one_more_negative_step"]
tree = ast.parse(source.replace(*sys.argv[1:]))
print(run.wait(child.start(lambda: child.passes("intact.numbers.encoding", tree, tests), 60)))
"""


@pytest.mark.parametrize(
    ("old", "new", "ends"),
    [
        ("greatest = limits(dtype)", "greatest = limits(dtype)", child.SURVIVED),
        ("minimum(levels, greatest,", "minimum(levels, greatest + 1,", child.KILLED),
        ("import numpy", "import nonsense", child.KILLED),
    ],
)
def test_a_child_notices_a_fault_and_nothing_else(old, new, ends):
    """In a process of its own, like `make mutate`: here the module may be imported already."""
    command = [sys.executable, "-c", CHILD, old, new]
    done = subprocess.run(command, cwd=imports.ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) == ends
