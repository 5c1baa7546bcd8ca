"""The files that a call reads: none of them is ever written, replaced or moved."""

from __future__ import annotations

from pathlib import Path

from intact.errors import IntactError
from intact.model import context_binaries, io
from intact.reports import publish
from intact.settings.config import BuildConfig


def protect(output: Path, config: BuildConfig | None, *models: Path) -> None:
    """Refuse, before any work, an output in the place of a model, of what belongs to it, or of a file of `config`."""
    if publish.is_free(output):
        return  # nothing is there that could be lost
    settings = () if config is None else _named_by(config)
    publish.refuse_inputs(output, [*(file for model in models for file in _files_of(model)), *settings])


def digests(config: BuildConfig, model: Path) -> dict[str, str]:
    """The digest of each file that decides a build: the model with its weights, and those that settings name.

    Inputs have digests of their own, sample by sample.
    """
    quant = config.quantization
    named = [config.labels, *(() if quant is None else (quant.plan, quant.encodings)), config.compile.device]
    files = [*_files_of(model), *(Path(name) for name in named if name is not None)]
    return {str(number): io.sha256_of(file) for number, file in enumerate(files) if file.is_file()}


def _named_by(config: BuildConfig) -> tuple[Path, ...]:
    quant = config.quantization
    own = (config.test_path, config.labels, config.tokenizer)
    more = () if quant is None else (quant.load_path, quant.plan, quant.encodings)
    return tuple(Path(name) for name in (*own, *more) if name is not None)


def _files_of(model: Path) -> tuple[Path, ...]:
    """A model file with its weights and binaries; one that cannot be read alone, for whoever reads it to tell."""
    try:
        return (model, *io.files_of(model), *context_binaries.find(model, io.load(model)).values())
    except IntactError:
        return (model,)
