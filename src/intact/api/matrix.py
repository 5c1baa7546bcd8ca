"""`intact.matrix`: one model for many devices at many precisions, and one table to choose from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Unpack

import numpy as np

from intact import scratch
from intact.api.given_model import path_of
from intact.api.notebook_progress import watched
from intact.errors import SettingsError
from intact.events import Events
from intact.search.matrix import cells
from intact.search.matrix.cells import Outcome
from intact.settings.config import BuildConfig
from intact.settings.keywords import AnyPath, Keywords, configured


def matrix(
    model: AnyPath | None = None,
    *,
    devices: Sequence[str],
    precisions: Sequence[str],
    output: AnyPath,
    workers: int | None = None,
    threads: int | None = None,
    cluster: str | None = None,
    config: BuildConfig | None = None,
    events: Events | None = None,
    **settings: Unpack[Keywords],
) -> list[Outcome]:
    """Build every pair of a device and a precision into its folder of `output`, side by side.

    A device is `cpu`, `qnn`, `qnn:v75`, `qnn:SM8650`, or `qnn@2.6.0` with another version of its toolchain. A cell
    that fails does not stop the others.
    """
    with scratch.folder("inputs") as folder:
        held = {name: _as_file(name, settings.get(name), Path(folder)) for name in ("data", "test_data")}
        plain = {**settings, **{name: path for name, path in held.items() if path is not None}}
        wanted = cells.cells(devices, precisions, configured(config, plain))
        where = cells.Where(workers, threads, cluster)
        return cells.run(path_of(model), wanted, Path(output), where, watched(events))


def _as_file(name: str, inputs: object, folder: Path) -> str | None:
    """Inputs as a path: cells are built in processes of their own, which see no memory of this one."""
    if inputs is None or isinstance(inputs, str | PathLike):
        return None if inputs is None else str(inputs)
    if not isinstance(inputs, Mapping):
        raise SettingsError("S189", f"{name}: a matrix takes a path, module:function, or arrays by input name")
    path = folder / f"{name}.npz"
    np.savez(path, **{key: np.asarray(value) for key, value in inputs.items()})  # type: ignore[arg-type]
    return str(path)
