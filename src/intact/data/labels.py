"""Labels: the right class of each row of the inputs, for the accuracy of a task.

An .npy file holds one array of integers with a label for each row of the inputs on axis 0. An .npz file holds one such
array for each output that has labels, under the name of the output; a single array may be under `labels` instead, and
is then for the one output of the model.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from intact.data.dataset import Dataset
from intact.data.npz import claimed_bytes, is_array_file
from intact.errors import DataError
from intact.records import dataclass
from intact.settings.named_files import LABELS, no_labels, unread

ANY_OUTPUT = "labels"
MOST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Labels:
    """For each output by name, or for the only one as `labels`, the labels of every sample, in order."""

    where: str
    by_output: Mapping[str, np.ndarray]


def load_labels(path: str, test: Dataset) -> Labels:
    """The labels of the rows in `test`, from a file that has one for each row of the inputs they were taken from."""
    if test.kind == "synthetic":
        raise DataError("D131", f"{path}: synthetic inputs have no labels", fix="give --data or --test-data")
    return Labels(path, {name: _of_samples(array, name, path, test) for name, array in _read(Path(path)).items()})


def _read(path: Path) -> dict[str, np.ndarray]:
    if path.exists() and not path.is_file():
        raise no_labels(path, "is not an ordinary file")
    try:
        if is_array_file(path) and (size := claimed_bytes(path)) > MOST_BYTES:
            raise no_labels(path, f"{size} bytes are too many for labels", f"{MOST_BYTES} bytes")
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return {ANY_OUTPUT: found}
        with found:
            return dict(found.items())
    except DataError:
        raise
    except OSError as error:
        raise no_labels(path, unread(error)) from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise no_labels(path, f"cannot be read as labels: {error}") from None


def _of_samples(array: np.ndarray, name: str, path: str, test: Dataset) -> np.ndarray:
    """The labels of the samples of `test`, one row of the result for each."""
    if not np.issubdtype(array.dtype, np.integer):
        raise DataError("D133", f"{path}: {name} is of type {array.dtype}", allowed=LABELS)
    rows, samples = array.shape[0] if array.ndim else 0, test.source.rows
    if rows == 0 or rows % samples:
        raise DataError(
            "D134",
            f"{path}: {name} has {rows} labels for {samples} samples in {test.source.where}",
            allowed="one label for each row of the inputs, in the same order, those for calibration included",
            fix="label every row of the file: samples that are held back take the labels of their own rows",
        )
    return array.reshape(samples, -1)[test.start : test.stop]
