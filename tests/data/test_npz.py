"""Files of arrays: which rows become which samples, what is refused, and what stays out of memory."""

from __future__ import annotations

import contextlib
import tracemalloc
import zipfile

import numpy as np
import pytest

from intact.data import load
from intact.errors import DataError
from tests.data.models import IMAGE, model

SAVERS = pytest.mark.parametrize("save", [np.savez, np.savez_compressed])


def ramp(*shape, dtype=np.float32):
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def everything(given, path, **settings):
    """All rows of the file, as the model is fed them."""
    parts = load(given, str(path), samples=1000, **settings)
    held = list(parts.test) if parts.test is not parts.calibration else []
    return [*parts.calibration, *held]


def refusal(given, path):
    with pytest.raises(DataError) as caught:
        load(given, str(path), samples=8)
    assert caught.value.status == 2
    return caught.value


RULE = [
    # input, array, the feed for sample i
    ("float[1, 3, 4]", (10, 3, 4), lambda a, i: a[i : i + 1]),
    ("float[N, 3, 4]", (10, 3, 4), lambda a, i: a[i : i + 1]),
    ("float[N, 3, M]", (10, 3, 9), lambda a, i: a[i : i + 1]),
    ("float[1, 3, 4]", (10, 1, 3, 4), lambda a, i: a[i]),
    ("float[N, 3, 4]", (10, 2, 3, 4), lambda a, i: a[i]),
    ("float[32]", (10, 32), lambda a, i: a[i]),
    ("float[16, 16]", (10, 16, 16), lambda a, i: a[i]),
    ("float[1]", (10,), lambda a, i: a[i : i + 1]),
    ("float", (10,), lambda a, i: a[i]),
    ("float[2, 3]", (20, 3), lambda a, i: a[2 * i : 2 * i + 2]),
    ("float[2, 3]", (10, 2, 3), lambda a, i: a[i]),
]


@SAVERS
@pytest.mark.parametrize(("declared", "shape", "expected"), RULE)
def test_the_rank_of_the_array_decides_how_rows_become_samples(tmp_path, save, declared, shape, expected):
    array = ramp(*shape)
    save(tmp_path / "d.npz", x=array)
    samples = everything(model(f"{declared} x"), tmp_path / "d.npz")
    assert len(samples) == 10
    for index, feed in enumerate(samples):
        wanted = np.asarray(expected(array, index))
        assert isinstance(feed["x"], np.ndarray)
        assert feed["x"].shape == wanted.shape
        assert np.array_equal(feed["x"], wanted)


def test_the_rank_decides_even_where_sizes_could_mislead(tmp_path):
    np.savez(tmp_path / "d.npz", x=ramp(16, 16))
    assert [feed["x"].shape for feed in everything(model("float[16] x"), tmp_path / "d.npz")] == [(16,)] * 16
    assert [feed["x"].shape for feed in everything(model("float[4, 16] x"), tmp_path / "d.npz")] == [(4, 16)] * 4


def test_rows_left_over_by_a_fixed_batch_are_dropped_with_a_warning(tmp_path):
    np.savez(tmp_path / "d.npz", x=ramp(35, 3))
    parts = load(model("float[4, 3] x"), str(tmp_path / "d.npz"), samples=100)
    assert parts.calibration.rows + parts.test.rows == 8
    assert "last 3 rows of x are dropped" in parts.warnings[0]


@SAVERS
def test_several_inputs_of_any_type_are_read_side_by_side(tmp_path, save):
    given = model("int64[1, 6] ids, bool[6] mask, float16[N, 2] x, uint8 s")
    arrays = {
        "ids": ramp(9, 6, dtype=np.int64),
        "mask": ramp(9, 6, dtype=np.int64) % 2 == 0,
        "x": ramp(9, 2, dtype=np.float16),
        "s": ramp(9, dtype=np.uint8),
    }
    save(tmp_path / "d.npz", **arrays)
    for row, feed in enumerate(everything(given, tmp_path / "d.npz")):
        assert list(feed) == ["ids", "mask", "x", "s"]
        assert all(np.array_equal(feed[name].reshape(-1), arrays[name][row].reshape(-1)) for name in feed)
        assert all(feed[name].dtype == arrays[name].dtype for name in feed)


