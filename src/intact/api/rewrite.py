"""`intact.rewrite`: a quantized model in the form that a device takes, compared with what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Unpack

from intact.api.given_model import path_of
from intact.api.request import settled
from intact.errors import about
from intact.events import Events, Log, Silence
from intact.pipeline import model_files, preparation, rewriting
from intact.pipeline.rewriting import RewrittenFile
from intact.rules.quantized import families
from intact.settings.config import BuildConfig
from intact.settings.keywords import AnyPath, Keywords


def rewrite(
    model: AnyPath | None = None,
    *,
    output: AnyPath,
    rules: Literal["exact", "build", "near"] = "near",
    explain: str | None = None,
    config: BuildConfig | None = None,
    overwrite: bool = False,
    events: Events | None = None,
    **settings: Unpack[Keywords],
) -> RewrittenFile:
    """Rewrite a quantized model for a device into the file `output`, and run both to compare them.

    `rules` are those that change no integer (`exact`), those of a build, or also those that give a weight another grid
    (`near`), where each layer keeps 40 dB. `explain` names a node, or none (""): why rules fired there or did not.
    """
    with settled(config, settings) as complete, about(path_of(model)):
        model_files.check_output(Path(output), overwrite, path_of(model), complete)
        target = preparation.target_of(complete.compile)
        chosen = families.rules_for(target, families.Latitude(rules))
        names = {rule.name for rule in chosen}
        left_out = tuple(rule for rule in families.rules_for(target) if rule.name not in names)
        order = rewriting.RewriteOrder(path_of(model), Path(output), target, chosen, explain, left_out)
        return rewriting.rewrite_file(order, complete, Log(events or Silence()))
