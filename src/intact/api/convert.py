"""`intact.convert`: a quantized model from one form to the other."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from intact.api.given_model import path_of
from intact.api.request import settled
from intact.errors import about
from intact.events import Events, Log, Silence
from intact.pipeline import model_files, rewriting
from intact.pipeline.rewriting import RewrittenFile
from intact.rules.quantized import families
from intact.settings.config import BuildConfig
from intact.settings.keywords import AnyPath, Keywords


def convert(
    model: AnyPath | None = None,
    *,
    to: str | None = None,
    output: AnyPath,
    config: BuildConfig | None = None,
    overwrite: bool = False,
    events: Events | None = None,
    **settings: Unpack[Keywords],
) -> RewrittenFile:
    """Convert a quantized model to the form `qdq` or `qlinear`, and run both to compare them."""
    with settled(config, settings) as complete, about(path_of(model)):
        model_files.check_output(Path(output), overwrite, path_of(model), complete)
        target = families.conversion(to)
        order = rewriting.RewriteOrder(path_of(model), Path(output), target, families.rules_for(target))
        return rewriting.rewrite_file(order, complete, Log(events or Silence()))
