"""The environment of a toolchain, made in the user's cache: whole and seen to work, or not at all.

A virtual environment holds its own path and cannot be made elsewhere and moved. So it is made in its place, under a
lock, and its record is written last: what has none is half of something, which nobody uses and the next one removes.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

from intact import scratch
from intact.errors import NotAvailable, ToolchainError
from intact.events import Events
from intact.runtime import process, toolchains
from intact.runtime.toolchains import Recipe, Toolchain, label

SECONDS_FOR_PIP = 3600.0
SECONDS_FOR_VENV = 300.0
SECONDS_TO_CHECK = 300.0
_LINES_SHOWN = 5

_FULL = re.compile(r"No space left on device|Disk quota exceeded|Errno 28|Errno 122")
_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|Max retries exceeded|ProxyError|ReadTimeout|ConnectTimeout|"
    r"Temporary failure in name resolution|Network is unreachable|Connection (refused|reset|broken|aborted)"
)
_ABSENT = re.compile(r"No matching distribution found for (\S+)")


def install(recipe: Recipe, version: str, python: str | None, events: Events) -> Toolchain:
    """Make the environment of one version of a toolchain, and see that it compiles an operator.

    `python` is the interpreter to make it with; without it, ours or the first on the path that the packages exist for.
    One that is there and whole stays as it is.
    """
    folder = toolchains.place(recipe, version)
    with _alone(recipe, version):
        if toolchains.is_whole(recipe, version, folder):
            events.note(f"{label(recipe.name, version)} is installed already: {folder}")
            return toolchains.at(recipe, folder, "the user's cache")
        base, running = _interpreter(recipe, python)
        _refuse_full_disk(recipe, folder.parent)
        events.note(f"{label(recipe.name, version)}: {folder}, with Python {running} ({base})")
        with _whole_or_gone(folder), events.stage(f"install {label(recipe.name, version)}", 4) as advance:
            return _made(recipe, version, base, advance)


def remove(recipe: Recipe, version: str) -> Path | None:
    """Delete the environment of one version of a toolchain, or half of one; None where there is nothing of ours."""
    folder = toolchains.place(recipe, version)
    with _alone(recipe, version):
        if not folder.is_dir():
            return None
        _delete(folder)
        return folder


def versions(recipe: Recipe) -> list[str]:
    """The versions of a toolchain that are whole in the user's cache."""
    found = [path for path in toolchains.home().glob(f"{recipe.name}@*") if path.is_dir()]
    named = [(path.name.partition("@")[2], path) for path in sorted(found)]
    return [version for version, path in named if toolchains.is_whole(recipe, version, path)]


