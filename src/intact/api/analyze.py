"""`intact.analyze`: which nodes of a model a device takes, and why it refuses the others."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import onnx_ir as ir

from intact.api.request import requested
from intact.data.input_specs import UNFED
from intact.errors import DataError, ModelError, TargetError
from intact.events import Events, Log, Silence
from intact.model import shapes
from intact.pipeline import analysis, preparation, stages
from intact.results import Analysis
from intact.rules.quantized import families
from intact.runtime import ort_cpu
from intact.settings.config import BuildConfig
from intact.settings.keywords import AnyPath, Keywords
from intact.targets.registry import known_backends, load_target
from intact.targets.spec import Target

# Errors about inputs that cannot be made up, or that a model does not run with.
_UNFED = (ort_cpu.STOPPED, *UNFED)


def analyze(
    model: AnyPath | None = None,
    *,
    hf: str | None = None,
    live: bool = False,
    every_device: bool = False,
    config: BuildConfig | None = None,
    events: Events | None = None,
    **settings: Unpack[Keywords],
) -> list[Analysis]:
    """Tell where the nodes of a model would run on its device, or with `every_device` on each that is known.

    A float model is quantized first, with the settings that a build would use. `live` asks the vendor's library.
    """
    with requested(model, hf, config, settings, events) as given:
        if not every_device:
            return [_analyze(given.path, given.config, live, events)]
        return _on_each(given.path, given.config, live, events or Silence())


def _on_each(path: Path, config: BuildConfig, live: bool, events: Events) -> list[Analysis]:
    """The model on every device; one that cannot have it as it is, or its precision, is left out, and that is said."""
    found: list[Analysis] = []
    refusals: list[ModelError | TargetError] = []
    for name in _able(config, events):
        try:
            found.append(_analyze(path, _for_device(config, name), live, events))
        except (ModelError, TargetError) as refusal:
            refusals.append(refusal)
            events.warn(f"{name} is left out: {refusal.message}")
    if refusals and not found:
        raise refusals[0]
    return found


def _able(config: BuildConfig, events: Events) -> list[str]:
    """The devices that take the precision of `config`; of the others it is said that they are left out.

    Without one each device has the precision that is usual there.
    """
    targets = [load_target(name) for name in known_backends() if load_target(name).precisions]
    asked = {target.backend: config.precision or target.usual_precision for target in targets}
    for target in (target for target in targets if asked[target.backend] not in target.precisions):
        taken = ", ".join(target.precisions)
        events.warn(f"{target.backend} is left out: it takes {taken}, not {asked[target.backend]}")
    return [target.backend for target in targets if asked[target.backend] in target.precisions]


def _for_device(config: BuildConfig, device: str) -> BuildConfig:
    return config.model_copy(update={"compile": config.compile.model_copy(update={"device": device})})


def _analyze(path: Path, config: BuildConfig, live: bool, events: Events | None) -> Analysis:
    quantized, target = _quantized(path, config, events or Silence())
    model = families.rewrite(quantized, target).model
    shapes.infer_shapes(model)
    return analysis.analyze(model, target, config.compile if live else None)


def _quantized(path: Path, config: BuildConfig, events: Events) -> tuple[ir.Model, Target]:
    """The model in the types of a build; where no inputs can be made up for it, without measuring its ranges."""
    try:
        prepared = stages.prepare(path, config, Log(events))
    except (DataError, ModelError) as problem:
        given = config.test_path if config.quantization is None else config.quantization.load_path
        if given is not None or not (isinstance(problem, DataError) or problem.code in _UNFED):
            raise
        events.warn(f"ranges are assumed, not measured, which decides no type: {problem.message}")
        return preparation.prepare_unseen(path, config, Log(events))
    return prepared.model, prepared.target