def test_a_name_with_a_slash_is_read(tmp_path):
    np.savez(tmp_path / "d.npz", **{"in/x:0": ramp(8, 2)})
    given = model("float[1, 2] x")
    given.graph.inputs[0].name = "in/x:0"
    assert len(everything(given, tmp_path / "d.npz")) == 8


def test_an_npy_file_feeds_a_model_with_one_input(tmp_path):
    array = ramp(8, 3, 4, 5)
    np.save(tmp_path / "d.npy", array)
    assert np.array_equal(np.concatenate([feed["x"] for feed in everything(IMAGE, tmp_path / "d.npy")]), array)


@SAVERS
def test_compressed_or_not_the_content_has_the_same_sha256(tmp_path, save):
    np.save(tmp_path / "plain.npy", ramp(9, 3, 4, 5))
    save(tmp_path / "d.npz", x=ramp(9, 3, 4, 5))
    one, two = (load(IMAGE, str(tmp_path / name), samples=3) for name in ("plain.npy", "d.npz"))
    assert (one.calibration.sha256, one.test.sha256) == (two.calibration.sha256, two.test.sha256)


FINE = ramp(8, 3, 4, 5)
NOT_A_NUMBER = FINE.copy()
NOT_A_NUMBER[7, 2, 1, 0] = np.nan
INFINITE = FINE.copy()
INFINITE[0, :, 0, 0] = -np.inf

BAD = [
    ("a misspelt name", {"X_": FINE}, "D104", "no array for input x; found X_"),
    ("a near name", {"xx": FINE}, "D104", "did you mean xx?"),
    ("an extra name", {"x": FINE, "labels": np.arange(8)}, "D105", "labels is not an input"),
    ("float64", {"x": FINE.astype(np.float64)}, "D106", ".astype(np.float32)"),
    ("float16", {"x": FINE.astype(np.float16)}, "D106", "x is float16, the model takes float32"),
    ("pixels", {"x": FINE.astype(np.uint8)}, "D106", "x is uint8, the model takes float32"),
    ("the other byte order", {"x": FINE.astype(">f4")}, "D106", "x is >f4"),
    ("no samples axis", {"x": FINE[0, 0]}, "D107", "[samples, 1, 3, 4, 5] or [samples, 3, 4, 5]"),
    ("too many axes", {"x": FINE[:, None, None]}, "D107", "rank 6"),
    ("a scalar", {"x": np.float32(1)}, "D107", "rank 0"),
    ("another size", {"x": ramp(8, 3, 4, 6)}, "D108", "[8, 3, 4, 6]"),
    ("channels last", {"x": ramp(8, 4, 5, 3)}, "D108", "looks like channels last (NHWC): .transpose(0, 3, 1, 2)"),
    ("channels last, whole", {"x": ramp(8, 1, 4, 5, 3)}, "D108", "channels last (NHWC): .transpose(0, 1, 4, 2, 3)"),
    ("no samples", {"x": FINE[:0]}, "D109", "no samples"),
    ("NaN", {"x": NOT_A_NUMBER}, "D111", "sample 7: x holds NaN (1 of 60 values are not finite)"),
    ("Inf", {"x": INFINITE}, "D111", "sample 0: x holds Inf (3 of 60"),
    ("objects", {"x": np.array([{"a": 1}], dtype=object)}, "D112", "object array"),
    ("columns", {"x": np.asfortranarray(FINE)}, "D113", "np.ascontiguousarray"),
    ("an empty archive", {}, "D104", "found nothing"),
]


