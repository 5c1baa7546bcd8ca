"""`intact verify`: models on the same inputs, and how far apart their outputs are."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from intact.cli import arguments
from intact.cli.options import GATES, IMAGES, TALK, TARGET, TEXT, Flags, Option, option, takes

NAME = "verify"
FILES = (
    Option(
        "models",
        list[Path],
        typer.Argument(help="Two or more models: the one to compare with, then those to check.", metavar="MODEL"),
    ),
    option("reference", "The model to compare with. [default: the first one]", Path | None, metavar="MODEL"),
)
INPUTS = (
    option("data", "Inputs: an .npz keyed by input name, a folder of images, or module:function."),
    option("test_data", "Inputs that are all for verification."),
)
SIMULATOR = tuple(one for one in TARGET if one.name in ("arch", "soc"))
SETTINGS = (INPUTS, SIMULATOR, IMAGES, TEXT, GATES)


@takes(FILES, *SETTINGS, TALK)
def run(values: Flags) -> None:
    """Compare the outputs of two or more models on the same inputs.

    For every output: SQNR (signal to noise, in dB; 40 is one part in a hundred), cosine, largest and mean error, and
    how often the best class is the same. With --labels also the accuracy of each model. The last line of each model
    is the tolerance that it would pass. The first line is the verdict; broken or failed ends with status 1.

    Of --data the rows are used that a build with the same flags would hold back, so that none was calibrated on.

    What a build deployed runs as that build ran it; another compiled (EPContext) model in the vendor's simulator of
    --arch; any other on the CPU without optimizations.

    Given the manifest.json of a build alone, its files are hashed again: one that was changed ends with status 1.

    Example: intact verify output/manifest.json

    Example: intact verify model.onnx output/model.qdq.onnx output/model.onnx --data inputs.npz --min-sqnr 30
    """
    config = arguments.settings(values, *SETTINGS)
    reference, *candidates = arguments.there(*_models(values))
    if not candidates and reference.suffix.lower() == ".json":
        _show_integrity(reference, values)
        return
    from intact.api import early

    early.check_files(config)
    early.refuse_alone(reference, candidates)
    from intact.api.verify import verify
    from intact.cli import comparison, console

    found = verify(reference, *candidates, config=config, events=console.Talk(quiet=values["quiet"]))
    if values["as_json"]:
        console.print_json(comparison.verification(found))
    elif not values["quiet"]:
        comparison.show_verification(found)
    console.refuse_failed(found.judged, found.gates)


def _show_integrity(path: Path, values: Flags) -> None:
    """Say which files of a build are as they were built, and which versions have changed."""
    from intact.api.verify import verify_manifest
    from intact.cli import console
    from intact.errors import GateFailed

    found = verify_manifest(path)
    if values["as_json"]:
        console.print_json({**asdict(found), "manifest": str(path)})
    elif not values["quiet"]:
        for file in found.files:
            console.say(f"{file.state}: {file.path}")
        for drift in found.drift:
            console.say(f"{drift.package} was {drift.then}, and is {drift.now or 'not installed'} here")
    if found.damaged:
        named = ", ".join(f"{file.path} ({file.state})" for file in found.damaged)
        raise GateFailed("G112", f"{path}: not as it was built: {named}", fix="build again, or copy the folder again")


def _models(values: Flags) -> list[Path]:
    """The reference and then the models to check."""
    given, reference = values["models"], values.get("reference")
    return list(given if reference is None else [reference, *(path for path in given if path != reference)])
