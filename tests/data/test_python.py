"""Samples from a user's function."""

from __future__ import annotations

import sys
import textwrap

import numpy as np
import pytest

from intact.data import load
from intact.errors import DataError
from tests.data.models import model

TWO = model("float[1, 2] x, int64[1, 3] ids")
ONE = model("float[1, 2] x")

GOOD = """
import numpy as np

def samples(count=10):
    rng = np.random.default_rng(0)
    for row in range(count):
        yield {"x": np.full((1, 2), row, np.float32), "ids": rng.integers(0, 9, (1, 3))}

def listed():
    return list(samples())

def endless():
    return samples(10**9)

def table():
    rows = list(samples())
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}

class Nested:
    @staticmethod
    def samples():
        return samples()

def chatty():
    print("loading")
    for row in samples():
        print("a row")
        yield row

def late_import():
    import mydata_neighbour
    return mydata_neighbour.samples()

bare = lambda: (row["x"] for row in samples())
bare_table = lambda: table()["x"]

number = 5
nothing = lambda: iter(())
scalar = lambda: 7
rows_of_text = lambda: ["text"]
bare_of_two = lambda: [np.zeros((1, 2), np.float32)]
typo = lambda: [{"x": np.zeros((1, 2), np.float32), "idz": np.zeros((1, 3), np.int64)}]
double = lambda: [{"x": np.zeros((1, 2)), "ids": np.zeros((1, 3), np.int64)}]
no_batch = lambda: [{"x": np.zeros(2, np.float32), "ids": np.zeros((1, 3), np.int64)}]
nan = lambda: [{"x": np.full((1, 2), np.nan, np.float32), "ids": np.zeros((1, 3), np.int64)}]
wants_more = lambda argument: []

def fails():
    yield from samples(3)
    raise KeyError("no such picture: cat.png")

stream = samples()
once = lambda: stream
unseeded = lambda: ({"x": np.random.default_rng().random((1, 2), np.float32), "ids": np.zeros((1, 3), np.int64)}
                    for _ in range(9))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with the user's module in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mydata.py").write_text(GOOD)
    (tmp_path / "mydata_neighbour.py").write_text("from mydata import samples\n")
    (tmp_path / "mydata_broken.py").write_text("import mydata_absent_dependency\n")
    yield tmp_path
    for name in ("mydata", "mydata_neighbour", "mydata_broken"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "name", ["samples", "listed", "endless", "table", "Nested.samples", "late_import"], ids=lambda name: name
)
@pytest.mark.usefixtures("folder")
def test_samples_are_yielded_listed_or_given_as_arrays(name):
    path = list(sys.path)
    parts = load(TWO, f"mydata:{name}", samples=6)
    assert parts.calibration.kind == "callable"
    assert [feed["x"][0, 0] for feed in parts.calibration] == [0, 1, 2, 3, 4, 5]
    assert all(feed["ids"].shape == (1, 3) for feed in parts.test)
    assert parts.test.rows == (5 if name == "endless" else 4)
    assert sys.path == path


@pytest.mark.parametrize("name", ["bare", "bare_table"])
@pytest.mark.usefixtures("folder")
def test_a_model_with_one_input_takes_bare_arrays(name):
    assert [feed["x"][0, 1] for feed in load(ONE, f"mydata:{name}", samples=3).calibration] == [0, 1, 2]


@pytest.mark.usefixtures("folder")
def test_the_same_samples_have_the_same_sha256_as_in_a_file(tmp_path):
    from_function = load(TWO, "mydata:table", samples=4)
    np.savez(tmp_path / "d.npz", **sys.modules["mydata"].table())
    from_file = load(TWO, "d.npz", samples=4)
    assert from_function.calibration.sha256 == from_file.calibration.sha256
    assert from_function.test.sha256 == from_file.test.sha256


BAD = [
    ("mydata_nowhere:samples", "D115", "there is no module mydata_nowhere"),
    ("mydata.inner:samples", "D115", "there is no module mydata.inner"),
    ("mydata:smaples", "D116", "did you mean samples"),
    ("mydata:number", "D116", "number is int, not a function"),
    ("mydata_broken:samples", "D117", "ModuleNotFoundError: No module named 'mydata_absent_dependency'"),
    ("mydata:fails", "D117", "KeyError: 'no such picture: cat.png'"),
    ("mydata:wants_more", "D117", "TypeError"),
    ("mydata:nothing", "D109", "no samples"),
    ("mydata:scalar", "D118", "returned int"),
    ("mydata:rows_of_text", "D118", "sample 0: expected arrays by input name, found str"),
    ("mydata:bare_of_two", "D118", "a dict with x, ids"),
    ("mydata:typo", "D104", "did you mean idz?"),
    ("mydata:double", "D106", "x is float64, the model takes float32"),
    ("mydata:no_batch", "D107", "x has shape [2]"),
    ("mydata:nan", "D111", "sample 0: x holds NaN"),
]


@pytest.mark.parametrize(("reference", "code", "text"), BAD)
@pytest.mark.usefixtures("folder")
def test_what_a_function_does_wrong_is_a_data_error(reference, code, text):
    with pytest.raises(DataError) as caught:
        load(TWO, reference, samples=8)
    assert caught.value.code == code
    assert caught.value.status == 2
    assert text in str(caught.value)


@pytest.mark.usefixtures("folder")
def test_the_original_exception_stays_attached():
    with pytest.raises(DataError) as caught:
        load(TWO, "mydata:fails", samples=8)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(("name", "text"), [("once", "and then 0"), ("unseeded", "sample 0 differs")])
@pytest.mark.usefixtures("folder")
def test_a_function_that_does_not_repeat_itself_is_refused_when_it_is_read_again(name, text):
    parts = load(TWO, f"mydata:{name}", samples=4)
    with pytest.raises(DataError) as caught:
        list(parts.calibration)
    assert caught.value.code == "D119"
    assert text in caught.value.message


@pytest.mark.usefixtures("folder")
def test_what_a_function_prints_stays_out_of_standard_output(capsys):
    list(load(TWO, "mydata:chatty", samples=4).test)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "loading" in printed.err


@pytest.mark.usefixtures("folder")
def test_only_one_sample_at_a_time_is_asked_for(folder):
    (folder / "mydata.py").write_text(
        textwrap.dedent("""
        import numpy as np
        asked = []
        def samples():
            for row in range(1000):
                asked.append(row)
                yield {"x": np.zeros((1, 2), np.float32), "ids": np.zeros((1, 3), np.int64)}
        """)
    )
    calibration = iter(load(TWO, "mydata:samples", samples=4).calibration)
    asked = sys.modules["mydata"].asked
    assert asked == list(range(20))
    next(calibration)
    assert asked[20:] == [0]
