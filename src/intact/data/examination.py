"""The calibration doctor: what is wrong with inputs, said before they are worked with.

Nothing is refused here: each finding is a sentence, and the work goes on. What data look like in every sample was
recorded when they were loaded (`profile`), so that most of this reads no sample again. Each limit is one that sound
data stay far away from: a sparse input, a binary image, a one-hot row, text without padding are no symptoms.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import onnx_ir as ir

from intact.data import first_layers
from intact.data.dataset import Dataset
from intact.data.input_profile import Extent
from intact.data.mask_values import hiding_value
from intact.data.roles import Mask, Real, Role, Signal, TableIndex, entries, fed_inputs, role
from intact.data.symptom import Symptom
from intact.model import query
from intact.records import dataclass
from intact.settings.config import ImageConfig

__all__ = ["Symptom", "examine"]

# Fewer rows show nothing about the rows of a set, and fewer than many only what is blatant.
FEWEST_ROWS = 4
MANY_ROWS = 8
# So few values may well be the same in a row, or the same in many rows: a time step, a class, a pair of bits.
FEW_ELEMENTS = 8
# Above these shares, rows of one value, and rows that are there more than once, are no chance. Of sparse inputs, many
# a row is empty.
CONSTANT_SHARE = 0.75
REPEATED_SHARE = 0.5
# A table of fewer entries may be asked for one of them only, as those of segments and languages are.
LARGE_TABLE = 32
# Rows of one set that span less than this part of what half of the rows of the other span: two bits of every value are
# lost. Few rows, of which each may be loud or quiet, have to differ by more.
NARROWER_BY = 4.0
FEW_NARROWER_BY = 32.0
# Most rows of the test leave the calibrated range by more than this share of it: they are cut off.
BEYOND_CALIBRATED = 0.5
FEW_BEYOND_CALIBRATED = 8.0
# Rows that are looked into for the order of their channels, and the ratio of differences that gives it away.
LAYOUT_ROWS = 16
INTERLEAVED_BELOW = 0.5


@dataclass(frozen=True, slots=True)
class GivenData:
    """An input of the model that data are fed to, and its role."""

    value: ir.Value
    role: Role

    @property
    def name(self) -> str:
        return self.value.name or ""

    def extent(self, rows: Dataset) -> Extent:
        return rows.profile.extents[self.name]

    def holds_data(self, rows: Dataset) -> bool:
        """True for what has more than a few elements and is neither ids nor a mask."""
        return isinstance(self.role, Real | Signal) and self.extent(rows).size > FEW_ELEMENTS

    def is_rich(self, rows: Dataset) -> bool:
        """True if two samples of it are hardly ever the same by chance: more than zeros and ones."""
        return self.holds_data(rows) and not self.extent(rows).binary

    def holds_words(self, rows: Dataset) -> bool:
        """True for ids into a large table, more than a few of them."""
        is_large = (
            isinstance(self.role, TableIndex) and self.role.known and self.role.high - self.role.low >= LARGE_TABLE
        )
        return is_large and self.extent(rows).size > FEW_ELEMENTS


def examine(
    model: ir.Model, calibration: Dataset, test: Dataset | None = None, *, images: ImageConfig | None = None
) -> tuple[Symptom, ...]:
    """Find symptoms of wrong inputs, each kind once for each input; `test` is None for rows that stand alone.

    Inputs that were made up are as they should be, and are left out.
    """
    inputs = [GivenData(value, role(value)) for value in fed_inputs(model)]
    real = [rows for rows in (calibration, test) if rows is not None and rows.kind != "synthetic"]
    # Rows that were held back are few, and what is wrong with a file shows in the others.
    others = [rows for rows in real[1:] if rows.source is not calibration.source]
    found = [symptom for rows in (*real[:1], *others) for symptom in _alone(model, inputs, rows, images)]
    if len(real) == 2:
        found += _together(inputs, *real)
    once = {(symptom.kind, symptom.input): symptom for symptom in reversed(found)}
    return tuple(symptom for symptom in found if once[symptom.kind, symptom.input] is symptom)


def _alone(model: ir.Model, inputs: list[GivenData], rows: Dataset, images: ImageConfig | None) -> Iterator[Symptom]:
    """Symptoms of one set of rows."""
    yield from _constant(inputs, rows)
    yield from _repeated(inputs, rows)
    if rows.kind == "images" and images is not None:
        yield from _settings(inputs, images, rows)
    for given in inputs:
        if isinstance(given.role, Mask):
            yield from _mask(given, rows)
        elif isinstance(given.role, TableIndex):
            yield from _ids(given, rows)
        elif given.holds_data(rows):
            yield from _layout(given, rows)
            yield from first_layers.doubts(given.value, model, rows)


def _together(inputs: list[GivenData], calibration: Dataset, test: Dataset) -> Iterator[Symptom]:
    """Symptoms of two sets of rows beside each other."""
    for given in inputs:
        if given.holds_data(calibration):
            yield from _mismatch(given, calibration, test)
    if test.source is not calibration.source:
        yield from _overlap(inputs, calibration, test)


def _constant(inputs: list[GivenData], rows: Dataset) -> Iterator[Symptom]:
    """Rows of one value each. Beside inputs that vary it may be a state that starts at 0: worth a warning only."""
    data = [given for given in inputs if given.holds_data(rows)]
    allowed = CONSTANT_SHARE if rows.rows >= MANY_ROWS else (rows.rows - 1) / rows.rows
    flat = [given for given in data if np.mean(given.extent(rows).widths == 0) > allowed]
    words = [given for given in inputs if given.holds_words(rows)]
    same = [given for given in words if given.extent(rows).low == given.extent(rows).high]
    alone = len(flat) == len(data) and len(same) == len(words)
    for given in (*flat, *same):
        extent = given.extent(rows)
        share = _share(int(np.count_nonzero(extent.widths == 0)), rows.rows)
        value = f" ({extent.low:.4g})" if extent.low == extent.high else ""
        yield Symptom(
            "constant",
            given.name,
            f"{rows.source.where}: input {given.name} holds one value only{value} in {share} rows, where real inputs "
            "vary; see how the rows were made",
            doubtful=alone or given in same,
        )


def _repeated(inputs: list[GivenData], rows: Dataset) -> Iterator[Symptom]:
    """Rows that are there more than once: most of them, or, of inputs with few possible values, all."""
    elements = sum(given.extent(rows).size for given in inputs)
    told = _not_blank(inputs, rows)
    if len(told) < FEWEST_ROWS or elements <= FEW_ELEMENTS:
        return
    distinct, rich = len(set(told)), any(given.is_rich(rows) for given in inputs)
    if distinct == 1 or (rich and len(told) - distinct > REPEATED_SHARE * len(told)):
        yield Symptom(
            "repeated",
            _names(inputs),
            f"{rows.source.where}: {len(told)} rows, but only {distinct} different; repeated rows show nothing new, "
            "so give as many different ones",
            doubtful=True,
        )


def _not_blank(inputs: list[GivenData], rows: Dataset) -> list[bytes]:
    """The digests of rows that hold more than one value somewhere: others are counted as constant, not as repeated."""
    data = [given.extent(rows).widths == 0 for given in inputs if given.holds_data(rows)]
    blank = np.logical_and.reduce(data) if data else np.zeros(rows.rows, bool)
    return [one for one, empty in zip(rows.profile.digests, blank, strict=True) if not empty]


def _settings(inputs: list[GivenData], images: ImageConfig, rows: Dataset) -> Iterator[Symptom]:
    """A mean for pixels up to 255, although pixels are divided by 255 before it is subtracted."""
    if max(images.mean) > 1:
        yield Symptom(
            "range",
            _names(inputs),
            f"{rows.source.where}: --image-mean {', '.join(map(str, images.mean))} is subtracted from pixels of 0 to "
            "1; divide mean and deviation by 255",
            doubtful=True,
        )


def _mask(given: GivenData, rows: Dataset) -> Iterator[Symptom]:
    """A mask that hides everything in every row, or nothing in any; of few rows held back, all may well be long."""
    extent, hides = given.extent(rows), hiding_value(given.value)
    if hides is None or extent.size < 2 or extent.low != extent.high:
        return
    if extent.low == hides:
        yield Symptom(
            "mask",
            given.name,
            f"{rows.source.where}: mask {given.name} is {hides} throughout all {rows.rows} rows, which hides "
            f"everything; {1 - hides} stands for what counts",
            doubtful=True,
        )
    elif extent.low == 1 - hides and rows.rows >= FEWEST_ROWS and rows.start == 0:
        yield Symptom(
            "mask",
            given.name,
            f"{rows.source.where}: mask {given.name} is {1 - hides} throughout all {rows.rows} rows, so that padding "
            "is never seen; add padded rows if the model will get any",
            doubtful=False,
        )


def _ids(given: GivenData, rows: Dataset) -> Iterator[Symptom]:
    """Ids that a table does not have, or that count from its end."""
    extent, size = given.extent(rows), entries(given.value)
    if size is None or (extent.low >= 0 and extent.high < size):
        return
    wraps = -size <= extent.low < 0 and extent.high < size
    what = "negative ids count from its end" if wraps else "the model cannot run with others"
    yield Symptom(
        "ids",
        given.name,
        f"{rows.source.where}: input {given.name} holds ids of {extent}, but its table has {size} entries, 0 to "
        f"{size - 1}: {what}; see that tokenizer and model belong together",
        doubtful=not wraps,
    )


def _layout(given: GivenData, rows: Dataset) -> Iterator[Symptom]:
    """Pixels with their colours side by side in an input whose colours lie apart: values repeat after three."""
    shape = query.static_shape(given.value)
    if shape is None or len(shape) != 4 or shape[1] != 3 or shape[3] < 12 or rows.rows < FEWEST_ROWS:
        return
    ratios = [_period_of_three(row[given.name]) for row in islice(rows, LAYOUT_ROWS)]
    if np.mean([ratio < INTERLEAVED_BELOW for ratio in ratios]) > 0.5:
        yield Symptom(
            "layout",
            given.name,
            f"{rows.source.where}: input {given.name} is [1, 3, height, width], but its values repeat after three, as "
            "colours that lie side by side do (NHWC); .transpose(0, 3, 1, 2) moves them, .reshape does not",
            doubtful=True,
        )


def _period_of_three(image: np.ndarray) -> float:
    """The mean difference of values three apart along the width, against that of neighbours; 1 where none differ."""
    values = image.astype(np.float32)
    near = float(np.abs(values[..., 1:] - values[..., :-1]).mean())
    far = float(np.abs(values[..., 3:] - values[..., :-3]).mean())
    return far / near if near > 0 else 1.0


def _mismatch(given: GivenData, calibration: Dataset, test: Dataset) -> Iterator[Symptom]:
    """Rows to test on that the calibrated range does not hold, or that fill next to nothing of it."""
    seen, asked = given.extent(calibration), given.extent(test)
    many = min(calibration.rows, test.rows) >= MANY_ROWS
    share = BEYOND_CALIBRATED if many else FEW_BEYOND_CALIBRATED
    beyond = seen.high > seen.low and first_layers.reaches_beyond(asked, seen.low, seen.high, share)
    if beyond or _narrower(asked, seen) or _narrower(seen, asked):
        yield Symptom(
            "mismatch",
            given.name,
            f"{calibration.source.where}: calibration rows of input {given.name} are {_usual(seen)} and test rows "
            f"{_usual(asked)} ({test.source.where}): ranges of the one do not serve the other; prepare both alike",
            doubtful=True,
        )


def _narrower(one: Extent, other: Extent) -> bool:
    """True if rows of `one` span far less than those of `other`; constant rows say nothing about a scale."""
    narrow, wide = one.widths[one.widths > 0], other.widths[other.widths > 0]
    rows = min(narrow.size, wide.size)
    factor = NARROWER_BY if rows >= MANY_ROWS else FEW_NARROWER_BY
    return rows > 0 and bool(factor * _quantile(narrow, 0.9) < _quantile(wide, 0.5))


def _quantile(values: np.ndarray, share: float) -> float:
    """The value below which a share of these lies, between neighbours in proportion.

    numpy's own imports its masked arrays, which takes as long as all else that is looked at here.
    """
    return float(np.interp(share * (values.size - 1), np.arange(values.size), np.sort(values)))


def _usual(extent: Extent) -> str:
    """The extremes of the median row."""
    return f"{_quantile(extent.lows, 0.5):.4g} to {_quantile(extent.highs, 0.5):.4g}"


def _overlap(inputs: list[GivenData], calibration: Dataset, test: Dataset) -> Iterator[Symptom]:
    """Rows to test on that ranges were measured on, too."""
    if not any(given.is_rich(test) or given.holds_words(test) for given in inputs):
        return
    seen = set(calibration.profile.digests)
    count = sum(one in seen for one in test.profile.digests)
    if count:
        yield Symptom(
            "overlap",
            _names(inputs),
            f"{test.source.where}: {_share(count, test.rows)} test rows are calibration rows, too, so the accuracy is "
            "flattered; test on rows that calibration has not seen",
            doubtful=count == test.rows,
        )


def _share(count: int, total: int) -> str:
    return f"all {total}" if count == total else f"{count} of {total}"


def _names(inputs: list[GivenData]) -> str:
    return ", ".join(given.name for given in inputs)
