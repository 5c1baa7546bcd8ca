"""`intact inspect`: what is in a model."""

from __future__ import annotations

from typing import Any

from intact.cli import arguments
from intact.cli.options import MODEL, TALK, takes

NAME = "inspect"


@takes(MODEL, TALK)
def run(values: dict[str, Any]) -> None:
    """Show a model's inputs, outputs, operators, size, and whether it is quantized.

    Example: intact inspect model.onnx
    """
    from intact.api.inspect import inspect
    from intact.cli import console, summary

    facts = inspect(arguments.model_path(values))
    if values["as_json"]:
        console.print_json(facts)
    else:
        summary.show_model(facts)
