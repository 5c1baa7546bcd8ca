"""`intact inspect`: what is in a model."""

from __future__ import annotations

from intact.cli import arguments
from intact.cli.options import MODEL, TALK, Flags, takes

NAME = "inspect"


@takes(MODEL, TALK)
def run(values: Flags) -> None:
    """Show a model's inputs, outputs, operators, size, and whether it is quantized.

    Example: intact inspect model.onnx
    """
    from dataclasses import asdict

    path = arguments.model_path(values)
    from intact.api.inspect import inspect
    from intact.cli import console, summary

    facts = inspect(path)
    if values["as_json"]:
        console.print_json(asdict(facts))
    else:
        summary.show_model(facts)
