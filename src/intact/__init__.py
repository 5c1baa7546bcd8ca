"""intact quantizes and compiles ONNX models for NPUs, and proves that nothing broke.

The names below are the public API. They load on first use, so that `import intact` costs nothing.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from intact import late_imports

if TYPE_CHECKING:
    from intact.api.analyze import analyze
    from intact.api.build import build
    from intact.api.compile import compile
    from intact.api.convert import convert
    from intact.api.debug import debug
    from intact.api.doctor import doctor
    from intact.api.encodings import encodings
    from intact.api.explain import explain
    from intact.api.export import export
    from intact.api.init import init
    from intact.api.inspect import inspect
    from intact.api.lint import lint
    from intact.api.matrix import matrix
    from intact.api.perf import perf
    from intact.api.plan import plan
    from intact.api.probe import probe
    from intact.api.quantize import quantize
    from intact.api.report import report
    from intact.api.rewrite import rewrite
    from intact.api.schema import schema
    from intact.api.targets import list_targets
    from intact.api.toolchain import install_toolchain, list_toolchains, remove_toolchain
    from intact.api.verify import verify
    from intact.errors import IntactError
    from intact.model.io import load, save
    from intact.results import Build
    from intact.settings.config import BuildConfig, CompileConfig, QuantConfig, TensorOverride
    from intact.targets.registry import load_target
    from intact.targets.validate import validate

    __version__: str

# ONNX Runtime reports its use over the network and keeps an id in the temporary folder, unless this is set before it is
# first imported. Every module of this package comes after these lines, and child processes inherit them.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
late_imports.install()

# One function a command, in the file of its name.
_COMMANDS = (
    *("analyze", "build", "compile", "convert", "debug", "doctor", "encodings", "explain", "export", "init"),
    *("inspect", "lint", "matrix", "perf", "plan", "probe", "quantize", "report", "rewrite", "schema", "verify"),
)
_HOMES = {
    **{name: f"intact.api.{name}" for name in _COMMANDS},
    "Build": "intact.results",
    "BuildConfig": "intact.settings.config",
    "CompileConfig": "intact.settings.config",
    "IntactError": "intact.errors",
    "QuantConfig": "intact.settings.config",
    "TensorOverride": "intact.settings.config",
    # The room of tables has the name of the command.
    "list_targets": "intact.api.targets",
    # Three functions for one command, none of them with its name.
    **{f"{verb}_toolchain": "intact.api.toolchain" for verb in ("install", "remove")},
    "list_toolchains": "intact.api.toolchain",
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
    "__version__",
    "analyze",
    "build",
    "compile",
    "convert",
    "debug",
    "doctor",
    "encodings",
    "explain",
    "export",
    "init",
    "inspect",
    "install_toolchain",
    "lint",
    "list_targets",
    "list_toolchains",
    "load",
    "load_target",
    "matrix",
    "perf",
    "plan",
    "probe",
    "quantize",
    "remove_toolchain",
    "report",
    "rewrite",
    "save",
    "schema",
    "validate",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("intact")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    if home in sys.modules:
        return getattr(importlib.import_module(home), name)
    from intact.model.garbage_pause import importing

    with importing():
        return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
