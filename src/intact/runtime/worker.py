"""The child side of `runtime.process`: `python -m intact.runtime.worker [FOLDER]`.

FOLDER holds `order.json`; the worker calls the job that it names and leaves `answer.json` beside it. Without FOLDER it
stays for one order after another: each line of standard input names such a folder. Nobody reads standard output: the
vendor may print what it likes.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from intact.errors import IntactError


def main(folders: Iterable[str]) -> None:
    """Carry out the orders in these folders."""
    _die_with_parent()
    for folder in folders:
        _carry_out(Path(folder))
    # The answers are safe; the vendor's destructors, which are known to abort, need not run.
    os._exit(0)


def _carry_out(folder: Path) -> None:
    order = json.loads((folder / "order.json").read_text(encoding="utf-8"))
    _limit_memory(order["memory_limit"])
    answer = json.dumps(_answer(order["job"], order["request"]))
    sys.stdout.flush()
    sys.stderr.flush()
    (folder / "answer.part").write_text(answer, encoding="utf-8")
    (folder / "answer.part").rename(folder / "answer.json")


def _answer(job: str, request: dict[str, object]) -> dict[str, object]:
    module, _, function = job.partition(":")
    try:
        return {"result": getattr(importlib.import_module(module), function)(request)}
    except IntactError as error:
        fields = ("code", "message", "allowed", "source", "fix")
        return {"refusal": {"kind": type(error).__name__, **{field: getattr(error, field) for field in fields}}}
    except Exception as error:
        traceback.print_exc()
        return {"failure": f"{type(error).__name__}: {error}"}


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
    main(sys.argv[1:] or (line.rstrip("\n") for line in sys.stdin))
