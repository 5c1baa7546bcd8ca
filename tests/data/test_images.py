"""Folders of images: how an image becomes an input, which files count, and what is refused."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from intact.data import Reading, images, load
from intact.errors import DataError, NotAvailable, SettingsError
from intact.settings.config import BuildConfig, ImageConfig
from tests.data.models import model

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed (extra: images)")

NCHW, NHWC = model("float[1, 3, 4, 6] x"), model("float[1, 4, 6, 3] x")


def picture(path, height, width, *, mode="RGB", seed=0):
    """Random pixels, saved without loss; returns them."""
    channels = {"RGB": (3,), "L": (), "RGBA": (4,)}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, *channels), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels, mode).save(path) if mode == "RGBA" else Image.fromarray(pixels).save(path)
    return pixels


def first(given, folder, **settings):
    """What the model is fed for the first image."""
    parts = load(given, str(folder), samples=1, reading=Reading(ImageConfig.from_dict(settings)))
    assert parts.calibration.kind == "images"
    return next(iter(parts.calibration))["x"]


def refusal(given, folder, **settings):
    with pytest.raises(DataError) as caught:
        load(given, str(folder), samples=8, reading=Reading(ImageConfig.from_dict(settings)))
    return caught.value


NUMBERS = [
    ({}, lambda p: p / 255),
    ({"mean": 0.5, "std": 0.25}, lambda p: (p / 255 - 0.5) / 0.25),
    ({"mean": "0.1,0.2,0.3", "std": "1,2,4"}, lambda p: (p / 255 - [0.1, 0.2, 0.3]) / [1, 2, 4]),
    ({"order": "bgr"}, lambda p: p[:, :, ::-1] / 255),
    ({"order": "bgr", "mean": "0.1,0.2,0.3"}, lambda p: p[:, :, ::-1] / 255 - [0.1, 0.2, 0.3]),
]


@pytest.mark.parametrize(("settings", "expected"), NUMBERS)
def test_pixels_are_scaled_ordered_and_laid_out_as_the_settings_say(tmp_path, settings, expected):
    wanted = expected(picture(tmp_path / "a.png", 4, 6).astype(np.float64))
    np.testing.assert_allclose(first(NHWC, tmp_path, **settings), wanted[None], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(first(NCHW, tmp_path, **settings), wanted.transpose(2, 0, 1)[None], rtol=1e-6, atol=1e-7)


LAYOUTS = [
    # input, settings, shape of the feed
    ("float[1, 3, 4, 6]", {}, (1, 3, 4, 6)),
    ("float[N, 4, 6, 3]", {}, (1, 4, 6, 3)),
    ("float[3, 4, 6]", {}, (3, 4, 6)),
    ("float[1, 1, 4, 6]", {}, (1, 1, 4, 6)),
    ("float[N, 3, H, W]", {"size": "5x7"}, (1, 3, 5, 7)),
    ("float[N, 3, H, W]", {"size": 5}, (1, 3, 5, 5)),
    ("float[N, C, H, W]", {"size": "5x7", "layout": "nhwc"}, (1, 5, 7, 3)),
    ("float[1, 3, 3, 3]", {}, (1, 3, 3, 3)),
    ("float[2, 3, 4, 6]", {}, (2, 3, 4, 6)),
    ("uint8[1, 3, 4, 6]", {}, (1, 3, 4, 6)),
    ("float16[1, 3, 4, 6]", {"mean": 0.5}, (1, 3, 4, 6)),
]


@pytest.mark.parametrize(("declared", "settings", "shape"), LAYOUTS)
def test_size_layout_and_type_are_those_of_the_input(tmp_path, declared, settings, shape):
    for name in "ab":
        picture(tmp_path / f"{name}.png", 4, 6)
    given = model(f"{declared} x")
    found = first(given, tmp_path, **settings)
    assert found.shape == shape and found.dtype == given.graph.inputs[0].dtype.numpy()


def test_bytes_stay_bytes(tmp_path):
    pixels = picture(tmp_path / "a.png", 4, 6)
    assert np.array_equal(first(model("uint8[1, 4, 6, 3] x"), tmp_path)[0], pixels)


@pytest.mark.parametrize(
    ("height", "width", "rows", "columns"),
    [(8, 20, slice(None), slice(4, 16)), (20, 12, slice(6, 14), slice(None)), (8, 12, slice(None), slice(None))],
)
def test_an_image_covers_the_input_and_is_cut_around_the_centre(tmp_path, height, width, rows, columns):
    """At half the size a flat image stays flat, so the pixels that remain show where it was cut."""
    marked = np.zeros((height, width, 3), np.uint8)
    marked[rows, columns] = 200
    Image.fromarray(marked).save(tmp_path / "a.png")
    found = first(NHWC, tmp_path)[0]
    assert np.allclose(found[1:-1, 1:-1], 200 / 255), "the centre is kept"
    bled = np.asarray(Image.fromarray(marked).resize((width // 2, height // 2), Image.Resampling.BILINEAR))
    top, left = (height // 2 - 4) // 2, (width // 2 - 6) // 2
    np.testing.assert_allclose(found, bled[top : top + 4, left : left + 6] / 255, rtol=1e-6)


def test_small_images_grow(tmp_path):
    Image.new("RGB", (2, 2), (10, 20, 30)).save(tmp_path / "a.png")
    assert np.allclose(first(NHWC, tmp_path), np.array([10, 20, 30]) / 255)


@pytest.mark.parametrize("mode", ["L", "RGBA"])
def test_grey_and_transparent_images_feed_a_colour_input(tmp_path, mode):
    pixels = picture(tmp_path / "a.png", 4, 6, mode=mode)
    colour = np.repeat(pixels[:, :, None], 3, 2) if mode == "L" else pixels[:, :, :3]
    assert np.allclose(first(NHWC, tmp_path)[0], colour / 255)


def test_an_image_is_turned_as_its_tag_says(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 3), dtype=np.uint8)
    tag = Image.Exif()
    tag[0x0112] = 6  # to be turned a quarter clockwise
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=tag)
    assert np.allclose(first(NHWC, tmp_path)[0], np.rot90(pixels, -1) / 255)


def test_files_come_in_the_order_of_their_paths_and_others_are_named(tmp_path):
    names = ["b.png", "a/2.PNG", "a/10.png", ".hidden.png", "c.bmp"]
    pixels = {name: picture(tmp_path / name, 4, 6, seed=seed) for seed, name in enumerate(names) if name[0] != "."}
    (tmp_path / ".hidden.png").write_text("no image")
    (tmp_path / "labels.txt").write_text("b a c")
    parts = load(NHWC, str(tmp_path), samples=9)
    order = ["a/10.png", "a/2.PNG", "b.png", "c.bmp"]
    for feed, name in zip(parts.calibration, order, strict=True):
        assert np.allclose(feed["x"][0], pixels[name] / 255), name
    assert any("labels.txt" in warning for warning in parts.warnings)


def test_the_digest_is_of_what_the_model_is_fed(tmp_path):
    for folder in ("one", "two"):
        picture(tmp_path / folder / "a.png", 4, 6)
    same = [load(NHWC, str(tmp_path / folder), samples=4).calibration.sha256 for folder in ("one", "two")]
    other = load(NHWC, str(tmp_path / "one"), samples=4, reading=Reading(ImageConfig(order="bgr"))).calibration.sha256
    assert same[0] == same[1] != other


def test_images_can_be_the_test_data_alone(tmp_path):
    picture(tmp_path / "images" / "a.png", 4, 6)
    np.savez(tmp_path / "d.npz", x=np.zeros((8, 4, 6, 3), np.float32))
    parts = load(NHWC, str(tmp_path / "d.npz"), samples=8, test_source=str(tmp_path / "images"))
    assert (parts.calibration.kind, parts.test.kind) == ("npz", "images")


def test_only_one_image_at_a_time_is_in_memory(tmp_path):
    for index in range(12):
        Image.new("RGB", (600, 600)).save(tmp_path / f"{index}.png")
    tracemalloc.start()
    parts = load(model("float[1, 3, 600, 600] x"), str(tmp_path), samples=12)
    for _ in parts.calibration:
        continue
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 600 * 600 * 3 * 4  # all twelve would be 12 of these without what preparing one takes


REFUSED = [
    # input, settings, code
    ("float[1, 16] x", {}, "D123"),
    ("float[1, 4, 4, 6] x", {}, "D125"),
    ("float[N, C, H, W] x", {}, "D125"),
    ("float[N, 3, H, W] x", {}, "D124"),
    ("float[1, 8, 4, 6] x", {"layout": "nchw"}, "D123"),
    ("int64[1, 3, 4, 6] x", {}, "D123"),
    ("uint8[1, 3, 4, 6] x", {"mean": 0.5}, "D123"),
    ("float[1, 3, 4, 6] x", {"std": (1.0, 2.0)}, "D126"),
    ("float[1, 1, 4, 6] x", {"mean": (1.0, 2.0, 3.0)}, "D126"),
    ("float[1, 3, 4, 6] x", {"size": (8, 8)}, "D108"),
    ("float[1, 3, 4, 6] x, float[1] y1", {}, "D122"),
]


@pytest.mark.parametrize(("inputs", "settings", "code"), REFUSED)
def test_an_input_that_is_no_image_is_refused(tmp_path, inputs, settings, code):
    picture(tmp_path / "a.png", 4, 6)
    assert refusal(model(inputs), tmp_path, **settings).code == code


def test_a_file_that_is_no_image_is_named(tmp_path):
    picture(tmp_path / "a.png", 4, 6)
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:60])
    error = refusal(NCHW, tmp_path)
    assert error.code == "D127" and "b.png" in error.message


def test_an_image_of_sixteen_bits_is_refused(tmp_path):
    Image.fromarray(np.full((4, 6), 40000, np.uint16)).save(tmp_path / "a.png")
    assert "its pixels are I" in refusal(NCHW, tmp_path).message, "Pillow calls them I or I;16"


def test_a_folder_without_images_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    assert refusal(NCHW, tmp_path).code == "D109"


def test_settings_without_images_are_refused(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.zeros((8, 4, 6, 3), np.float32))
    assert refusal(NHWC, tmp_path / "d.npz", order="bgr").code == "D128"


def test_without_pillow_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(images.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotAvailable) as caught:
        load(NCHW, str(tmp_path), samples=8)
    assert caught.value.status == 5 and "intact[images]" in (caught.value.fix or "")


@pytest.mark.parametrize("settings", [{"size": "0x4"}, {"size": "4x4x4"}, {"std": 0}, {"mean": "a"}, {"order": "gbr"}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(SettingsError):
        BuildConfig.from_dict({"images": settings})
