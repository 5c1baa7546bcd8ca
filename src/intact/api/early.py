"""Checks that load nothing, so that the command line reports a mistake at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from intact.api.given_model import refuse_alone as refuse_alone
from intact.settings import contradictions, devices, named_files
from intact.settings.config import BuildConfig
from intact.settings.contradictions import check_partner as check_partner
from intact.settings.contradictions import check_search as check_search
from intact.settings.contradictions import check_ways as check_ways
from intact.settings.contradictions import refuse_auto as refuse_auto
from intact.targets import offer


def check_device(config: BuildConfig) -> None:
    """Refuse a chip, a precision or a gate that the device has no use for, and what `check_files` refuses."""
    offer.check_settings(config)
    check_files(config)


def check_files(config: BuildConfig) -> None:
    """Refuse files that are not there, and a gate on accuracy without labels."""
    named_files.refuse_missing(config)
    contradictions.check_labels(config)


def check_cells(chips: Sequence[str], precisions: Sequence[str], config: BuildConfig) -> None:
    """Refuse devices and precisions of a matrix that nobody knows, and what `check_files` refuses."""
    contradictions.check_cells([f"{chip}-{precision}" for chip in chips for precision in precisions])
    for chip in chips:
        for precision in precisions:
            BuildConfig.from_dict({"precision": precision, "compile": devices.in_words(chip)})
    check_files(config)


def check_folder(output: Path, *, overwrite: bool) -> None:
    """Refuse an output folder that is taken."""
    from intact.reports import publish

    publish.check_folder(output, overwrite=overwrite)