@SAVERS
@pytest.mark.parametrize(("arrays", "code", "text"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_file_that_does_not_fit_is_refused(tmp_path, save, arrays, code, text):
    save(tmp_path / "bad.npz", **arrays)
    error = refusal(IMAGE, tmp_path / "bad.npz")
    assert error.code == code
    assert text in str(error)
    assert "bad.npz" in error.message


def test_channels_first_is_recognised_where_the_model_wants_them_last(tmp_path):
    np.savez(tmp_path / "d.npz", x=ramp(8, 3, 4, 5))
    error = refusal(model("float[1, 4, 5, 3] x"), tmp_path / "d.npz")
    assert "looks like channels first (NCHW): .transpose(0, 2, 3, 1)" in str(error)


@pytest.mark.parametrize("dtype", [np.int32, np.uint64, np.float32, bool])
def test_integers_are_never_converted(tmp_path, dtype):
    np.savez(tmp_path / "d.npz", ids=np.ones((8, 6), dtype))
    assert refusal(model("int64[1, 6] ids"), tmp_path / "d.npz").code == "D106"


def test_arrays_of_different_lengths_are_refused_with_their_lengths(tmp_path):
    np.savez(tmp_path / "d.npz", a=ramp(8, 2), b=ramp(9, 2))
    error = refusal(model("float[1, 2] a, float[1, 2] b"), tmp_path / "d.npz")
    assert (error.code, "a 8, b 9" in error.message) == ("D110", True)


def test_one_array_for_two_inputs_is_refused(tmp_path):
    np.save(tmp_path / "d.npy", ramp(8, 2))
    assert refusal(model("float[1, 2] a, float[1, 2] b"), tmp_path / "d.npy").code == "D114"


@pytest.mark.parametrize("name", ["absent.npz", "no/such/folder.npz", "what is this"])
def test_a_missing_file_is_named(tmp_path, name):
    error = refusal(IMAGE, tmp_path / name)
    assert (error.code, name in error.message) == ("D101", True)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "d.npz").write_bytes(b"\x00\x01 nonsense")
    assert refusal(IMAGE, tmp_path / "d.npz").code == "D102"


def test_an_archive_of_something_else_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("x", "hello")
    assert refusal(IMAGE, tmp_path / "d.npz").code == "D103"


def test_a_truncated_npy_file_is_refused(tmp_path):
    np.save(tmp_path / "d.npy", FINE)
    whole = (tmp_path / "d.npy").read_bytes()
    (tmp_path / "d.npy").write_bytes(whole[:-1])
    assert refusal(IMAGE, tmp_path / "d.npy").code == "D103"


def test_damaged_compressed_data_is_refused(tmp_path):
    noise = np.random.default_rng(0).standard_normal((64, 3, 4, 5)).astype(np.float32)
    np.savez_compressed(tmp_path / "d.npz", x=noise)
    content = bytearray((tmp_path / "d.npz").read_bytes())
    content[200:300] = b"\xff" * 100
    (tmp_path / "d.npz").write_bytes(content)
    assert refusal(IMAGE, tmp_path / "d.npz").code == "D103"


def test_no_damage_to_a_header_escapes_as_another_error(tmp_path):
    np.save(tmp_path / "d.npy", FINE)
    whole = (tmp_path / "d.npy").read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(whole)
        for place in rng.integers(0, 128, 2):
            damaged[place] = rng.integers(256)
        (tmp_path / "d.npy").write_bytes(damaged)
        with contextlib.suppress(DataError):
            load(IMAGE, str(tmp_path / "d.npy"), samples=8)


def test_a_row_that_is_not_used_is_not_judged(tmp_path):
    array = np.concatenate([FINE] * 8)
    array[10] = np.nan
    np.savez(tmp_path / "d.npz", x=array)
    assert load(IMAGE, str(tmp_path / "d.npz"), samples=10).calibration.rows == 10
    with pytest.raises(DataError, match="sample 10"):
        load(IMAGE, str(tmp_path / "d.npz"), samples=11)


@SAVERS
def test_memory_does_not_grow_with_the_file(tmp_path, save):
    row_bytes = 64 * 1024
    array = np.random.default_rng(0).standard_normal((256, row_bytes // 4)).astype(np.float32)
    save(tmp_path / "d.npz", x=array)
    given = model(f"float[1, {row_bytes // 4}] x")
    del array
    tracemalloc.start()
    parts = load(given, str(tmp_path / "d.npz"), samples=1000)
    assert sum(feed["x"].nbytes for feed in parts.calibration) == 240 * row_bytes
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * 2**20 < 256 * row_bytes
