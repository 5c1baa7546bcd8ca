"""`intact.quantize`: a float model in, a QDQ model out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack, cast

from intact.api.notebook_progress import watched
from intact.api.request import requested
from intact.errors import SettingsError
from intact.events import Events, Log, Silence
from intact.glimpse import Glimpse, Sight
from intact.model.garbage_pause import collected_by_stage
from intact.pipeline import checkpoints, model_files, stages
from intact.results import QuantizeFigures
from intact.runtime import cluster as clusters
from intact.runtime import loads
from intact.settings.config import BuildConfig
from intact.settings.keywords import AnyPath, Keywords


@dataclass(frozen=True, slots=True, repr=False)
class QuantizedFile(Glimpse):
    """A quantized model as it was written: for which target, with which settings, and the figures of the stage."""

    output: Path
    target: str
    config: BuildConfig
    nodes_quantized: int
    warnings: tuple[str, ...] = ()
    figures: Mapping[str, object] = field(default_factory=dict)

    def sight(self) -> Sight:
        """The file, its target, and how much of it is quantized."""
        figures = {"nodes quantized": str(self.nodes_quantized), "warnings": str(len(self.warnings))}
        return Sight(f"{self.output} for {self.target}", figures=figures)

    def to_dict(self) -> dict[str, object]:
        """The result for programs."""
        return {
            "output": str(self.output),
            "target": self.target,
            "config": self.config.to_dict(),
            "warnings": list(self.warnings),
            **self.figures,
        }


def quantize(
    model: AnyPath | None = None,
    *,
    output: AnyPath,
    hf: str | None = None,
    config: BuildConfig | None = None,
    overwrite: bool = False,
    cluster: str | None = None,
    resume: bool = False,
    events: Events | None = None,
    **settings: Unpack[Keywords],
) -> QuantizedFile:
    """Quantize a float model into the file `output`, with the stages of `build`, its `cluster` and its `resume`."""
    place = Path(output)
    events = watched(events)
    with clusters.used(cluster, place.parent, events), requested(model, hf, config, settings, events) as given:
        model_files.check_output(place, overwrite, given.path, given.config)
        log = Log(events or Silence())
        with (
            collected_by_stage(),
            loads.loader() as loader,
            checkpoints.kept(place if resume else None, log) as kept,
        ):
            prepared = stages.prepare(given.path, given.config, log, kept)
            if prepared.config.quantization is None:
                reason = prepared.source.quantized or f"--precision {prepared.config.precision} quantizes nothing"
                raise SettingsError(
                    "S114", f"{given.path}: nothing to do: {reason}", fix="use intact build or intact compile"
                )
            if prepared.unquantized is not None:
                raise prepared.unquantized
            model_files.write_model(prepared.model, place, given.path, log, loader=loader)
    figures = next(stage for stage in log.stages if stage.name == "quantize").details
    count = cast("QuantizeFigures", figures)["nodes_quantized"]
    return QuantizedFile(place, prepared.target.name, prepared.config, count, tuple(log.warnings), figures)
