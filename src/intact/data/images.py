"""A folder of images, for models with one image input. Needs the `images` extra (Pillow).

Every image goes the same way: turned upright as its EXIF tag says, made RGB or grey as the input has 3 channels or
1, scaled (bilinear, antialiased) until it covers the input's height and width and no further, so that the side that
is shorter by comparison fits, cut to size around the centre, divided by 255, then `(value - mean) / std`. An input
of uint8 takes the bytes as they are.

The images are those of the folder and its subfolders, in the order of their paths. Each is decoded when its turn
comes; only one sample at a time is in memory.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from intact.data.arrays import ArraySource
from intact.data.input_specs import InputSpec
from intact.errors import DataError, NotAvailable, some
from intact.records import dataclass
from intact.settings.config import ImageConfig

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")

# The axes of channels, height and width among the last three of an input.
_AXES = {"nchw": (0, 1, 2), "nhwc": (2, 0, 1)}


@dataclass(frozen=True, slots=True)
class Preparation:
    """The way from an image to an array of one input."""

    channels: Literal[1, 3]
    height: int
    width: int
    layout: Literal["nchw", "nhwc"]
    dtype: np.dtype[np.generic]
    settings: ImageConfig

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one image."""
        size = (self.channels, self.height, self.width)
        return size if self.layout == "nchw" else (*size[1:], size[0])

    def apply(self, image: Image) -> np.ndarray:
        """The values of an upright image, in the layout and the type of the input."""
        pixels = np.asarray(_covering(image.convert("L" if self.channels == 1 else "RGB"), self.height, self.width))
        pixels = pixels.reshape(self.height, self.width, self.channels)
        if self.settings.order == "bgr":
            pixels = pixels[:, :, ::-1]
        values = pixels if self.dtype == np.uint8 else self._scaled(pixels)
        return np.ascontiguousarray(values.transpose(2, 0, 1) if self.layout == "nchw" else values)

    def _scaled(self, pixels: np.ndarray) -> np.ndarray:
        mean, std = (np.array(numbers, np.float64) for numbers in (self.settings.mean, self.settings.std))
        values: np.ndarray = ((pixels / 255.0 - mean) / std).astype(self.dtype)
        return values


@dataclass(frozen=True, slots=True)
class ImageRows:
    """Image files as rows of an array that is never whole in memory."""

    files: tuple[Path, ...]
    preparation: Preparation

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.files), *self.preparation.shape)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return self.preparation.dtype

    def blocks(self, start: int, stop: int, size: int) -> Iterator[np.ndarray]:
        for row in range(start, stop, size):
            yield np.stack([_decoded(path, self.preparation) for path in self.files[row : row + size]])

    def elsewhere(self) -> ImageRows:
        return replace(self, files=tuple(path.resolve() for path in self.files))


def open_images(folder: Path, specs: tuple[InputSpec, ...], settings: ImageConfig) -> ArraySource:
    """The images of `folder` as samples, prepared for the one input of the model."""
    if importlib.util.find_spec("PIL") is None:
        raise NotAvailable("E121", "images cannot be read: Pillow is not installed", fix="pip install 'intact[images]'")
    files, others = _files(folder)
    if len(specs) != 1:
        raise DataError(
            "D122",
            f"{folder}: the model has {len(specs)} inputs: {', '.join(spec.name for spec in specs)}",
            allowed="a folder of images for a model with one input",
            fix="save the inputs as an .npz file keyed by input name",
        )
    rows = ImageRows(files, prepare(specs[0], settings))
    source = ArraySource(specs, {specs[0].name: rows}, "images", str(folder))
    source.warnings += (f"{folder}: {some(others, 3)} left out, not an image by name",) if others else ()
    return source


