"""Files that settings name. Loads nothing, so that one that is not there is told at once."""

from __future__ import annotations

import re
from pathlib import Path

from intact.errors import DataError, SettingsError
from intact.settings.config import BuildConfig

FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""Inputs from a Python function: `module:function`."""
URL = "://"
"""Stands in inputs that are fetched."""
INPUTS = (
    "an .npz file keyed by input name, an .npy file for one input, a folder of images, a .txt file with --tokenizer, "
    "or module:function"
)
SAVE = "np.savez(path, **arrays) with samples on axis 0 writes what is needed"
LABELS = "integers in an .npy file, or in an .npz file under `labels` or the names of outputs, one for each row"
ENCODINGS = "AIMET encodings or ONNX Runtime's TensorQuantOverrides"


def refuse_missing(config: BuildConfig) -> None:
    """Refuse settings that name a file which is not there, as whoever reads it would."""
    quant = config.quantization
    for source in (config.test_path, None if quant is None else quant.load_path):
        if source is not None and not _is_elsewhere(source) and _absence(source):
            raise no_inputs(source, "there is no such file")
    if config.labels is not None and (why := _absence(config.labels)):
        raise no_labels(config.labels, why)
    if quant is not None and quant.plan is not None and (why := _absence(quant.plan)):
        raise no_plan(quant.plan, why)
    if quant is not None and quant.encodings is not None and (why := _absence(quant.encodings)):
        raise no_encodings(quant.encodings, why)


def no_inputs(path: str | Path, why: str) -> DataError:
    """Inputs that are not there, or cannot be read."""
    return DataError("D101", f"{path}: {why}", allowed=INPUTS, fix=SAVE)


def no_labels(path: str | Path, why: str, allowed: str = LABELS) -> DataError:
    """Labels that are not there, cannot be read, or are too many."""
    return DataError("D132", f"{path}: {why}", allowed=allowed)


def no_plan(path: str | Path, why: str) -> SettingsError:
    """A plan file that is not there, or cannot be read."""
    return SettingsError("S170", f"{path}: {why}")


def no_encodings(path: str | Path, why: str) -> SettingsError:
    """A file of encodings that is not there, cannot be read, or holds none."""
    return SettingsError("S160", f"{path}: {why}", allowed=ENCODINGS)


def unread(error: OSError) -> str:
    """The reason why a file cannot be read, in words."""
    return f"cannot be read: {error.strerror or error}"


def _is_elsewhere(source: str) -> bool:
    """True for inputs that are no file here: a function, or a URL."""
    return URL in source or FUNCTION.fullmatch(source) is not None


def _absence(name: str) -> str | None:
    """The reason why nothing is found at a path; None where something is, which its reader may refuse."""
    try:
        Path(name).stat()
    except FileNotFoundError as error:
        return unread(error)
    except (OSError, ValueError):
        return None
    return None
