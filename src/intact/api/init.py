"""`intact.init`: a settings file to begin with, every setting commented."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from intact import scratch
from intact.api.request import settled
from intact.pipeline import presets
from intact.reports import publish
from intact.settings import template
from intact.settings.config import BuildConfig
from intact.settings.keywords import AnyPath, Keywords


def init(
    *,
    output: AnyPath | None = None,
    config: BuildConfig | None = None,
    overwrite: bool = False,
    **settings: Unpack[Keywords],
) -> str:
    """The resolved settings as commented TOML, which `--config` reads; with `output`, written there too."""
    with settled(config, settings) as asked:
        text = template.commented(presets.resolve(asked), asked)
    if output is not None:
        place = Path(output)
        publish.check_file(place, overwrite=overwrite, ours=False)
        scratch.write_text(place, text)
    return text
