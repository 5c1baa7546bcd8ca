"""Single model files: written once ONNX Runtime has loaded them, and the inputs that files are compared on."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from intact import data, scratch
from intact.errors import ModelError
from intact.events import Log
from intact.model import io
from intact.pipeline import input_files
from intact.pipeline.stamp import PRODUCER, stamped
from intact.reports import publish
from intact.runtime import loads
from intact.settings.config import BuildConfig, QuantConfig


def write_model(
    model: ir.Model,
    output: Path,
    given: Path,
    log: Log,
    *,
    foreign: bool = False,
    loader: loads.Loader | None = None,
) -> None:
    """Write a model to its place, once ONNX Runtime has loaded it in another process as an application would.

    That process may be a `loader` that is ready. Only a warning is due where ONNX Runtime does not load the model that
    was given, either, or refuses one that is for a `foreign` version of it.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with scratch.folder("model", output.parent) as folder:
        written = io.save(stamped(model), Path(folder, output.name))
        problem = loads.problems(written[0], loader=loader).get(written[0])
        if problem is not None and not foreign and not loads.problems(given):
            raise loads.refusal(output, problem)
        if problem is not None:
            log.warn(f"{output}: ONNX Runtime here does not load it: {problem}")
        for file in written:
            file.replace(output.parent / file.name)


def check_output(path: Path, overwrite: bool, given: Path, config: BuildConfig | None = None) -> None:
    """Refuse to write a model over a file that intact did not write, or over one that the call reads."""
    input_files.protect(path, config, given)
    publish.check_file(path, overwrite=overwrite, ours=not overwrite and is_ours(path))


def is_ours(path: Path) -> bool:
    """True if a file is a model that intact wrote."""
    try:
        return path.is_file() and io.load(path).producer_name == PRODUCER
    except ModelError:
        return False


def inputs_for_comparison(model: ir.Model, config: BuildConfig, log: Log) -> data.CalibrationAndTest:
    """The rows that model files are compared on: those that a build with the same settings would hold back."""
    quant = config.quantization or QuantConfig()
    inputs = data.load(
        model,
        quant.load_path,
        samples=quant.samples,
        test_source=config.test_path,
        reading=data.Reading(config.images, config.tokenizer),
    )
    # Nothing is calibrated here: where test inputs are given, the others do not matter.
    log.warn(*(inputs.warnings if config.test_path is None else inputs.test.source.warnings))
    return inputs
