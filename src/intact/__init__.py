"""intact quantizes and compiles ONNX models for NPUs, and proves that nothing broke.

The names below are the public API. They load on first use, so that `import intact` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intact.errors import IntactError
    from intact.model.io import load, save
    from intact.pipeline.stages import build
    from intact.results import Build
    from intact.settings.config import BuildConfig, CompileConfig, QuantConfig, TensorOverride
    from intact.targets.registry import load_target
    from intact.targets.validate import validate

_HOMES = {
    "Build": "intact.results",
    "BuildConfig": "intact.settings.config",
    "CompileConfig": "intact.settings.config",
    "IntactError": "intact.errors",
    "QuantConfig": "intact.settings.config",
    "TensorOverride": "intact.settings.config",
    "build": "intact.search.mixed.cheapest",
    "load": "intact.model.io",
    "load_target": "intact.targets.registry",
    "save": "intact.model.io",
    "validate": "intact.targets.validate",
}

__all__ = [
    "Build",
    "BuildConfig",
    "CompileConfig",
    "IntactError",
    "QuantConfig",
    "TensorOverride",
    "build",
    "load",
    "load_target",
    "save",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
