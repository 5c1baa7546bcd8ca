"""The child side of `runtime.process`: `python worker.py [FOLDER]`, or `python worker.py --import MODULE`.

FOLDER holds `order.json`; the worker calls the job that it names and leaves `answer.json` beside it. Without FOLDER it
stays for one order after another: each line of standard input names such a folder. It may import the MODULE that they
will need before the first of them comes. Nobody reads standard output: the vendor may print what it likes. This file
imports nothing of ours, so that the interpreter of a toolchain, which need not be as new as ours and has none of our
packages, can run it as it stands.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import signal
import sys
import traceback
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Modules by their files: a worker that stays keeps what they hold.
_LOADED: dict[str, types.ModuleType] = {}


def main(folders: Iterable[str], module: str | None = None) -> None:
    """Carry out the orders in these folders; import a module first."""
    _die_with_parent()
    _forget_own_folder()
    if module is not None:
        # The order that needs it tells why it cannot be imported.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    for folder in folders:
        _carry_out(Path(folder))
    # The answers are safe; the vendor's destructors, which are known to abort, need not run.
    os._exit(0)


def _carry_out(folder: Path) -> None:
    order = json.loads((folder / "order.json").read_text(encoding="utf-8"))
    _limit_memory(order["memory_limit"])
    answer = json.dumps(_answer(order))
    sys.stdout.flush()
    sys.stderr.flush()
    (folder / "answer.part").write_text(answer, encoding="utf-8")
    (folder / "answer.part").rename(folder / "answer.json")


def _answer(order: dict[str, Any]) -> dict[str, object]:
    try:
        return {"result": _job(order)(order["request"])}
    except Exception as error:
        if _is_ours(error):
            fields = ("code", "message", "allowed", "source", "fix")
            return {"refusal": {"kind": type(error).__name__, **{field: getattr(error, field) for field in fields}}}
        traceback.print_exc()
        return {"failure": f"{type(error).__name__}: {error}"}


def _job(order: dict[str, Any]) -> Any:
    """The function of an order: of a module, or of the `file` that is all that there is of ours in this interpreter."""
    module, _, function = order["job"].partition(":")
    if order["file"] is None:
        return getattr(importlib.import_module(module), function)
    if order["file"] not in _LOADED:
        spec = importlib.util.spec_from_file_location(module.rpartition(".")[2], order["file"])
        assert spec is not None and spec.loader is not None, f"{order['file']} is no Python file"
        _LOADED[order["file"]] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(_LOADED[order["file"]])
    return getattr(_LOADED[order["file"]], function)


def _is_ours(error: Exception) -> bool:
    """True for an IntactError: no job can raise one without having imported its class."""
    errors = sys.modules.get("intact.errors")
    return errors is not None and isinstance(error, errors.IntactError)


def _forget_own_folder() -> None:
    """Import nothing from beside this file: interpreters before 3.11 have no switch for that."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]


def _limit_memory(limit: int | None) -> None:
    if sys.platform == "win32" or not limit:
        return
    import resource

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))


def _die_with_parent() -> None:
    """Ask the kernel to end this process with the one that waits for it."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--import"]:
        main((line.rstrip("\n") for line in sys.stdin), sys.argv[2])
    main(sys.argv[1:] or (line.rstrip("\n") for line in sys.stdin))