def _made(recipe: Recipe, version: str, base: str, advance: Callable[[], None]) -> Toolchain:
    folder, pins = toolchains.place(recipe, version), recipe.pins(version)
    _run([base, "-m", "venv", str(folder)], folder, SECONDS_FOR_VENV, _no_venv)
    advance()
    pip = [str(toolchains.executable(folder)), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    # The pins are the whole set: nothing is built, nothing is added. Modules compile when they are first imported.
    plain = ["--no-deps", "--no-compile", "--only-binary", ":all:"]
    _run([*pip, "install", *plain, *pins], folder, SECONDS_FOR_PIP, _no_packages)
    advance()
    packages = _run([*pip, "freeze", "--all"], folder, SECONDS_FOR_VENV, _no_packages).splitlines()
    made = toolchains.at(recipe, folder, "the new environment")
    advance()
    check(recipe, made)
    record = {"name": recipe.name, "version": made.version, "requirements": pins, "packages": sorted(packages)}
    scratch.write_text(folder / toolchains.RECORD, json.dumps(record, indent=1) + "\n")
    advance()
    return made


def check(recipe: Recipe, made: Toolchain) -> None:
    """Compile one operator with a toolchain, in its environment; raises where that fails."""
    with scratch.folder("toolchain") as folder:
        model = folder / "relu.onnx"
        ir.save(_relu(), model)
        order = {"folder": str(folder), "model": str(model)}
        limit = process.default_memory_limit()
        try:
            process.call(recipe.check, order, timeout=SECONDS_TO_CHECK, memory_limit=limit, python=made.python)
        except ToolchainError as error:
            raise ToolchainError(
                "E166",
                f"{made.path}: its packages are there, but {recipe.package} {made.version} does not compile one "
                f"operator: {error.message}",
                fix=recipe.hint,
            ) from error


def _relu() -> ir.Model:
    kind = ir.TensorType(ir.DataType.FLOAT)
    x, y = (ir.Value(name=name, shape=ir.Shape((1, 4, 8, 8)), type=kind) for name in ("x", "y"))
    node = ir.Node("", "Relu", [x], outputs=[y], name="relu")
    return ir.Model(ir.Graph([x], [y], nodes=[node], opset_imports={"": 12}, name="check"), ir_version=8)


def _interpreter(recipe: Recipe, python: str | None) -> tuple[str, str]:
    """The interpreter to make an environment with, and its version."""
    others = [found for version in recipe.pythons if (found := shutil.which(f"python{version}"))]
    tried = {}
    for candidate in [python] if python is not None else [sys.executable, *others]:
        running = _python_version(candidate)
        if running is not None and _fits(recipe, running):
            return candidate, running
        tried[candidate] = f"{candidate} is Python {running}" if running else f"{candidate} is no Python that runs"
    allowed = toolchains.OURS if recipe.beside else " or ".join(recipe.pythons)
    why = ", the Python that intact runs in" if recipe.beside else ""
    raise NotAvailable(
        "E162",
        f"{recipe.package} needs another Python: {'; '.join(tried.values())}",
        allowed=f"Python {allowed}{why}",
        fix=f"intact toolchain install {recipe.name} --python python{allowed.split(' ')[0]}",
    )


def _fits(recipe: Recipe, running: str) -> bool:
    short = ".".join(running.split(".")[:2])
    return short == toolchains.OURS if recipe.beside else short in recipe.pythons


def _python_version(python: str) -> str | None:
    code = "import platform; print(platform.python_version())"
    try:
        told = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()


def _run(command: Sequence[str], folder: Path, seconds: float, refusal: Callable[[Path, str], ToolchainError]) -> str:
    """Run a command of the new environment and return its output; its failure is an error with its last words."""
    # What pip is to fetch from, and how, the user has set; what our interpreter imports from is not for another one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment, check=False)
    except subprocess.TimeoutExpired:
        raise refusal(folder, f"no end within {seconds:g} seconds") from None
    except OSError as problem:
        raise refusal(folder, str(problem)) from problem
    if told.returncode:
        raise refusal(folder, told.stdout + told.stderr)
    return told.stdout


def _no_venv(folder: Path, words: str) -> ToolchainError:
    if _FULL.search(words):
        return _disk_full(folder, None)
    return ToolchainError(
        "E168",
        f"{folder}: Python does not make a virtual environment:{_last(words)}",
        allowed="a Python whose modules venv and ensurepip are there",
        fix="install them (on Debian the package python3-venv), or name another Python with --python",
    )


def _no_packages(folder: Path, words: str) -> ToolchainError:
    """The error for what pip says: no room, no network, no such package for this Python and system, or anything."""
    if _FULL.search(words):
        return _disk_full(folder, None)
    if _NO_NETWORK.search(words):
        return ToolchainError(
            "E163",
            f"{folder}: pip reaches no index to fetch packages from:{_last(words)}",
            allowed="a network, or packages on this machine",
            fix="connect, or set PIP_NO_INDEX=1 and PIP_FIND_LINKS to a folder of the packages",
        )
    if absent := _ABSENT.search(words):
        return ToolchainError(
            "E169",
            f"{folder}: where pip looks there is no {absent[1]} for this Python and system",
            allowed="versions that the index has as wheels",
            fix="name another Python with --python, or another index to pip (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL)",
        )
    return ToolchainError("E165", f"{folder}: pip fails:{_last(words)}", fix="mend what pip says, and run it again")


def _last(words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith("ERROR")] or lines
    return "".join(f"\n  | {line[:400]}" for line in telling[-_LINES_SHOWN:])


def _refuse_full_disk(recipe: Recipe, folder: Path) -> None:
    if shutil.disk_usage(folder).free < recipe.bytes:
        raise _disk_full(folder, recipe.bytes)


def _disk_full(folder: Path, needed: int | None) -> ToolchainError:
    free = shutil.disk_usage(next(one for one in (folder, *folder.parents) if one.exists())).free
    return ToolchainError(
        "E164",
        f"{folder}: the disk is full ({free / 1e9:.1f} GB are free)",
        allowed=f"at least {needed / 1e9:.1f} GB" if needed else None,
        fix="make room, or move the cache with XDG_CACHE_HOME; pip also needs room in the temporary folder (TMPDIR)",
    )


@contextmanager
def _alone(recipe: Recipe, version: str) -> Iterator[None]:
    """Be the only process that makes or removes this environment."""
    home, name = toolchains.home(), label(recipe.name, version)
    try:
        home.mkdir(parents=True, exist_ok=True)
        with scratch.locked(home / f".{name}.lock") as ours:
            if not ours:
                raise ToolchainError(
                    "E167",
                    f"{home / name}: another process is making or removing it",
                    fix="wait for it, and run this again",
                )
            yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(home, None) from problem
        raise scratch.refusal(problem.filename or home, problem) from problem


@contextmanager
def _whole_or_gone(folder: Path) -> Iterator[None]:
    """Begin with nothing in the place of `folder`, and leave nothing there when the block fails or is interrupted."""
    _delete(folder)
    try:
        yield
    except BaseException:
        _delete(folder)
        raise


def _delete(folder: Path) -> None:
    """Delete an environment, its record first: from then on nobody takes it for a whole one."""
    (folder / toolchains.RECORD).unlink(missing_ok=True)
    if folder.is_dir():
        shutil.rmtree(folder)
