"""Versions of what takes part in a build."""

from __future__ import annotations

import platform
from importlib import metadata

from intact.errors import NotAvailable

# What each device needs installed beyond the core; other devices need nothing.
TOOLCHAINS = {"qnn": "onnxruntime-qnn", "openvino": "openvino"}
_CORE = ("intact", "numpy", "onnx", "onnx-ir", "onnxruntime")


def versions(device: str | None = None) -> dict[str, str]:
    """Versions of Python, of intact and what it stands on, and of the device's toolchain."""
    packages = [*_CORE, *([TOOLCHAINS[device]] if device in TOOLCHAINS else [])]
    found = {name: _version(name, device) for name in packages}
    return {"python": platform.python_version(), "platform": platform.platform(terse=True), **found}


def _version(package: str, device: str | None) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise NotAvailable(
            "E120", f"{package} is not installed", fix=f"pip install 'intact[{device}]'" if device else None
        ) from None
