"""A virtual environment for each tool, made once, with pinned versions, and its size and loading time.

Packages that bring CUDA are not installed: the comparison is about a CPU. torch from PyPI does on Linux; its builds for
the CPU have an index of their own, which pip is told of by PIP_EXTRA_INDEX_URL.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.peers.tools import ROOT_PACKAGE, Package

ROOT = Path(__file__).resolve().parents[2]
# What makes an installation one for GPUs.
CUDA = re.compile(r"nvidia-(?!modelopt)|cupy-|onnxruntime-gpu|triton$")
MOST_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment that was made, or pip's words on why it was not."""

    package: str
    requires: tuple[str, ...]
    versions: dict[str, str]
    installed_bytes: int
    error: str

    @property
    def usable(self) -> bool:
        """True if the tool can be run."""
        return not self.error


class NotInstallable(Exception):
    """A package that cannot be installed here, in pip's words."""


def python_of(folder: Path, package: str) -> Path:
    """The interpreter of an environment."""
    return folder / package / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def made(folder: Path, package: Package, *, retry: bool = False) -> Environment:
    """The environment of a package under `folder`: as it was made before with the same requirements, or anew."""
    note = folder / f"{package.name}.json"
    if note.exists():
        known = Environment(**{**json.loads(note.read_text(encoding="utf-8")), "requires": package.requires})
        same = json.loads(note.read_text(encoding="utf-8"))["requires"] == list(package.requires)
        if same and (known.usable or not retry):
            return known
    found = _make(folder, package)
    note.write_text(json.dumps(asdict(found), indent=1), encoding="utf-8")
    return found


def _make(folder: Path, package: Package) -> Environment:
    home = folder / package.name
    shutil.rmtree(home, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    python = python_of(folder, package.name)
    try:
        _said([sys.executable, "-m", "venv", str(home)])
        bare = _bytes_below(home)
        wanted = _wanted(package)
        _refuse_cuda(python, wanted)
        _said([str(python), "-m", "pip", "install", "--quiet", "--prefer-binary", *wanted])
        _said([str(python), "-c", package.loads])
    except NotInstallable as error:
        shutil.rmtree(home, ignore_errors=True)
        return Environment(package.name, package.requires, {}, 0, str(error))
    size = _bytes_below(home) - bare + (_bytes_below(ROOT / "src/intact") if package.name == ROOT_PACKAGE else 0)
    return Environment(package.name, package.requires, _versions(python), size, "")


def _wanted(package: Package) -> list[str]:
    """The arguments of pip: of intact, this checkout as it stands, so that a change needs no new environment."""
    return ["--editable", str(ROOT)] if package.name == ROOT_PACKAGE else list(package.requires)


def _refuse_cuda(python: Path, wanted: list[str]) -> None:
    report = python.parents[1] / "wanted.json"
    dry = ["--dry-run", "--quiet", "--prefer-binary", "--report", str(report)]
    _said([str(python), "-m", "pip", "install", *dry, *wanted])
    planned = [item["metadata"]["name"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]
    report.unlink()
    found = sorted(name for name in planned if CUDA.match(name.lower()))
    if found:
        raise NotInstallable(f"needs CUDA: it would install {', '.join(found)}")


def _said(command: list[str]) -> str:
    """What a command prints; its last words as an error where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_SECONDS, check=False, env=clean())
    if done.returncode:
        raise NotInstallable(_last_words(done.stderr or done.stdout))
    return done.stdout


def _last_words(text: str) -> str:
    """The error that pip or Python ends with, without what it says about the way there."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    errors = [line for line in lines if line.startswith(("ERROR:", "error:"))]
    return " ".join(errors or lines[-1:])[:400]


def clean() -> dict[str, str]:
    """The surroundings of a tool: nothing of ours on its path, and compiled modules kept."""
    left = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS", "VIRTUAL_ENV"}
    return {name: value for name, value in os.environ.items() if name not in left}


def _versions(python: Path) -> dict[str, str]:
    listed = json.loads(_said([str(python), "-m", "pip", "list", "--format", "json"]))
    return {item["name"].lower(): item["version"] for item in listed}


def _bytes_below(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
