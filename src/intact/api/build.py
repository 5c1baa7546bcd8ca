"""`intact.build`: from a model to a verified model for a device."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from intact.api.request import requested
from intact.backends import lessons
from intact.events import Events
from intact.reports.junit import document as junit
from intact.results import Build
from intact.runtime import cluster as clusters
from intact.search.builds import build_any
from intact.settings.config import BuildConfig
from intact.settings.keywords import AnyPath, Keywords

__all__ = ["build", "junit"]


def build(
    model: AnyPath | None = None,
    *,
    output: AnyPath,
    hf: str | None = None,
    config: BuildConfig | None = None,
    overwrite: bool = False,
    learn: bool = False,
    cluster: str | None = None,
    resume: bool = False,
    events: Events | None = None,
    **settings: Unpack[Keywords],
) -> Build:
    """Quantize, compile and verify a model for a device: the whole pipeline.

    `model` is an ONNX file, or `hf` names a Hugging Face model. Settings are keyword arguments by the names of the
    flags of `intact build`, over a `BuildConfig` if one is given; `data` may also be arrays by input name, or a
    function that gives samples. With `cluster` (tcp://HOST:PORT, ray://HOST:PORT, local or local:N) calibration runs
    on its workers, with the same result; they have to see the model, the data and the place of `output`. With
    `resume`, finished stages are kept beside `output` until the build ends well, and one that died goes on from them:
    with the same model, data, settings and versions. With `learn`, forms that earlier builds found for what the
    compiler gets wrong are taken at once, and what this build finds is kept for later ones, in a file among the user's
    settings. The folder `output` appears whole or not at all. The result's `verdict` is one word, its `passed` says
    whether anything forbids deployment::

        built = intact.build("model.onnx", device="qnn", precision="uint8", data="inputs.npz", output="output")
        assert built.passed, built.verdict_reasons
    """
    place, learnt = Path(output), (lessons.default_place() if learn else None)
    with clusters.used(cluster, place.parent, events), requested(model, hf, config, settings, events) as given:
        return build_any(
            given.path, given.config, place, overwrite=overwrite, resume=resume, learnt=learnt, events=events
        )
