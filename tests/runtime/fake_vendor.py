"""A vendor's package as a wheel in a folder: toolchains are installed from it without a network."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from intact.runtime import toolchains
from intact.runtime.toolchains import Recipe

CODE = """
VERSION = {version!r}


def compiles(path):
    with open(path, "rb") as file:
        return b"Relu" in file.read()
"""
THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def wheel(folder: Path, version: str) -> Path:
    """Write the package `fake-vendor`, which says its version and knows a model with a Relu."""
    info = f"fake_vendor-{version}.dist-info"
    files = {
        "fake_vendor/__init__.py": CODE.format(version=version),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: fake-vendor\nVersion: {version}\nRequires-Dist: not-here\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    path = folder / f"fake_vendor-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return path


def environment(folder: Path, version: str, package: str = "fake-vendor") -> Path:
    """The files by which a virtual environment with a package is known, without the time that a real one takes."""
    packages = folder / ("Lib/site-packages" if sys.platform == "win32" else f"lib/python{THIS_PYTHON}/site-packages")
    info = packages / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: {package}\nVersion: {version}\n")
    toolchains.executable(folder).parent.mkdir(exist_ok=True)
    toolchains.executable(folder).touch()
    return packages


def recipe(**changes: object) -> Recipe:
    """The recipe of the fake vendor's toolchain."""
    usual = {
        "name": "fake",
        "package": "fake-vendor",
        "version": "1.0",
        "requirements": ("fake-vendor=={version}",),
        "check": "tests.runtime.toolchain_jobs:check",
        "pythons": (THIS_PYTHON,),
        "bytes": 1000,
        "hint": "ask the vendor",
    }
    return Recipe(**{**usual, **changes})
