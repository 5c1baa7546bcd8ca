"""The beginning of every function of the API: the model as a file, and keyword arguments as settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path
from typing import cast

from intact import scratch
from intact.api.given_model import path_of, refuse_two
from intact.data import lent, text
from intact.errors import about
from intact.events import Events, Log, Silence
from intact.exporting import huggingface
from intact.records import dataclass
from intact.reports.publish import refuse_inputs as refuse_inputs
from intact.results import Origin
from intact.settings.config import BuildConfig, merge
from intact.settings.keywords import AnyPath, configured

_INPUTS = ("data", "test_data")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file to work on, and the settings for it."""

    path: Path
    config: BuildConfig


@contextmanager
def settled(config: BuildConfig | None, keywords: Mapping[str, object]) -> Iterator[BuildConfig]:
    """The settings of a call; inputs that it holds in memory are lent for as long as the block lasts."""
    with ExitStack() as stack:
        values = dict(keywords)
        for name in _INPUTS:
            held = values.get(name)
            if held is not None and not isinstance(held, str | PathLike):
                values[name] = stack.enter_context(lent.lend(f"<{name}>", cast("lent.Held", held)))
        yield configured(config, values)


@contextmanager
def requested(
    model: AnyPath | None,
    hf: str | None,
    config: BuildConfig | None,
    keywords: Mapping[str, object],
    events: Events | None,
) -> Iterator[ModelFile]:
    """The model that a call is about as a file, with its settings: the one given, or a Hugging Face model, exported."""
    with settled(config, keywords) as settings:
        if hf is None:
            path = path_of(model, settings)
            with about(path):
                yield ModelFile(path, settings)
            return
        refuse_two(model, hf)
        with exported(hf, settings, events) as given:
            yield given


@contextmanager
def exported(name: str, config: BuildConfig, events: Events | None = None) -> Iterator[ModelFile]:
    """The Hugging Face model `name` as an ONNX file that is there until the block ends.

    Text is turned into inputs by its own tokenizer, and pixels are scaled as its own image processor says, unless
    the settings say otherwise.
    """
    with scratch.folder("export") as folder:
        path = Path(folder, "model.onnx")
        found = export_to(name, config, path, Log(events or Silence()))
        with about(name):
            yield ModelFile(path, _as_trained(config, found))


def export_to(name: str, config: BuildConfig, output: Path, log: Log) -> Origin:
    """Export a Hugging Face model into a file, and say how far it is from torch."""
    with log.stage("export"):
        size, timeout = config.images.size, config.compile.timeout
        found = huggingface.export(name, output, config.export, image_size=size, timeout=timeout)
    distance = "identical to torch" if found.sqnr_db is None else f"{found.sqnr_db:.1f} dB from torch"
    log.events.note(f"{name} exported as {found.architecture} for {found.task}: {distance}")
    return found


def _as_trained(config: BuildConfig, found: Origin) -> BuildConfig:
    """`config` with the preparation of inputs that the model came with, under what the user set."""
    asked = config.model_dump(mode="json", exclude_unset=True)
    # The size of images is that of the exported model's input now.
    asked.get("images", {}).pop("size", None)
    quant = config.quantization
    sources = (config.test_path, None if quant is None else quant.load_path)
    paths = [Path(source) for source in sources if source is not None]
    usual: dict[str, object] = {}
    if any(path.suffix.lower() == text.SUFFIX for path in paths):
        usual["tokenizer"] = found.name
    if any(path.is_dir() for path in paths):
        usual["images"] = dict(found.images or {})
    return BuildConfig.from_dict(merge(usual, asked))