def _files(folder: Path) -> tuple[tuple[Path, ...], list[str]]:
    """The images, and the names of what else is there; hidden files are nobody's data."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    ordered = sorted(paths, key=lambda path: path.relative_to(folder).parts)
    images = tuple(path for path in ordered if path.suffix.lower() in SUFFIXES)
    if not images:
        raise DataError(
            "D109", f"{folder}: no images", allowed=", ".join(SUFFIXES), fix="give the folder that holds the images"
        )
    return images, [path.name for path in ordered if path.suffix.lower() not in SUFFIXES]


def prepare(spec: InputSpec, settings: ImageConfig) -> Preparation:
    """The preparation for an input: its shape and type decide, and the settings where these leave it open."""
    if len(spec.shape) not in (3, 4):
        raise _not_an_image(spec, "has no room for an image", "rank 3 or 4: channels, height and width, a batch")
    layout = settings.layout or _layout(spec)
    channels, height, width = (spec.shape[-3:][axis] for axis in _AXES[layout])
    if channels not in (1, 3) and isinstance(channels, int):
        raise _not_an_image(spec, f"has {channels} channels as {layout.upper()}", "1 channel (grey) or 3 (colour)")
    size = settings.size or (height, width)
    if not isinstance(size[0], int) or not isinstance(size[1], int):
        raise DataError(
            "D124", f"{spec.name} ({spec}) does not say how large images are", fix="say it: --image-size 224x224"
        )
    count: Literal[1, 3] = 1 if channels == 1 else 3
    _check_numbers(spec, count, settings)
    return Preparation(count, size[0], size[1], layout, spec.dtype, settings)


def _layout(spec: InputSpec) -> Literal["nchw", "nhwc"]:
    first, _, last = spec.shape[-3:]
    if first in (1, 3):
        return "nchw"
    if last in (1, 3):
        return "nhwc"
    raise DataError(
        "D125",
        f"{spec.name} ({spec}) does not say where its channels are",
        allowed="--image-layout nchw or nhwc",
        fix="say it with --image-layout",
    )


def _check_numbers(spec: InputSpec, channels: int, settings: ImageConfig) -> None:
    if spec.dtype == np.uint8:
        if (settings.mean, settings.std) != (ImageConfig().mean, ImageConfig().std):
            raise _not_an_image(spec, "takes bytes as they are", "no --image-mean and no --image-std")
        return
    if spec.dtype.kind != "f":
        raise _not_an_image(spec, "takes no pixels", "a float input, or uint8")
    for flag, numbers in (("mean", settings.mean), ("std", settings.std)):
        if len(numbers) not in (1, channels):
            raise DataError(
                "D126",
                f"--image-{flag} has {len(numbers)} numbers; {spec.name} has {channels} channels",
                allowed=f"one number, or {channels}",
            )


def _not_an_image(spec: InputSpec, found: str, allowed: str) -> DataError:
    return DataError("D123", f"{spec.name} ({spec}) {found}", allowed=allowed, fix="save the inputs as an .npz file")


def _decoded(path: Path, preparation: Preparation) -> np.ndarray:
    from PIL import Image, ImageOps

    try:
        # A file that is damaged or far too large is a warning to Pillow; here it is not data.
        with warnings.catch_warnings(action="error"), Image.open(path) as image:
            if image.mode[0] in "IF":
                raise ValueError(f"its pixels are {image.mode}, not 8 bits a channel")
            return preparation.apply(ImageOps.exif_transpose(image))
    except (OSError, SyntaxError, ValueError, Warning, Image.DecompressionBombError) as error:
        raise DataError(
            "D127", f"{path}: cannot be read as an image: {error}", fix="repair the file or take it out of the folder"
        ) from None


def _covering(image: Image, height: int, width: int) -> Image:
    """The image scaled to cover height × width, cut around the centre."""
    from PIL.Image import Resampling

    scale = max(height / image.height, width / image.width)
    rows, columns = max(height, round(image.height * scale)), max(width, round(image.width * scale))
    scaled = image if (columns, rows) == image.size else image.resize((columns, rows), Resampling.BILINEAR)
    top, left = (rows - height) // 2, (columns - width) // 2
    return scaled.crop((left, top, left + width, top + height))
