"""Refusals that need nothing loaded: for a command line, which has them said at once."""

from __future__ import annotations

from pathlib import Path

from intact.reports.publish import check_folder
from intact.settings.config import BuildConfig


def check_early(output: Path, config: BuildConfig, *, overwrite: bool) -> None:
    """Refuse a folder that is taken, and a chip that the device does not have."""
    check_folder(output, overwrite=overwrite)
    if config.compile.soc is not None or config.compile.arch is not None:
        from intact.targets.registry import load_target

        load_target(config.compile.device, soc=config.compile.soc, arch=config.compile.arch)
