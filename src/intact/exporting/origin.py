"""The origin of an exported model, as the file itself says: the record travels with the model."""

from __future__ import annotations

import json
from dataclasses import asdict

import onnx_ir as ir

from intact.errors import ModelError
from intact.results import Origin

KEY = "intact.origin"


def of_model(model: ir.Model) -> Origin | None:
    """The origin that a model states, or None if it was not exported by intact."""
    text = model.metadata_props.get(KEY)
    if text is None:
        return None
    try:
        return Origin(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise ModelError("M193", f"the metadata {KEY} is not what intact writes: {error}", fix="remove it") from None


def warnings(origin: Origin) -> tuple[str, ...]:
    """Warn of what nobody said about the model, so that it was taken for the usual."""
    task = f"{origin.name} names no known task, so it is exported for {origin.task}; --task says otherwise"
    scale = f"{origin.name} does not say how pixels are scaled; give --image-mean and --image-std as in training"
    return (() if origin.task_is_known else (task,)) + ((scale,) if origin.images == {} else ())


def marked(model: ir.Model, origin: Origin) -> ir.Model:
    """A copy of `model` that says where it came from."""
    result = model.clone()
    result.metadata_props[KEY] = json.dumps(asdict(origin), sort_keys=True)
    return result
