"""The placement of a model's nodes by the vendor's own library."""

from __future__ import annotations

import onnx_ir as ir

from intact.backends import installed
from intact.backends.base import Device
from intact.errors import NotAvailable
from intact.model import normalize
from intact.results import Placement
from intact.targets.spec import Target


def place_live(model: ir.Model, target: Target, *, timeout: float, toolchain: str | None = None) -> Placement:
    """Ask the library of `target` to take `model`: all of it if it can, otherwise with the rest on the CPU."""
    if not installed.is_backend(target.backend):
        raise NotAvailable("E131", f"{target.backend} has no library to ask here", fix="leave out --live")
    named = model.clone()
    normalize.name_nodes(named)
    return installed.find(target.backend).place(named, Device.of(target, timeout, toolchain=toolchain))
